"""Several workspaces of one origin try the same."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import workstead
from needs import need_root
from situations import fork, wait
from workstead.errors import Invalid, OriginMoved, RaceNotFound, WorkspaceExists, WorkspaceNotFound
from workstead.local import Local
from workstead.model.race import Race
from workstead.settings import Settings

FIX = """
case {n} in
    1) sed -i 's/-/+/' calc.py ;;
    2) exit 3 ;;
    3) echo '# more' >> calc.py; sed -i 's/a - b/a + b/' calc.py; echo new > new.txt ;;
    4) echo other > new.txt ;;
esac
"""
CHECK = "python3 check.py"


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    need_root()
    folder = tmp_path / "origin"
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "check.py").write_text("from calc import add\nassert add(2, 3) == 5\n")
    return folder


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def places(race: Race) -> list[str]:
    return [lane.workspace_id for lane in race.lanes]


def event_types(workspaces: Local, task: str) -> list[str]:
    return [event.event_type for event in workspaces.events(task=task) if event.event_type.startswith("race_")]


def test_the_best_of_four_is_found_and_nobody_else_is_touched(workspaces: Local, origin: Path) -> None:
    seen: list[Race] = []
    race = workspaces.race(
        f"overlay:{origin}", shell(FIX), count=4, check=CHECK, task="t", at_once=2, watch=seen.append
    )
    assert race.state == "ended"
    assert places(race) == ["t/1", "t/3", "t/4", "t/2"]
    first, second, third, last = race.lanes
    assert race.best == first
    assert [(lane.exit_code, lane.check_code) for lane in race.lanes] == [(0, 0), (0, 0), (0, 1), (3, 1)]
    assert (first.files, first.added, first.removed, first.paths) == (1, 1, 1, ["calc.py"])
    assert (second.paths, second.shared_paths) == (["calc.py", "new.txt"], 2)
    assert (third.shared_paths, last.paths) == (1, [])
    assert [(each.path, sorted(each.workspace_ids)) for each in race.shared] == [
        ("calc.py", ["t/1", "t/3"]),
        ("new.txt", ["t/3", "t/4"]),
    ]
    assert "a - b" in (origin / "calc.py").read_text()
    # The check left caches behind, and they are not there any more.
    assert first.check_changed > 0
    assert [change.path for change in workspaces.diff("t/1").changes] == ["calc.py"]
    assert not Path(workspaces.path("t/1"), "work", "__pycache__").exists()
    # Never more than two at a time, and everything is in the log.
    active = [sum(lane.state in ("starting", "running") for lane in each.lanes) for each in seen]
    assert max(active) <= 2
    assert event_types(workspaces, "t") == ["race_started", *["race_run_started"] * 8, "race_ended"]
    assert workspaces.get_race("t") == workspaces.get_race(race.race_id) == race
    assert list(workspaces.races()) == [race]
    workspaces.verify()


def test_what_the_check_changes_is_put_back_whatever_the_settings_keep(
    home_path: str, settings: Settings, origin: Path
) -> None:
    quiet = settings.replace(snapshots=settings.snapshots.replace(around_runs=False))
    with workstead.open(home_path, settings=quiet) as workspaces:
        race = workspaces.race(
            f"overlay:{origin}", shell("echo x > x"), count=1, check="rm x; echo y > y; echo z >> calc.py", task="t"
        )
        assert (race.lanes[0].paths, race.lanes[0].check_changed) == (["x"], 3)
        assert [change.path for change in workspaces.diff("t/1").changes] == ["x"]


def test_the_winner_is_given_back_and_the_others_go(workspaces: Local, origin: Path) -> None:
    race = workspaces.race(
        f"overlay:{origin}", shell(FIX), count=3, check=CHECK, task="t", keep="best", apply_best=True
    )
    assert "a + b" in (origin / "calc.py").read_text()
    assert not (origin / "new.txt").exists()
    assert [desk.id for desk in workspaces.list("t")] == ["t/1"]
    assert sorted(race.destroyed) == ["t/2", "t/3"]
    assert event_types(workspaces, "t")[-2:] == ["race_ended", "race_settled"]
    # Gone or not, the log knows how they did, and both can be taken back.
    assert places(workspaces.get_race("t")) == ["t/1", "t/3", "t/2"]
    workspaces.undo(race.applied)
    assert "a - b" in (origin / "calc.py").read_text()
    workspaces.undo()
    assert len(workspaces.list("t")) == 3


def test_without_a_winner_nothing_is_given_back_or_thrown_away(workspaces: Local, origin: Path) -> None:
    race = workspaces.race(
        f"overlay:{origin}", shell("echo x > x"), count=2, check=CHECK, task="t", keep="best", apply_best=True
    )
    assert (race.best, race.applied, race.destroyed) == (None, "", [])
    assert not (origin / "x").exists()
    assert len(workspaces.list("t")) == 2


def test_an_origin_that_moved_is_said_and_the_race_is_kept(workspaces: Local, origin: Path) -> None:
    def meddle(race: Race) -> None:
        if race.state == "ended":
            (origin / "calc.py").write_text("something else\n")

    with pytest.raises(OriginMoved):
        workspaces.race(f"overlay:{origin}", shell(FIX), count=1, check=CHECK, task="t", apply_best=True, watch=meddle)
    assert workspaces.get_race("t").state == "ended"
    assert (origin / "calc.py").read_text() == "something else\n"
    assert workspaces.exists("t/1")


def test_a_workspace_is_raced_with_what_it_holds_and_stays_as_it_is(workspaces: Local, origin: Path) -> None:
    desk = workspaces.create(f"overlay:{origin}", id="mine/a")
    workspaces.write_file("mine/a", "work/begun.txt", "begun\n")
    race = workspaces.race(
        "fork:mine/a", shell('echo "$AW_RACE_NUMBER of $AW_RACE_COUNT" >> begun.txt'), count=2, task="t"
    )
    assert sorted(places(race)) == ["t/1", "t/2"]
    assert race.best is not None  # without a check a command that went well is good
    for number in (1, 2):
        text = Path(workspaces.path(f"t/{number}"), "work", "begun.txt").read_text()
        assert text == f"begun\n{number} of 2\n"
    assert Path(desk.path, "work", "begun.txt").read_text() == "begun\n"


@pytest.mark.parametrize("kind", ["empty", "worktree"])
def test_sources_that_are_made_anew_for_each(workspaces: Local, origin: Path, kind: str) -> None:
    from sources.yard import sh

    sh("git init -q -b main . && git add -A && git commit -qm x", str(origin))
    source = "empty" if kind == "empty" else f"worktree:{origin}"
    race = workspaces.race(source, shell("echo {n} > made-{n}"), count=2, task="t")
    assert [lane.paths for lane in sorted(race.lanes, key=lambda lane: lane.workspace_id)] == [["made-1"], ["made-2"]]
    assert race.shared == []


def test_one_that_takes_too_long_does_not_win(workspaces: Local, origin: Path) -> None:
    command = "[ {n} = 1 ] && sleep 30; echo done > done"
    race = workspaces.race(
        f"overlay:{origin}", shell(command), count=2, task="t", timeout_seconds=5, check="test -e done"
    )
    assert places(race) == ["t/2", "t/1"]
    assert [lane.state for lane in race.lanes] == ["completed", "timed_out"]
    assert race.lanes[1].check_code == 1  # it was asked all the same


def test_what_cannot_be_raced_leaves_nothing(workspaces: Local, origin: Path) -> None:
    source = f"overlay:{origin}"
    for options in ({"count": 0}, {"count": 1000}, {"at_once": 0}, {"keep": "worst"}, {"timeout_seconds": -1}):
        with pytest.raises(Invalid):
            workspaces.race(source, ["true"], **{"count": 2, **options})  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        workspaces.race(source, [], count=2)
    with pytest.raises(Invalid, match="the same folder"):
        workspaces.race(f"folder:{origin}", ["true"], count=2)
    with pytest.raises(WorkspaceNotFound):
        workspaces.race("fork:no/body", ["true"], count=2)
    assert workspaces.list() == []
    workspaces.create(id="t/2")
    with pytest.raises(WorkspaceExists):
        workspaces.race(source, ["true"], count=3, task="t")
    assert [desk.id for desk in workspaces.list()] == ["t/2"]
    assert list(workspaces.races()) == []
    with pytest.raises(RaceNotFound):
        workspaces.get_race("t")


def test_one_that_cannot_be_made_takes_the_others_back(
    workspaces: Local, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = workspaces.create

    def create(source: str, *, id: str, **options: object) -> object:
        if id == "t/3":
            raise Invalid("no more")
        return real(source, id=id, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(workspaces, "create", create)
    with pytest.raises(Invalid, match="no more"):
        workspaces.race(f"overlay:{origin}", ["true"], count=3, task="t")
    assert workspaces.list() == []
    assert list(workspaces.races()) == []


def test_an_interrupt_stops_the_runs_and_keeps_the_work(workspaces: Local, origin: Path) -> None:
    def watch(race: Race) -> None:
        if race.state == "running" and sum(lane.state == "running" for lane in race.lanes) == 2:
            while not all(Path(workspaces.path(f"t/{n}"), "work", "begun").exists() for n in (1, 2)):
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workspaces.race(
            f"overlay:{origin}", shell("echo x > begun; sleep 60"), count=3, at_once=2, task="t", watch=watch
        )
    race = workspaces.get_race("t")
    assert race.state == "stopped"
    assert race.best is None
    assert sorted(lane.state for lane in race.lanes) == ["cancelled", "cancelled", "waiting"]
    assert [lane.paths for lane in race.lanes] == [["begun"], ["begun"], []]
    assert not any(run.is_active for run in workspaces.runs())
    assert len(workspaces.list("t")) == 3


def test_a_race_whose_runner_was_killed_still_tells(
    workspaces: Local, home_path: str, settings: Settings, origin: Path
) -> None:
    def child() -> None:
        def watch(race: Race) -> None:
            if race.state == "running" and any(lane.state == "running" for lane in race.lanes):
                os.kill(os.getpid(), signal.SIGKILL)

        with workstead.open(home_path, settings=settings) as own:
            own.race(f"overlay:{origin}", shell("sleep 0.2; echo x > x"), count=2, at_once=1, task="t", watch=watch)

    assert wait(fork(child)) == -signal.SIGKILL
    (run,) = workspaces.runs("t/1")
    workspaces.wait(run.id)
    race = workspaces.get_race("t")
    assert race.state == "interrupted"
    assert [(lane.workspace_id, lane.state, lane.paths) for lane in race.lanes] == [
        ("t/1", "completed", ["x"]),
        ("t/2", "waiting", []),
    ]
    assert workspaces.repair() == []


def test_any_workspaces_can_be_compared(workspaces: Local, origin: Path) -> None:
    for name, text in (("a", "one\n"), ("b", "one\ntwo\n")):
        desk = workspaces.create(f"overlay:{origin}", id=f"t/{name}")
        Path(desk.path, "work", "both").write_text(text)
    workspaces.wait(workspaces.run("t/b", ["false"]).id)
    workspaces.wait(workspaces.run("t/b", ["true"]).id)
    found = workspaces.compare(["t/a", "t/b"])
    assert [(lane.workspace_id, lane.state, lane.exit_code, lane.added) for lane in found.lanes] == [
        ("t/b", "completed", 0, 2),  # the last run counts
        ("t/a", "waiting", None, 1),
    ]
    assert [(each.path, sorted(each.workspace_ids)) for each in found.shared] == [("both", ["t/a", "t/b"])]
    with pytest.raises(Invalid):
        workspaces.compare(["t/a", "t/a"])
    with pytest.raises(WorkspaceNotFound):
        workspaces.compare(["t/a", "t/c"])
    race = workspaces.race(f"overlay:{origin}", shell(FIX), count=2, check=CHECK, task="r")
    again = workspaces.compare(["r/2", "r/1"])
    assert again.lanes == race.lanes
    assert again.best == race.best
