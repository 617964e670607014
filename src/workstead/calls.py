"""How a call is done, and how one that was begun is found again.

Each verb here is done by one function and found by another: what the call caused is in the log with the call as its
cause, so whoever takes up a call that died half-way sees whether there is anything left to do. The process that does
calls while nobody waits starts at `main`.
"""

from __future__ import annotations

import os
import sys

from workstead.errors import ApprovalRequired, NotFound, WorksteadError
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from workstead.local import Local
    from workstead.model.call import Call
    from workstead.model.event import Event

    Do = Callable[[Local, dict[str, Any]], object]
    Find = Callable[[Local, dict[str, Any], Sequence[Event]], object | None]


def do_call(workspaces: Local, call: Call, arguments: Mapping[str, Any]) -> Call:
    """Do the call, or what is left of it, and write down its end; one that has ended is given as it is."""
    with workspaces.hold_call(call.call_id) as call:
        if call.is_over:
            return call
        do, find = VERBS[call.verb]
        effects = workspaces.effects_of(call)
        try:
            if effects:
                workspaces.settle()
            done = find(workspaces, dict(arguments), effects) if effects else None
            if done is None:
                done = do(workspaces.caused_by(call.call_id), dict(arguments))
        except ApprovalRequired:
            raise  # no end: the same is tried again when somebody has decided
        except WorksteadError as error:
            body: Any = error.as_dict()["error"]
            return workspaces.end_call(call, error={**body, "status": error.http_status})
        return workspaces.end_call(call, answer=plain(done))


def run_of(actor_id: str) -> str:
    """The run that acts under this name, or nothing."""
    return actor_id.removeprefix("run:") if actor_id.startswith("run:") else ""


def plain(value: Any) -> Any:
    """The value made of dicts and lists only."""
    if isinstance(value, Value):
        return value.as_dict()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def main() -> None:
    """`python -c …calls.main() HOME CALL`, with the settings in the environment."""
    import workstead
    from workstead.settings import load_settings

    _, home, call_id = sys.argv
    settings = load_settings(os.environ, "/", system_directory="")
    workspaces = workstead.open(home, settings=settings)
    call = workspaces.get_call(call_id)
    workspaces.record_start(call)
    # Nobody waits for us, so we wait for whoever has to approve it; in time there is always an answer.
    doer = workspaces.acting_as(
        call.actor_id, agent_of=call.agent_of, run_id=run_of(call.actor_id), wait_seconds=float("inf")
    )
    do_call(doer, call, call.arguments)
    workspaces.let_go()
    os._exit(0)


# -- the verbs ---------------------------------------------------------------------------------------------------------


