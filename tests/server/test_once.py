"""A request with a key is done once; one that nobody waits for goes on, is followed and cancelled."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from waiting import wait_until
from workstead import calls
from workstead.local import Local

from .conftest import Answer, Wire


def _keyed(wire: Wire, target: str, body: object, key: str, **more: Any) -> Answer:
    return wire.ask("POST", target, body, headers={"Idempotency-Key": key}, **more)


def test_the_same_key_gets_the_same_answer_and_makes_one_workspace(wire: Wire, workspaces: Local) -> None:
    first = _keyed(wire, "/api/workspaces", {}, "k1")
    again = _keyed(wire, "/api/workspaces", {}, "k1")
    assert (first.status, again.status) == (201, 201)
    assert first.json == again.json
    assert again.headers["location"] == first.headers["location"]
    assert len(workspaces.list()) == 1
    assert _keyed(wire, "/api/workspaces", {}, "k2").json["workspace_id"] != first.json["workspace_id"]


def test_the_same_key_for_something_else_is_refused(wire: Wire, workspaces: Local) -> None:
    _keyed(wire, "/api/workspaces", {"id": "t/a"}, "k")
    other = _keyed(wire, "/api/workspaces", {"id": "t/b"}, "k")
    assert (other.status, other.code) == (422, "idempotency_key_reused")
    assert [each.id for each in workspaces.list()] == ["t/a"]


def test_a_refusal_is_remembered_too(wire: Wire, workspaces: Local) -> None:
    workspaces.create(id="t/a")
    assert _keyed(wire, "/api/workspaces", {"id": "t/a"}, "k").code == "workspace_exists"
    workspaces.destroy("t/a")
    assert _keyed(wire, "/api/workspaces", {"id": "t/a"}, "k").code == "workspace_exists"
    assert workspaces.list() == []


def test_one_key_belongs_to_one_caller(wire: Wire, workspaces: Local, desk: str) -> None:
    _, text = workspaces.create_token(desk)
    target = f"/api/workspaces/{desk}/snapshots"
    mine = _keyed(wire, target, {"label": "mine"}, "k")
    theirs = _keyed(wire, target, {"label": "theirs"}, "k", token=text)
    assert (mine.json["label"], theirs.json["label"]) == ("mine", "theirs")


CALLS = {
    "snapshot": ({"label": "x"}, "snapshots"),
    "restore": ({"snapshot": "base"}, "restore"),
    "fork": ({"count": 2}, "fork"),
    "run": ({"command": ["true"]}, "runs"),
    "send": ({"text": "hello"}, "messages"),
}


@pytest.mark.parametrize("verb", CALLS)
def test_what_was_done_before_the_answer_was_lost_is_found_and_not_done_again(
    wire: Wire, workspaces: Local, desk: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doer dies after the effect and before its end is written down."""
    body, place = CALLS[verb]
    with monkeypatch.context() as patch:
        patch.setattr(Local, "end_call", _die)
        assert _keyed(wire, f"/api/workspaces/{desk}/{place}", body, "k").status == 500
    before = workspaces.last_position()
    again = _keyed(wire, f"/api/workspaces/{desk}/{place}", body, "k")
    assert again.status in (200, 201), again.body
    since = {event.event_type for event in workspaces.events(after=before)}
    assert since - {"run_started", "run_completed", "snapshot_taken"} == {"call_completed"}, since
    assert _keyed(wire, f"/api/workspaces/{desk}/{place}", body, "k").json == again.json


