"""Reading and changing files beneath a `Root`."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from needs import need_root
from workstead.errors import (
    FileChanged,
    FileExists,
    FileNotFound,
    Invalid,
    NotAFile,
    PermissionDenied,
    QuotaExceeded,
    TimedOut,
    WorksteadError,
)
from workstead.model.file import Entry, Gone, Written
from workstead.system.files import operations
from workstead.system.files.root import Root
from workstead.system.files.walk import Limits, remove_tree


@pytest.fixture(params=["openat2", "walk"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Root]:
    (tmp_path / "ws").mkdir()
    with Root.open(f"{tmp_path}/ws", resolver=request.param) as opened:
        yield opened


@pytest.fixture
def ws(root: Root, tmp_path: Path) -> Path:
    return tmp_path / "ws"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- read --------------------------------------------------------------------------------------------------------------

SIZES = [0, 1, 65535, 65536, 65537, 200_000]


@pytest.mark.parametrize("size", SIZES)
def test_read_gives_all_bytes_whatever_the_size(root: Root, ws: Path, size: int) -> None:
    data = os.urandom(size)
    (ws / "f").write_bytes(data)
    assert operations.read(root, "f") == data
    assert operations.read(root, "f", max_bytes=size) == data
    with operations.open_reader(root, "f") as reader:
        assert (b"".join(reader), reader.size, reader.length) == (data, size, size)


@pytest.mark.parametrize("start", [0, 1, 65535, 65536, 150_000, 200_000, 300_000])
@pytest.mark.parametrize("length", [0, 1, 4096, 65536, 65537, 500_000])
def test_read_gives_any_range(root: Root, ws: Path, start: int, length: int) -> None:
    data = os.urandom(200_000)
    (ws / "f").write_bytes(data)
    assert operations.read(root, "f", start=start, length=length) == data[start : start + length]
    with operations.open_reader(root, "f", start=start, length=length) as reader:
        assert b"".join(reader) == data[start : start + length]


@pytest.mark.parametrize("size", SIZES[1:])
def test_read_of_more_than_the_limit_names_the_limit(root: Root, ws: Path, size: int) -> None:
    (ws / "f").write_bytes(bytes(size))
    with pytest.raises(QuotaExceeded) as refusal:
        operations.read(root, "f", max_bytes=size - 1)
    assert refusal.value.details == {"limit": "max_bytes", "max": size - 1}
    assert len(operations.read(root, "f", length=size - 1, max_bytes=size - 1)) == size - 1


@pytest.mark.parametrize("name", ["status", "maps", "environ", "cmdline"])
def test_files_whose_size_is_a_lie_are_read_to_their_end(name: str, request: pytest.FixtureRequest) -> None:
    with Root.open("/proc/self/") as root, open(f"/proc/self/{name}", "rb") as plain:
        ours = operations.read(root, name)
    if name != "status":  # which counts what happens meanwhile
        assert len(ours) >= len(plain.name) > 0 if name == "maps" else True
    assert ours
    with Root.open(f"/proc/{os.getpid()}") as root, pytest.raises(QuotaExceeded):
        operations.read(root, "maps", max_bytes=100)


def test_a_range_that_makes_no_sense_is_refused(root: Root, ws: Path) -> None:
    (ws / "f").write_bytes(b"x")
    for start, length in ((-1, None), (0, -5), (1 << 80, 1), (1 << 63, None)):
        with pytest.raises(Invalid):
            operations.read(root, "f", start=start, length=length)
    for start, length in ((-1, None), (0, -5)):
        with pytest.raises(Invalid):
            operations.open_reader(root, "f", start=start, length=length)
    with operations.open_reader(root, "f", start=1 << 80) as reader:
        assert list(reader) == []


def test_a_pipe_with_a_writer_is_refused_without_taking_anything_from_it(root: Root, ws: Path) -> None:
    os.mkfifo(ws / "pipe")
    keep = os.open(ws / "pipe", os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(keep, b"not for us")
        with pytest.raises(NotAFile):
            operations.read(root, "pipe")
        with pytest.raises(NotAFile):
            operations.open_reader(root, "pipe")
        assert os.read(keep, 100) == b"not for us"
    finally:
        os.close(keep)


def test_the_twin_a_plain_open_of_a_pipe_waits_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    waiting = threading.Thread(target=lambda: os.close(os.open(tmp_path / "pipe", os.O_RDONLY)))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    os.close(os.open(tmp_path / "pipe", os.O_WRONLY))
    waiting.join()


def test_a_socket_is_not_connected_to(root: Root, ws: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{ws}/s")
        listener.listen()
        listener.setblocking(False)
        with pytest.raises(NotAFile):
            operations.read(root, "s")
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_lease_that_the_agent_holds_does_not_make_us_wait(root: Root, ws: Path) -> None:
    import fcntl
    import signal

    (ws / "f").write_bytes(b"x")
    previous = signal.signal(signal.SIGIO, signal.SIG_IGN)
    held = os.open(ws / "f", os.O_RDWR)
    try:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(WorksteadError, match="try again"):
            operations.read(root, "f")
    finally:
        os.close(held)
        signal.signal(signal.SIGIO, previous)


def test_digest_of_a_file_or_nothing_when_it_is_too_large(root: Root, ws: Path) -> None:
    (ws / "f").write_bytes(b"abc")
    assert operations.digest(root, "f") == sha(b"abc")
    assert operations.digest(root, "f", max_bytes=2) is None


# -- write -------------------------------------------------------------------------------------------------------------


def test_write_tells_sizes_and_digests_before_and_after(root: Root, ws: Path) -> None:
    assert operations.write(root, "f", b"one") == Written(size=3, digest=sha(b"one"), tag=sha(b"one"))
    assert operations.write(root, "f", b"three") == Written(
        size=5, digest=sha(b"three"), size_before=3, digest_before=sha(b"one"), tag=sha(b"three")
    )
    assert (ws / "f").read_bytes() == b"three"


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o444, 0o4755, 0o2644, 0o1777])
def test_write_keeps_permissions_but_never_a_set_id_bit(root: Root, ws: Path, mode: int) -> None:
    (ws / "f").write_bytes(b"old")
    (ws / "f").chmod(mode)
    operations.write(root, "f", b"new")
    assert stat.S_IMODE((ws / "f").stat().st_mode) == mode & 0o777


def test_a_new_file_has_the_usual_mode_and_its_directorys_owner(root: Root, ws: Path) -> None:
    need_root()
    os.chown(ws, 64042, 64043)
    operations.write(root, "a/b/f", b"x", parents=True)
    for path, mode in (("a", 0o755), ("a/b", 0o755), ("a/b/f", 0o644)):
        found = (ws / path).stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (64042, 64043, mode)
    os.chown(ws / "a/b/f", 7, 8)
    operations.write(root, "a/b/f", b"y")
    assert ((ws / "a/b/f").stat().st_uid, (ws / "a/b/f").stat().st_gid) == (7, 8)


def test_write_takes_chunks_and_leaves_nothing_when_they_are_too_many(root: Root, ws: Path) -> None:
    assert operations.write(root, "f", iter([b"a", b"", b"bc"])).size == 3
    with pytest.raises(QuotaExceeded) as refusal:
        operations.write(root, "f", (b"x" * 10 for _ in range(1000)), max_bytes=25)
    assert refusal.value.details["limit"] == "max_bytes"
    with pytest.raises(QuotaExceeded):
        operations.write(root, "d/e/g", b"xyz", max_bytes=2, parents=True)
    assert (os.listdir(ws), (ws / "f").read_bytes()) == (["f"], b"abc")


def test_a_source_of_chunks_that_breaks_leaves_the_old_file(root: Root, ws: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"new"
        raise RuntimeError("broken")

    (ws / "f").write_bytes(b"old")
    with pytest.raises(RuntimeError):
        operations.write(root, "f", broken())
    with pytest.raises(RuntimeError):
        operations.write(root, "d/f", broken(), parents=True)
    assert (os.listdir(ws), (ws / "f").read_bytes()) == (["f"], b"old")


def test_readers_see_the_old_bytes_or_the_new_ones_and_nothing_between(root: Root, ws: Path) -> None:
    old, new = b"o" * 300_000, b"n" * 300_000
    (ws / "f").write_bytes(old)
    opened = os.open(ws / "f", os.O_RDONLY)

    def chunks() -> Iterator[bytes]:
        for at in range(0, len(new), 100_000):
            assert (ws / "f").read_bytes() == old
            yield new[at : at + 100_000]

    operations.write(root, "f", chunks())
    assert (ws / "f").read_bytes() == new
    assert os.read(opened, len(old)) == old
    os.close(opened)


def test_a_hard_link_keeps_its_bytes_when_another_name_is_written_or_appended_to(
    root: Root, ws: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_bytes(b"outside")
    for name, change in (("w", operations.write), ("a", operations.append)):
        os.link(tmp_path / "outside", ws / name)
        change(root, name, b"!")
    assert (tmp_path / "outside").read_bytes() == b"outside"
    assert (ws / "a").read_bytes() == b"outside!"
    os.link(tmp_path / "outside", ws / "twin")
    with open(ws / "twin", "wb") as truncated:  # the twin: to write in place reaches the other name
        truncated.write(b"!")
    assert (tmp_path / "outside").read_bytes() == b"!"


def test_create_only_lets_one_of_many_writers_win(root: Root, ws: Path) -> None:
    won: list[bytes] = []
    start = threading.Barrier(8)

    def attempt(number: int) -> None:
        start.wait()
        try:
            operations.write(root, "f", b"%d" % number, create_only=True)
            won.append(b"%d" % number)
        except FileExists:
            pass

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(ws / "f").read_bytes()] == won
    assert os.listdir(ws) == ["f"]


def test_append_tells_the_digest_of_before_and_of_the_whole(root: Root, ws: Path) -> None:
    assert operations.append(root, "log", b"one").size_before is None
    assert operations.append(root, "log", [b"t", b"wo"]) == Written(
        size=6, digest=sha(b"onetwo"), size_before=3, digest_before=sha(b"one"), tag=sha(b"onetwo")
    )
    with pytest.raises(QuotaExceeded):
        operations.append(root, "log", b"x", max_bytes=6)
    assert (ws / "log").read_bytes() == b"onetwo"


def test_append_to_a_file_that_cannot_be_read_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"kept")
    (tmp_path / "log").chmod(0o200)
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, 65534)
    with Root.open(str(tmp_path)) as root:
        child = os.fork()
        if not child:  # root may read everything, so somebody else appends
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                operations.append(root, "log", b"x")
            except PermissionDenied:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert operations.read(root, "log") == b"kept"


def test_a_change_is_announced_before_it_happens_and_not_made_if_the_announcement_fails(root: Root, ws: Path) -> None:
    class LogIsFull(Exception):
        pass

    def refuse(*_: object) -> None:
        raise LogIsFull

    (ws / "f").write_bytes(b"old")
    (ws / "d/e").mkdir(parents=True)
    said: list[object] = []

    def ready(about: object, *_: object) -> None:
        said.append((about, (ws / "f").read_bytes(), sorted(os.listdir(ws / "d"))))

    for change in (
        lambda ready: operations.write(root, "f", b"new", ready=ready),
        lambda ready: operations.write(root, "n/new", b"new", parents=True, ready=ready),
        lambda ready: operations.append(root, "f", b"new", ready=ready),
        lambda ready: operations.move(root, "f", "g", ready=ready),
        lambda ready: operations.move(root, "d", "f2", replace=True, ready=ready),
        lambda ready: operations.delete(root, "f", ready=ready),
        lambda ready: operations.delete(root, "d", recursive=True, ready=ready),
    ):
        with pytest.raises(LogIsFull):
            change(refuse)
    assert (sorted(os.listdir(ws)), (ws / "f").read_bytes()) == (["d", "f"], b"old")
    assert operations.write(root, "f", b"new", ready=ready) == said[0][0]  # type: ignore[index]
    assert operations.delete(root, "d", recursive=True, ready=ready) == Gone(kind="directory", size=0, entries=2)
    assert said[0][1:] == (b"old", ["e"])  # type: ignore[index]
    assert said[1] == (Gone(kind="directory", size=0), b"new", ["e"])


@pytest.mark.parametrize("there", [False, True])
def test_a_file_that_is_swapped_after_the_announcement_can_be_kept(root: Root, ws: Path, there: bool) -> None:
    def theirs(*_: object) -> None:
        (ws / "f").write_bytes(b"theirs!")

    changes: list[Callable[..., object]] = [
        lambda **options: operations.write(root, "f", b"ours", **options),
        lambda **options: operations.append(root, "f", b"ours", **options),
        lambda **options: operations.move(root, "g", "f", replace=True, **options),
    ]
    if there:
        changes.append(lambda **options: operations.delete(root, "f", **options))
        changes.append(lambda **options: operations.move(root, "f", "h", **options))
    for change in changes:
        for exact in (True, False):
            for name in ("f", "g", "h"):
                (ws / name).unlink(missing_ok=True)
            (ws / "g").write_bytes(b"g")
            if there:
                (ws / "f").write_bytes(b"before")
            if exact:
                with pytest.raises(FileChanged if there else FileExists):
                    change(ready=theirs, exact=True)
                assert (ws / "f").read_bytes() == b"theirs!"
                assert sorted(os.listdir(ws)) == ["f", "g"]
            else:  # the twin: without that, it goes
                change(ready=theirs)
                assert not (ws / "f").exists() or (ws / "f").read_bytes() != b"theirs!"


def test_a_sparse_terabyte_is_measured_read_in_part_replaced_and_deleted_at_once(root: Root, ws: Path) -> None:
    for name in ("big", "gone"):
        with open(ws / name, "wb") as sparse:
            sparse.truncate(1 << 40)
    found = operations.stat(root, "big")
    assert found.size == 1 << 40
    assert found.allocated < 1 << 20
    assert operations.read(root, "big", start=(1 << 40) - 3, length=10) == bytes(3)
    for call in (lambda: operations.read(root, "big"), lambda: operations.append(root, "big", b"x")):
        with pytest.raises(QuotaExceeded):
            call()
    assert operations.delete(root, "gone") == Gone(kind="file", size=1 << 40)
    written = operations.write(root, "big", b"small")
    assert (written.size_before, written.digest_before) == (1 << 40, None)


# -- delete, move, make ------------------------------------------------------------------------------------------------


def test_delete_without_recursive_takes_files_links_and_empty_directories_only(root: Root, ws: Path) -> None:
    (ws / "full/sub").mkdir(parents=True)
    (ws / "link").symlink_to("full")
    (ws / "f").write_bytes(b"abc")
    assert operations.delete(root, "f") == Gone(kind="file", size=3, digest=sha(b"abc"))
    assert operations.delete(root, "link").kind == "link"
    with pytest.raises(FileExists):
        operations.delete(root, "full")
    assert operations.delete(root, "full/sub") == Gone(kind="directory", size=0)
    operations.delete(root, "full")
    assert os.listdir(ws) == []


def test_delete_of_a_tree_counts_names_and_does_not_follow_links(root: Root, ws: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").touch()
    (ws / "t/a/b").mkdir(parents=True)
    for name in ("t/f", "t/a/f", "t/a/b/f"):
        (ws / name).touch()
    (ws / "t/a/out").symlink_to(tmp_path / "outside")
    os.mkfifo(ws / "t/pipe")
    assert operations.delete(root, "t", recursive=True).entries == 8
    assert os.listdir(tmp_path / "outside") == ["kept"]


def test_delete_stops_at_a_limit_and_says_so(root: Root, ws: Path) -> None:
    (ws / "t").mkdir()
    for number in range(300):
        (ws / f"t/{number}").touch()
    with pytest.raises(QuotaExceeded) as refusal:
        operations.delete(root, "t", recursive=True, limits=Limits(max_entries=10))
    assert refusal.value.details == {"limit": "max_entries", "max": 10}
    with pytest.raises(TimedOut):
        operations.delete(root, "t", recursive=True, limits=Limits(max_seconds=0))
    operations.delete(root, "t", recursive=True)
    assert os.listdir(ws) == []


def test_a_directory_that_its_owner_closed_can_be_deleted_by_the_owner(tmp_path: Path) -> None:
    (tmp_path / "t/closed/inner").mkdir(parents=True)
    (tmp_path / "t/closed/inner/f").touch()
    for name in ("t", "t/closed", "t/closed/inner"):
        os.chown(tmp_path / name, 65534, 65534) if os.geteuid() == 0 else None
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, 65534)
    for name, mode in (("t/closed/inner", 0o500), ("t/closed", 0o000)):
        (tmp_path / name).chmod(mode)
    folder = os.open(tmp_path, os.O_PATH)
    child = os.fork()
    if not child:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            remove_tree(folder, b"t", Limits())
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    os.close(folder)
    assert not (tmp_path / "t").exists()


def test_move_tells_what_it_moved_and_replaces_only_when_asked(root: Root, ws: Path) -> None:
    (ws / "a").write_bytes(b"a")
    (ws / "b").write_bytes(b"b")
    with pytest.raises(FileExists):
        operations.move(root, "a", "b")
    assert operations.move(root, "a", "b", replace=True) == Gone(kind="file", size=1, digest=sha(b"a"))
    assert (os.listdir(ws), (ws / "b").read_bytes()) == (["b"], b"a")


def test_move_onto_itself_or_another_kind_is_refused(root: Root, ws: Path) -> None:
    (ws / "f").write_bytes(b"f")
    os.link(ws / "f", ws / "f2")
    (ws / "d/full").mkdir(parents=True)
    (ws / "e").mkdir()
    for path, to, code in (
        ("f", "f", "file_exists"),
        ("f", "f2", "file_exists"),
        ("f", "d", "not_a_file"),
        ("d", "f", "not_a_directory"),
        ("e", "d", "file_exists"),
        ("d", "d/full/in", "invalid_path"),
    ):
        with pytest.raises(WorksteadError) as refusal:
            operations.move(root, path, to, replace=True)
        assert refusal.value.code == code
    assert sorted(os.listdir(ws)) == ["d", "e", "f", "f2"]


def test_make_directory_says_what_is_in_the_way(root: Root, ws: Path) -> None:
    operations.make_directory(root, "a/b/c", parents=True)
    operations.make_directory(root, "a/b/c", parents=True)
    with pytest.raises(FileExists):
        operations.make_directory(root, "a/b/c")
    with pytest.raises(FileNotFound):
        operations.make_directory(root, "x/y")
    assert (ws / "a/b/c").is_dir()


# -- look --------------------------------------------------------------------------------------------------------------


def test_list_shows_every_kind_with_links_as_links(root: Root, ws: Path) -> None:
    (ws / "d").mkdir()
    (ws / "f").write_bytes(b"abc")
    (ws / "l").symlink_to("../outside")
    os.mkfifo(ws / "p")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"{ws}/s")
    shown = {entry.name: (entry.kind, entry.target) for entry in operations.list_directory(root)}
    assert shown == {
        "d": ("directory", None),
        "f": ("file", None),
        "l": ("link", "../outside"),
        "p": ("fifo", None),
        "s": ("socket", None),
    }
    found = (ws / "f").stat()
    assert operations.list_directory(root)[1] == Entry(name="f", kind="file", size=3, mtime=found.st_mtime)
    with pytest.raises(QuotaExceeded):
        operations.list_directory(root, max_entries=4)


def test_stat_tells_kind_sizes_mode_and_target(root: Root, ws: Path) -> None:
    (ws / "f").write_bytes(b"x" * 5000)
    (ws / "f").chmod(0o751)
    (ws / "l").symlink_to("nowhere/\udcff")
    found = operations.stat(root, "f")
    assert (found.kind, found.size, found.allocated, found.mode, found.target) == ("file", 5000, 8192, 0o751, None)
    assert (operations.stat(root, "l").kind, operations.stat(root, "l").target) == ("link", "nowhere/\udcff")
    assert operations.stat(root, ".").kind == "directory"
    assert [operations.exists(root, name) for name in ("f", "l", "nope", "f/x")] == [True, True, False, False]


def test_names_that_are_not_utf_8_survive_a_round_trip(root: Root, ws: Path) -> None:
    for raw in (b"\xff\xfe", b"a\x80", "é".encode("latin-1"), b"new\nline", b"\x1b[31m"):
        operations.write(root, raw, raw)
    for entry in operations.list_directory(root):
        assert operations.read(root, entry.name) == os.fsencode(entry.name)
        operations.move(root, entry.name, entry.name + "2")
        operations.delete(root, entry.name + "2")
    assert os.listdir(os.fsencode(ws)) == []
