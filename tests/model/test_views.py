"""From events to records: a pure step, the same over any kind of store."""

from __future__ import annotations

from typing import Any

import pytest

from workstead.errors import WrongStatus
from workstead.model.views import project


class Shelf:
    """Records in a dict."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], dict[str, Any]] = {}
        self.marks: dict[tuple[str, str], tuple[str, str, bool, bool]] = {}

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        return self.found.get((kind, key))

    def put(
        self, kind: str, key: str, record: dict[str, Any], *, task: str, label: str, live: bool, pending: bool
    ) -> None:
        self.found[kind, key] = record
        self.marks[kind, key] = (task, label, live, pending)


def happen(shelf: Shelf, event: str, uid: str = "u1", **more: Any) -> None:
    data = {
        "workspace_id": f"t/{uid}",
        "agent_id": uid,
        "uid": uid,
        "workspace_path": f"/w/t/{uid}",
        "trash_path": f"/trash/{uid}",
        "source": "empty",
        "config": {},
        "home": "h",
        "cleanup_reason": "done",
        "operation_id": "o1",
        "undoes": "",
        **more,
    }
    project(shelf, f"workspace_{event}", data, "t", "ada", "now")


@pytest.fixture
def two_destroyed_at_once() -> Shelf:
    shelf = Shelf()
    for uid in ("u1", "u2"):
        for event in ("creating", "created", "destroying", "cleanup"):
            happen(shelf, event, uid)
    return shelf


def test_an_intent_is_pending_and_a_fact_is_not() -> None:
    shelf = Shelf()
    happen(shelf, "creating")
    assert shelf.marks["workspace", "u1"] == ("t", "t/u1", True, True)
    happen(shelf, "created")
    assert shelf.marks["workspace", "u1"] == ("t", "t/u1", True, False)
    happen(shelf, "destroying")
    happen(shelf, "cleanup")
    assert shelf.marks["workspace", "u1"] == ("t", "t/u1", False, False)


def test_one_operation_may_affect_several_workspaces(two_destroyed_at_once: Shelf) -> None:
    operation = two_destroyed_at_once.found["operation", "o1"]
    assert operation["kind"] == "destroy"
    assert operation["actor_id"] == "ada"
    assert operation["workspaces"] == ["t/u1", "t/u2"]
    assert operation["uids"] == ["u1", "u2"]


def test_an_operation_is_undone_when_all_of_it_is(two_destroyed_at_once: Shelf) -> None:
    shelf = two_destroyed_at_once
    for uid in ("u1", "u2"):
        happen(shelf, "restoring", uid, operation_id="o2", undoes="o1")
        happen(shelf, "restored", uid, operation_id="o2", undoes="o1")
        assert shelf.found["operation", "o1"]["undone_by"] == ("o2" if uid == "u2" else "")
    assert shelf.found["operation", "o2"]["kind"] == "undo"
    assert shelf.found["operation", "o2"]["undoes"] == "o1"


def test_an_event_of_another_kind_changes_no_record(two_destroyed_at_once: Shelf) -> None:
    before = dict(two_destroyed_at_once.found)
    project(two_destroyed_at_once, "file_written", {"path": "a"}, "t", "ada", "now")
    assert two_destroyed_at_once.found == before


def test_an_impossible_event_puts_nothing() -> None:
    shelf = Shelf()
    with pytest.raises(WrongStatus):
        happen(shelf, "cleanup")
    assert shelf.found == {}
