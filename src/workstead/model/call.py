"""A detached or idempotent request: recorded in the log, so that it is executed once, also without its caller.

accepted ─> completed | failed | cancelled
"""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Call(Value):
    """One request of a caller, and its result."""

    call_id: str
    verb: str
    workspace_id: str  # the workspace it concerns; "" if none
    state: str
    actor_id: str
    accepted_at: str
    position: int = 0  # of its first event: the events it caused come after
    ended_at: str | None = None
    answer: object = None
    error: dict[str, object] | None = None
    key: str = ""  # digest of the caller's idempotency key
    body: str = ""  # digest of the request
    arguments: dict[str, object] = {}
    detached: bool = False  # executed by a process of its own
    agent_of: str | None = None
    home: str = ""
    pid: int = 0
    start_time: int = 0

    @property
    def is_over(self) -> bool:
        """Return whether it has ended, with any result."""
        return self.state != "accepted"


EVENTS = frozenset({"call_accepted", "call_started", "call_completed", "call_failed", "call_cancelled"})


def fold(
    record: dict[str, Any] | None, event_type: str, data: Mapping[str, Any], actor_id: str, at: str
) -> dict[str, Any] | None:
    """Return the call's record after one more event; a final state never changes."""
    if event_type == "call_accepted":
        return {**Call.__defaults__, **data, "state": "accepted", "actor_id": actor_id, "accepted_at": at}
    if record is None or record["state"] != "accepted":
        return record
    if event_type == "call_started":
        return {**record, "pid": data["pid"], "start_time": data["start_time"]}
    ended = {**record, "state": event_type.removeprefix("call_"), "ended_at": at}
    return {**ended, **{key: data[key] for key in ("answer", "error") if key in data}}
