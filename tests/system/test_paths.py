"""`Root`: what it opens, what it says, what it accepts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from path_cases import build_box

from needs import need_root
from workstead.errors import (
    FileNotFound,
    InvalidPath,
    NotADirectory,
    NotAFile,
    PathOutsideWorkspace,
    PermissionDenied,
    WorksteadError,
)
from workstead.model.text import printable
from workstead.system.files import operations
from workstead.system.files.root import Root
from workstead.system.kernel import openat2
from workstead.system.kernel.libc import libc

RESOLVERS = ["openat2", "walk"]


@pytest.fixture
def box(tmp_path: Path) -> str:
    path = f"{tmp_path}/box"
    build_box(path, (("file", "in.txt", "inside"), ("dir", "a")))
    return path


# -- the descriptor ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resolver", RESOLVERS)
def test_a_root_stays_the_directory_that_was_opened_when_its_name_is_taken_over(box: str, resolver: str) -> None:
    with Root.open(f"{box}/ws", resolver=resolver) as root:
        os.rename(f"{box}/ws", f"{box}/ws.moved")
        os.symlink("outside", f"{box}/ws")
        assert operations.read(root, "in.txt") == b"inside"
        with pytest.raises(FileNotFound):
            operations.read(root, "secret.txt")
        operations.write(root, "new.txt", b"new")
    assert not os.path.exists(f"{box}/outside/new.txt")
    with open(f"{box}/ws/secret.txt") as by_name:  # the twin: whoever keeps the name is led outside
        assert by_name.read() == "CANARY outside"


def test_a_root_is_opened_from_its_parents_descriptor_whatever_happens_to_the_parents_name(box: str) -> None:
    parent = os.open(box, os.O_PATH | os.O_DIRECTORY)
    try:
        os.rename(box, f"{box}.moved")
        with Root.open("ws", dir_fd=parent) as root:
            assert operations.read(root, "in.txt") == b"inside"
    finally:
        os.close(parent)


def test_a_link_is_no_root(box: str) -> None:
    os.symlink("ws", f"{box}/link")
    with pytest.raises(NotADirectory) as refusal:
        Root.open(f"{box}/link")
    assert box not in refusal.value.message


def test_a_missing_root_is_told_by_its_public_name(box: str) -> None:
    with pytest.raises(FileNotFound, match=r"^/mnt/workspace does not exist$"):
        Root.open(f"{box}/nope")


def test_a_root_that_was_closed_opens_nothing_and_can_be_closed_again(box: str) -> None:
    root = Root.open(f"{box}/ws")
    root.close()
    root.close()
    with pytest.raises(WorksteadError):
        operations.read(root, "in.txt")


@pytest.mark.parametrize("resolver", RESOLVERS)
def test_no_call_leaves_a_descriptor_open(box: str, resolver: str) -> None:
    os.symlink("../outside", f"{box}/ws/esc")
    with Root.open(f"{box}/ws", resolver=resolver) as root:
        before = os.listdir("/proc/self/fd")
        for path in ("in.txt", "a", "esc", "esc/x", "nope", "nope/x", "in.txt/x", "."):
            for call in (
                lambda path=path: operations.read(root, path),
                lambda path=path: operations.open_reader(root, path).close(),
                lambda path=path: operations.stat(root, path),
                lambda path=path: operations.list_directory(root, path),
                lambda path=path: operations.write(root, path, b"x"),
                lambda path=path: operations.write(root, path, b"xy", max_bytes=1, parents=True),
                lambda path=path: operations.append(root, path, b"x"),
                lambda path=path: operations.make_directory(root, path, parents=True),
                lambda path=path: operations.move(root, path, "esc/y"),
                lambda path=path: operations.move(root, path, path),
                lambda path=path: operations.delete(root, path + "/x", recursive=True),
            ):
                try:
                    call()
                except WorksteadError:
                    continue
        assert os.listdir("/proc/self/fd") == before


def test_the_kernel_is_asked_once_which_resolver_it_has(box: str) -> None:
    with Root.open(f"{box}/ws") as root:
        assert root.resolver == openat2.probe(root.fd) == "openat2"


def test_the_walker_climbs_links_without_asking_for_dot_dot(box: str) -> None:
    deep = "d/" * 100
    os.makedirs(f"{box}/ws/{deep}")
    os.symlink("../" * 100 + "in.txt", f"{box}/ws/{deep}up")
    with Root.open(f"{box}/ws", resolver="walk") as root:
        assert operations.read(root, f"{deep}up") == b"inside"


def test_the_walker_needs_few_descriptors_for_a_long_path_and_names_the_limit_for_climbing(box: str) -> None:
    deep = "d/" * 2000
    with Root.open(f"{box}/ws", resolver="walk") as root:
        operations.make_directory(root, deep, parents=True)
        folder = root.open_path(deep.encode())
        os.symlink("../" * 400 + "d", "up", dir_fd=folder)
        os.close(folder)
        assert [entry.name for entry in operations.scan(root, deep)] == ["up"]
        with pytest.raises(InvalidPath, match="too many symbolic links"):
            operations.list_directory(root, f"{deep}up")
        operations.delete(root, "d", recursive=True)


class _Opens:
    """Counts how often an inode is opened, by inotify; O_PATH does not count."""

    def __init__(self, path: str) -> None:
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert libc.inotify_add_watch(self._fd, path.encode(), 0x20) >= 0  # IN_OPEN

    def count(self) -> int:
        try:
            return len(os.read(self._fd, 4096)) // 16
        except BlockingIOError:
            return 0

    def close(self) -> None:
        os.close(self._fd)


@pytest.mark.parametrize("kind", ["known", "direct"])
def test_a_device_is_not_even_opened(tmp_path: Path, kind: str) -> None:
    need_root()
    if kind == "direct":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "nodev", "aw-test", tmp_path], check=True)
    os.mknod(tmp_path / "zero", 0o020666, os.makedev(1, 5))
    opens = _Opens(f"{tmp_path}/zero")
    try:
        with Root.open(str(tmp_path)) as root, pytest.raises(NotAFile):
            operations.read(root, "zero")
        assert opens.count() == 0
        if kind == "known":  # the twin: to open and look afterwards is too late
            os.close(os.open(tmp_path / "zero", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
            assert opens.count() == 1
    finally:
        opens.close()
        if kind == "direct":
            subprocess.run(["umount", tmp_path], check=True)


def test_mounts_inside_a_root_are_part_of_it(tmp_path: Path) -> None:
    need_root()
    (tmp_path / "top" / "inner").mkdir(parents=True)
    for at in ("top", "top/inner"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "nodev", "aw-test", tmp_path / at], check=True)
        (tmp_path / "top" / "inner").mkdir(exist_ok=True)
        (tmp_path / at / "f").write_text(at)
    try:
        with Root.open(f"{tmp_path}/top") as root:
            assert [operations.read(root, path) for path in ("f", "inner/f", "f")] == [b"top", b"top/inner", b"top"]
            with pytest.raises(WorksteadError):
                operations.delete(root, "inner", recursive=True)
            assert operations.read(root, "inner/f") == b"top/inner"
    finally:
        for at in ("top/inner", "top"):
            subprocess.run(["umount", tmp_path / at], check=True)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_errors_name_the_public_path_with_control_characters_escaped(box: str) -> None:
    with Root.open(f"{box}/ws", public="/mnt/desk/") as root, pytest.raises(FileNotFound) as refusal:
        operations.read(root, "a/\x1b[31m\u202e\udcff\n")
    assert refusal.value.message == r"/mnt/desk/a/\x1b[31m\u202e\xff\n does not exist"


def test_whether_something_exists_outside_does_not_show(box: str) -> None:
    for name, target in (("there", "../outside/secret.txt"), ("absent", "../outside/absent")):
        os.symlink(target, f"{box}/ws/{name}")
    for resolver in RESOLVERS:
        with Root.open(f"{box}/ws", resolver=resolver) as root:
            for call in (
                operations.read,
                operations.list_directory,
                lambda root, path: operations.write(root, path, b""),
            ):
                said = set()
                for name in ("there", "absent"):
                    with pytest.raises(WorksteadError) as refusal:
                        call(root, name)
                    said.add((refusal.value.code, refusal.value.message.replace(name, "NAME")))
                assert len(said) == 1


def test_a_directory_without_permission_is_told_apart(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, 65534)
    closed = tmp_path / "closed"
    closed.mkdir(0o000)
    child = os.fork()
    if not child:  # root may read everything, so somebody else asks
        code = 1
        try:
            with Root.open(f"/proc/self/fd/{os.open(tmp_path, os.O_PATH)}/.") as root:
                if os.geteuid() == 0:
                    os.setuid(65534)
                try:
                    operations.read(root, "closed/x")
                except PermissionDenied:
                    code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_printable_text_stays_and_everything_else_is_escaped() -> None:
    assert printable("é 日本 🙂 'q'") == "é 日本 🙂 'q'"
    assert printable("\x00\x07\u2028\udc80") == r"\x00\x07\u2028\x80"


# -- text --------------------------------------------------------------------------------------------------------------

REWRITTEN = {
    "a/b": "a/b",
    "./a//b/.": "a/b",
    "a\\b\\c": "a/b/c",
    "/a/b": "a/b",
    "\\a": "a",
    "/mnt/workspace/a": "a",
    "/mnt/workspace": ".",
    "/mnt//workspace/./a/": "a",
    "/mnt/workspaces/a": "mnt/workspaces/a",
    "mnt/workspace/a": "mnt/workspace/a",
    "/": ".",
    ".": ".",
    "a/..": ".",
    "a/../b": "b",
    "/etc/passwd": "etc/passwd",
    "/etc/../passwd": "passwd",
    "C:\\Users\\x": "C:/Users/x",
    "a/..b/c..": "a/..b/c..",
    "\udcff": "\udcff",
}


@pytest.mark.parametrize(("unsafe", "clean"), REWRITTEN.items())
def test_a_forgiving_path_is_rewritten(box: str, unsafe: str, clean: str) -> None:
    with Root.open(f"{box}/ws") as root:
        assert root.resolve(unsafe) == clean


@pytest.mark.parametrize(
    "unsafe", ["..", "../a", "a/../..", "/..", "/mnt/workspace/../x", "a\\..\\..\\x", "/a/../../etc"]
)
def test_a_forgiving_path_that_leads_above_the_root_is_refused(box: str, unsafe: str) -> None:
    with Root.open(f"{box}/ws") as root, pytest.raises(PathOutsideWorkspace):
        root.resolve(unsafe)


def test_a_rewritten_path_is_still_opened_beneath(box: str) -> None:
    os.symlink("../outside", f"{box}/ws/esc")
    with Root.open(f"{box}/ws") as root, pytest.raises(WorksteadError) as refusal:
        operations.read(root, root.resolve("/mnt/workspace/esc/secret.txt"))
    assert refusal.value.code == "symlink_outside_workspace"


def test_public_paths_speak_of_the_mount(box: str) -> None:
    with Root.open(f"{box}/ws", public="/mnt/desk") as root:
        assert [root.public(path) for path in ("a/b", ".", b"\xff")] == [
            "/mnt/desk/a/b",
            "/mnt/desk",
            "/mnt/desk/\udcff",
        ]
    with Root.open(f"{box}/ws", public="/") as root:
        assert [root.public(path) for path in ("a", ".")] == ["/a", "/"]


@pytest.mark.parametrize("unsafe", [None, 3, [], ["a"], {}, {"a": 1}, object(), "\ud800", b""])
def test_what_is_no_path_is_refused(box: str, unsafe: str) -> None:
    with Root.open(f"{box}/ws") as root, pytest.raises(InvalidPath):
        operations.read(root, unsafe)


def test_bytes_are_paths_too(box: str) -> None:
    with Root.open(f"{box}/ws") as root:
        operations.write(root, b"\xff\xfe", b"x")
        assert [entry.name for entry in operations.scan(root)].count("\udcff\udcfe") == 1
        assert operations.read(root, "\udcff\udcfe") == b"x"
        with pytest.raises(WorksteadError) as refusal:
            operations.read(root, b"a/../x")
        assert refusal.value.code == "path_traversal_attempt"


def _reference(path: bytes) -> str:
    """What `check` says, written down again as plainly as possible."""
    if path == b"":
        return "invalid_path"
    if 0 in path:
        return "invalid_path_null_byte"
    if len(path) > 4095:
        return "path_too_long"
    if path[0:1] == b"/":
        return "absolute_path_not_allowed"
    if any(step == b".." for step in path.split(b"/")):
        return "path_traversal_attempt"
    return "ok"


PIECES = st.sampled_from(["..", ".", "/", "a", "", "\0", "...", "..x", "//", "\\", "é", "\udcff", "n" * 1400, " "])


@given(st.one_of(st.lists(PIECES, max_size=8).map("".join), st.text(max_size=30)))
def test_a_path_is_accepted_exactly_when_the_reference_accepts_it(text: str) -> None:
    root = Root.__new__(Root)
    root.public_mount = "/mnt/workspace"
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError:
        with pytest.raises(InvalidPath):
            root.check(text)
        return
    for spelled in (text, raw):
        try:
            said = "ok" if root.check(spelled) == raw else "changed"
        except WorksteadError as error:
            said = error.code
        assert said == _reference(raw)


@given(st.lists(PIECES, max_size=8).map("".join))
def test_a_rewritten_path_is_clean_or_refused(text: str) -> None:
    root = Root.__new__(Root)
    root.public_mount = "/mnt/workspace"
    try:
        clean = root.resolve(text)
    except WorksteadError:
        return
    assert root.check(clean)
    assert clean == "." or not {"", ".", ".."} & {*clean.split("/")}
    assert root.resolve(clean) == clean
