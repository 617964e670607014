"""A root that is read often gets a mount of its own, and that mount is as tight as the two-step open."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from needs import need_root
from workstead.errors import FileNotFound, NotAFile, SymlinkOutsideWorkspace, WorksteadError
from workstead.system.files import operations
from workstead.system.files.root import _OFTEN, Root


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Root]:
    """A root after many reads."""
    need_root()
    top = tmp_path / "ws"
    top.mkdir()
    (top / "a").write_text("a")
    with Root.open(str(top), resolver="openat2") as root:
        for _ in range(_OFTEN + 1):
            assert operations.read(root, "a") == b"a"
        assert root._direct_fd != root.fd, "it has no mount of its own"
        yield root


def test_it_sees_what_happens_in_the_directory(busy: Root, tmp_path: Path) -> None:
    (tmp_path / "ws" / "b").write_text("b")
    assert operations.read(busy, "b") == b"b"
    (tmp_path / "ws" / "b").unlink()
    with pytest.raises(FileNotFound):
        operations.read(busy, "b")
    os.rename(tmp_path / "ws", tmp_path / "elsewhere")
    assert operations.read(busy, "a") == b"a"


@pytest.mark.parametrize(
    ("name", "error"),
    [("pipe", NotAFile), ("null", NotAFile), ("out", SymlinkOutsideWorkspace), ("up", SymlinkOutsideWorkspace)],
)
def test_odd_files_and_links_are_refused_as_before(
    busy: Root, tmp_path: Path, name: str, error: type[WorksteadError]
) -> None:
    top = tmp_path / "ws"
    os.mkfifo(top / "pipe")
    os.mknod(top / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.symlink("/etc/hostname", top / "out")
    os.symlink("../secret", top / "up")
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(error):
        operations.read(busy, name)


def test_a_file_system_below_is_still_reached(busy: Root, tmp_path: Path) -> None:
    below = tmp_path / "ws" / "below"
    below.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(below)], check=True)
    (below / "c").write_text("c")
    os.mknod(below / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert operations.read(busy, "below/c") == b"c"
    with pytest.raises(NotAFile):
        operations.read(busy, "below/null")


def test_nothing_stays_open(busy: Root) -> None:
    before = len(os.listdir("/proc/self/fd"))
    mounts = Path("/proc/self/mountinfo").read_text()
    busy.close()
    busy.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    assert Path("/proc/self/mountinfo").read_text() == mounts
