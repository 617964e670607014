"""Deleting what has been in the trash for its time."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import workstead
from origins import FILES, git, make_origin
from situations import check_whole, die_at_effect, fork, names_in, tiny_disk, wait, wait_all
from waiting import wait_until
from workstead.core import idle
from workstead.errors import CleanupFailed, Forbidden, OperationNotFound, WorksteadError
from workstead.flows.sweep import _sweep_caches
from workstead.local import Local
from workstead.model.retention import Candidate
from workstead.settings import Settings


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
    with workstead.open(home_path, settings=impatient) as workspaces:
        assert all(candidate.goes for candidate in workspaces.sweep(dry_run=True))
        assert len(workspaces.trash()) == 2
        workspaces.sweep()
        assert workspaces.trash() == []
        assert [workspace.state for workspace in workspaces.list(all=True)] == ["purged", "purged"]
        check_whole(workspaces, home_path)


def test_a_destroy_has_the_due_trash_swept_in_the_background_now_and_then(home_path: str, impatient: Settings) -> None:
    with workstead.open(home_path, settings=impatient) as workspaces:
        for name in "ab":
            workspaces.create(id=f"t/{name}")
        workspaces.destroy("t/a")
        assert len(workspaces.trash()) == 1  # a new home has nothing that is due
        os.utime(f"{home_path}/swept", (0, 0))
        workspaces.destroy("t/b")
        wait_until(lambda: workspaces.trash() == [])
        assert os.stat(f"{home_path}/swept").st_mtime > 0


def test_only_what_was_thrown_away_is_ever_deleted(home_path: str, impatient: Settings) -> None:
    with workstead.open(home_path, settings=impatient) as workspaces:
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


# -- workspaces --------------------------------------------------------------------------------------------------------


@pytest.fixture
def forgetful(settings: Settings) -> Settings:
    return settings.replace(workspaces=settings.workspaces.replace(retention_days=0))


def test_workspaces_past_their_time_go_to_the_trash_and_come_back(home_path: str, forgetful: Settings) -> None:
    with workstead.open(home_path, settings=forgetful) as workspaces:
        workspaces.create(id="t/a")
        (taken,) = workspaces.sweep()
        assert (taken.kind, taken.workspace_id, taken.goes) == ("workspace", "t/a", True)
        assert workspaces.list() == []
        assert workspaces.trash()[0].reason.startswith("sweep: not used for 0.0 days of 0")
        workspaces.undo()
        assert workspaces.exists("t/a")


def test_without_a_setting_no_age_is_too_old(workspaces: Local) -> None:
    workspaces.create(id="t/a")
    (stays,) = workspaces.sweep()
    assert (stays.goes, stays.why) == (False, "workspaces.retention_days is not set")


def test_unapplied_changes_stay_and_go_once_they_are_applied(
    home_path: str, forgetful: Settings, tmp_path: Path
) -> None:
    origin = make_origin(tmp_path / "origin")
    with workstead.open(home_path, settings=forgetful) as workspaces:
        desk = workspaces.create(f"overlay:{origin}", id="t/a")
        Path(desk.path, "work", "new.txt").write_text("new")
        (stays,) = workspaces.sweep(free_bytes=1 << 40)
        assert (stays.goes, stays.why) == (False, "holds unapplied changes")
        workspaces.apply(desk.id)
        assert [each.goes for each in workspaces.sweep() if each.kind == "workspace"] == [True]
        assert (origin / "new.txt").read_text() == "new"


def test_a_real_run_keeps_its_workspace(home_path: str, forgetful: Settings) -> None:
    with workstead.open(home_path, settings=forgetful) as workspaces:
        desk = workspaces.create(id="t/a")
        run = workspaces.run(desk.id, ["sleep", "60"], sandbox="none")
        assert [(each.goes, each.why) for each in workspaces.sweep()] == [(False, "1 active run")]
        workspaces.stop(run.id, at_once=True)
        assert [each.goes for each in workspaces.sweep()] == [True]


def test_a_directory_that_somebody_moved_away_keeps_its_workspace(home_path: str, forgetful: Settings) -> None:
    with workstead.open(home_path, settings=forgetful) as workspaces:
        desk = workspaces.create(id="t/a")
        os.rename(desk.path, f"{desk.path}.away")
        assert [each.goes for each in workspaces.sweep()] == [False]
        os.rename(f"{desk.path}.away", desk.path)
        assert [each.goes for each in workspaces.sweep()] == [True]


def test_what_is_pinned_between_the_look_and_the_deed_stays(
    home_path: str, forgetful: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with workstead.open(home_path, settings=forgetful) as workspaces:
        workspaces.create(id="t/a")
        looks = []
        real = idle.judge

        def judge(*args: Any, **more: Any) -> Any:
            found = real(*args, **more)
            if not looks:  # right after the first look
                looks.append(found[1].goes)
                workspaces.pin("t/a")
            return found

        monkeypatch.setattr("workstead.flows.sweep.judge", judge)
        assert [(each.goes, each.why) for each in workspaces.sweep()] == [(False, "pinned")]
        assert looks == [True]
        assert workspaces.exists("t/a")


def test_what_is_used_between_the_look_and_the_deed_stays(workspaces: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is wanted for its space, and whoever used it left nothing behind."""
    desk = workspaces.create(id="t/a")
    Path(desk.path, "tmp", "scratch").write_bytes(bytes(5000))
    looks = []

    def last_use(*_: object) -> float:
        looks.append(1)
        return time.time() - (86400 if len(looks) < 3 else 0)

    monkeypatch.setattr(idle, "last_use", last_use)
    (stays,) = workspaces.sweep(free_bytes=1)
    assert (stays.goes, stays.why) == (False, "was used a moment ago")
    assert workspaces.exists("t/a")


