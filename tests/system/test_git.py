"""The one way in which git is called, and repositories written by hand."""

from __future__ import annotations

import os
import socket
import subprocess
import threading

import pytest

from needs import need_program
from sources.yard import repository, sh
from workstead.errors import CloneFailed, NotARepository, TimedOut, ToolFailed, ToolMissing
from workstead.system.git import repository as repositories
from workstead.system.git import runner as git_code
from workstead.system.git.repository import Limits
from workstead.system.git.runner import Git, find_git, scrub, tail_of


@pytest.fixture(autouse=True)
def _git() -> None:
    need_program("git")


@pytest.fixture
def state(tmp_path: object) -> str:
    path = f"{tmp_path}/state"
    os.mkdir(path)
    return path


def _git_at(state: str, **changes: object) -> Git:
    return Git(state=state, config={}, timeout_seconds=20.0).replace(**changes)


# -- the runner --------------------------------------------------------------------------------------------------------


def test_the_environment_is_made_from_nothing(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/somewhere")
    monkeypatch.setenv("GIT_SSH_COMMAND", "evil")
    monkeypatch.setenv("LD_PRELOAD", "")
    environment = _git_at(state).environment()
    assert not {"GIT_DIR", "GIT_SSH_COMMAND", "LD_PRELOAD"} & set(environment)
    assert environment["GIT_ALLOW_PROTOCOL"] == ""
    assert os.listdir(environment["HOME"]) == []


def test_git_is_found_only_where_the_system_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    with open(f"{tmp_path}/git", "w") as file:
        file.write("#!/bin/sh\n")
    os.chmod(f"{tmp_path}/git", 0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_git() != f"{tmp_path}/git"
    monkeypatch.setattr(git_code, "_PATH", "/nonexistent")
    with pytest.raises(ToolMissing) as caught:
        find_git()
    assert "install" in caught.value.hint


def test_a_failure_carries_gits_last_lines(state: str) -> None:
    with pytest.raises(ToolFailed) as caught:
        _git_at(state).run("rev-parse", "--verify", "nothing", git_dir="/nonexistent")
    assert caught.value.details["exit_code"] == 128
    assert "fatal" in str(caught.value.details["lines"])
    with pytest.raises(CloneFailed):
        _git_at(state, failure=CloneFailed).run("rev-parse", "x", git_dir="/nonexistent")


def test_time_runs_out_and_nothing_is_left_running(state: str) -> None:
    before = _children()
    with socket.create_server(("127.0.0.1", 0)) as server:  # it listens and never answers
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        slow = _git_at(state, timeout_seconds=0.5, protocols="http", config={"protocol.http.allow": "always"})
        with pytest.raises(TimedOut):
            slow.run("ls-remote", "--", url)
    assert _children() <= before


def _children() -> set[str]:
    """Children of this thread; a fixture of other tests may have some too."""
    with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
        return set(file.read().split())


def test_endless_output_is_cut_off(state: str, tmp_path: object) -> None:
    before = _children()
    path = f"{tmp_path}/r"
    repository(path)
    with open(f"{path}/big", "w") as file:
        file.write("x" * 3_000_000)
    sh("git add -A && git commit -qm big", path)
    with pytest.raises(ToolFailed, match="more than"):
        _git_at(state).run("cat-file", "blob", "HEAD:big", git_dir=f"{path}/.git", max_bytes=1 << 20)
    assert _children() <= before


def test_another_protocol_is_refused_and_would_run_a_program_otherwise(state: str, tmp_path: object) -> None:
    attack = f"ext::sh -c touch% {tmp_path}/pwned"
    with pytest.raises(ToolFailed):
        _git_at(state).run("ls-remote", "--", attack)
    assert not os.path.exists(f"{tmp_path}/pwned")
    # The twin: without the guard it fires.
    environment = {**_git_at(state).environment(), "GIT_ALLOW_PROTOCOL": "ext"}
    subprocess.run([find_git(), "ls-remote", attack], env=environment, cwd=state, check=False, capture_output=True)
    assert os.path.exists(f"{tmp_path}/pwned")


def test_a_hook_in_a_repository_does_not_run(state: str, tmp_path: object) -> None:
    path = f"{tmp_path}/r"
    commit = repository(path)
    os.makedirs(f"{path}/.git/hooks", exist_ok=True)
    with open(f"{path}/.git/hooks/reference-transaction", "w") as file:
        file.write(f"#!/bin/sh\ntouch {tmp_path}/pwned\n")
    os.chmod(f"{path}/.git/hooks/reference-transaction", 0o755)
    _git_at(state).run("update-ref", "refs/heads/x", commit, git_dir=f"{path}/.git")
    assert not os.path.exists(f"{tmp_path}/pwned")
    sh("git update-ref refs/heads/y HEAD", path)  # the twin
    assert os.path.exists(f"{tmp_path}/pwned")


def test_secrets_are_taken_out_of_messages() -> None:
    assert scrub("fatal: https://me:secret@h/p and ssh://git@h/x") == "fatal: https://h/p and ssh://h/x"
    assert tail_of(b"Receiving 1%\rReceiving 2%\rdone\nfatal: x://u:p@h/\n") == ["fatal: x://h/"]


# -- checking out ------------------------------------------------------------------------------------------------------


def _check_out(state: str, path: str, commit: str) -> tuple[str, repositories.Checkout]:
    target = f"{state}/tree"
    os.mkdir(target)
    done = repositories.checkout(_git_at(state), f"{path}/.git", commit, target, seconds=1_600_000_000, limits=Limits())
    return target, done


def test_a_checkout_is_what_git_would_write(state: str, tmp_path: object) -> None:
    path = f"{tmp_path}/r"
    repository(path, files=30)
    os.chmod(f"{path}/src/f1.py", 0o755)
    for name in (b"new\nline", b"\xff\xfe", b"sp ace", b"-rf"):
        with open(os.fsencode(path) + b"/src/" + name, "wb") as file:
            file.write(name)
    os.symlink("/etc/passwd", f"{path}/src/out")
    os.makedirs(f"{path}/a/very/deep/place")
    with open(f"{path}/a/very/deep/place/" + "n" * 200, "w") as file:
        file.write("x" * 100_000)
    commit = sh("git add -A && git commit -qm more && git rev-parse HEAD", path).strip()
    target, done = _check_out(state, path, commit)
    plain = f"{tmp_path}/plain"
    sh(f"git clone -q . {plain} && rm -rf {plain}/.git", path)
    from sources.yard import listing

    assert listing(target, times=False) == listing(plain, times=False)
    assert {os.lstat(f"{target}/{name}").st_mtime for name in ("README", "link", "src", "a/very")} == {1_600_000_000}
    with open(f"{state}/index", "wb") as file:
        file.write(done.index)
    git = f"git --git-dir={path}/.git --work-tree={target} -c core.checkStat=minimal -c core.trustctime=false"
    assert sh(f"GIT_INDEX_FILE={state}/index {git} status --porcelain", target) == ""
    assert sh(f"GIT_INDEX_FILE={state}/index {git} diff-files --raw", target) == ""


def test_line_ends_and_encodings_are_as_attributes_say(state: str, tmp_path: object) -> None:
    path = f"{tmp_path}/r"
    os.mkdir(path)
    with open(f"{path}/.gitattributes", "w") as file:
        file.write(
            "*.bat text eol=crlf\n*.txt text=auto eol=crlf\n*.u16 text working-tree-encoding=UTF-16LE\nraw.bat -text\n"
        )
    for name, content in {
        "a.bat": b"1\r\n2\r\n",
        "b.txt": b"x\r\n",
        "c.txt": b"\0\n",
        "d.u16": "hé\n".encode("utf-16-le"),
        "raw.bat": b"1\n",
    }.items():
        with open(f"{path}/{name}", "wb") as file:
            file.write(content)
    commit = sh("git init -q . && git add -A && git commit -qm x && git rev-parse HEAD", path).strip()
    target, _ = _check_out(state, path, commit)
    plain = f"{tmp_path}/plain"
    sh(f"git clone -q . {plain} && rm -rf {plain}/.git", path)
    from sources.yard import listing

    assert listing(target, times=False) == listing(plain, times=False)


@pytest.mark.parametrize("name", [b".git/hooks/post-checkout", b"a/.GIT/config", b"../out", b"a/../../out"])
def test_forbidden_names_in_a_tree_are_refused(name: bytes) -> None:
    with pytest.raises(CloneFailed, match="forbidden"):
        repositories._check_name(name)


def test_a_tree_with_a_link_and_a_directory_of_one_name_writes_nothing_outside(state: str, tmp_path: object) -> None:
    """A crafted tree: `x` is a link to outside and also a directory with a file."""
    path = f"{tmp_path}/r"
    repository(path)
    outside = f"{tmp_path}/outside"
    os.mkdir(outside)

    def write(kind: str, content: bytes) -> str:
        run = [find_git(), "hash-object", "-t", kind, "-w", "--stdin", "--literally"]
        return subprocess.run(run, cwd=path, input=content, capture_output=True, check=True).stdout.decode().strip()

    link = write("blob", outside.encode())
    inner = write("blob", b"pwned")
    tree = write("tree", b"100644 f\0" + bytes.fromhex(inner))
    top = write("tree", b"120000 x\0" + bytes.fromhex(link) + b"40000 x\0" + bytes.fromhex(tree))
    commit = write("commit", f"tree {top}\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nx\n".encode())
    target, _ = _check_out(state, path, commit)  # git's index has room for one of the two
    assert os.listdir(outside) == []
    entries = [
        repositories.Entry(name=b"y", mode=0o120000, id=link, at=0),
        repositories.Entry(name=b"y/f", mode=0o100644, id=inner, at=0),
    ]
    with pytest.raises(FileExistsError):  # and if it had room for both, links come last
        repositories._write_files(_git_at(state), f"{path}/.git", entries, target, {}, 1, None)
    assert os.listdir(outside) == []


def test_filters_and_programs_of_a_repository_do_not_run(state: str, tmp_path: object) -> None:
    path = f"{tmp_path}/r"
    repository(path)
    with open(f"{path}/.gitattributes", "w") as file:
        file.write("* filter=evil text eol=crlf\n")
    commit = sh("git add -A && git commit -qm x && git rev-parse HEAD", path).strip()
    sh(f"git config filter.evil.smudge 'touch {tmp_path}/pwned; cat'", path)
    _check_out(state, path, commit)
    assert not os.path.exists(f"{tmp_path}/pwned")
    sh("rm README && git checkout README", path)  # the twin
    assert os.path.exists(f"{tmp_path}/pwned")


# -- looking at repositories -------------------------------------------------------------------------------------------


def test_head_is_read_without_git(tmp_path: object) -> None:
    path = f"{tmp_path}/r"
    commit = repository(path)
    found = repositories.find_repository(path)
    assert found is not None
    assert repositories.is_plain(found)
    assert repositories.head_of(found) == ("main", commit)
    sh("git pack-refs --all", path)
    assert repositories.head_of(found) == ("main", commit)
    sh("git checkout -q --detach", path)
    assert repositories.head_of(found) == (None, commit)
    assert repositories.find_repository(str(tmp_path)) is None


def test_where_a_repository_really_is(tmp_path: object) -> None:
    path = f"{tmp_path}/r"
    repository(path)
    sh("git worktree add -q ../w dev", path)
    linked = repositories.find_repository(f"{tmp_path}/w")
    assert linked is not None
    assert not repositories.is_plain(linked)
    assert (linked.common, os.path.basename(linked.git_dir)) == (f"{path}/.git", "w")
    assert repositories.head_of(linked)[0] == "dev"
    os.mkdir(f"{tmp_path}/l")
    os.symlink(f"{path}/.git", f"{tmp_path}/l/.git")
    with pytest.raises(NotARepository, match="symbolic link"):
        repositories.find_repository(f"{tmp_path}/l")


def test_the_fingerprint_follows_branches_and_not_looking(tmp_path: object) -> None:
    path = f"{tmp_path}/r"
    repository(path)
    found = repositories.find_repository(path)
    assert found is not None
    before = repositories.fingerprint(found)
    sh("git status && git log", path)
    assert repositories.fingerprint(found) == before
    seen = {before}
    for command in ("git branch new", "git commit -q --allow-empty -m x", "git checkout -q dev", "git branch -D new"):
        sh(command, path)
        now = repositories.fingerprint(found)
        assert now not in seen, command
        seen.add(now)


def test_borrowed_objects_are_found_through_every_link(tmp_path: object) -> None:
    path = f"{tmp_path}/r"
    repository(path)
    sh(f"git clone -q --shared . {tmp_path}/b && git clone -q --shared {tmp_path}/b {tmp_path}/c", path)
    assert repositories.alternates_of(f"{tmp_path}/c/.git/objects") == [
        f"{tmp_path}/b/.git/objects",
        f"{path}/.git/objects",
    ]


def test_values_in_a_config_are_quoted(tmp_path: object) -> None:
    name = 'A "quoted" \\ name # with ; all\nthings'
    path = f"{tmp_path}/config"
    with open(path, "w") as file:
        file.write(repositories.identity_config((name, "e@x")))
    assert sh(f"git config -f {path} -z user.name", "/").rstrip("\0") == name
