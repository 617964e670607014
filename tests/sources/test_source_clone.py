"""Workspaces from repositories."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from needs import need_program, need_root
from sources.git_server import GitServer, serving
from sources.yard import Yard, as_agent, listing, mounts_in, repository, sh, yard_fixture
from workstead.errors import CloneFailed, InvalidSource, NotARepository, PolicyDenied
from workstead.model.source import FillOptions
from workstead.sources.urls import parse_remote, resolve
from workstead.system.process.addresses import is_public

yard = yard_fixture

ME = ("Agent", "agent@example.org")


@pytest.fixture(autouse=True)
def _git() -> None:
    need_program("git")


@pytest.fixture
def origin(yard: Yard) -> str:
    path = yard.folder()
    repository(path, files=20)
    return path


@pytest.fixture
def server(yard: Yard, origin: str) -> Iterator[GitServer]:
    with serving(yard.directory) as state:
        yield state


LOOPBACK = {"private_hosts": ("127.0.0.1", "localhost"), "allow_local": False}


# -- one commit, many workspaces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shallow", [True, False])
def test_a_clone_is_a_repository_like_any_other(yard: Yard, origin: str, shallow: bool) -> None:
    need_root()
    before = listing(origin)
    made = yard.create(f"clone:{origin}", shallow=shallow, identity=ME)
    cache = listing(yard.cache)
    assert (made.filled.origin["branch"], made.filled.origin["url"]) == ("main", f"file://{origin}")
    assert listing(made.path, skip=(".git",), times=False) == listing(origin, skip=(".git",), times=False)
    assert as_agent(made, "git status --porcelain --branch") == "## main...origin/main\n"
    assert as_agent(made, "git log --format=%s").split() == (["two"] if shallow else ["two", "one"])
    script = """
        git remote -v | grep -q origin
        echo a >> README && git commit -qam three && echo b >> README
        git stash -q && git stash pop -q && git diff --stat
        git checkout -q -b topic && git commit -qam four && git checkout -q main && echo c > other && git add other
        git commit -qm five && git checkout -q topic && git rebase -q main && git log --format=%s && git tag t
        git merge-base --is-ancestor main topic && git bisect start -q 2>/dev/null; git blame README >/dev/null
        git fsck && git gc -q && git fsck && git status --porcelain && git ls-files | wc -l && git grep -q print
        git cherry-pick --abort 2>/dev/null; git reflog >/dev/null && git describe --tags && git archive HEAD >/dev/null
    """
    assert "four\nfive\nthree\ntwo" in as_agent(made, script)
    assert listing(origin) == before
    assert listing(yard.cache) == cache  # borrowed, never written


def test_the_second_workspace_of_a_commit_is_only_a_mount(
    yard: Yard, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_root()
    first = yard.create(f"clone:{origin}")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr("subprocess.Popen.__init__", refuse)
    second = yard.create(f"clone:{origin}")
    monkeypatch.undo()
    assert second.filled.layers == first.filled.layers
    as_agent(first, "rm -r src; echo x > README")
    assert as_agent(second, "git status --porcelain") == ""
    assert os.listdir(second.upper) == [] or sorted(os.listdir(second.upper)) == [".git"]


def test_the_first_status_reads_no_file_again(yard: Yard, origin: str) -> None:
    need_root()
    need_program("strace")
    made = yard.create(f"clone:{origin}")
    for _ in range(2):
        opened = as_agent(made, "strace -f -e trace=openat git status --porcelain 2>&1")
        assert "src/f" not in opened


def test_a_branch_a_commit_and_the_default_branch(yard: Yard, origin: str) -> None:
    need_root()
    commit = sh("git rev-parse dev", origin).strip()
    branch = yard.create(f"clone:{origin}#dev")
    assert as_agent(branch, "git status --porcelain --branch") == "## dev...origin/dev\n"
    detached = yard.create(f"clone:{origin}#{commit}")
    assert (
        as_agent(detached, "git rev-parse HEAD && git status --porcelain --branch")
        == f"{commit}\n## HEAD (no branch)\n"
    )
    by_setting = yard.create(f"clone:{origin}", default_branch="dev")
    assert by_setting.filled.origin["branch"] == "dev"
    sh("git symbolic-ref HEAD refs/heads/dev", origin)
    assert yard.create(f"clone:{origin}").filled.origin["branch"] == "dev"


@pytest.mark.parametrize("revision", ["nothing", "0" * 40])
def test_what_the_origin_does_not_have_is_said_clearly(yard: Yard, origin: str, revision: str) -> None:
    with pytest.raises(CloneFailed, match=f"has no (branch|commit) {revision}"):
        yard.create(f"clone:{origin}#{revision}")
    assert mounts_in(yard.directory) == []


def test_a_new_commit_is_noticed_and_the_old_workspace_stays(yard: Yard, origin: str) -> None:
    need_root()
    old = yard.create(f"clone:{origin}")
    sh("git commit -q --allow-empty -m three", origin)
    new = yard.create(f"clone:{origin}")
    assert as_agent(new, "git log -1 --format=%s") == "three\n"
    assert as_agent(old, "git log -1 --format=%s") == "two\n"
    sh(
        "git checkout -q dev && git branch -f main dev && git checkout -q main"
        " && git reflog expire --expire=now --all && git gc -q --prune=now",
        origin,
    )
    forced = yard.create(f"clone:{origin}")
    assert as_agent(forced, "git log -1 --format=%s && git fsck --no-dangling") == "one\n"
    assert (
        as_agent(old, "git log -1 --format=%s && git fsck --no-dangling") == "two\n"
    )  # what it borrows is still there


def test_many_at_once_fetch_once(yard: Yard, origin: str, server: GitServer) -> None:
    need_root()
    made: list[object] = []
    places = [(place, yard.staged(place)) for place in (yard.place() for _ in range(6))]

    def create(place: object, staged: object) -> None:
        from workstead import sources
        from workstead.model.source import parse

        options = FillOptions(**LOOPBACK)  # type: ignore[arg-type]
        made.append(
            sources.SOURCES["clone"].fill(parse(f"clone:{server.url('origin')}"), staged, options, yard.said.append)
        )  # type: ignore[arg-type]

    threads = [threading.Thread(target=create, args=pair) for pair in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 6
    assert sum("git-upload-pack" in request and "info" not in request for request in server.requests) <= 3
    for filled, (place, staged) in zip(made, places, strict=True):
        yard.settle(filled, place, staged)  # type: ignore[arg-type]


def test_a_fetch_that_dies_in_the_middle_is_repaired_by_the_next(yard: Yard, origin: str) -> None:
    need_root()
    yard.create(f"clone:{origin}")
    mirror = f"{yard.cache}/mirrors/{os.listdir(f'{yard.cache}/mirrors')[0]}"
    sh("git commit -q --allow-empty -m three", origin)
    os.makedirs(f"{mirror}/new.git/objects")  # a half-made mirror, a half-made checkout, a lock nobody holds
    for checkout in os.scandir(f"{yard.cache}/checkouts/{os.path.basename(mirror)}"):
        os.makedirs(f"{checkout.path}/new/half")
    made = yard.create(f"clone:{origin}")
    assert as_agent(made, "git log -1 --format=%s") == "three\n"


def test_submodules_and_lfs_are_left_out_and_said(yard: Yard, origin: str) -> None:
    need_root()
    top = yard.folder("top")
    sh("git init -q -b main . && echo '*.bin filter=lfs' > .gitattributes && git add -A && git commit -qm x", top)
    sh(f"git -c protocol.file.allow=always submodule --quiet add {origin} sub && git commit -qm sub", top)
    made = yard.create(f"clone:{top}")
    assert os.listdir(f"{made.path}/sub") == []
    assert any("1 submodules" in note and "sub" in note for note in made.filled.notes)
    assert any("LFS" in note for note in made.filled.notes)
    assert as_agent(made, "git status --porcelain") == ""


def test_submodules_are_fetched_when_they_are_asked_for(yard: Yard, origin: str) -> None:
    need_root()
    middle, top = yard.folder("middle"), yard.folder("top")
    add = "git -c protocol.file.allow=always submodule --quiet add"
    sh(f"git init -q -b main . && echo m > m && git add m && {add} ../origin inner && git commit -qm m", middle)
    sh(
        f"git init -q -b main . && echo t > t && git add t && {add} --name odd/name {middle} sub/dir",
        top,
    )
    sh("git commit -qm t", top)
    for _ in range(2):
        made = yard.create(f"clone:{top}", submodules=True, identity=ME)
        assert as_agent(made, "cat sub/dir/m sub/dir/inner/README") == "m\nread me\n"
        assert as_agent(made, "git status --porcelain && git submodule status --recursive | cut -c1") == " \n \n"
        assert as_agent(made, "cd sub/dir/inner && git log --format=%s -1 && git status --porcelain") == "two\n"
        as_agent(
            made,
            "cd sub/dir && git config user.name A && git config user.email a@b && git commit -q --allow-empty -m x",
        )
        assert as_agent(made, "git status --porcelain") == " M sub/dir\n"
    assert len(made.filled.origin["borrows"]) == 3
    assert not any("submodules" in note for note in made.filled.notes)


def test_a_repository_from_elsewhere_names_no_submodule_on_this_disk(
    yard: Yard, origin: str, server: GitServer
) -> None:
    private = f"{yard.directory}/private"
    commit = repository(private, files=1)
    for url in (private, f"file://{private}"):
        sh(f"printf '[submodule \"s\"]\\n\\tpath = s\\n\\turl = {url}\\n' > .gitmodules", origin)
        sh(f"git update-index --add --cacheinfo 160000,{commit},s && git add .gitmodules && git commit -qm s", origin)
        options = {**LOOPBACK, "allow_local": True, "fresh_seconds": 0.0}
        with pytest.raises(PolicyDenied):
            yard.create(f"clone:http://127.0.0.1:{server.port}/origin", submodules=True, **options)
        assert os.listdir(yard.create(f"clone:{origin}", submodules=True).path + "/s")  # the twin: named by its owner


@pytest.mark.parametrize("url", ["https://127.0.0.1/x", "ext::sh -c true", "http://example.org/x"])
def test_a_submodule_may_not_be_where_its_repository_may_not_be(yard: Yard, origin: str, url: str) -> None:
    sh(f"printf '[submodule \"s\"]\\n\\tpath = s\\n\\turl = {url}\\n' > .gitmodules", origin)
    sh(
        "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),s && git add .gitmodules && git commit -qm s",
        origin,
    )
    with pytest.raises((PolicyDenied, InvalidSource, CloneFailed)):
        yard.create(f"clone:{origin}", submodules=True)
    assert mounts_in(yard.directory) == []
    yard.create(f"clone:{origin}")


def test_a_fork_of_a_clone_commits_by_itself(yard: Yard, origin: str) -> None:
    need_root()
    parent = yard.create(f"clone:{origin}", identity=ME)
    as_agent(parent, "echo x >> README; git commit -qam parent")
    child = yard.fork(parent)
    as_agent(child, "git commit -q --allow-empty -m child")
    as_agent(parent, "git commit -q --allow-empty -m later")
    assert as_agent(child, "git log --format=%s").split() == ["child", "parent", "two"]
    assert as_agent(parent, "git log --format=%s").split() == ["later", "parent", "two"]


def test_without_an_overlay_a_clone_is_copied_and_just_as_good(yard: Yard, origin: str) -> None:
    made = yard.create(f"clone:{origin}", mechanism="copy", identity=ME)
    assert made.filled.layers == []
    assert (
        as_agent(made, "git status --porcelain && git commit -q --allow-empty -m x && git log -1 --format=%s") == "x\n"
    )


def test_a_folder_that_is_no_repository(yard: Yard) -> None:
    with pytest.raises(NotARepository):
        yard.create(f"clone:{yard.folder()}")
    with pytest.raises(CloneFailed, match="there is no repository"):
        yard.create(f"clone:{yard.directory}/nothing")


# -- over the network --------------------------------------------------------------------------------------------------


def test_a_clone_over_http_from_a_host_that_is_allowed(yard: Yard, server: GitServer) -> None:
    need_root()
    for shallow in (True, False):
        made = yard.create(f"clone:{server.url('origin')}", shallow=shallow, **LOOPBACK)
        assert as_agent(made, "git status --porcelain --branch") == "## main...origin/main\n"
    asked = len(server.requests)
    yard.create(f"clone:{server.url('origin')}", **LOOPBACK)
    assert len(server.requests) == asked  # fresh enough
    yard.create(f"clone:{server.url('origin')}", fresh_seconds=0.0, **LOOPBACK)
    assert len(server.requests) > asked
    assert any("%" in said for said in yard.said)  # progress


def test_a_commit_that_no_branch_names_any_more(yard: Yard, origin: str, server: GitServer) -> None:
    need_root()
    commit = sh("git rev-parse main", origin).strip()
    sh("git checkout -q dev && git branch -D main", origin)
    made = yard.create(f"clone:{server.url('origin')}#{commit}", **LOOPBACK)
    assert as_agent(made, "git rev-parse HEAD").strip() == commit


def test_redirects_are_not_followed(yard: Yard, origin: str, server: GitServer) -> None:
    with serving(yard.directory) as inner:
        server.redirect = f"http://127.0.0.1:{inner.port}"
        with pytest.raises(CloneFailed):
            yard.create(f"clone:{server.url('origin')}", **LOOPBACK)
        assert inner.requests == []


def test_private_addresses_are_refused_unless_named(
    yard: Yard, server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"inside.example.org": "127.0.0.1"}
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **named: real(answers.get(host, host), *rest, **named)
    )
    with pytest.raises(PolicyDenied, match="not a public address"):
        yard.create(f"clone:https://inside.example.org:{server.port}/origin", allow_local=False)
    with pytest.raises(PolicyDenied):
        yard.create("clone:https://169.254.169.254/latest/meta-data", allow_local=False)
    with pytest.raises(InvalidSource, match="not encrypted"):
        yard.create(f"clone:http://inside.example.org:{server.port}/origin", allow_local=False)
    assert server.requests == []
    # The name is looked up once, by us; git connects to the address that we looked at.
    yard.create(f"clone:http://inside.example.org:{server.port}/origin", private_hosts=("inside.example.org",))
    assert server.requests


def test_a_host_without_an_address_is_refused(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(CloneFailed, match="has no address"):
        yard.create("clone:https://nowhere.example.org/x")


OPTIONS = FillOptions(private_hosts=("git.inside",))


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("https://Example.ORG/a/b.git", "https://example.org/a/b.git"),
        ("https://example.org.:443/a", "https://example.org/a"),
        ("https://example.org:8443/a", "https://example.org:8443/a"),
        ("https://[2001:db8::1]/a", "https://[2001:db8::1]/a"),
        ("http://git.inside/a", "http://git.inside/a"),
    ],
)
def test_urls_are_taken_apart_and_put_together(location: str, url: str) -> None:
    assert parse_remote(location, OPTIONS).url == url


@pytest.mark.parametrize(
    "location",
    [
        "https://user:password@h.org/x",
        "https://token@h.org/x",
        "http://h.org/x",
        "git://h.org/x",
        "ext::sh -c x",
        "ftp://h/x",
        "https://h.org",
        "https://h.org/",
        "https:///x",
        "https://h_x.org/a",
        "https://h.org:0/x",
        "https://h.org:99999/x",
        "https://2130706433/x",
        "https://0x7f.1/x",
        "https://017700000001/x",
        "https://127.1/x",
        "https://h.org/a b",
        "https://h.org\\@evil/x",
        "https://h.org/\nx",
        "https://ünï.org/x",
        "https://-oProxyCommand=x/x;y",
    ],
)
def test_urls_that_are_refused(location: str) -> None:
    with pytest.raises((InvalidSource, PolicyDenied)):
        resolve(parse_remote(location, OPTIONS), OPTIONS)


def test_paths_and_ssh_only_where_they_are_allowed() -> None:
    for location in ("/etc", "file:///etc", "./x"):
        with pytest.raises(PolicyDenied):
            parse_remote(location, OPTIONS)
    with pytest.raises(PolicyDenied):
        parse_remote("git@h.org:a/b", OPTIONS)
    allowed = FillOptions(allow_ssh=True, private_hosts=("localhost",))
    remote = parse_remote("git@localhost:a/b", allowed)
    assert remote.url == "ssh://git@localhost/a/b"
    protocols, config = resolve(remote, allowed)
    assert protocols == "ssh"
    assert "HostKeyAlias=localhost" in config["core.sshCommand"]
    with pytest.raises(InvalidSource):
        parse_remote("ssh://-oProxyCommand=x@h/a", allowed)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public


def test_no_secret_reaches_an_error(yard: Yard) -> None:
    with pytest.raises(InvalidSource) as caught:
        yard.create("clone:https://me:hunter2@example.org/x")
    assert "hunter2" not in str(caught.value.as_dict())


def test_a_mirror_that_was_removed_is_made_again(yard: Yard, origin: str) -> None:
    need_root()
    yard.create(f"clone:{origin}")
    shutil.rmtree(f"{yard.cache}/mirrors")
    time.sleep(0.01)
    assert as_agent(yard.create(f"clone:{origin}"), "git log -1 --format=%s") == "two\n"
