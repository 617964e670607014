"""Trees are copied by descriptor, with few of them, up to a limit, and without what is mounted in them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from needs import need_root
from workstead.errors import QuotaExceeded
from workstead.system.overlay.copying import copy_tree, give_tree

LEVELS = 1500


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A tree of many levels with a file in every hundredth."""
    top = tmp_path / "deep"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for level in range(LEVELS):
        if level % 100 == 0:
            os.close(os.open("file", os.O_WRONLY | os.O_CREAT, 0o640, dir_fd=here))
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    yield top
    subprocess.run(["rm", "-rf", str(top), str(tmp_path / "copy")], check=True)  # pytest's own removal recurses


def listed(top: Path) -> str:
    return subprocess.run(["find", ".", "-printf", "%d %f %m %y\n"], cwd=top, capture_output=True, text=True).stdout


def test_a_deep_tree_is_copied_whole(deep: Path, tmp_path: Path) -> None:
    top = os.open(deep, os.O_RDONLY)
    copied = copy_tree(top, str(tmp_path / "copy"))
    os.close(top)
    assert (copied.directories, copied.files) == (LEVELS, LEVELS // 100)
    assert listed(tmp_path / "copy").splitlines()[1:] == listed(deep).splitlines()[1:]


def test_everything_in_a_deep_tree_is_given_away(deep: Path) -> None:
    need_root()
    give_tree(str(deep), (64042, 64042))
    owners = subprocess.run(["find", ".", "-printf", "%U\n"], cwd=deep, capture_output=True, text=True).stdout
    assert set(owners.split()) == {"64042"}


def test_a_copy_ends_at_its_limit(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(b"x" * 100_000)
    copy_tree(str(source), str(tmp_path / "whole"), max_bytes=200_000)
    with pytest.raises(QuotaExceeded):
        copy_tree(str(source), str(tmp_path / "part"), max_bytes=50_000)


def test_a_link_in_place_of_a_tree_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    os.close(os.open(tmp_path / "link", os.O_RDONLY | os.O_DIRECTORY))  # as anybody would open it
    with pytest.raises(NotADirectoryError):
        copy_tree(str(tmp_path / "link"), str(tmp_path / "copy"))


def test_what_is_mounted_in_an_agents_tree_stays_behind(tmp_path: Path) -> None:
    need_root()
    inside = tmp_path / "source" / "mounted"
    inside.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(inside)], check=True)
    (inside / "file").write_text("not the agent's")
    assert copy_tree(str(tmp_path / "source"), str(tmp_path / "all")).files == 1
    copied = copy_tree(str(tmp_path / "source"), str(tmp_path / "own"), one_file_system=True)
    assert (copied.files, copied.skipped) == (0, ["mounted"])