def test_two_sweepers_at_once_take_everything_once(home_path: str, forgetful: Settings) -> None:
    with workstead.open(home_path, settings=forgetful) as workspaces:
        for number in range(12):
            workspaces.create(id=f"t/{number}")

    def sweep() -> None:
        with workstead.open(home_path, settings=forgetful) as mine:
            mine.sweep()

    wait_all([fork(sweep) for _ in range(3)])
    with workstead.open(home_path, settings=forgetful) as workspaces:
        assert len(workspaces.trash()) == 12
        cleanups = [each.event_data["workspace_id"] for each in workspaces.events(types=["workspace_cleanup"])]
        assert sorted(map(str, cleanups)) == sorted(f"t/{number}" for number in range(12))
        check_whole(workspaces, home_path)


def test_a_total_that_is_too_large_is_brought_down_by_the_longest_unused(home_path: str, settings: Settings) -> None:
    limits = settings.workspaces.replace(max_total_size_gb=3 / 1024)
    with workstead.open(home_path, settings=settings.replace(workspaces=limits)) as workspaces:
        for number in range(4):
            desk = workspaces.create(id=f"t/{number}")
            Path(desk.path, "tmp", "scratch").write_bytes(os.urandom(1 << 20))
        gone = [each.workspace_id for each in workspaces.sweep() if each.goes]
        assert gone == ["t/0", "t/1"]  # four against nine tenths of three


def test_results_go_only_into_an_archive(home_path: str, forgetful: Settings) -> None:
    with workstead.open(home_path, settings=forgetful) as workspaces:
        desk = workspaces.create(id="t/a")
        Path(desk.path, "output", "report").write_text("found")
        (stays,) = workspaces.sweep()
        assert (stays.goes, "output/" in stays.why) == (False, True)
    archiving = forgetful.replace(workspaces=forgetful.workspaces.replace(archive_workspaces=True))
    with workstead.open(home_path, settings=archiving) as workspaces:
        assert [each.goes for each in workspaces.sweep()] == [True]
        (name,) = names_in(f"{home_path}/archives")
        back = workspaces.create(f"archive:{home_path}/archives/{name}", id="t/back")
        assert Path(back.path, "output", "report").read_text() == "found"
        workspaces.undo()
        assert Path(workspaces.path("t/a"), "output", "report").read_text() == "found"