def _create(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.create(arguments.pop("source", "empty"), **arguments)


def _find_created(workspaces: Local, _: dict[str, Any], effects: Sequence[Event]) -> object | None:
    found = [workspaces.by_uid(uid) for uid in _all(effects, "workspace_creating", "uid")]
    return next((workspace for workspace in found if workspace.state == "ready"), None)


def _run(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.run(arguments.pop("id"), arguments.pop("command"), **arguments)


def _find_run(workspaces: Local, _: dict[str, Any], effects: Sequence[Event]) -> object | None:
    started = _all(effects, "run_starting", "run_id")
    return workspaces.get_run(started[0]) if started else None


def _snapshot(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.snapshot(arguments.pop("id"), **arguments)


def _find_snapshot(workspaces: Local, arguments: dict[str, Any], effects: Sequence[Event]) -> object | None:
    taken = set(_all(effects, "snapshot_taken", "snapshot_id"))
    return next((each for each in workspaces.snapshots(arguments["id"]) if each.id in taken), None)


def _restore(workspaces: Local, arguments: dict[str, Any]) -> object:
    operation_id, restored = workspaces.restore(arguments["id"], arguments["snapshot"], arguments.get("paths", ()))
    return {"operation_id": operation_id, "restored": restored}


def _find_restored(workspaces: Local, _: dict[str, Any], effects: Sequence[Event]) -> object | None:
    done = _find_operation(workspaces, effects, "snapshot_restoring")
    if done is None:
        return None
    counts = {"written": 0, "removed": 0, "adjusted": 0, "kept": [], "missing": []}
    for event in workspaces.events(types=("snapshot_restored",), task=effects[0].stream):
        if event.event_data["operation_id"] == done.operation_id:
            counts.update(written=event.event_data["written"], removed=event.event_data["removed"])
    return {"operation_id": done.operation_id, "restored": counts}


def _apply(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.apply(arguments.pop("id"), arguments.pop("paths", ()), **arguments)


def _find_applied(workspaces: Local, _: dict[str, Any], effects: Sequence[Event]) -> object | None:
    done = _find_operation(workspaces, effects, "changes_applying")
    return workspaces.find_applied(done) if done else None


def _fork(workspaces: Local, arguments: dict[str, Any]) -> object:
    return list(workspaces.fork(arguments.pop("id"), **arguments))


def _find_forks(workspaces: Local, arguments: dict[str, Any], effects: Sequence[Event]) -> object | None:
    """Those that stand, and as many more as are missing."""
    uids = _all(effects, "workspace_creating", "uid")
    made = [each for each in (workspaces.by_uid(uid) for uid in uids) if each.state == "ready"]
    missing = int(arguments.get("count", 1)) - len(made)
    if made and missing > 0:
        cause = str(effects[0].metadata["causation_id"])
        left = {**arguments, "count": missing, "new_id": None}
        made += workspaces.caused_by(cause).fork(left.pop("id"), **left)
    return made or None


def _undo(workspaces: Local, arguments: dict[str, Any]) -> object:
    operation, found = workspaces.undo(arguments.get("operation_id"))
    return {"operation": operation, "workspaces": list(found)}


def _find_undone(workspaces: Local, _: dict[str, Any], effects: Sequence[Event]) -> object | None:
    intents = ("workspace_restoring", "snapshot_restoring", "changes_applying", "workspace_destroying")
    done = next((found for kind in intents if (found := _find_operation(workspaces, effects, kind))), None)
    return done and {"operation": done, "workspaces": [workspaces.by_uid(uid) for uid in done.uids]}


def _send(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.send_message(arguments.pop("id"), arguments.pop("text"), **arguments)


def _find_sent(workspaces: Local, arguments: dict[str, Any], effects: Sequence[Event]) -> object | None:
    sent = _all(effects, "message_sent", "message_id")
    try:
        return workspaces.get_message(arguments["id"], sent[0]) if sent else None
    except NotFound:
        return None


def _archive(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.archive(arguments.pop("id"), **arguments)


def _find_archived(_: Local, __: dict[str, Any], effects: Sequence[Event]) -> object | None:
    """From its event, which has all of it."""
    done = [event.event_data for event in effects if event.event_type == "workspace_archived"]
    return {key: value for key, value in done[0].items() if key not in ("agent_id", "uid")} if done else None


def _race(workspaces: Local, arguments: dict[str, Any]) -> object:
    return workspaces.race(arguments.pop("source"), arguments.pop("command"), **arguments)


def _find_race(workspaces: Local, _: dict[str, Any], effects: Sequence[Event]) -> object | None:
    """As it stands: one that died half-way is not begun again, because its runs may have cost money."""
    begun = _all(effects, "race_started", "race_id")
    return workspaces.get_race(begun[0]) if begun else None


VERBS: dict[str, tuple[Do, Find]] = {
    "create": (_create, _find_created),
    "run": (_run, _find_run),
    "snapshot": (_snapshot, _find_snapshot),
    "restore": (_restore, _find_restored),
    "apply": (_apply, _find_applied),
    "fork": (_fork, _find_forks),
    "undo": (_undo, _find_undone),
    "send": (_send, _find_sent),
    "archive": (_archive, _find_archived),
    "race": (_race, _find_race),
}


def _all(effects: Sequence[Event], event_type: str, key: str) -> list[str]:
    return [str(event.event_data[key]) for event in effects if event.event_type == event_type]


def _find_operation(workspaces: Local, effects: Sequence[Event], intent: str) -> Any:
    """The operation that an intent led to, also if somebody else finished it."""
    wanted = _all(effects, intent, "operation_id")
    return next((each for each in workspaces.operations() if each.operation_id in wanted), None)
