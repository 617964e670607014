"""Workspaces from repositories, folders and work trees, as the verbs and the command make them."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import workstead
from cli.aw_command import PROGRAM, Aw
from needs import need, need_program, need_root
from situations import check_whole, names_in
from sources.git_server import GitServer, serving
from sources.lfs_server import POINTER, large_repository
from sources.yard import listing, remove, repository, sh
from workstead.errors import (
    CloneFailed,
    FolderNotFound,
    FolderNotReadable,
    InvalidSource,
    NotADirectory,
    NotARepository,
    OriginMoved,
    PolicyDenied,
    ToolMissing,
    Unavailable,
)
from workstead.local import Local
from workstead.settings import Settings


@pytest.fixture(autouse=True)
def _needs() -> None:
    need_program("git")
    need_root()


@pytest.fixture
def origin(tmp_path: Path) -> str:
    """A repository with two commits on main and one on dev."""
    path = str(tmp_path / "origin")
    repository(path)
    return path


@pytest.fixture
def server(tmp_path: Path, origin: str) -> Iterator[GitServer]:
    with serving(str(tmp_path)) as state:
        yield state


def opened(home_path: str, settings: Settings, **git: object) -> Local:
    return workstead.open(home_path, settings=settings.replace(git=settings.git.replace(**git)))


def told(workspaces: Local, id: str, command: str) -> str:
    """What a command prints that an agent runs in the workspace, and that it went well."""
    run = workspaces.wait(workspaces.run(id, ["sh", "-c", command]).id)
    said = b"".join(chunk for _, _, chunk in workspaces.output(run.id)).decode()
    assert run.exit_code == 0, said
    return said


# -- clone: ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shallow", [True, False])
def test_the_history_is_as_deep_as_the_settings_say(
    home_path: str, settings: Settings, origin: str, shallow: bool
) -> None:
    with opened(home_path, settings, shallow=shallow) as workspaces:
        desk = workspaces.create(f"clone:{origin}", id="t/a", config={"git_config": {"user_name": "Ada"}})
        assert told(workspaces, desk.id, "git log --format=%s").split() == (["two"] if shallow else ["two", "one"])
        assert told(workspaces, desk.id, "git status --porcelain; git config user.name") == "Ada\n"
        assert workspaces.diff(desk.id).changes == ()


def test_branches_and_commits(home_path: str, settings: Settings, origin: str) -> None:
    first = sh("git rev-parse dev", origin).strip()
    with opened(home_path, settings) as workspaces:
        workspaces.create(f"clone:{origin}", id="t/default")
        workspaces.create(f"clone:{origin}#dev", id="t/branch")
        workspaces.create(f"{origin}/../origin#{first}".replace(origin, f"file://{origin}"), id="t/commit")
        assert told(workspaces, "t/default", "git rev-parse --abbrev-ref HEAD") == "main\n"
        assert told(workspaces, "t/branch", "git rev-parse --abbrev-ref HEAD HEAD") == "dev\ndev\n"
        assert told(workspaces, "t/commit", "git rev-parse --abbrev-ref HEAD; git rev-parse HEAD").split() == [
            "HEAD",
            first,
        ]
    with opened(home_path, settings, default_branch="dev") as workspaces:
        workspaces.create(f"clone:{origin}", id="t/set")
        assert told(workspaces, "t/set", "git rev-parse --abbrev-ref HEAD") == "dev\n"
        workspaces.create(f"clone:{origin}#main", id="t/said")
        assert told(workspaces, "t/said", "git rev-parse --abbrev-ref HEAD") == "main\n"


def test_a_relative_path_is_relative_to_where_the_caller_is(
    workspaces: Local, origin: str, monkeypatch: pytest.MonkeyPatch, home_path: str, settings: Settings
) -> None:
    monkeypatch.chdir(os.path.dirname(origin))
    with workstead.open(home_path, settings=settings) as here:
        assert here.create("clone:origin").filled["origin"]["url"] == f"file://{origin}"  # type: ignore[index]
        assert here.create("origin").source == f"overlay:{origin}"


def test_a_failed_clone_leaves_an_empty_workspace_that_says_what_it_was_to_be(
    workspaces: Local, origin: str, home_path: str
) -> None:
    with pytest.raises(CloneFailed, match="no branch nothing") as caught:
        workspaces.create(f"clone:{origin}#nothing", id="t/a", config={"prompt": "do it"})
    assert caught.value.as_dict()["error"]["code"] == "clone_failed"  # type: ignore[index]
    desk = workspaces.get("t/a")
    assert (desk.state, desk.filled) == ("failed", {})
    assert "no branch nothing" in desk.reason
    assert names_in(desk.path) == [".aw", "output", "tmp"]
    assert '"prompt": "do it"' in Path(desk.path, ".aw", "run.json").read_text()
    failed = [event.event_data for event in workspaces.events(types=("workspace_create_failed",))]
    assert [(each["code"], each["kept"]) for each in failed] == [("clone_failed", True)]
    with pytest.raises(workstead.errors.Conflict):
        workspaces.run(desk.id, ["true"])
    with pytest.raises(workstead.errors.Conflict, match="is failed"):
        workspaces.fork(desk.id)
    workspaces.destroy(desk.id)
    workspaces.undo()
    assert workspaces.get("t/a").state == "failed"
    workspaces.destroy("t/a")
    workspaces.create(f"clone:{origin}", id="t/a")  # the id is free again
    workspaces.repair()
    assert workspaces.repair() == []
    check_whole(workspaces, home_path)


def test_git_s_last_lines_say_why(home_path: str, settings: Settings, server: GitServer) -> None:
    with opened(home_path, settings, private_hosts=["127.0.0.1"]) as workspaces:
        with pytest.raises(CloneFailed) as caught:
            workspaces.create(f"clone:{server.url('nothing')}", id="t/a")
        assert "not found" in str(caught.value.details["lines"])
        assert workspaces.get("t/a").state == "failed"


def test_hosts_that_are_private_and_ssh_are_for_the_settings_to_allow(
    home_path: str, settings: Settings, server: GitServer
) -> None:
    url = server.url("origin/.git")
    with opened(home_path, settings) as workspaces:
        with pytest.raises(InvalidSource, match="http is not encrypted"):
            workspaces.create(url, id="t/a")
        with pytest.raises(PolicyDenied, match="not a public address"):
            workspaces.create("https://127.0.0.1/x", id="t/a")
        with pytest.raises(PolicyDenied, match="ssh is not allowed"):
            workspaces.create("git@127.0.0.1:x/y", id="t/a")
        assert workspaces.list() == []  # a source that is refused was never begun
    with opened(home_path, settings, private_hosts=["127.0.0.1"], allow_ssh=True) as workspaces:
        assert told(workspaces, workspaces.create(url, id="t/a").id, "cat README") == "read me\n"
        with pytest.raises(CloneFailed):  # it was tried
            workspaces.create("ssh://git@127.0.0.1:1/x/y", id="t/b")


def test_submodules_and_lfs_are_for_the_settings_too(home_path: str, settings: Settings, origin: str) -> None:
    inner = f"{origin}-inner"
    repository(inner)
    Path(origin, ".gitattributes").write_text("*.bin filter=lfs\n")
    sh(f"git -c protocol.file.allow=always submodule -q add {inner} inner && git add -A && git commit -qm more", origin)
    with opened(home_path, settings) as workspaces:
        desk = workspaces.create(f"clone:{origin}", id="t/without")
        notes = " ".join(map(str, desk.filled["notes"]))  # type: ignore[call-overload]
        assert "1 submodules are empty (inner)" in notes
        assert "Git LFS" in notes
    with opened(home_path, settings, submodules=True) as workspaces:
        workspaces.create(f"clone:{origin}", id="t/with")
        assert told(workspaces, "t/with", "git -C inner status --porcelain && cat inner/README") == "read me\n"
    oid = large_repository(origin, None, big=b"a large file")["big"]
    with opened(home_path, settings, lfs=True) as workspaces:
        desk = workspaces.create(f"clone:{origin}", id="t/lfs")
        assert "Git LFS" not in str(desk.filled["notes"])
        assert told(workspaces, "t/lfs", "cat big.bin; touch big.bin; git status --porcelain") == "a large file"
        (fork,) = workspaces.fork("t/lfs", new_id="t/fork")
        assert told(workspaces, fork.id, "echo other > big.bin; git diff | tail -n 2 | cut -c1-4") == "+oid\n+siz\n"
        shutil.rmtree(f"{origin}/.git/lfs")
        sh("git commit -q --allow-empty -m later", origin)
        workspaces.create(f"clone:{origin}", id="t/later")
    Path(origin, "huge.bin").write_text(POINTER.format(oid=oid, size=5 << 20))
    sh("git add -A && git commit -qm huge", origin)
    with opened(home_path, settings, lfs=True, lfs_max_mb=1) as workspaces, pytest.raises(CloneFailed):
        workspaces.create(f"clone:{origin}", id="t/huge")


def test_without_git_a_clone_says_so(workspaces: Local, origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workstead.system.git.runner._PATH", "/nowhere")
    for kind in ("clone", "worktree"):
        with pytest.raises(ToolMissing):
            workspaces.create(f"{kind}:{origin}", id="t/a")
    workspaces.create(f"overlay:{origin}", id="t/a")  # which needs none


def test_progress_is_for_terminals(home_path: str, origin: str) -> None:
    main_end, terminal = pty.openpty()
    command = [PROGRAM, "create", "--home", home_path, "--source", f"clone:{origin}", "--format", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, check=True)
    os.close(terminal)
    said = b""
    with suppress(OSError):  # EIO: all was read, and nobody is left who could write more
        while True:
            said += os.read(main_end, 65536)
    os.close(main_end)
    assert f"asking file://{origin}".encode() in said
    assert said.endswith(b"\r\x1b[K\r")  # the line is cleared at the end
    assert done.stdout.count(b"\n") == 1
    quiet = subprocess.run([*command[:-2], "-q"], capture_output=True, check=True)
    assert quiet.stderr == b""


# -- the others --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["ftp:x", "moon:/x", "overlay:", "clone:#x", "fork:", "template:../x"])
def test_a_source_that_is_none_is_refused_and_leaves_nothing(home_path: str, spec: str, capsys: object) -> None:
    aw = Aw(home_path, capsys)  # type: ignore[arg-type]
    answer = aw.json("create", "--id", "t/a", "--source", spec)
    assert answer.code == 2
    assert answer.error["code"] == "invalid_source"
    assert aw.ok("list", "--all") == []


@pytest.mark.parametrize("kind", ["overlay", "folder", "worktree"])
def test_folders_that_cannot_be_used(workspaces: Local, tmp_path: Path, kind: str) -> None:
    Path(tmp_path, "file").write_text("")
    with pytest.raises(FolderNotFound):
        workspaces.create(f"{kind}:{tmp_path}/none")
    with pytest.raises(NotADirectory):
        workspaces.create(f"{kind}:{tmp_path}/file")
    assert workspaces.list() == []


def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    from sources.yard import ORDINARY, ordinary_python

    python = ordinary_python()
    need(python is not None, "a Python for ordinary users")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    os.chmod(tmp_path, 0o755)
    script = (
        "import sys; sys.path[:0] = sys.argv[1:2]\n"
        "from workstead.sources.folder import check_folder\n"
        "from workstead.errors import FolderNotReadable\n"
        "try: check_folder(sys.argv[2])\n"
        "except FolderNotReadable: print('refused')"
    )
    source = str(Path(workstead.__file__).parents[1])
    command = ["setpriv", f"--reuid={ORDINARY}", "--clear-groups", f"--regid={ORDINARY}", str(python), "-c", script]
    done = subprocess.run([*command, source, str(closed)], capture_output=True, text=True, check=False)
    need("Permission" not in done.stderr, "a checkout that ordinary users can read")
    assert done.stdout == "refused\n", done.stderr
    assert FolderNotReadable.code == "folder_not_readable"


def test_a_work_tree_is_listed_by_its_repository_until_it_is_swept(
    workspaces: Local, origin: str, tmp_path: Path
) -> None:
    with pytest.raises(NotARepository):
        workspaces.create(f"worktree:{tmp_path}")
    desk = workspaces.create(f"worktree:{origin}", id="t/a", config={"git_config": True})
    assert f"{desk.path}/work" in sh("git worktree list", origin)
    workspaces.destroy(desk.id)
    workspaces.undo()
    assert f"{desk.path}/work" in sh("git worktree list", origin)
    workspaces.destroy(desk.id)
    workspaces.sweep(everything=True)
    assert sh("git worktree list", origin).count("\n") == 1


def test_a_folder_in_place_is_never_removed(workspaces: Local, origin: str) -> None:
    desk = workspaces.create(f"folder:{origin}", id="t/a")
    workspaces.write_file(desk.id, "work/new", "x")
    before = listing(origin)
    workspaces.destroy(desk.id, force=True)
    workspaces.sweep(everything=True)
    assert listing(origin) == before
    assert Path(origin, "new").read_text() == "x"


def test_the_mechanism_can_be_chosen_and_is_shown(home_path: str, settings: Settings, origin: str) -> None:
    chosen = settings.replace(storage=settings.storage.replace(mechanism="copy"))
    with workstead.open(home_path, settings=chosen) as workspaces:
        desk = workspaces.create(f"overlay:{origin}", id="t/a")
        assert desk.filled["mechanism"] == "copy"
        assert "copied " in str(desk.filled["notes"])
        (fork,) = workspaces.fork(desk.id)
        assert fork.filled["mechanism"] == "copy"
        assert listing(f"{fork.path}/work", skip=(".git",)) == listing(origin, skip=(".git",))
        workspaces.write_file(desk.id, "work/README", "changed")
        assert [each.path for each in workspaces.diff(desk.id).changes] == ["README"]
    missing = settings.replace(storage=settings.storage.replace(mechanism="rootless-overlay"))
    with (
        workstead.open(home_path, settings=missing) as workspaces,
        pytest.raises(Unavailable, match="rootless-overlay"),
    ):
        workspaces.create(f"overlay:{origin}", id="t/b")


def test_what_an_ignore_file_names_stays_behind(workspaces: Local, origin: str) -> None:
    for name in ("secrets", "keep"):
        Path(origin, name).write_text(name)
    Path(origin, ".awignore").write_text("# not for agents\nsecrets\n*.env\n")
    Path(origin, "prod.env").write_text("KEY=1")
    desk = workspaces.create(f"overlay:{origin}", id="t/a")
    assert told(workspaces, desk.id, "ls -A").split() == [".awignore", ".git", "README", "keep", "link", "src"]
    assert workspaces.diff(desk.id).changes == ()
    workspaces.write_file(desk.id, "work/keep", "changed")
    workspaces.apply(desk.id)
    assert Path(origin, "secrets").read_text() == "secrets"  # left out is not deleted
    assert Path(origin, "keep").read_text() == "changed"


def test_two_creates_of_one_commit_share_their_files(workspaces: Local, origin: str) -> None:
    one, two = (workspaces.create(f"clone:{origin}", id=f"t/{name}") for name in "ab")
    assert one.filled["layers"] == two.filled["layers"]
    told(workspaces, one.id, "rm -r src && echo x > README")
    assert listing(f"{two.path}/work", skip=(".git",), times=False) == listing(origin, skip=(".git",), times=False)


def test_a_change_in_the_origin_is_noticed_and_the_origin_is_not_written(
    workspaces: Local, origin: str, home_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(origin)
    desk = workspaces.create(f"overlay:{origin}", id="t/a")
    told(workspaces, desk.id, "echo mine > README; rm -r src; touch new; git add -A")
    assert listing(origin) == before
    assert workspaces.origin_changes(desk.id) == []
    Path(origin, "README").write_text("theirs")
    assert workspaces.origin_changes(desk.id) == ["README"]
    with pytest.raises(OriginMoved, match="README"):
        workspaces.apply(desk.id)
    assert Path(origin, "README").read_text() == "theirs"
    assert workspaces.origin_changes(workspaces.create(id="t/empty").id) == []
    aw = Aw(home_path, capsys)
    assert aw.ok("show", desk.id, "--origin")["origin_changes"] == ["README"]
    assert "README" in aw("show", desk.id, "--origin").out


@pytest.fixture
def parted(workspaces: Local, origin: str) -> str:
    """A workspace with files of its own in a directory that its user's folder does not have on another branch."""
    sh("mkdir -p lib/deep; echo 1 > lib/deep/x; git add -A; git commit -qm lib; git branch before HEAD~1", origin)
    desk = workspaces.create(f"overlay:{origin}", id="t/a")
    work = Path(desk.path, "work")
    (work / "lib/deep/own").write_text("mine")
    assert len(os.listdir(work / "lib/deep")) == 2
    sh("git checkout -q before", origin)
    assert not Path(origin, "lib").exists()
    assert os.listdir(work / "lib/deep") == []  # what the kernel makes of it, though a name that is known still opens
    assert (work / "lib/deep/own").read_text() == "mine"
    return desk.id


