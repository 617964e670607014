"""Workspaces to take snapshots of: plain directories, and overlays as most of them are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from desks import Desk

from needs import need_root


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A workspace in a plain directory."""
    made = Desk(tmp_path)
    yield made
    made.close()


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A small project of the user's."""
    root = tmp_path / "origin"
    for name, text in {
        "README.md": "# Project\n\nText.\n",
        "src/app.py": "".join(f"line {number}\n" for number in range(40)),
        "src/lib/deep.py": "x = 1\n",
        "data/blob.bin": "\0\1\2" * 50,
        "docs/guide.md": "guide\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "link").symlink_to("README.md")
    (root / "empty").mkdir()
    (root / "src/app.py").chmod(0o755)
    return root


@pytest.fixture
def overlay_desk(tmp_path: Path, origin: Path) -> Iterator[Desk]:
    """A workspace that is a copy-on-write view of the origin."""
    need_root()
    made = Desk(tmp_path, lower=origin)
    yield made
    made.close()


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A directory on a file system in memory."""
    with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as made:
        yield Path(made)


@pytest.fixture(params=["plain", "overlay"])
def any_desk(request: pytest.FixtureRequest) -> Desk:
    """Each kind of workspace."""
    made: Desk = request.getfixturevalue("desk" if request.param == "plain" else "overlay_desk")
    return made
