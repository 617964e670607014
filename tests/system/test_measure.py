"""What is measured: every inode below, whatever its owner does to keep it from being found."""

from __future__ import annotations

import os
from pathlib import Path

from workstead.system.files.measure import measure
from workstead.system.files.nameless import nameless


def test_any_depth_is_measured_with_few_descriptors(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(150):
        os.mkdir("n" * 200, dir_fd=here)
        os.mkdir("side", dir_fd=here)
        inner = os.open("n" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    with open(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=here), "wb") as file:
        file.write(b"x" * 100_000)
    os.close(here)
    found = measure(str(top))
    assert (found.files, found.directories, found.unreadable) == (1, 300, 0)
    assert found.bytes >= 100_000


def test_what_took_the_place_of_a_directory_is_measured_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "link").symlink_to("/usr")
    assert measure(str(tmp_path / "file")).bytes >= 100_000
    assert measure(str(tmp_path / "link")).files == 1
    assert measure(str(tmp_path / "none")).inodes == 0


def test_files_without_a_name_are_found_once_and_memory_files_never(tmp_path: Path) -> None:
    before = nameless([os.getpid()])
    first = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)
    os.write(first, b"x" * (1 << 20))
    descriptors = [first, os.dup(first), os.memfd_create("m")]
    os.write(descriptors[-1], b"x" * (1 << 20))
    try:
        found = nameless([os.getpid()])
    finally:
        for each in descriptors:
            os.close(each)
    assert (found.files - before.files, found.bytes - before.bytes) == (1, 1 << 20)
    assert nameless([os.getpid()]).files == before.files
