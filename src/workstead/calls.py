"""Execute an idempotent call, or find the answer of one whose process died.

Each event that a call causes carries the call as its cause. `VERBS` names for each verb the event that proves its
effect, and `_find` reads the answer back from that event: without the event, the call is executed; with a readable
event, that is the answer; with an unreadable one, the outcome is unknown. Nothing is ever done twice. The process of a
detached call starts at `main`.
"""

from __future__ import annotations

import os
import sys

from workstead.errors import ApprovalRequired, NotFound, OutcomeUnknown, WorksteadError
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from workstead.local import Local
    from workstead.model.call import Call
    from workstead.model.event import Event
    from workstead.model.operation import Operation
    from workstead.model.workspace import Workspace

    Do = Callable[[Local, dict[str, Any]], object]
    Read = Callable[[Local, dict[str, Any], list[dict[str, Any]]], object | None]


def do_call(workspaces: Local, call: Call, arguments: Mapping[str, Any]) -> Call:
    """Execute the call, or the rest of it, and record its end; a call that has ended is returned unchanged."""
    with workspaces.hold_call(call.call_id) as call:
        if call.is_over:
            return call
        effects = workspaces.effects_of(call)
        try:
            done = _find(workspaces, call, dict(arguments), effects) if effects else None
            if done is None:
                done = VERBS[call.verb][0](workspaces.caused_by(call.call_id), dict(arguments))
        except ApprovalRequired:
            raise  # not an end of the call: it is retried after the decision
        except WorksteadError as error:
            body: Any = error.as_dict()["error"]
            return workspaces.end_call(call, error={**body, "status": error.http_status})
        return workspaces.end_call(call, answer=plain(done))


def _find(workspaces: Local, call: Call, arguments: dict[str, Any], effects: Sequence[Event]) -> object | None:
    """Return the answer of a call that has effects; None if its final event is missing, or it was rolled back."""
    workspaces.settle()
    _, facts, read = VERBS[call.verb]
    found: list[dict[str, Any]] = [event.event_data for event in effects if event.event_type in facts]
    try:
        return read(workspaces, arguments, found) if found else None
    except NotFound as error:
        raise OutcomeUnknown(
            f"{call.verb} was done, or begun, before its process died, and its result cannot be told any more: "
            f"{error.message}",
            hint="look at the workspace and at aw ops; ask again with a new key",
            details={"operation_id": call.call_id, "events": [event.event_type for event in effects]},
        ) from None


def run_of(actor_id: str) -> str:
    """Return the id of the run that acts under this name, or ""."""
    return actor_id.removeprefix("run:") if actor_id.startswith("run:") else ""


def plain(value: Any) -> Any:
    """Convert a value to dicts and lists."""
    if isinstance(value, Value):
        return value.as_dict()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def main() -> None:
    """Entry point: `python -c …calls.main() HOME CALL`, with the settings in the environment."""
    import workstead
    from workstead.settings import load_settings

    _, home, call_id = sys.argv
    settings = load_settings(os.environ, "/", system_directory="")
    workspaces = workstead.open(home, settings=settings)
    call = workspaces.get_call(call_id)
    workspaces.record_start(call)
    # No caller is blocked, so wait for an approval without a timeout: every request is decided or expires.
    doer = workspaces.acting_as(
        call.actor_id, agent_of=call.agent_of, run_id=run_of(call.actor_id), wait_seconds=float("inf")
    )
    do_call(doer, call, call.arguments)
    workspaces.let_go()
    os._exit(0)


# -- the verbs: how to execute each, the events that prove its effect, and the answer from these --------------------


