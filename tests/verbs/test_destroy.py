"""Moving workspaces to the trash."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import workstead
from needs import need, need_root
from situations import check_whole, names_in, tiny_disk, tree_of
from workstead.core.home import Home
from workstead.errors import (
    CleanupFailed,
    FolderNotFound,
    InvalidId,
    UnappliedChanges,
    WorkspaceBusy,
    WorkspaceNotFound,
)
from workstead.local import Local
from workstead.settings import Settings


@pytest.fixture
def a_workspace(workspaces: Local) -> str:
    desk = workspaces.create(id="t/a")
    Path(desk.path, "work", "file").write_text("work")
    return desk.id


@pytest.fixture
def three_workspaces(workspaces: Local) -> list[str]:
    return [workspaces.create(id=f"t/{name}").id for name in "abc"]


def test_a_destroyed_workspace_is_in_the_trash_whole(workspaces: Local, a_workspace: str, home_path: str) -> None:
    path = workspaces.path(a_workspace)
    before = tree_of(path)
    (gone,) = workspaces.destroy(a_workspace, reason="merged")
    assert gone.state == "destroyed"
    assert gone.reason == "merged"
    assert not os.path.lexists(path)
    assert tree_of(gone.trash_path) == before
    assert not workspaces.exists(a_workspace)
    assert workspaces.list() == []
    assert workspaces.list(all=True) == workspaces.trash() == [gone]
    check_whole(workspaces, home_path)


def test_intent_and_fact_are_in_the_log(workspaces: Local, a_workspace: str) -> None:
    workspaces.destroy(a_workspace, reason="merged")
    destroying, cleanup = list(workspaces.events())[-2:]
    assert (destroying.event_type, cleanup.event_type) == ("workspace_destroying", "workspace_cleanup")
    assert cleanup.event_data["cleanup_reason"] == "merged"
    assert cleanup.event_data["operation_id"] == workspaces.operations()[0].operation_id


def test_destroying_again_is_not_an_error_and_changes_nothing(workspaces: Local, a_workspace: str) -> None:
    (gone,) = workspaces.destroy(a_workspace)
    before = list(workspaces.events())
    assert workspaces.destroy(a_workspace) == [gone]
    assert list(workspaces.events()) == before
    workspaces.sweep(everything=True)
    before = list(workspaces.events())
    assert workspaces.destroy(a_workspace)[0].state == "purged"
    assert list(workspaces.events()) == before


def test_an_id_that_never_was_is_not_found(workspaces: Local) -> None:
    with pytest.raises(WorkspaceNotFound, match="t/a"):
        workspaces.destroy("t/a")
    with pytest.raises(InvalidId):
        workspaces.destroy("..")


def test_an_unknown_id_among_several_touches_none(workspaces: Local, three_workspaces: list[str]) -> None:
    before = list(workspaces.events())
    with pytest.raises(WorkspaceNotFound, match="t/z"):
        workspaces.destroy("t/a", "t/z", "t/c")
    with pytest.raises(InvalidId):
        workspaces.destroy("t/a", "t/")
    assert list(workspaces.events()) == before
    assert [workspace.id for workspace in workspaces.list()] == three_workspaces


def test_several_are_one_operation(workspaces: Local, three_workspaces: list[str], home_path: str) -> None:
    gone = workspaces.destroy("t/a", "t/b", "t/a")
    assert [workspace.id for workspace in gone] == ["t/a", "t/b", "t/a"]
    (operation,) = workspaces.operations()
    assert operation.workspaces == ["t/a", "t/b"]
    assert operation.kind == "destroy"
    check_whole(workspaces, home_path)


def test_a_whole_task_goes_at_once(workspaces: Local, three_workspaces: list[str], home_path: str) -> None:
    workspaces.create(id="u/a")
    assert [workspace.id for workspace in workspaces.destroy_task("t")] == three_workspaces
    assert [workspace.id for workspace in workspaces.list()] == ["u/a"]
    assert workspaces.destroy_task("t") == []
    with pytest.raises(WorkspaceNotFound, match="nobody"):
        workspaces.destroy_task("nobody")
    with pytest.raises(InvalidId):
        workspaces.destroy_task("t/a")
    workspaces.undo()
    assert [workspace.id for workspace in workspaces.list("t")] == three_workspaces
    check_whole(workspaces, home_path)


def test_an_id_can_be_made_anew_and_is_another_workspace(workspaces: Local, a_workspace: str, home_path: str) -> None:
    old = workspaces.get(a_workspace)
    workspaces.destroy(a_workspace)
    new = workspaces.create(id=a_workspace)
    assert new.uid != old.uid
    assert names_in(f"{new.path}/work") == []
    workspaces.destroy(a_workspace)
    assert len(workspaces.trash()) == 2
    check_whole(workspaces, home_path)


def test_a_directory_that_somebody_removed_can_still_be_forgotten(workspaces: Local, a_workspace: str) -> None:
    shutil.rmtree(workspaces.path(a_workspace))
    workspaces.destroy(a_workspace)
    assert not workspaces.exists(a_workspace)
    workspaces.create(id=a_workspace)
    workspaces.verify()


def test_a_trash_that_somebody_removed_is_made_again(workspaces: Local, a_workspace: str, home_path: str) -> None:
    shutil.rmtree(f"{home_path}/workspaces/.carrel")
    workspaces.destroy(a_workspace)
    workspaces.undo()
    assert Path(workspaces.path(a_workspace), "work", "file").read_text() == "work"


def test_what_somebody_is_at_work_on_is_busy(
    workspaces: Local, a_workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Home.hold.__wrapped__.__kwdefaults__, "wait_seconds", 0.05)  # type: ignore[attr-defined]
    before = list(workspaces.events())
    with workspaces._home.hold(a_workspace), pytest.raises(WorkspaceBusy):
        workspaces.destroy(a_workspace)
    assert list(workspaces.events()) == before
    assert workspaces.exists(a_workspace)


def test_what_cannot_be_moved_stays_as_it_was(workspaces: Local, a_workspace: str, home_path: str) -> None:
    need_root()
    path = workspaces.path(a_workspace)
    before = workspaces.get(a_workspace)
    with tiny_disk(Path(path)), pytest.raises(CleanupFailed, match="could not be moved"):
        workspaces.destroy(a_workspace)
    after = workspaces.get(a_workspace)
    assert after == before.replace(updated_at=after.updated_at)
    assert [event.event_type for event in workspaces.events()][-1] == "workspace_destroy_failed"
    assert workspaces.operations() == []
    workspaces.destroy(a_workspace)
    check_whole(workspaces, home_path)


def test_an_immutable_workspace_is_refused_by_the_system(workspaces: Local, a_workspace: str) -> None:
    need_root()
    path = workspaces.path(a_workspace)
    marked = subprocess.run(["chattr", "+i", path], capture_output=True, check=False)
    need(marked.returncode == 0, "a file system with an immutable mark")
    try:
        with pytest.raises(workstead.errors.PermissionDenied):
            workspaces.destroy(a_workspace)
        assert workspaces.get(a_workspace).state == "ready"
    finally:
        subprocess.run(["chattr", "-i", path], check=True)


def test_an_ephemeral_workspace_is_gone_at_the_end(workspaces: Local) -> None:
    with workspaces.ephemeral(task="t") as desk:
        assert os.path.isdir(desk.path)
    assert not os.path.exists(desk.path)
    assert workspaces.trash()[0].reason == "ephemeral"
    with pytest.raises(ZeroDivisionError), workspaces.ephemeral(id="t/b") as desk:
        raise ZeroDivisionError
    assert not workspaces.exists("t/b")
    with workspaces.ephemeral(id="t/c"):
        workspaces.destroy("t/c")


def test_it_can_be_destroyed_by_the_settings_of_another_day(
    workspaces: Local, a_workspace: str, home_path: str, settings: Settings, tmp_path: Path
) -> None:
    """A workspace stays where it was made when storage.workspaces_path changes."""
    elsewhere = settings.replace(storage=settings.storage.replace(workspaces_path=str(tmp_path / "elsewhere")))
    with workstead.open(home_path, settings=elsewhere) as other:
        (gone,) = other.destroy(a_workspace)
        assert Path(gone.trash_path, "work", "file").read_text() == "work"
        other.undo()
    assert Path(workspaces.path(a_workspace), "work", "file").read_text() == "work"


@pytest.mark.parametrize("is_mounted", [True, False])
def test_a_workspace_outlives_its_folder_and_can_be_destroyed(
    workspaces: Local, tmp_path: Path, is_mounted: bool
) -> None:
    need_root()
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("theirs\n")
    desk = workspaces.create(f"overlay:{folder}", id="t/a")
    Path(desk.path, "work/a.txt").write_text("the agent's\n")
    if not is_mounted:  # as after a reboot
        subprocess.run(["umount", f"{desk.path}/work"], check=True)
    shutil.rmtree(folder)
    if is_mounted:
        assert workspaces.snapshot(desk.id).files == 1
    with pytest.raises(UnappliedChanges if is_mounted else FolderNotFound):
        workspaces.destroy(desk.id)
    workspaces.destroy(desk.id, force=True)
    folder.mkdir()
    workspaces.undo()
    assert Path(workspaces.path(desk.id), "work/a.txt").read_text() == "the agent's\n"
