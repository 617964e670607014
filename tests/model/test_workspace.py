"""The lifecycle is a table, and what it does not know cannot happen."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workstead.errors import WrongStatus
from workstead.model.event import EVENT_TYPES, FACTS
from workstead.model.workspace import EVENTS, LIVE, PENDING, TABLE, fold, next_state

STATES = sorted({state for state, _ in TABLE} | (set(TABLE.values()) - {"="}) | {"failed"})
IMPOSSIBLE = [(state, event) for state in STATES for event in sorted(EVENTS) if (state, event) not in TABLE]
WORDS: dict[str, Any] = {
    "workspace_id": "t/a",
    "agent_id": "a",
    "uid": "u1",
    "workspace_path": "/w/t/a",
    "trash_path": "/w/.carrel/trash/u1",
    "source": "empty",
    "config": {"max_size_mb": 1},
    "home": "h",
    "operation_id": "o1",
    "cleanup_reason": "done",
    "undoes": "",
}


def told(*events: str, **more: Any) -> dict[str, Any] | None:
    """The record after some events."""
    record = None
    for event in events:
        record = fold(record, event, {**WORDS, **more}, "t", "2026-01-01T00:00:00.000000Z")
    return record


def in_state(state: str) -> dict[str, Any] | None:
    """A record in some state, by the shortest way there."""
    ways = {
        "": [],
        "planned": ["planned"],
        "creating": ["creating"],
        "ready": ["creating", "created"],
        "aborted": ["creating", "create_failed"],
        "destroying": ["creating", "created", "destroying"],
        "destroyed": ["creating", "created", "destroying", "cleanup"],
        "restoring": ["creating", "created", "destroying", "cleanup", "restoring"],
        "purging": ["creating", "created", "destroying", "cleanup", "purging"],
        "purged": ["creating", "created", "destroying", "cleanup", "purging", "purged"],
    }
    if state == "failed":
        return told("workspace_creating", "workspace_create_failed", kept=True)
    intents = {"reverting": "snapshot_restoring", "applying": "changes_applying"}
    if state in intents:
        return told("workspace_creating", "workspace_created", intents[state])
    return told(*(f"workspace_{event}" for event in ways[state]))


@pytest.mark.parametrize(("state", "event"), IMPOSSIBLE)
def test_what_the_table_does_not_know_is_refused_and_changes_nothing(state: str, event: str) -> None:
    record = in_state(state)
    before = copy.deepcopy(record)
    with pytest.raises(WrongStatus) as caught:
        fold(record, event, WORDS, "t", "later")
    assert record == before
    assert caught.value.details == {"state": state, "event_type": event}


@pytest.mark.parametrize(("state", "event"), sorted(TABLE))
def test_what_the_table_knows_leads_to_a_known_state_and_leaves_the_old_record_alone(state: str, event: str) -> None:
    record = in_state(state)
    before = copy.deepcopy(record)
    after = fold(record, event, WORDS, "t", "later")
    assert after["state"] in STATES
    # The time of the trash goes on.
    stays = state == "destroyed" and event in ("workspace_archived", "workspace_rebased")
    assert after["updated_at"] == (before["updated_at"] if before and stays else "later")
    assert record == before


def test_every_event_of_a_workspace_is_in_the_table() -> None:
    assert set(EVENT_TYPES.values()) >= EVENTS
    assert {name for name in EVENT_TYPES.values() if name.startswith("workspace_")} <= EVENTS
    assert len(set(EVENT_TYPES.values())) == len(FACTS)


def test_every_intent_can_end_well_and_otherwise() -> None:
    for state in PENDING - {"purging", "reverting"}:  # what has begun to delete or replace files can only be finished
        assert len([event for begun, event in TABLE if begun == state]) >= 2, state


def test_the_id_is_free_again_only_when_the_workspace_is_gone_from_its_place() -> None:
    assert set(STATES) - LIVE == {"", "destroyed", "purging", "purged", "aborted"}


def test_a_step_that_failed_leads_back_to_where_it_began() -> None:
    assert told("workspace_planned", "workspace_destroying", "workspace_destroy_failed")["state"] == "planned"
    ready = ("workspace_creating", "workspace_created")
    assert told(*ready, "workspace_destroying", "workspace_destroy_failed")["state"] == "ready"
    gone = (*ready, "workspace_destroying", "workspace_cleanup")
    assert told(*gone, "workspace_restoring", "workspace_restored")["state"] == "ready"
    assert told(*gone, "workspace_restoring", "workspace_restore_failed")["state"] == "destroyed"


def test_a_planned_workspace_is_planned_again_when_its_files_could_not_be_made() -> None:
    assert told("workspace_planned", "workspace_creating", "workspace_create_failed")["state"] == "planned"


def test_a_step_that_failed_leaves_no_trace_but_its_time() -> None:
    gone = in_state("destroyed")
    assert gone
    elsewhere = {**WORDS, "workspace_id": "n/b", "agent_id": "b", "workspace_path": "/w/n/b", "operation_id": "o2"}
    moving = fold(gone, "workspace_restoring", {**elsewhere, "undoes": "o1"}, "n", "later")
    assert (moving["workspace_id"], moving["task_id"], moving["path"]) == ("n/b", "n", "/w/n/b")
    back = fold(moving, "workspace_restore_failed", {**elsewhere, "reason": "no"}, "n", "later")
    assert back == {**gone, "updated_at": "later"}


def test_a_failed_workspace_is_kept_for_a_look_and_can_be_destroyed() -> None:
    record = told("workspace_creating", "workspace_create_failed", kept=True)
    assert record
    assert record["state"] == "failed"
    assert fold(record, "workspace_destroying", WORDS, "t", "later")["state"] == "destroying"


@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=30))
def test_any_history_is_folded_or_refused_and_only_known_states_come_of_it(events: list[str]) -> None:
    record = None
    for event in events:
        expected = TABLE.get((record["state"] if record else "", event))
        if expected is None:
            with pytest.raises(WrongStatus):
                next_state(record, event, WORDS)
        else:
            record = fold(record, event, WORDS, "t", "now")
            assert record["state"] in STATES