def _create(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.create(arguments.pop("source", "empty"), **arguments)


def _run(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.run(arguments.pop("id"), arguments.pop("command"), **arguments)


def _snapshot(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.snapshot(arguments.pop("id"), **arguments)


def _restore(workspaces: Local, arguments: dict[str, Any]) -> object:
    operation_id, restored = workspaces.restore(arguments["id"], arguments["snapshot"], arguments.get("paths", ()))
    return {"operation_id": operation_id, "restored": restored}


def _apply(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.apply(arguments.pop("id"), arguments.pop("paths", ()), **arguments)


def _fork(workspaces: Local, arguments: dict[str, Any]) -> object:
    return list(workspaces.fork(arguments.pop("id"), **arguments))


def _undo(workspaces: Local, arguments: dict[str, Any]) -> object:
    operation, found = workspaces.undo(arguments.get("operation_id"))
    return {"operation": operation, "workspaces": list(found)}


def _send(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.send_message(arguments.pop("id"), arguments.pop("text"), **arguments)


def _archive(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.archive(arguments.pop("id"), **arguments)


def _race(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.race(arguments.pop("source"), arguments.pop("command"), **arguments)


def _made(workspaces: Local, found: list[dict[str, Any]]) -> list[Workspace]:
    """Return the workspaces of these creations, without those that were rolled back."""
    made = [each for each in (workspaces.by_uid(data["uid"]) for data in found) if each.state != "aborted"]
    if gone := [each.id for each in made if each.state in ("destroyed", "purging", "purged")]:
        raise NotFound(f"{', '.join(gone)} was destroyed since")
    return made


def _forks(workspaces: Local, arguments: dict[str, Any], found: list[dict[str, Any]]) -> object | None:
    made, wanted = _made(workspaces, found), int(arguments.get("count", 1))
    if 0 < len(made) < wanted:
        raise NotFound(f"{len(made)} of {wanted} forks are there: {', '.join(each.id for each in made)}")
    return made or None


def _taken(workspaces: Local, arguments: dict[str, Any], found: list[dict[str, Any]]) -> object | None:
    taken = {data["snapshot_id"] for data in found}
    return next((each for each in workspaces.snapshots(arguments["id"]) if each.id in taken), None)


def _archived(_: Local, __: dict[str, Any], found: list[dict[str, Any]]) -> object | None:
    return {key: value for key, value in found[0].items() if key not in ("agent_id", "uid")}


def _operation(workspaces: Local, found: list[dict[str, Any]]) -> Operation | None:
    """Return the operation of an intent, also if another process finished it; None if it was rolled back."""
    wanted = [data["operation_id"] for data in found]
    return next((each for each in workspaces.operations() if each.operation_id in wanted), None)


def _restored(workspaces: Local, _: dict[str, Any], found: list[dict[str, Any]]) -> object | None:
    done = _operation(workspaces, found)
    if done is None:
        return None
    counts = {"written": 0, "removed": 0, "adjusted": 0, "kept": [], "missing": []}
    for event in workspaces.events(types=("snapshot_restored",)):
        if event.event_data["operation_id"] == done.operation_id:
            counts.update(written=event.event_data["written"], removed=event.event_data["removed"])
    return {"operation_id": done.operation_id, "restored": counts}


def _applied(workspaces: Local, _: dict[str, Any], found: list[dict[str, Any]]) -> object | None:
    done = _operation(workspaces, found)
    return done and workspaces.find_applied(done)


def _undone(workspaces: Local, _: dict[str, Any], found: list[dict[str, Any]]) -> object | None:
    done = _operation(workspaces, found)
    return done and {"operation": done, "workspaces": [workspaces.by_uid(uid) for uid in done.uids]}


VERBS: dict[str, tuple[Do, tuple[str, ...], Read]] = {
    "create": (_create, ("workspace_creating",), lambda home, _, found: next(iter(_made(home, found)), None)),
    "fork": (_fork, ("workspace_creating",), _forks),
    "run": (_run, ("run_starting",), lambda home, _, found: home.get_run(found[0]["run_id"])),
    # A race is answered with its current results.
    "race": (_race, ("race_started",), lambda home, _, found: home.get_race(found[0]["race_id"])),
    "snapshot": (_snapshot, ("snapshot_taken",), _taken),
    "send": (
        _send,
        ("message_sent",),
        lambda home, asked, found: home.get_message(asked["id"], found[0]["message_id"]),
    ),
    "archive": (_archive, ("workspace_archived",), _archived),
    "restore": (_restore, ("snapshot_restoring",), _restored),
    "apply": (_apply, ("changes_applying",), _applied),
    "undo": (_undo, ("workspace_restoring", "snapshot_restoring", "changes_applying", "workspace_destroying"), _undone),
}
