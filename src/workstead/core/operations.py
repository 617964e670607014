"""Detached operations: accept a call so that it is executed once, even if the process that executes it dies.

    call_accepted → the events of the verb, each with the call as its cause → call_completed

A retry with the same idempotency key finds the accepted call. A call whose process died is resumed by the next caller
who asks, or by a starting server: the events with the call as their cause show what was already done.
`workstead.calls` knows how to execute each verb and find its effects; this module has only the part of the log.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress

from workstead.errors import Conflict, KeyReused, OperationNotFound, WorkspaceBusy
from workstead.model.call import Call
from workstead.model.event import CallAccepted, CallCancelled, CallCompleted, CallFailed, CallStarted
from workstead.model.source import parse as parse_source
from workstead.store.log import LabelTaken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.event import Event

WAIT_SECONDS = 60.0
STREAM = ""  # a name that no task can have, so that the stream of a task does not show how its events were requested


def accept_call(
    home: Home,
    verb: str,
    workspace_id: str,
    *,
    key: str,
    body: str,
    arguments: Mapping[str, Any] | None = None,
    detached: bool = False,
) -> tuple[Call, bool]:
    """Record a call, or find the one with the same key; return it and whether it is new.

    Raises KeyReused if the key belongs to a different request.
    """
    if arguments and isinstance(arguments.get("source"), str):
        parse_source(arguments["source"])  # reject an invalid source, or one with a password, before it is recorded
    call_id = f"call-{home.new_id()}"
    fact = CallAccepted(
        call_id=call_id,
        verb=verb,
        workspace_id=workspace_id,
        key=key or call_id,
        body=body,
        arguments=dict(arguments or {}),
        detached=detached,
        agent_of=home.caller.agent_of,
        home=home.id,
        position=home.log.last_position(),
    )
    try:
        home.log.append(STREAM, (fact,), home.caller)
    except LabelTaken:
        record = home.log.find_live("call", key)
        if record is None or record["body"] != body:
            raise KeyReused(
                "the key was used for something else", hint="a new key for each new request, the same for its repeats"
            ) from None
        return Call(**record), False
    return get_call(home, call_id), True


def get_call(home: Home, call_id: str) -> Call:
    """Return the call of this id, or raise OperationNotFound."""
    record = home.log.get("call", call_id)
    if record is None:
        raise OperationNotFound(f"there is no operation {call_id}", hint="aw ops lists what was done")
    return Call(**record)


@contextmanager
def hold_call(home: Home, call_id: str) -> Iterator[Call]:
    """Lock the call for execution; yield its current record."""
    with home.hold(call_id, wait_seconds=WAIT_SECONDS):
        yield get_call(home, call_id)


def effects_of(home: Home, call: Call) -> list[Event]:
    """Return the events that the call has caused so far."""
    later = home.log.read(after=call.position)
    return [event for event in later if event.metadata.get("causation_id") == call.call_id]


def end_call(home: Home, call: Call, *, answer: object = None, error: dict[str, object] | None = None) -> Call:
    """Record the answer or the error of the call."""
    ended = CallFailed(call_id=call.call_id, error=error) if error else None
    home.record(STREAM, ended or CallCompleted(call_id=call.call_id, answer=answer))
    return get_call(home, call.call_id)


# -- detached calls ----------------------------------------------------------------------------------------------------


def start_call(home: Home, call_id: str) -> None:
    """Start a separate process that executes the call and outlives this one."""
    import threading

    from workstead.system.process import background, crash_log, spawn

    pid = spawn.start_detached(
        background.logged_argv(
            "from workstead.calls import main; main()",
            crash_log.log_path(home.path, "call"),
            f"operation {call_id},",
            home.path,
            call_id,
        ),
        {**home.settings.as_environment(), "PATH": "/usr/local/bin:/usr/bin:/bin"},
    )
    threading.Thread(target=lambda: os.waitpid(pid, 0), name=f"reap-{pid}", daemon=True).start()


def record_start(home: Home, call: Call) -> None:
    """Record that this process executes the call."""
    from workstead.system.process import spawn

    fact = CallStarted(call_id=call.call_id, pid=os.getpid(), start_time=spawn.read_start_time(os.getpid()) or 0)
    home.record(STREAM, fact, durable=False)


def cancel_call(home: Home, call_id: str) -> Call:
    """Cancel a detached call; as after a crash, interrupted steps are rolled back or finished.

    Raises Conflict if it has ended, or if it is not detached.
    """
    from workstead.core.recovery import settle

    call = get_call(home, call_id)
    if call.is_over:
        raise Conflict(f"operation {call_id} is {call.state}", hint="aw undo takes back what was done")
    if not call.detached:
        raise Conflict(f"operation {call_id} is done while its caller waits", hint="it ends by itself")
    _kill(home, call_id)
    with hold_call(home, call_id) as call:
        settle(home)
        if not call.is_over and not _is_done(home, call):
            home.record(STREAM, CallCancelled(call_id=call_id))
    return get_call(home, call_id)


def _kill(home: Home, call_id: str) -> None:
    from workstead.system.process import spawn

    end = time.monotonic() + 10
    while time.monotonic() < end:
        call = get_call(home, call_id)
        if call.is_over:
            return
        if call.pid:
            if spawn.is_alive(call.pid, call.start_time):
                with suppress(ProcessLookupError):
                    os.killpg(call.pid, spawn.SIGKILL)
            return
        time.sleep(0.01)  # the process was started and has not recorded its pid yet


def _is_done(home: Home, call: Call) -> bool:
    """Return whether the call was complete before it could be stopped; the next caller then finds its answer."""
    types = {event.event_type for event in effects_of(home, call)}
    return bool(types & {"workspace_created", "changes_applied", "snapshot_restored", "workspace_archived"})


def left_calls(home: Home) -> list[Call]:
    """Return the detached calls of this home that no process executes any more."""
    found = []
    for record in home.log.find_all("call", live_only=True):
        call = Call(**record)
        if call.detached and not call.is_over and call.home == home.id:
            with suppress(WorkspaceBusy), home.hold(call.call_id, wait_seconds=0):
                found.append(call)
    return found