def test_what_the_user_removes_below_does_not_hide_what_the_agent_has(workspaces: Local, parted: str) -> None:
    run = workspaces.wait(workspaces.run(parted, ["ls", "lib/deep"]).id)
    assert b"".join(piece for _, _, piece in workspaces.output(run.id)) == b"own\n"
    assert os.listdir(Path(workspaces.path(parted), "work/lib/deep")) == ["own"]


def test_a_view_that_is_in_use_is_not_taken_from_whoever_uses_it(workspaces: Local, parted: str) -> None:
    with open(Path(workspaces.path(parted), "work/lib/deep/own")) as held:
        workspaces.wait(workspaces.run(parted, ["true"]).id)
        assert held.read() == "mine"
        assert os.listdir(Path(workspaces.path(parted), "work/lib/deep")) == []
    workspaces.wait(workspaces.run(parted, ["true"]).id)
    assert os.listdir(Path(workspaces.path(parted), "work/lib/deep")) == ["own"]


def test_a_directory_that_the_agent_emptied_is_no_reason_to_mount_anew(workspaces: Local, origin: str) -> None:
    sh("mkdir lib; echo 1 > lib/x", origin)
    desk = workspaces.create(f"overlay:{origin}", id="t/a")
    work = Path(desk.path, "work")
    (work / "lib/own").write_text("mine")
    workspaces.fork(desk.id, new_id="t/b")
    for name in os.listdir(work / "lib"):
        (work / "lib" / name).unlink()
    before = work.stat().st_dev, mount_id(work)
    workspaces.wait(workspaces.run(desk.id, ["true"]).id)
    assert (work.stat().st_dev, mount_id(work)) == before


def mount_id(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY)
    try:
        with open(f"/proc/self/fdinfo/{fd}") as file:
            return next(line for line in file if line.startswith("mnt_id"))
    finally:
        os.close(fd)


def test_an_ordinary_user_gets_the_same(tmp_path: Path) -> None:
    """The story runs as another user in a process of its own: rootless_verbs.py, beside the sources' tests."""
    from sources.yard import ORDINARY, ordinary_python

    python = ordinary_python()
    need(python is not None, "a Python 3.11 that an ordinary user can start")
    tests = Path(__file__).parents[1]
    directory = tempfile.mkdtemp(prefix="workstead-", dir="/var/tmp")
    os.chown(directory, ORDINARY, ORDINARY)
    user = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups"]
    paths = [str(tests.parent / "src"), str(tests), str(Path(pytest.__file__).parents[1])]
    try:
        done = subprocess.run(
            [*user, str(python), "-B", str(tests / "sources" / "rootless_verbs.py"), directory],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(paths), "HOME": directory},
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        remove(directory)
    assert done.returncode in (0, 77), done.stdout + done.stderr
    need(done.returncode == 0, "user namespaces for ordinary users")
    assert done.stdout == "ok\n"
