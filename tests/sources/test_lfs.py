"""Large files: fetched when they are asked for, in the place of their pointers."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator

import pytest

from cli.aw_command import Answer, program
from needs import need_program, need_root
from sources.git_server import serving
from sources.lfs_server import POINTER, LfsStore, large_repository
from sources.yard import Desk, Yard, as_agent, listing, sh, yard_fixture
from workstead.errors import CloneFailed, InvalidSource, PolicyDenied, WorksteadError
from workstead.sources.lfs import parse_pointer

yard = yard_fixture

BIG = os.urandom(3_000_000)
SMALL = b"small but large\n"
LOOPBACK = {"private_hosts": ("127.0.0.1",), "allow_local": False}
ME = ("Agent", "agent@example.org")


@pytest.fixture(autouse=True)
def _needed() -> None:
    need_root()
    need_program("git")


@pytest.fixture
def store(yard: Yard) -> Iterator[LfsStore]:
    with serving(yard.directory) as server:
        yield LfsStore(server)


@pytest.fixture
def origin(yard: Yard, store: LfsStore) -> str:
    path = yard.folder()
    large_repository(path, store, big=BIG, deep__down__small=SMALL)
    return path


def clone(yard: Yard, store: LfsStore, **options: object) -> Desk:
    return yard.create(f"clone:{store.server.url('origin')}", **{"lfs": True, "identity": ME, **LOOPBACK, **options})


def read(desk: Desk, name: str) -> bytes:
    with open(f"{desk.path}/{name}", "rb") as file:
        return file.read()


def without_git_lfs(desk: Desk, command: str) -> str:
    """As in a sandbox that has no git-lfs, whatever this machine has."""
    tools = f"{desk.place.root}/../tools"
    if not os.path.isdir(tools):
        os.makedirs(tools)
        for program in (
            "git",
            "sh",
            "mktemp",
            "cat",
            "wc",
            "head",
            "tr",
            "cut",
            "sha256sum",
            "mv",
            "mkdir",
            "sed",
            "rm",
        ):
            os.symlink(need_program(program), f"{tools}/{program}")
        os.symlink(need_program("touch"), f"{tools}/touch")
        os.symlink(need_program("strace"), f"{tools}/strace")
    return as_agent(desk, f"export PATH={os.path.realpath(tools)} GIT_CONFIG_NOSYSTEM=1 && {command}")


def test_large_files_stand_where_their_pointers_were(yard: Yard, origin: str, store: LfsStore) -> None:
    made = clone(yard, store)
    assert (read(made, "big.bin"), read(made, "deep/down/small.bin")) == (BIG, SMALL)
    assert len(store.downloads) == 2
    assert made.filled.notes == []
    assert as_agent(made, "stat -c '%a %U' big.bin deep/down") == as_agent(made, "stat -c '%a %U' README deep")
    again = clone(yard, store)  # of the same commit: a mount
    assert again.filled.layers[1:] == made.filled.layers[1:]
    assert (len(store.downloads), len(store.batches)) == (2, 1)
    as_agent(made, "echo x > big.bin; rm -r deep")
    assert (read(again, "big.bin"), read(again, "deep/down/small.bin")) == (BIG, SMALL)


def test_another_commit_fetches_only_what_is_new(yard: Yard, origin: str, store: LfsStore) -> None:
    clone(yard, store)
    oid = store.add(b"another")
    with open(f"{origin}/more.bin", "w") as file:
        file.write(POINTER.format(oid=oid, size=7))
    sh("git add -A && git commit -qm more", origin)
    made = clone(yard, store, fresh_seconds=0.0)
    assert store.downloads[2:] == [oid]
    assert (read(made, "more.bin"), read(made, "big.bin")) == (b"another", BIG)
    assert without_git_lfs(made, "git status --porcelain") == ""


def test_with_and_without_never_mix(yard: Yard, origin: str, store: LfsStore) -> None:
    plain = clone(yard, store, lfs=False)
    assert b"git-lfs" in read(plain, "big.bin")
    assert any("--lfs fetches them" in note for note in plain.filled.notes)
    full = clone(yard, store)
    later = clone(yard, store, lfs=False)
    assert read(full, "big.bin") == BIG
    assert read(plain, "big.bin") == read(later, "big.bin") != BIG
    for desk in (plain, full, later):
        assert without_git_lfs(desk, "git status --porcelain") == ""


def test_status_is_clean_and_reads_no_large_file(yard: Yard, origin: str, store: LfsStore) -> None:
    need_program("strace")
    made = clone(yard, store)
    for _ in range(2):
        said = without_git_lfs(made, "strace -f -e trace=openat,execve git status --porcelain 2>&1")
        assert ".bin" not in said
        assert "lfs-filter" not in said


@pytest.mark.parametrize("by", ["our script", "git-lfs"])
def test_git_turns_them_into_pointers_and_back(yard: Yard, origin: str, store: LfsStore, by: str) -> None:
    if by == "git-lfs":
        need_program("git-lfs")
    run = as_agent if by == "git-lfs" else without_git_lfs
    made = clone(yard, store)
    cache = listing(f"{yard.cache}/mirrors")
    script = """
        touch big.bin && git status --porcelain
        cat README > deep/down/small.bin && git status --porcelain
        git stash -q && sha256sum < deep/down/small.bin | cut -c1-64 && git stash pop -q
        git commit -qam changed && git cat-file -p HEAD:deep/down/small.bin
        git checkout -q HEAD~1 && sha256sum < deep/down/small.bin | cut -c1-64
        git checkout -q main && cat deep/down/small.bin && rm big.bin && git checkout -q -- big.bin
        sha256sum < big.bin | cut -c1-64 && git status --porcelain
    """
    said = run(made, script.strip().replace("\n", " && ").replace(" &&  ", " && ")).splitlines()
    oids = {content: store.add(content) for content in (BIG, SMALL, b"read me\n")}
    assert said == [
        " M deep/down/small.bin",
        oids[SMALL],
        "version https://git-lfs.github.com/spec/v1",
        f"oid sha256:{oids[b'read me' + chr(10).encode()]}",
        "size 8",
        oids[SMALL],
        "read me",
        oids[BIG],
    ]
    assert listing(f"{yard.cache}/mirrors") == cache


def test_git_lfs_itself_finds_what_was_fetched(yard: Yard, origin: str, store: LfsStore) -> None:
    need_program("git-lfs")
    made = clone(yard, store)
    asked = len(store.batches)
    assert as_agent(made, "git lfs ls-files --name-only").split() == ["big.bin", "deep/down/small.bin"]
    as_agent(made, "rm big.bin && GIT_LFS_SKIP_SMUDGE=1 git checkout -q -- big.bin")
    assert b"git-lfs" in read(made, "big.bin")
    as_agent(made, "git lfs pull")
    assert read(made, "big.bin") == BIG
    assert len(store.batches) == asked


def test_a_repository_on_this_disk_keeps_them_itself(yard: Yard) -> None:
    path = yard.folder("local")
    large_repository(path, None, big=BIG, run=b"#!/bin/sh\necho ran\n")
    os.chmod(f"{path}/run.bin", 0o755)
    sh("git add -A && git commit -qm executable", path)
    before = listing(path)
    made = yard.create(f"clone:file://{path}", lfs=True)
    assert read(made, "big.bin") == BIG
    assert as_agent(made, "./run.bin") == "ran\n"
    assert without_git_lfs(made, "git status --porcelain") == ""
    assert listing(path) == before
    shutil.rmtree(f"{path}/.git/lfs")
    sh("git commit -q --allow-empty -m three", path)
    yard.create(f"clone:file://{path}", lfs=True)  # they are in our cache
    shutil.rmtree(f"{yard.cache}/mirrors")
    shutil.rmtree(f"{yard.cache}/checkouts")
    with pytest.raises(CloneFailed, match=r"2 large files of .* are not to be had"):
        yard.create(f"clone:file://{path}", lfs=True)


def test_a_link_in_the_store_of_a_repository_on_this_disk_is_not_followed(yard: Yard) -> None:
    path, secret = yard.folder("local"), f"{yard.directory}/secret"
    with open(secret, "wb") as file:
        file.write(SMALL)
    oid = large_repository(path, None, big=SMALL)["big"]
    place = f"{path}/.git/lfs/objects/{oid[:2]}/{oid[2:4]}/{oid}"
    os.unlink(place)
    os.symlink(secret, place)
    with pytest.raises(CloneFailed, match="not to be had"):
        yard.create(f"clone:file://{path}", lfs=True)
    os.unlink(place)
    shutil.copy(secret, place)  # the same bytes without the link are fine
    assert read(yard.create(f"clone:file://{path}", lfs=True), "big.bin") == SMALL


def test_submodules_have_theirs_too(yard: Yard, origin: str, store: LfsStore) -> None:
    top = yard.folder("top")
    add = "git -c protocol.file.allow=always submodule --quiet add"
    sh(f"git init -q -b main . && {add} {origin} sub && git commit -qm sub", top)
    sh(f"git config -f .gitmodules submodule.sub.url {store.server.url('origin')} && git commit -qam url", top)
    for lfs in (False, True, False):
        made = yard.create(f"clone:{store.server.url('top')}", submodules=True, **{**LOOPBACK, "lfs": lfs})
        assert (read(made, "sub/big.bin") == BIG) is lfs
        assert (
            without_git_lfs(made, "git status --porcelain && touch sub/big.bin && git -C sub status --porcelain") == ""
        )


def test_a_copy_without_an_overlay_has_them_too(yard: Yard, origin: str, store: LfsStore) -> None:
    made = clone(yard, store, mechanism="copy")
    assert read(made, "big.bin") == BIG
    assert without_git_lfs(made, "git status --porcelain") == ""
    as_agent(made, "echo x >> big.bin")
    assert read(clone(yard, store), "big.bin") == BIG  # it was a copy, not another name


def test_what_is_no_pointer_stays_as_it_is(yard: Yard, origin: str, store: LfsStore) -> None:
    texts = {
        "plain.bin": "not a pointer\n",
        "pointer.txt": POINTER.format(oid=store.add(b"x"), size=1),  # no attribute says so
        "extended.bin": POINTER.format(oid=store.add(b"x"), size=1).replace("oid", "ext-0-foo sha256:00\noid"),
        "empty.bin": "",
    }
    for name, text in texts.items():
        with open(f"{origin}/{name}", "w") as file:
            file.write(text)
    os.symlink("big.bin", f"{origin}/link.bin")
    sh("git add -A && git commit -qm odd", origin)
    made = clone(yard, store)
    assert {name: read(made, name).decode() for name in texts} == texts
    assert os.readlink(f"{made.path}/link.bin") == "big.bin"
    assert without_git_lfs(made, "git status --porcelain") == ""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\n",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 63 + b"\nsize 1\n",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"../" * 21 + b"a\nsize 1\n",
        b"version https://git-lfs.github.com/spec/v1\noid md5:" + b"a" * 64 + b"\nsize 1\n",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize -1\n",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 1\nmore x\n",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 1\n" + b" " * 1000,
    ],
)
def test_only_whole_pointers_are_pointers(content: bytes) -> None:
    assert parse_pointer(b"x", content) is None


# -- a server that cannot be trusted -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-1] + b"!", lambda data: data[:-1], lambda data: data + b"!", lambda _: b""]
)
def test_what_is_not_what_the_repository_says_is_not_used(
    yard: Yard, origin: str, store: LfsStore, spoil: object
) -> None:
    store.spoil = spoil  # type: ignore[assignment]
    with pytest.raises(CloneFailed):
        clone(yard, store)
    assert sh(f"find {yard.cache} -type f -path '*lfs/objects*'", "/") == ""
    store.spoil = lambda content: content
    assert read(clone(yard, store), "big.bin") == BIG


def test_what_the_server_does_not_have_is_said(yard: Yard, origin: str, store: LfsStore) -> None:
    del store.objects[store.add(SMALL)]
    with pytest.raises(CloneFailed, match=r"does not have 'deep/down/small\.bin'"):
        clone(yard, store)


@pytest.mark.parametrize(("status", "said"), [(401, "password"), (404, "no Git LFS"), (302, "elsewhere"), (500, "500")])
def test_a_server_that_says_no(yard: Yard, origin: str, store: LfsStore, status: int, said: str) -> None:
    store.status = status
    with pytest.raises(CloneFailed) as caught:
        clone(yard, store)
    assert said in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"objects": [1]}', b'{"objects": []}', b"[" * 100_000])
def test_an_answer_that_makes_no_sense(yard: Yard, origin: str, store: LfsStore, answer: bytes) -> None:
    store.server.answer = lambda _, path, __: (200, answer) if path.endswith("batch") else None
    with pytest.raises(CloneFailed, match="no answer that LFS knows"):
        clone(yard, store)


def test_more_than_the_owner_wants_is_not_even_asked_for(yard: Yard, origin: str, store: LfsStore) -> None:
    with pytest.raises(CloneFailed, match="over 1 MB"):
        clone(yard, store, lfs_max_bytes=1 << 20)
    assert store.batches == []
    assert read(clone(yard, store, lfs_max_bytes=4 << 20), "big.bin") == BIG


def test_where_the_server_sends_us_must_be_a_place_to_clone_from(yard: Yard, origin: str, store: LfsStore) -> None:
    with serving(yard.directory) as inner:
        asked = LfsStore(inner)
        asked.objects = store.objects
        refused = [
            f"http://127.0.0.1:{inner.port}/objects/",  # another service on a host that is allowed for git
            f"http://localhost:{inner.port}/objects/",
            "http://169.254.169.254/latest/",
            "https://169.254.169.254/latest/",
            "file:///etc/",
            "https://user:secret@127.0.0.1/",
        ]
        for href in refused:
            store.href = href
            with pytest.raises(WorksteadError) as caught:
                clone(yard, store)
            assert isinstance(caught.value, PolicyDenied | InvalidSource), href
            assert "secret" not in str(caught.value.as_dict())
        assert asked.downloads == []
        store.href = refused[0]
        assert read(clone(yard, store, lfs_hosts=("127.0.0.1",)), "big.bin") == BIG  # because the owner says so
        assert len(asked.downloads) == 2


@pytest.mark.parametrize("key", ["lfs.url", "remote.origin.lfsurl"])
def test_a_repository_does_not_choose_whom_we_ask(yard: Yard, origin: str, store: LfsStore, key: str) -> None:
    with serving(yard.directory) as inner:
        asked = LfsStore(inner)
        asked.objects = store.objects

        def say(url: str) -> None:
            sh(f"git config -f .lfsconfig {key} {url} && git add -A && git commit -qm config", origin)

        refused = [
            f"http://127.0.0.1:{inner.port}/x/info/lfs",
            "https://example.org/x",
            "ssh://git@127.0.0.1/x",
            "/etc",
        ]
        for url in refused:
            say(url)
            with pytest.raises((PolicyDenied, InvalidSource)):
                clone(yard, store, fresh_seconds=0.0)
        assert (asked.batches, store.batches) == ([], [])
        say(f"http://127.0.0.1:{store.server.port}/elsewhere/info/lfs")  # its own host
        assert read(clone(yard, store, fresh_seconds=0.0), "big.bin") == BIG
        oid = asked.add(b"new")
        with open(f"{origin}/new.bin", "w") as file:
            file.write(POINTER.format(oid=oid, size=3))
        say(refused[0])
        made = clone(yard, store, fresh_seconds=0.0, lfs_hosts=("127.0.0.1",))
        assert read(made, "new.bin") == b"new"
        assert len(asked.batches) == 1


def test_lfsconfig_runs_nothing(yard: Yard, origin: str, store: LfsStore) -> None:
    trap = f"{yard.directory}/sprung"
    for key in ("lfs.customtransfer.x.path", "lfs.standalonetransferagent", "core.fsmonitor", "core.sshCommand"):
        sh(f"git config -f .lfsconfig {key} 'touch {trap}'", origin)
    sh(f"git config -f .lfsconfig include.path {trap} && git add -A && git commit -qm config", origin)
    assert read(clone(yard, store), "big.bin") == BIG
    assert not os.path.exists(trap)


def test_with_encryption_the_certificate_has_to_be_right(
    yard: Yard, origin: str, store: LfsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way over TLS, by hand: git itself would need to be told about the certificate."""
    from workstead.system.git.download import Target, ask

    need_program("openssl")
    key, certificate = f"{yard.directory}/key", f"{yard.directory}/certificate"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=files.example.org -keyout {key}"
        f" -out {certificate} -addext subjectAltName=DNS:files.example.org".split(),
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(yard.directory, context) as server:
        server.answer = lambda _, path, __: (200, path.encode())

        def question(host: str) -> tuple[int, bytes]:
            target = Target(host=host, port=server.port, is_secure=True, path="/a?b", addresses=["127.0.0.1"])
            return ask(target, headers={}, max_bytes=100, deadline=float("inf"))

        with pytest.raises(CloneFailed, match=r"(?i)certificate"):
            question("files.example.org")
        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        assert question("files.example.org") == (200, b"/a?b")
        with pytest.raises(CloneFailed):
            question("other.example.org")


def test_on_the_command_line(yard: Yard, origin: str, store: LfsStore) -> None:
    home = f"{yard.directory}/home"

    def create(id: str, *options: str) -> Answer:
        return program("create", "--source", f"clone:{origin}", "--id", id, *options, home=home)

    assert create("t/a").code == 0
    refused = create("t/b", "--lfs")  # this repository has them only at its server
    assert (refused.code, "not to be had" in refused.err) == (8, True)
    for content in (BIG, SMALL):
        oid = store.add(content)
        place = f"{origin}/.git/lfs/objects/{oid[:2]}/{oid[2:4]}"
        os.makedirs(place)
        with open(f"{place}/{oid}", "wb") as file:
            file.write(content)
    made = create("t/c", "--lfs")
    with open(f"{made.out.strip()}/work/big.bin", "rb") as file:
        assert file.read() == BIG
    command = "touch big.bin; git status --porcelain; rm big.bin; git checkout -q .; sha256sum big.bin | cut -c1-64"
    assert program("run", "t/c", "--", "sh", "-c", command, home=home).out == f"{store.add(BIG)}\n"
