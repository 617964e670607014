"""What changed: between any two states, counted, and known at any time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import workstead
from origins import make_desk, make_origin, unapplied, write
from workstead.errors import SnapshotNotFound, UnappliedChanges
from workstead.local import Local
from workstead.model.workspace import Workspace
from workstead.settings import Settings


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return make_origin(tmp_path / "origin")


@pytest.fixture
def desk(workspaces: Local, origin: Path) -> Workspace:
    return make_desk(workspaces, origin)


def test_any_two_states_can_be_compared(workspaces: Local, desk: Workspace) -> None:
    work = Path(desk.path, "work")
    first = workspaces.snapshot(desk.id, label="first")
    write(work, {"README.md": "one\nTWO\nTHREE\n"})
    second = workspaces.snapshot(desk.id)
    os.unlink(work / "README.md")

    def paths(from_: str, to: str) -> list[tuple[str, str]]:
        found = workspaces.diff(desk.id, from_=from_, to=to)
        return [(change.status, change.path) for change in found.changes if change.path == "README.md"]

    assert paths("base", "first") == [("M", "README.md")]
    assert paths(first.id, second.id) == [("M", "README.md")]
    assert paths(second.id, "now") == [("D", "README.md")]
    assert paths("now", "base") == [("A", "README.md")]
    assert workspaces.diff(desk.id, from_="first", to="first").changes == ()
    with pytest.raises(SnapshotNotFound, match="fix/a has no snapshot second"):
        workspaces.diff(desk.id, to="second")


def test_looking_leaves_no_event(workspaces: Local, desk: Workspace) -> None:
    before = len(list(workspaces.events()))
    workspaces.diff(desk.id)
    workspaces.status(desk.id)
    assert len(list(workspaces.events())) == before


def test_a_renamed_file_is_one_change_with_and_without_text(workspaces: Local, desk: Workspace) -> None:
    work = Path(desk.path, "work")
    text = "".join(f"line {number}\n" for number in range(100))
    workspaces.apply(desk.id)
    write(work, {"long.txt": text})
    workspaces.apply(desk.id)
    os.unlink(work / "long.txt")
    write(work, {"elsewhere.txt": text + "and one more\n"})
    for with_text in (True, False):
        (change,) = workspaces.diff(desk.id, text=with_text).changes
        assert (change.status, change.old_path, change.path) == ("R", "long.txt", "elsewhere.txt")
    assert unapplied(workspaces) == ["elsewhere.txt"]


def test_unapplied_work_is_known_by_content_and_not_by_git(workspaces: Local, desk: Workspace, origin: Path) -> None:
    workspaces.apply(desk.id)
    work = Path(desk.path, "work")
    assert unapplied(workspaces) == []
    os.utime(work / "README.md")
    (work / ".git" / "anything").write_text("x")
    assert unapplied(workspaces) == []
    text = (work / "README.md").read_text()
    write(work, {"README.md": "other"})
    assert unapplied(workspaces) == ["README.md"]
    write(work, {"README.md": text})
    assert unapplied(workspaces) == []


def test_what_has_no_files_yet_has_no_changes(workspaces: Local) -> None:
    workspaces.create(id="t/a", lazy=True)
    assert workspaces.status("t/a") == ()
    assert workspaces.get("t/a").state == "planned"


def test_shutdown_leaves_unapplied_work_where_it_is(home_path: str, settings: Settings, origin: Path) -> None:
    tidy = settings.replace(workspaces=settings.workspaces.replace(cleanup_on_shutdown=True))
    with workstead.open(home_path, settings=tidy) as workspaces:
        make_desk(workspaces, origin, "fix/unapplied")
        make_desk(workspaces, origin, "fix/applied")
        workspaces.apply("fix/applied")
        write(Path(workspaces.path("fix/unapplied"), "work"), {"more.txt": "more"})
        workspaces.create(f"overlay:{origin}", id="fix/unchanged")
    with workstead.open(home_path, settings=settings) as workspaces:
        assert [workspace.id for workspace in workspaces.list()] == ["fix/unapplied"]
        with pytest.raises(UnappliedChanges, match="fix/unapplied"):
            workspaces.destroy("fix/unapplied")
        before = workspaces.snapshots("fix/unapplied")
        workspaces.destroy("fix/unapplied", force=True)
        workspaces.undo()
        assert [each.cause for each in workspaces.snapshots("fix/unapplied")[len(before) :]] == ["before_destroy"]


def test_changes_are_found_among_many_files(workspaces: Local, origin: Path) -> None:
    write(origin, {f"many/{number % 50}/{number}.txt": str(number) for number in range(3000)})
    desk = workspaces.create(f"overlay:{origin}", id="fix/large")
    write(Path(desk.path, "work"), {"many/1/new.txt": "x", "many/1/1.txt": "y"})
    assert [change.path for change in workspaces.status(desk.id)] == ["many/1/1.txt", "many/1/new.txt"]
