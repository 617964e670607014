"""Deleting what has been in the trash for its time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import carrel
from carrel.errors import CleanupFailed, OperationNotFound
from carrel.local import Local
from carrel.settings import Settings
from situations import check_whole, names_in, tiny_disk


@pytest.fixture
def two_in_the_trash(workspaces: Local) -> list[str]:
    for name in "ab":
        desk = workspaces.create(id=f"t/{name}")
        Path(desk.path, "work", "file").write_text("x")
    workspaces.destroy("t/a")
    workspaces.destroy("t/b")
    return [workspace.uid for workspace in workspaces.trash()]


@pytest.fixture
def impatient(settings: Settings) -> Settings:
    return settings.replace(workspaces=settings.workspaces.replace(trash_days=0))


def test_young_trash_stays_and_the_reason_is_told(workspaces: Local, two_in_the_trash: list[str]) -> None:
    candidates = workspaces.sweep()
    assert [(candidate.uid, candidate.goes) for candidate in candidates] == [(uid, False) for uid in two_in_the_trash]
    assert "0.0 of 7 days" in candidates[0].why
    assert len(workspaces.trash()) == 2


def test_old_trash_goes(two_in_the_trash: list[str], home_path: str, impatient: Settings) -> None:
    with carrel.open(home_path, settings=impatient) as workspaces:
        assert all(candidate.goes for candidate in workspaces.sweep(dry_run=True))
        assert len(workspaces.trash()) == 2
        workspaces.sweep()
        assert workspaces.trash() == []
        assert [workspace.state for workspace in workspaces.list(all=True)] == ["purged", "purged"]
        check_whole(workspaces, home_path)


def test_a_destroy_has_the_due_trash_swept_in_the_background_now_and_then(home_path: str, impatient: Settings) -> None:
    with carrel.open(home_path, settings=impatient) as workspaces:
        for name in "ab":
            workspaces.create(id=f"t/{name}")
        workspaces.destroy("t/a")
        assert len(workspaces.trash()) == 1  # a new home has nothing that is due
        os.utime(f"{home_path}/swept", (0, 0))
        workspaces.destroy("t/b")
        end = time.monotonic() + 30
        while workspaces.trash() and time.monotonic() < end:
            time.sleep(0.05)
        assert workspaces.trash() == []
        assert os.stat(f"{home_path}/swept").st_mtime > 0


def test_only_what_was_thrown_away_is_ever_deleted(home_path: str, impatient: Settings) -> None:
    with carrel.open(home_path, settings=impatient) as workspaces:
        workspaces.create(id="t/live")
        workspaces.create(id="t/planned", lazy=True)
        assert workspaces.sweep(everything=True) == []
        assert len(workspaces.list()) == 2
        check_whole(workspaces, home_path)


def test_everything_or_just_some_can_be_asked_for(workspaces: Local, two_in_the_trash: list[str]) -> None:
    one, other = two_in_the_trash
    assert [candidate.uid for candidate in workspaces.sweep(uids=[other])] == [other]
    assert [workspace.uid for workspace in workspaces.trash()] == [one]
    assert [candidate.why for candidate in workspaces.sweep(everything=True)] == ["asked for"]
    assert workspaces.trash() == []
    assert workspaces.sweep(everything=True) == []


def test_a_deletion_is_an_operation_with_intent_and_fact(workspaces: Local, two_in_the_trash: list[str]) -> None:
    workspaces.sweep(uids=two_in_the_trash[:1])
    assert [event.event_type for event in workspaces.events()][-2:] == ["workspace_purging", "workspace_purged"]
    assert workspaces.operations()[0].kind == "purge"


def test_what_somebody_brings_back_this_instant_stays(workspaces: Local, two_in_the_trash: list[str]) -> None:
    with workspaces._home.hold("t/a"):
        workspaces.sweep(everything=True)
    assert [workspace.id for workspace in workspaces.trash()] == ["t/a"]
    workspaces.restore_trashed("t/a")


def test_a_trash_that_somebody_emptied_by_hand_is_no_trouble(
    workspaces: Local, two_in_the_trash: list[str], home_path: str
) -> None:
    import shutil

    shutil.rmtree(f"{home_path}/workspaces/.carrel/trash")
    workspaces.sweep(everything=True)
    assert workspaces.trash() == []
    workspaces.verify()


def test_files_that_nobody_may_touch_go_too(workspaces: Local) -> None:
    desk = workspaces.create(id="t/a")
    closed = Path(desk.path, "work", "closed")
    (closed / "inside").mkdir(parents=True)
    (closed / "inside" / "file").write_text("x")
    (closed / "inside").chmod(0)
    closed.chmod(0)
    workspaces.destroy("t/a")
    workspaces.sweep(everything=True)
    assert workspaces.trash() == []


def test_what_cannot_be_deleted_is_told_and_the_rest_goes(
    workspaces: Local, two_in_the_trash: list[str], home_path: str
) -> None:
    stuck = workspaces.trash()[0]
    with tiny_disk(Path(stuck.trash_path, "work")):
        with pytest.raises(CleanupFailed, match="t/a"):
            workspaces.sweep(everything=True)
        assert workspaces.trash() == []
        assert names_in(f"{home_path}/workspaces/.carrel/trash") == [stuck.uid]
        with pytest.raises(OperationNotFound):  # half deleted is gone
            workspaces.restore_trashed(stuck.uid)
        with pytest.raises(CleanupFailed):
            workspaces.sweep()
    workspaces.sweep()
    assert not os.path.exists(stuck.trash_path)
    check_whole(workspaces, home_path)