@pytest.mark.parametrize("destroyed", [False, True])
def test_an_outcome_that_cannot_be_told_is_an_error_and_nothing_is_done_again(
    wire: Wire, workspaces: Local, desk: str, destroyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = f"/api/workspaces/{desk}/fork"
    with monkeypatch.context() as patch:
        patch.setattr(Local, "end_call", _die)
        assert _keyed(wire, target, {"count": 2}, "k").status == 500
    made = [each.id for each in workspaces.list() if each.id != desk]
    if destroyed:
        workspaces.destroy(made[0], force=True)
    before = len(workspaces.list())
    again = _keyed(wire, target, {"count": 2}, "k")
    if destroyed:
        assert (again.status, again.code) == (409, "outcome_unknown")
        assert made[0] in again.json["error"]["message"]
    else:
        assert again.status == 201
    assert _keyed(wire, target, {"count": 2}, "k").json == again.json
    assert len(workspaces.list()) == before


def test_a_creation_that_was_rolled_back_is_done_by_its_repeat(
    wire: Wire, workspaces: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workstead.verbs import create

    with monkeypatch.context() as patch:
        patch.setattr(create, "build", _die)
        assert _keyed(wire, "/api/workspaces", {"id": "t/a"}, "k").status == 500
    assert [event.event_type for event in workspaces.events(task="t")][:1] == ["workspace_creating"]
    again = _keyed(wire, "/api/workspaces", {"id": "t/a"}, "k")
    assert (again.status, again.json["workspace_id"]) == (201, "t/a")
    assert workspaces.get("t/a").state == "ready"
    kinds = [event.event_type for event in workspaces.events(task="t")]
    assert kinds == ["workspace_creating", "workspace_create_failed", "workspace_creating", "workspace_created"]


def _die(*_: object, **__: object) -> None:
    raise RuntimeError("the power went")


@pytest.mark.parametrize("paths", [[], ["a", "gone"]], ids=["everything", "some paths"])
def test_an_apply_that_was_not_answered_says_what_it_wrote(
    wire: Wire, workspaces: Local, tmp_path: Path, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    for name in ("a", "gone"):
        (origin / name).write_text("1")
    desk = workspaces.create(f"overlay:{origin}", id="t/a")
    work = Path(desk.path, "work")
    (work / "a").write_text("2")
    (work / "new").write_text("2")
    (work / "gone").unlink()
    body = {"paths": paths}
    with monkeypatch.context() as patch:
        patch.setattr(Local, "end_call", _die)
        assert _keyed(wire, "/api/workspaces/t/a/apply", body, "k").status == 500
    again = _keyed(wire, "/api/workspaces/t/a/apply", body, "k")
    assert again.status == 200
    assert again.json["written"] == (["a"] if paths else ["a", "new"])
    assert again.json["deleted"] == ["gone"]
    assert [operation.operation_id for operation in workspaces.operations()] == [again.json["operation_id"]]


def test_an_undo_that_was_not_answered_is_not_undone_by_its_repeat(
    wire: Wire, workspaces: Local, desk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspaces.destroy(desk, force=True)
    with monkeypatch.context() as patch:
        patch.setattr(Local, "end_call", _die)
        assert _keyed(wire, "/api/undo", {}, "k").status == 500
    assert _keyed(wire, "/api/undo", {}, "k").json["workspaces"][0]["workspace_id"] == desk
    assert workspaces.exists(desk)


def test_a_long_operation_is_accepted_at_once_and_followed(wire: Wire, workspaces: Local) -> None:
    accepted = wire.ask("POST", "/api/workspaces", {"id": "t/a"}, headers={"Prefer": "respond-async"})
    assert (accepted.status, accepted.json["state"]) == (202, "accepted")
    done = _wait(wire, accepted.headers["location"])
    assert (done["state"], done["result"]["workspace_id"]) == ("completed", "t/a")
    kinds = [event.event_type for event in workspaces.events()]
    assert kinds == ["call_accepted", "call_started", "workspace_creating", "workspace_created", "call_completed"]
    caused = [event.metadata["causation_id"] for event in workspaces.events(task="t", types=("workspace_created",))]
    assert caused == [accepted.json["operation_id"]]


def test_a_long_operation_that_fails_says_why(wire: Wire, workspaces: Local) -> None:
    workspaces.create(id="t/a")
    accepted = wire.ask("POST", "/api/workspaces", {"id": "t/a"}, headers={"Prefer": "respond-async"})
    done = _wait(wire, accepted.headers["location"])
    assert (done["state"], done["error"]["code"]) == ("failed", "workspace_exists")


def _wait(wire: Wire, place: str, *, state: str = "accepted") -> Any:
    return wait_until(lambda: found if (found := wire.ask("GET", place).json)["state"] != state else None)


def test_what_is_cancelled_leaves_nothing(wire: Wire, workspaces: Local) -> None:
    with workspaces._home.hold("t/a"):  # so that it is still at it
        accepted = wire.ask("POST", "/api/workspaces", {"id": "t/a"}, headers={"Prefer": "respond-async"})
        while not list(workspaces.events(types=("call_started",))):
            time.sleep(0.01)
        cancelled = wire.ask("DELETE", accepted.headers["location"])
    assert (cancelled.status, cancelled.json["state"]) == (200, "cancelled")
    assert wire.ask("DELETE", accepted.headers["location"]).status == 409
    assert not workspaces.exists("t/a")
    assert wire.ask("POST", "/api/workspaces", {"id": "t/a"}).status == 201


def test_an_accepted_operation_of_a_server_that_died_is_done_by_the_next(
    workspaces: Local, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workstead.server.serve import Background

    with monkeypatch.context() as patch, Background(workspaces, settings) as server:
        patch.setattr(Local, "start_call", lambda *_: None)  # it dies before it has started anybody
        wire = Wire(server.url, workspaces.owner_token())
        accepted = wire.ask("POST", "/api/workspaces", {"id": "t/a"}, headers={"Prefer": "respond-async"})
        assert accepted.status == 202
    assert not workspaces.exists("t/a")
    with Background(workspaces, settings) as server:
        wire = Wire(server.url, workspaces.owner_token())
        assert _wait(wire, accepted.headers["location"])["state"] == "completed"
    assert workspaces.exists("t/a")


def test_every_verb_that_can_be_asked_for_once_can_be_found_again() -> None:
    assert set(CALLS) | {"create", "apply", "undo", "archive", "race"} == set(calls.VERBS)


def test_a_key_does_not_remember_that_somebody_has_to_be_asked(wire: Wire, workspaces: Local, desk: str) -> None:
    _, text = workspaces.create_token(desk)
    target = f"/api/workspaces/{desk}/runs"
    first = _keyed(wire, target, {"command": ["true"]}, "k", token=text)
    assert (first.status, first.code) == (403, "approval_required")
    workspaces.approve(first.json["error"]["details"]["approval_id"])
    second = _keyed(wire, target, {"command": ["true"]}, "k", token=text)
    assert second.status == 201
    workspaces.wait(second.json["run_id"])
    third = _keyed(wire, target, {"command": ["true"]}, "k", token=text)
    assert third.json["run_id"] == second.json["run_id"]


def test_what_nobody_waits_for_waits_itself_for_an_approval(wire: Wire, workspaces: Local, desk: str) -> None:
    taken = workspaces.snapshot(desk)
    workspaces.write_file(desk, "work/in.txt", "later")
    _, text = workspaces.create_token(desk)
    headers = {"Prefer": "respond-async"}
    accepted = wire.ask("POST", f"/api/workspaces/{desk}/restore", {"snapshot": taken.id}, token=text, headers=headers)
    assert accepted.status == 202
    asked = wait_until(workspaces.approvals)
    workspaces.approve(asked[0].id)
    wait_until(lambda: workspaces.get_call(accepted.json["operation_id"]).is_over)
    assert workspaces.read_file(desk, "work/in.txt") == b"IN:in.txt"
