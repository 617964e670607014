"""A workspace in the hands of a chat product."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import workstead
from origins import read, write
from workstead.errors import SnapshotNotFound, WorkspaceNotFound
from workstead.local import Local
from workstead.model.workspace import Workspace
from workstead.settings import Settings


@pytest.fixture
def desk(workspaces: Local) -> Workspace:
    return workspaces.create(id="chat/a")


@pytest.fixture
def work(desk: Workspace) -> Path:
    return Path(desk.path, "work")


def test_every_answer_has_a_hash_a_label_and_a_time(workspaces: Local, desk: Workspace, work: Path) -> None:
    with workspaces.session(desk.id) as session:
        turns = []
        for number in range(3):
            write(work, {"answer.txt": str(number)})
            turns.append(session.respond(f"Answer {number}"))
        assert session.turns() == turns
    assert [turn.label for turn in turns] == ["Answer 0", "Answer 1", "Answer 2"]
    assert len({turn.hash for turn in turns}) == 3
    assert all(len(turn.hash) == 64 for turn in turns)
    assert all(abs(time.time() - turn.taken_at) < 60 for turn in turns)
    assert [each.cause for each in workspaces.snapshots(desk.id)] == ["base", "answer", "answer", "answer"]


def test_answers_are_not_kept_where_the_settings_say_so(home_path: str, settings: Settings) -> None:
    off = settings.replace(snapshots=settings.snapshots.replace(after_answers=False))
    with workstead.open(home_path, settings=off) as workspaces:
        desk = workspaces.create(id="chat/off")
        turn = workspaces.session(desk.id).respond("hello")
        assert (turn.label, turn.snapshot_id) == ("hello", "")
        assert [each.cause for each in workspaces.snapshots(desk.id)] == ["base"]


def test_a_turn_comes_back_by_itself_its_hash_or_its_snapshot(workspaces: Local, desk: Workspace, work: Path) -> None:
    session = workspaces.session(desk.id)
    write(work, {"a": "1"})
    first = session.respond("one")
    write(work, {"a": "2", "b": "2"})
    second = session.respond("two")
    for name in (first, first.hash, first.snapshot_id, "one"):
        session.restore(second)
        assert read(work) == {"a": "2", "b": "2"}
        session.restore(name)
        assert read(work) == {"a": "1"}
    with pytest.raises(SnapshotNotFound, match="three"):
        session.restore("three")


def test_a_reset_goes_back_to_the_beginning_and_can_be_undone(workspaces: Local, desk: Workspace, work: Path) -> None:
    session = workspaces.session(desk.id)
    write(work, {"a": "1", "deep/er/b": "2"})
    workspaces.write_file(desk.id, "output/report", "r")
    before = read(work)
    session.respond("one")
    session.reset()
    assert read(work) == {}
    workspaces.undo()
    assert read(work) == before
    assert workspaces.read_text(desk.id, "output/report") == "r"


@pytest.mark.parametrize(
    ("message", "label"),
    [
        ("Fix   the\n\nlogin\tbug", "Fix the login bug"),
        ("Done 🎉\nAll tests pass ✅", "Done 🎉 All tests pass ✅"),
        ("", "answer"),
        ("  \n ", "answer"),
        ("x" * 500, "x" * 71 + "…"),
        ("é" * 72, "é" * 72),
        ("half a pair \ud83d and a nul \0 and \x1b[31mred", "half a pair ? and a nul and [31mred"),
    ],
)
def test_labels_are_made_from_any_message(message: str, label: str, workspaces: Local, desk: Workspace) -> None:
    session = workspaces.session(desk.id)
    turn = session.respond(message)
    assert turn.label == label
    assert session.turns() == [turn]
    session.restore(turn.label)
    workspaces.verify()


def test_an_answer_that_changed_nothing_costs_nothing(workspaces: Local, desk: Workspace, work: Path) -> None:
    session = workspaces.session(desk.id)
    write(work, {"a": "1"})
    one, two = session.respond("one"), session.respond("two")
    assert one.hash == two.hash
    assert one.snapshot_id != two.snapshot_id
    session.restore(two.hash)
    assert read(work) == {"a": "1"}


def test_a_session_follows_its_workspace_and_ends_with_it(workspaces: Local, desk: Workspace) -> None:
    session = workspaces.session(desk.id)
    workspaces.destroy(desk.id)
    with pytest.raises(WorkspaceNotFound, match="chat/a"):
        session.respond("too late")
    workspaces.undo()
    assert session.respond("back again").label == "back again"
    with pytest.raises(WorkspaceNotFound, match="nobody/a"):
        workspaces.session("nobody/a")
