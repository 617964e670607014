"""Bringing states back, and taking that back again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from origins import make_desk, make_origin, read, unapplied, write
from situations import tiny_disk
from workstead.errors import Conflict, DiskFull, FileNotFound, OperationNotFound, PathTraversal, SnapshotNotFound
from workstead.local import Local
from workstead.model.workspace import Workspace


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return make_origin(tmp_path / "origin")


@pytest.fixture
def desk(workspaces: Local, origin: Path) -> Workspace:
    return make_desk(workspaces, origin)


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


# -- states from before an apply to the folder that the workspace lies on ----------------------------------------------


def _applied_over(workspaces: Local, desk: Workspace, work: Path) -> dict[str, str]:
    """Give everything back after a state was kept, and edit on; gives that state."""
    workspaces.restore(desk.id, "base")
    os.chmod(work / "src", 0o750)
    before = read(work)
    workspaces.snapshot(desk.id, label="before")
    workspaces.undo()
    workspaces.apply(desk.id)
    write(work, {"README.md": "and on\n", "new/later.txt": "later\n"})
    return before


def test_a_state_from_before_an_apply_is_what_it_was(
    workspaces: Local, desk: Workspace, work: Path, origin: Path
) -> None:
    before = _applied_over(workspaces, desk, work)
    assert (origin / "new/other.txt").exists()
    assert not (origin / "src/old.py").exists()
    changed = {change.path for change in workspaces.diff(desk.id, from_="before", to="now").changes}
    assert {"README.md", "src/old.py", "new/other.txt", "new/later.txt"} <= changed
    present, folder = read(work), read(origin)
    workspaces.restore(desk.id, "before")
    assert read(work) == before
    assert (work / "src").stat().st_mode & 0o777 == 0o750
    assert read(origin) == folder
    subprocess.run(["umount", work], check=True)  # what the kernel remembers is not what makes it so
    workspaces.path(desk.id)
    assert read(work) == before
    workspaces.undo()
    assert read(work) == present


def test_what_a_restore_took_back_is_work_to_be_applied(
    workspaces: Local, desk: Workspace, work: Path, origin: Path
) -> None:
    before = _applied_over(workspaces, desk, work)
    workspaces.restore(desk.id, "before")
    assert {"README.md", "src/old.py", "new/other.txt"} <= set(unapplied(workspaces))
    workspaces.apply(desk.id)
    assert read(origin) == before
    assert unapplied(workspaces) == []


def test_a_fork_of_a_state_from_before_an_apply_has_that_state(workspaces: Local, desk: Workspace, work: Path) -> None:
    before = _applied_over(workspaces, desk, work)
    present = read(work)
    (child,) = workspaces.fork(desk.id, new_id="fix/child", snapshot="before")
    assert read(Path(child.path, "work")) == before
    assert read(work) == present


def test_one_path_of_a_state_from_before_an_apply(workspaces: Local, desk: Workspace, work: Path) -> None:
    before = _applied_over(workspaces, desk, work)
    present = read(work)
    workspaces.restore(desk.id, "before", ["work/src/old.py", "work/new/other.txt"])
    expected = {**present, "src/old.py": before["src/old.py"]}
    del expected["new/other.txt"]
    assert read(work) == expected


def test_what_others_do_in_the_folder_is_not_taken_back(workspaces: Local, desk: Workspace, origin: Path) -> None:
    """Another workspace over the same folder gives something back: a restore of ours must not make it undone work."""
    work = Path(desk.path, "work")
    workspaces.apply(desk.id)
    other = workspaces.create(f"overlay:{origin}", id="other/a")
    workspaces.snapshot(other.id, label="quiet")
    write(work, {"README.md": "from the first\n", "shared.txt": "s\n"})
    workspaces.apply(desk.id)
    workspaces.restore(other.id, "quiet")
    assert workspaces.read_text(other.id, "work/shared.txt") == "s\n"
    assert unapplied(workspaces, other.id) == []


def test_states_from_before_an_apply_outlive_a_sweep(workspaces: Local, desk: Workspace, work: Path) -> None:
    before = _applied_over(workspaces, desk, work)
    workspaces.sweep()
    workspaces.restore(desk.id, "before")
    assert read(work) == before
    workspaces.verify()
