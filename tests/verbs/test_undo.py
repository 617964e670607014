"""Taking back."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import workstead
from situations import check_whole, killed_at_effect, tiny_disk, tree_of
from workstead.errors import (
    CleanupFailed,
    Conflict,
    DiskFull,
    FilesystemError,
    OperationNotFound,
    WorkspaceExists,
    WorkspaceNotFound,
)
from workstead.local import Local
from workstead.model.operation import Operation
from workstead.settings import Settings

METADATA = ("task_spec.json", "workspace_config.json", "context.json", "run.json")


def newest(workspaces: Local) -> Operation:
    return workspaces.operations()[0]


def ids(workspaces: Local) -> list[str]:
    return [workspace.id for workspace in workspaces.list()]


@pytest.fixture
def a_full_workspace(workspaces: Local) -> str:
    desk = workspaces.create(id="t/a", config={"claude_md": "x"})
    work = Path(desk.path, "work")
    (work / "deep" / "er").mkdir(parents=True)
    (work / "deep" / "er" / "ü\n").write_bytes(bytes(range(256)) * 100)
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / "link").symlink_to("deep/er")
    return desk.id


@pytest.fixture
def a_trashed_workspace(workspaces: Local, a_full_workspace: str) -> str:
    workspaces.destroy(a_full_workspace)
    return a_full_workspace


@pytest.fixture
def three_destroyed_at_once(workspaces: Local) -> list[str]:
    ids = [workspaces.create(id=f"t/{name}").id for name in "abc"]
    workspaces.destroy(*ids)
    return ids


def test_undo_brings_everything_back_byte_for_byte(workspaces: Local, a_full_workspace: str, home_path: str) -> None:
    desk = workspaces.get(a_full_workspace)
    before = tree_of(desk.path)
    workspaces.destroy(a_full_workspace, reason="oops")
    operation, (back,) = workspaces.undo()
    assert operation.workspaces == [a_full_workspace]
    assert tree_of(desk.path) == before
    assert (back.state, back.reason, back.uid) == ("ready", "", desk.uid)
    assert newest(workspaces).kind == "undo"
    assert newest(workspaces).undoes == operation.operation_id
    check_whole(workspaces, home_path)


def test_the_newest_operation_is_taken_back_first_however_quick_they_were(workspaces: Local) -> None:
    names = [workspaces.create(id=f"t/{number}", lazy=True).id for number in range(40)]
    for name in names:
        workspaces.destroy(name)
    assert [operation.workspaces for operation in workspaces.operations()] == [[name] for name in reversed(names)]
    for name in reversed(names):
        _, (back,) = workspaces.undo()
        assert back.id == name
    with pytest.raises(OperationNotFound, match="nothing to undo"):
        workspaces.undo()


def test_an_undo_can_be_undone_and_that_again(workspaces: Local, a_trashed_workspace: str, home_path: str) -> None:
    _, (back,) = workspaces.undo()
    assert back.state == "ready"
    _, (gone,) = workspaces.undo(newest(workspaces).operation_id)
    assert gone.state == "destroyed"
    assert newest(workspaces).kind == "undo"
    _, (back,) = workspaces.undo(newest(workspaces).operation_id)
    assert back.state == "ready"
    check_whole(workspaces, home_path)


def test_undo_without_a_name_never_undoes_an_undo(workspaces: Local, a_trashed_workspace: str) -> None:
    workspaces.undo()
    with pytest.raises(OperationNotFound):
        workspaces.undo()
    assert workspaces.exists(a_trashed_workspace)


def test_an_operation_is_undone_once(workspaces: Local, a_trashed_workspace: str) -> None:
    operation = newest(workspaces).operation_id
    workspaces.undo(operation)
    with pytest.raises(Conflict, match="undone already") as caught:
        workspaces.undo(operation)
    assert f"aw undo {newest(workspaces).operation_id}" in caught.value.hint


def test_an_unknown_operation_is_not_found(workspaces: Local) -> None:
    with pytest.raises(OperationNotFound):
        workspaces.undo("nope")
    with pytest.raises(OperationNotFound):
        workspaces.undo("\udcff")


def test_what_was_deleted_for_good_cannot_be_undone(workspaces: Local, a_trashed_workspace: str) -> None:
    destroyed = newest(workspaces).operation_id
    workspaces.sweep(everything=True)
    with pytest.raises(Conflict, match="is purged"):
        workspaces.undo(destroyed)
    with pytest.raises(Conflict, match="for good"):
        workspaces.undo(newest(workspaces).operation_id)
    with pytest.raises(OperationNotFound, match="nothing to undo"):
        workspaces.undo()


def test_what_was_deleted_for_good_is_not_in_the_way_of_older_things(workspaces: Local) -> None:
    for name in ("old", "new"):
        workspaces.create(id=f"t/{name}")
        workspaces.destroy(f"t/{name}")
    workspaces.sweep(uids=[workspaces.trash()[-1].uid])
    _, (back,) = workspaces.undo()
    assert back.id == "t/old"


def test_an_undo_is_refused_when_the_id_is_taken_again(workspaces: Local, a_trashed_workspace: str) -> None:
    new = workspaces.create(id=a_trashed_workspace)
    before = list(workspaces.events())
    with pytest.raises(WorkspaceExists, match="exists again") as caught:
        workspaces.undo()
    assert workspaces.trash()[0].uid in caught.value.hint
    assert list(workspaces.events()) == before
    assert workspaces.get(a_trashed_workspace) == new


def test_an_undo_of_several_changes_nothing_if_one_cannot_come_back(
    workspaces: Local, three_destroyed_at_once: list[str]
) -> None:
    workspaces.create(id="t/b")
    before = list(workspaces.events())
    with pytest.raises(WorkspaceExists):
        workspaces.undo()
    assert list(workspaces.events()) == before


def test_what_happened_since_is_not_taken_back_in_its_place(workspaces: Local, a_trashed_workspace: str) -> None:
    workspaces.undo()
    restoring = newest(workspaces).operation_id
    workspaces.destroy(a_trashed_workspace)  # somebody decides anew
    with pytest.raises(Conflict, match="something else was done"):
        workspaces.undo(restoring)
    assert not workspaces.exists(a_trashed_workspace)


def test_files_that_somebody_took_out_of_the_trash_are_missed(workspaces: Local, a_trashed_workspace: str) -> None:
    shutil.rmtree(workspaces.trash()[0].trash_path)
    before = list(workspaces.events())
    with pytest.raises(CleanupFailed, match="not in the trash any more"):
        workspaces.undo()
    assert list(workspaces.events()) == before


def test_a_stranger_in_the_way_is_never_touched(workspaces: Local, a_trashed_workspace: str, home_path: str) -> None:
    path = Path(home_path, "workspaces", "t", "a")
    path.mkdir()
    (path / "precious").write_text("mine")
    before = workspaces.trash()[0]
    with pytest.raises(FilesystemError, match="could not be brought back"):
        workspaces.undo()
    assert (path / "precious").read_text() == "mine"
    after = workspaces.trash()[0]
    assert after == before.replace(updated_at=after.updated_at)
    shutil.rmtree(path)
    workspaces.undo()
    check_whole(workspaces, home_path)


# -- the trash ---------------------------------------------------------------------------------------------------------


def test_one_of_several_comes_back_and_undo_brings_the_others(
    workspaces: Local, three_destroyed_at_once: list[str], home_path: str
) -> None:
    workspaces.restore_trashed("t/b")
    assert ids(workspaces) == ["t/b"]
    _, back = workspaces.undo()
    assert [workspace.id for workspace in back] == ["t/a", "t/c"]
    assert ids(workspaces) == three_destroyed_at_once
    with pytest.raises(OperationNotFound):
        workspaces.undo()
    check_whole(workspaces, home_path)


def test_an_undo_that_died_half_way_can_be_ended(three_destroyed_at_once: list[str], workspaces: Local) -> None:
    workspaces.restore_trashed("t/a")  # as far as it came
    workspaces.undo()
    assert ids(workspaces) == three_destroyed_at_once


def test_a_workspace_comes_back_by_its_id_or_its_uid(workspaces: Local, a_trashed_workspace: str) -> None:
    uid = workspaces.trash()[0].uid
    assert workspaces.restore_trashed(uid).id == a_trashed_workspace
    workspaces.destroy(a_trashed_workspace)
    assert workspaces.restore_trashed(a_trashed_workspace).uid == uid
    with pytest.raises(OperationNotFound, match="is not in the trash"):
        workspaces.restore_trashed(uid)
    assert workspaces.trash() == []


def test_a_bare_task_means_its_main_agent_in_the_trash_too(workspaces: Local) -> None:
    workspaces.create(id="solo")
    workspaces.destroy("solo")
    assert workspaces.restore_trashed("solo").id == "solo/main"


def test_the_last_of_several_that_had_the_id_comes_back(workspaces: Local) -> None:
    uids = []
    for _ in range(3):
        uids.append(workspaces.create(id="t/a").uid)
        workspaces.destroy("t/a")
    assert workspaces.restore_trashed("t/a").uid == uids[-1]
    workspaces.destroy("t/a")
    assert workspaces.restore_trashed(uids[0]).uid == uids[0]


def _without_metadata(files: dict[str, Any]) -> dict[str, Any]:
    return {path: entry for path, entry in files.items() if not path.startswith(".aw/")}


def test_it_may_come_back_under_another_id(workspaces: Local, a_trashed_workspace: str, home_path: str) -> None:
    files = tree_of(workspaces.trash()[0].trash_path)
    new = workspaces.create(id=a_trashed_workspace)
    back = workspaces.restore_trashed(a_trashed_workspace, new_id="other/place")
    assert (back.id, back.task_id, back.agent_id) == ("other/place", "other", "place")
    assert back.path == f"{home_path}/workspaces/other/place"
    assert _without_metadata(tree_of(back.path)) == _without_metadata(files)
    assert workspaces.get(a_trashed_workspace) == new
    assert [workspace.id for workspace in workspaces.list("other")] == ["other/place"]
    workspaces.destroy("other/place")
    workspaces.undo()
    assert workspaces.get("other/place").uid == back.uid
    check_whole(workspaces, home_path)


def test_the_id_that_it_had_before_was_destroyed_all_the_same(workspaces: Local, a_trashed_workspace: str) -> None:
    workspaces.restore_trashed(a_trashed_workspace, new_id="other/place")
    assert workspaces.destroy(a_trashed_workspace) == []
    assert workspaces.exists("other/place")
    with pytest.raises(WorkspaceNotFound):
        workspaces.destroy("t/never")


def test_another_id_that_is_taken_is_refused(workspaces: Local, a_trashed_workspace: str) -> None:
    workspaces.create(id="other/place")
    with pytest.raises(WorkspaceExists):
        workspaces.restore_trashed(a_trashed_workspace, new_id="other/place")
    assert workspaces.trash()[0].id == a_trashed_workspace


def test_a_restore_to_another_id_that_fails_leaves_the_old_one(
    workspaces: Local, a_trashed_workspace: str, home_path: str
) -> None:
    path = Path(home_path, "workspaces", "other", "place")
    path.mkdir(parents=True)
    (path / "precious").write_text("mine")
    with pytest.raises(FilesystemError):
        workspaces.restore_trashed(a_trashed_workspace, new_id="other/place")
    assert workspaces.trash()[0].id == a_trashed_workspace
    shutil.rmtree(path)
    workspaces.undo()
    assert os.path.isdir(workspaces.path(a_trashed_workspace))
    check_whole(workspaces, home_path)


def test_nothing_comes_back_twice(workspaces: Local, a_trashed_workspace: str) -> None:
    uid = workspaces.trash()[0].uid
    workspaces.restore_trashed(uid, new_id="x/y")
    with pytest.raises(OperationNotFound):
        workspaces.restore_trashed(uid, new_id="x/z")


def test_a_fork_is_safe_here() -> None:
    """The crash suites rely on this: a child that is killed leaves its parent alone."""
    assert killed_at_effect(1, lambda: os.mkdir("x"))
    assert not os.path.exists("x")


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_full_disk_keeps_nobody_from_deleting(tmp_path: Path, settings: Settings) -> None:
    """What cannot be kept is not taken away, unless the owner says that it may go for good."""
    with tiny_disk(tmp_path / "small", "40m") as small, workstead.open(small / "home", settings=settings) as workspaces:
        desk = workspaces.create(id="t/a").id
        workspaces.write_file(desk, "work/large", os.urandom(1_000_000))
        with open(small / "filler", "wb", buffering=0) as filler, suppress(OSError):
            while filler.write(bytes(4096)):
                pass
        os.truncate(small / "filler", os.path.getsize(small / "filler") - 400_000)  # the log still has room
        with pytest.raises(DiskFull, match="no room to keep") as caught:
            workspaces.delete_file(desk, "work/large")
        assert "--no-keep" in str(caught.value.hint)
        assert workspaces.stat_file(desk, "work/large").size == 1_000_000
        workspaces.delete_file(desk, "work/large", keep=False)
        assert workspaces.operations() == []


def test_the_metadata_of_a_workspace_that_came_back_elsewhere_names_its_new_place(workspaces: Local) -> None:
    workspaces.create(id="t/a", config={"context": {"workspace_path": "the user's own"}})
    workspaces.destroy("t/a")
    back = workspaces.restore_trashed("t/a", new_id="other/b")
    texts = {name: json.loads(workspaces.read_text("other/b", f".aw/{name}")) for name in METADATA}
    assert texts["workspace_config.json"]["workspace_path"] == back.path
    assert texts["run.json"]["workspace_id"] == texts["context.json"]["workspace_id"] == "other/b"
    assert (texts["task_spec.json"]["task_id"], texts["task_spec.json"]["agent_id"]) == ("other", "b")
    assert texts["context.json"]["workspace_path"] == "the user's own"
    assert list(workspaces.repair()) == []
    workspaces.verify().check()
