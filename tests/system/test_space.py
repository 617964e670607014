"""A file system of limited size for one workspace: full is full, and however often it is mounted it is one."""

from __future__ import annotations

import io
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from needs import need, need_program, need_root
from workstead.system.overlay import quota_image

MIB = 1 << 20


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[str]:
    need_root()
    need_program("mkfs.ext4")
    need(os.path.exists("/dev/loop-control"), "loop devices")
    (tmp_path / "root").mkdir()
    yield str(tmp_path / "layers")
    quota_image.detach(str(tmp_path / "layers"), str(tmp_path / "root"))


def root_of(layers: str) -> str:
    return str(Path(layers).parent / "root")


def fill(path: str) -> int:
    with open(path, "wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        write_without_end(file)
    return os.path.getsize(path)


def write_without_end(file: io.RawIOBase) -> None:
    while True:
        file.write(bytes(1 << 16))


def make_files(root: str) -> None:
    for number in range(1000):
        Path(root, str(number)).touch()


@pytest.mark.parametrize("size", [16, 50, 150])
def test_what_does_not_go_in_is_refused_and_what_is_deleted_comes_back_to_the_disk(layers: str, size: int) -> None:
    quota_image.make(layers, size * MIB)
    quota_image.attach(layers, root_of(layers))
    written = fill(f"{root_of(layers)}/large")
    assert size * MIB * 0.85 < written <= size * MIB
    assert written > quota_image.capacity(layers) * 0.98
    assert quota_image.taken(layers) <= size * MIB * 1.05
    os.unlink(f"{root_of(layers)}/large")
    end = time.monotonic() + 30
    while quota_image.taken(layers) > size * MIB * 0.2 and time.monotonic() < end:
        os.sync()  # the blocks come back with the journal's next commit
        time.sleep(0.05)
    assert quota_image.taken(layers) <= size * MIB * 0.2
    assert fill(f"{root_of(layers)}/again") > written * 0.98


def test_so_many_files_go_in_and_no_more(layers: str) -> None:
    quota_image.make(layers, 32 * MIB, 100)
    quota_image.attach(layers, root_of(layers))
    with pytest.raises(OSError, match="No space"):
        make_files(root_of(layers))
    assert (
        100 <= len(os.listdir(root_of(layers))) <= 120
    )  # some of them are for the workspace's own directories and documents


def test_a_space_that_somebody_still_uses_is_mounted_again_as_the_same_file_system(layers: str) -> None:
    root = root_of(layers)
    quota_image.make(layers, 16 * MIB)
    quota_image.attach(layers, root)
    with open(f"{root}/file", "w") as still_open:
        assert not quota_image.detach(layers, root)
        assert not quota_image.is_attached(layers, root)
        assert os.listdir(root) == []
        quota_image.attach(layers, root)
        still_open.write("written through a mount that nobody sees")
        still_open.flush()
        assert Path(root, "file").read_text() == "written through a mount that nobody sees"
        devices = subprocess.run(["losetup", "-j", f"{layers}/image"], capture_output=True, text=True, check=True)
        assert len(devices.stdout.splitlines()) == 1
    assert quota_image.detach(layers, root)


def test_what_was_written_is_there_after_everything_was_unmounted(layers: str) -> None:
    quota_image.make(layers, 16 * MIB)
    quota_image.attach(layers, root_of(layers))
    Path(root_of(layers), "file").write_text("kept")
    assert quota_image.detach(layers, root_of(layers))
    assert quota_image.detach(layers, root_of(layers))  # once more does no harm
    quota_image.attach(layers, root_of(layers))
    quota_image.attach(layers, root_of(layers))
    assert Path(root_of(layers), "file").read_text() == "kept"
    assert Path("/proc/self/mountinfo").read_text().count(f" {root_of(layers)} ") == 1


def test_the_trial_leaves_nothing(tmp_path: Path) -> None:
    need_root()
    need_program("mkfs.ext4")
    (tmp_path / "place").mkdir()
    assert quota_image.probe(str(tmp_path / "place")) is None
    assert os.listdir(tmp_path / "place") == []
