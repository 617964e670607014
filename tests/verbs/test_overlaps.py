"""The conflict radar: who changes what somebody else changes too."""

from __future__ import annotations

from pathlib import Path

import pytest

from needs import need_root
from origins import make_origin
from waiting import wait_until
from workstead.local import Local
from workstead.model.change import Overlap


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    need_root()
    return make_origin(tmp_path / "origin")


def work_of(workspaces: Local, source: str, id: str) -> Path:
    return Path(workspaces.create(source, id=id).path, "work")


def brief(found: list[Overlap] | tuple[Overlap, ...]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(each.workspace_id, each.other_id, each.paths) for each in found]


def told(workspaces: Local) -> list[tuple[object, object, object]]:
    events = workspaces.events(types=["paths_overlap"])
    return [(e.event_data["workspace_id"], e.event_data["other_id"], e.event_data["paths"]) for e in events]


def test_two_workspaces_that_changed_the_same_path_overlap(workspaces: Local, origin: Path) -> None:
    one, other = (work_of(workspaces, f"overlay:{origin}", id) for id in ("t/a", "t/b"))
    (one / "README.md").write_text("mine")
    (one / "src/only.py").write_text("mine alone")
    assert list(workspaces.overlaps()) == []
    (other / "README.md").write_text("theirs")
    (other / "src/app.py").unlink()
    (one / "src/app.py").write_text("changed here, deleted there")
    assert brief(list(workspaces.overlaps())) == [("t/a", "t/b", ("README.md", "src/app.py"))]
    assert brief(list(workspaces.overlaps("t/b"))) == [("t/b", "t/a", ("README.md", "src/app.py"))]
    assert told(workspaces) == []  # looking leaves no event


def test_the_same_change_twice_is_no_conflict(workspaces: Local, origin: Path) -> None:
    """A fork holds what its parent changed, until one of the two goes on."""
    parent = work_of(workspaces, f"overlay:{origin}", "t/a")
    (parent / "README.md").write_text("mine")
    workspaces.fork("t/a", new_id="t/f")
    assert list(workspaces.overlaps()) == []
    Path(workspaces.get("t/f").path, "work/README.md").write_text("the fork's")
    assert brief(list(workspaces.overlaps())) == [("t/a", "t/f", ("README.md",))]


def test_workspaces_of_different_origins_do_not_overlap(workspaces: Local, origin: Path, tmp_path: Path) -> None:
    elsewhere = make_origin(tmp_path / "elsewhere")
    for id, source in (("t/a", origin), ("t/b", elsewhere)):
        (work_of(workspaces, f"overlay:{source}", id) / "README.md").write_text(id)
    for id in ("t/c", "t/d"):
        (work_of(workspaces, "empty", id) / "README.md").write_text(id)
    assert list(workspaces.overlaps()) == []


def test_a_snapshot_tells_it_once_for_each_path(workspaces: Local, origin: Path) -> None:
    one, other = (work_of(workspaces, f"overlay:{origin}", id) for id in ("t/a", "t/b"))
    (one / "README.md").write_text("mine")
    (other / "README.md").write_text("theirs")
    workspaces.snapshot("t/a")
    workspaces.snapshot("t/a")
    workspaces.snapshot("t/b")  # the same pair
    assert told(workspaces) == [("t/a", "t/b", ["README.md"])]
    (one / "src/app.py").write_text("mine")
    (other / "src/app.py").write_text("theirs")
    workspaces.snapshot("t/b")
    assert told(workspaces)[1:] == [("t/b", "t/a", ["README.md", "src/app.py"])]
    workspaces.verify()


def test_the_end_of_a_run_tells_it(workspaces: Local, origin: Path) -> None:
    for id in ("t/a", "t/b"):
        work_of(workspaces, f"overlay:{origin}", id)
        run = workspaces.run(id, ["sh", "-c", f"echo {id} > README.md"], sandbox="none")
        assert workspaces.wait(run.id).exit_code == 0
    wait_until(lambda: told(workspaces))
    assert told(workspaces) == [("t/b", "t/a", ["README.md"])]


def test_a_watcher_tells_it_while_the_work_goes_on(workspaces: Local, origin: Path) -> None:
    one, other = (work_of(workspaces, f"overlay:{origin}", id) for id in ("t/a", "t/b"))
    (other / "README.md").write_text("theirs")
    workspaces.start_watching("t/a")
    try:
        (one / "src/app.py").write_text("mine")
        (one / "README.md").write_text("mine")
        wait_until(lambda: told(workspaces))
    finally:
        workspaces.stop_watching("t/a")
    assert told(workspaces) == [("t/a", "t/b", ["README.md"])]


def test_a_destroyed_workspace_is_no_longer_in_the_way(workspaces: Local, origin: Path) -> None:
    for id in ("t/a", "t/b"):
        (work_of(workspaces, f"overlay:{origin}", id) / "README.md").write_text(id)
    assert workspaces.overlaps()
    workspaces.destroy("t/b", force=True)
    assert list(workspaces.overlaps()) == []
