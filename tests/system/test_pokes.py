"""Folders that a guest asks us to watch: what changes there is told, and nothing of any other place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from workstead.sandboxes.vm import pokes, wire
from workstead.sandboxes.vm.pokes import Pokes


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    os.symlink(tmp_path / "secret", tmp_path / "workspace" / "link")
    return tmp_path / "workspace"


@pytest.fixture
def watched(workspace: Path) -> Iterator[Pokes]:
    folder = os.open(workspace, os.O_PATH | os.O_DIRECTORY)
    made = Pokes(folder)
    yield made
    made.close()
    os.close(folder)


def test_what_changes_is_told_once_with_its_path(watched: Pokes, workspace: Path) -> None:
    watched.watch(b"")
    watched.watch(b"deep/er")
    (workspace / "top").write_text("one")
    for text in ("one", "two"):
        (workspace / "deep" / "er" / "file").write_text(text)
    (workspace / "deep" / "not watched").write_text("")
    assert watched.take() == [b"top", b"deep/er/file"]
    os.chmod(workspace / "top", 0o600)  # as our own poke: it would come back for ever
    assert watched.take() == []
    (workspace / "top").unlink()
    watched.forget(b"deep/er")
    (workspace / "deep" / "er" / "file").unlink()
    assert watched.take() == [b"top"]


def test_no_other_place_is_watched(watched: Pokes, workspace: Path) -> None:
    secret = workspace.parent / "secret"
    for path in (b"../secret", os.fsencode(secret), b"link", b"link/.", b"deep/../../secret", b"no\0name", b"x" * 5000):
        watched.watch(path)
    (secret / "file").write_text("")
    assert watched.take() == []
    above = os.open(workspace.parent, os.O_PATH)
    other = Pokes(above)
    other.watch(b"secret")  # which can be watched, by whoever may name it
    (secret / "another").write_text("")
    assert other.take() == [b"secret/another"]
    other.close()
    os.close(above)


def test_a_guest_cannot_have_all_watches(watched: Pokes, workspace: Path) -> None:
    for number in range(wire.MOST_WATCHED + 5):
        (workspace / f"{number}").mkdir()
        watched.watch(b"%d" % number)
    for number in (wire.MOST_WATCHED - 1, wire.MOST_WATCHED):
        (workspace / f"{number}" / "file").write_text("")
    assert watched.take() == [b"%d/file" % (wire.MOST_WATCHED - 1)]


def test_many_changes_are_told_as_their_folder(
    watched: Pokes, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pokes, "_MOST_AT_ONCE", 3)
    watched.watch(b"deep")
    for number in range(4):
        (workspace / "deep" / f"{number}").write_text("")
    assert watched.take() == [b"deep"]
