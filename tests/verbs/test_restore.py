"""Bringing states back, and taking that back again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.errors import (
    Conflict,
    DiskFull,
    FileNotFound,
    OperationNotFound,
    PathTraversal,
    SnapshotNotFound,
)
from carrel.local import Local
from carrel.model.workspace import Workspace
from origins import make_desk, make_origin, read, unapplied, write
from situations import tiny_disk


@pytest.fixture
def desk(workspaces: Local, tmp_path: Path) -> Workspace:
    return make_desk(workspaces, make_origin(tmp_path / "origin"))


@pytest.fixture
def work(desk: Workspace) -> Path:
    return Path(desk.path, "work")


def test_restores_are_taken_back_one_by_one_and_undo_is_undone(workspaces: Local, desk: Workspace, work: Path) -> None:
    states = []
    for number in range(3):
        write(work, {"state.txt": str(number), f"only-{number}": "x"})
        workspaces.snapshot(desk.id, label=str(number))
        states.append(read(work))
        os.unlink(work / f"only-{number}")
    now = read(work)
    workspaces.restore(desk.id, "0")
    workspaces.restore(desk.id, "1")
    assert read(work) == states[1]
    workspaces.undo()
    assert read(work) == states[0]
    workspaces.undo()
    assert read(work) == now
    with pytest.raises(OperationNotFound):
        workspaces.undo()
    undos = [operation for operation in workspaces.operations() if operation.kind == "undo"]
    workspaces.undo(undos[0].operation_id)  # the state that the first restore had made
    assert read(work) == states[0]
    workspaces.verify()


def test_an_older_restore_is_taken_back_by_its_own_id(workspaces: Local, desk: Workspace, work: Path) -> None:
    before = read(work)
    operation, _ = workspaces.restore(desk.id, "base")
    write(work, {"later": "x"})
    workspaces.restore(desk.id, "base", ["work/later"])
    workspaces.undo(operation)
    assert read(work) == before
    with pytest.raises(Conflict, match=operation):
        workspaces.undo(operation)


def test_only_the_paths_of_a_restore_are_taken_back(workspaces: Local, desk: Workspace, work: Path) -> None:
    workspaces.restore(desk.id, "base", ["work/README.md", "work/new"])
    assert (work / "README.md").read_text() == "one\ntwo\nthree\n"
    assert not (work / "new").exists()
    write(work, {"src/app.py": "edited since"})
    workspaces.undo()
    assert (work / "README.md").read_text() == "one\nTWO\nthree\n"
    assert (work / "new" / "deep" / "file.txt").exists()
    assert (work / "src" / "app.py").read_text() == "edited since"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("work/typo", FileNotFound),
        ("README.md", FileNotFound),
        (".aw/run.json", FileNotFound),
        ("work/../../x", PathTraversal),
    ],
)
def test_a_path_that_makes_no_sense_is_named_and_changes_nothing(
    path: str, error: type[Exception], workspaces: Local, desk: Workspace, work: Path
) -> None:
    before = read(work)
    with pytest.raises(error) as caught:
        workspaces.restore(desk.id, "base", [path])
    assert path in str(caught.value)
    assert read(work) == before
    assert workspaces.get(desk.id).state == "ready"
    assert workspaces.operations() == []


def test_a_restore_can_be_taken_back_after_the_workspace_came_back_elsewhere(
    workspaces: Local, desk: Workspace, work: Path
) -> None:
    before = read(work)
    operation, _ = workspaces.restore(desk.id, "base")
    workspaces.destroy(desk.id, force=True)
    with pytest.raises(Conflict, match="fix/a is destroyed"):
        workspaces.undo(operation)
    back = workspaces.restore_trashed(desk.id, new_id="other/place")
    workspaces.undo(operation)
    assert read(Path(back.path, "work")) == before
    with pytest.raises(SnapshotNotFound, match="other/place has no snapshot nonsense"):
        workspaces.restore(back.id, "nonsense")
    workspaces.verify()


def test_output_and_notes_come_back_too(workspaces: Local, desk: Workspace) -> None:
    workspaces.write_file(desk.id, "output/report.txt", "r")
    workspaces.snapshot(desk.id, label="with report")
    workspaces.delete_file(desk.id, "output/report.txt")
    workspaces.restore(desk.id, "with report", ["output"])
    assert workspaces.read_text(desk.id, "output/report.txt") == "r"


def test_a_disk_that_fills_up_while_restoring_gets_the_present_back(
    home_path: str, workspaces: Local, tmp_path: Path
) -> None:
    """The workspaces are on a small disk of their own; what is brought back does not fit any more."""
    origin = make_origin(tmp_path / "origin")
    with tiny_disk(Path(home_path, "workspaces"), "20m") as small:
        desk = make_desk(workspaces, origin)
        work = Path(desk.path, "work")
        for number in range(8):
            (work / f"{number}.bin").write_bytes(os.urandom(250_000))
        workspaces.snapshot(desk.id, label="large")
        for number in range(8):
            os.unlink(work / f"{number}.bin")
        write(work, {"README.md": "the present\n"})
        before = read(work)
        with open(small / "filler", "wb") as filler:
            free = os.statvfs(small)
            filler.write(b"x" * (free.f_bavail * free.f_frsize - 1_200_000))
        with pytest.raises(DiskFull) as caught:
            workspaces.restore(desk.id, "large")
        assert caught.value.hint
        assert read(work) == before
        assert workspaces.get(desk.id).state == "ready"
        assert workspaces.operations() == []
        os.unlink(small / "filler")
        workspaces.restore(desk.id, "large")
        assert len(os.listdir(work)) > 8
        workspaces.undo()
        assert read(work) == before
        assert "README.md" in unapplied(workspaces)
        workspaces.verify()
        workspaces.destroy(desk.id, force=True)