def test_what_cannot_be_archived_stays(home_path: str, forgetful: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    limits = forgetful.workspaces.replace(archive_workspaces=True, archives_path=f"{tmp_path}/file/below")
    with workstead.open(home_path, settings=forgetful.replace(workspaces=limits)) as workspaces:
        workspaces.create(id="t/a")
        with pytest.raises(WorksteadError):
            workspaces.sweep()
        assert workspaces.exists("t/a")


def test_an_agent_neither_sweeps_nor_pins(workspaces: Local, two_in_the_trash: list[str]) -> None:
    workspaces.create(id="t/c")
    for agent_of in ("t/c", ""):
        agent = workspaces.acting_as("bot", agent_of=agent_of)
        with pytest.raises(Forbidden):
            agent.sweep(everything=True)
        with pytest.raises(Forbidden):
            agent.pin("t/c")
        with pytest.raises(Forbidden):
            agent.unpin("t/c")
    assert len(workspaces.trash()) == 2
    assert not workspaces.get("t/c").pinned


# -- caches ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def a_cloned_origin(home_path: str, settings: Settings, tmp_path: Path) -> Path:
    """Cloned once, thrown away and deleted: its caches are there, and nothing stands on them."""
    origin = make_origin(tmp_path / "origin")
    with workstead.open(home_path, settings=settings) as workspaces:
        workspaces.create(f"clone:{origin}", id="t/a")
        workspaces.destroy("t/a")
        workspaces.sweep(everything=True)
    return origin


def caches(candidates: Sequence[Candidate]) -> list[tuple[str, bool]]:
    return [(each.name.split("/")[0], each.goes) for each in candidates if each.kind == "cache"]


def age(home_path: str) -> None:
    for path in (*Path(home_path, "cache", "mirrors").iterdir(), *Path(home_path, "cache", "checkouts").glob("*/*")):
        os.utime(path, (1, 1))


def test_caches_that_nothing_stands_on_go_when_space_is_wanted(
    a_cloned_origin: Path, workspaces: Local, home_path: str
) -> None:
    for stack in Path(home_path, "snapshots", "stacks").iterdir():
        stack.unlink()  # a day after the last state on it, a sweep does that
    assert caches(workspaces.sweep(free_bytes=1 << 40)) == [("checkouts", False), ("mirrors", False)]  # used just now
    age(home_path)
    assert caches(workspaces.sweep()) == [("checkouts", False), ("mirrors", False)]  # nobody asked
    assert caches(workspaces.sweep(free_bytes=1 << 40)) == [("checkouts", True), ("mirrors", False)]
    assert caches(workspaces.sweep(free_bytes=1 << 40)) == [("mirrors", True)]  # the checkout borrowed from it
    assert names_in(f"{home_path}/cache/mirrors") == []
    desk = workspaces.create(f"clone:{a_cloned_origin}", id="t/again")
    assert Path(desk.path, "work", "README.md").read_text() == FILES["README.md"]


def test_caches_that_a_workspace_stands_on_stay(a_cloned_origin: Path, workspaces: Local, home_path: str) -> None:
    desk = workspaces.create(f"clone:{a_cloned_origin}", id="t/b")
    Path(desk.path, "work", "new.txt").write_text("x")
    age(home_path)
    assert caches(workspaces.sweep(free_bytes=1 << 40)) == [("checkouts", False), ("mirrors", False)]
    workspaces.destroy("t/b", force=True)
    age(home_path)
    assert caches(workspaces.sweep(free_bytes=1 << 40)) == [("checkouts", False), ("mirrors", False)]
    workspaces.undo()
    assert Path(workspaces.path("t/b"), "work", "README.md").read_text() == FILES["README.md"]


def dies_while_caches_go(home_path: str, settings: Settings, number: int) -> bool:
    def child() -> None:
        home = workstead.open(home_path, settings=settings)._home
        die_at_effect(number)
        for _ in range(2):  # the checkout, then the mirror that it borrowed from
            _sweep_caches(home, 1 << 40, dry_run=False)

    return wait(fork(child)) != 0


def test_a_kill_while_caches_go_leaves_them_whole_or_gone(
    a_cloned_origin: Path, home_path: str, settings: Settings
) -> None:
    # The first effects are locks and renames, the others deletions of which each is like the next.
    for number in itertools.chain(range(1, 12), itertools.count(12, 9)):
        for stack in Path(home_path, "snapshots", "stacks").iterdir():
            stack.unlink()
        age(home_path)
        killed = dies_while_caches_go(home_path, settings, number)
        with workstead.open(home_path, settings=settings) as workspaces:
            workspaces.sweep()
            assert not [name for name in names_in(f"{home_path}/cache") if name.startswith(("gone-", "dead-"))]
            desk = workspaces.create(f"clone:{a_cloned_origin}", id="t/b")
            assert Path(desk.path, "work", "README.md").read_text() == FILES["README.md"]
            assert git(Path(desk.path, "work"), "-c", "safe.directory=*", "status", "--porcelain") == ""
            workspaces.destroy("t/b")
            workspaces.sweep(everything=True)
        if not killed:
            break
    assert number > 10


# -- by the clock ------------------------------------------------------------------------------------------------------


def test_a_server_sweeps_by_the_clock_if_it_is_told_to(home_path: str, forgetful: Settings) -> None:
    hourly = forgetful.replace(workspaces=forgetful.workspaces.replace(sweep_every_hours=1))
    with workstead.open(home_path, settings=hourly) as workspaces:
        workspaces.create(id="t/a")
        wait_seconds = workspaces.sweep_if_due()
        assert wait_seconds is not None
        assert 3590 < wait_seconds <= 3600
        assert workspaces.list() == []
        workspaces.create(id="t/b")
        workspaces.sweep_if_due()
        assert len(workspaces.list()) == 1  # not again this hour
        os.utime(f"{home_path}/swept", (0, 0))
        workspaces.sweep_if_due()
        assert workspaces.list() == []
    with workstead.open(home_path, settings=forgetful) as workspaces:
        workspaces.create(id="t/c")
        os.utime(f"{home_path}/swept", (0, 0))
        assert workspaces.sweep_if_due() is None  # off by default
        assert len(workspaces.list()) == 1
