"""What a door was asked for with a key, or to be done while nobody waits: written down, so that it is done once.

accepted ─> completed | failed | cancelled
"""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Call(Value):
    """One request of a caller, and what became of it."""

    call_id: str
    verb: str
    workspace_id: str  # that it is about; "" if it is about none
    state: str
    actor_id: str
    accepted_at: str
    position: int = 0  # of its first event: what it caused comes after
    ended_at: str | None = None
    answer: object = None
    error: dict[str, object] | None = None
    key: str = ""  # a digest of the caller's key
    body: str = ""  # a digest of what was asked
    arguments: dict[str, object] = {}
    detached: bool = False  # a process of its own does it
    agent_of: str | None = None
    home: str = ""
    pid: int = 0
    start_time: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it has ended, however."""
        return self.state != "accepted"


EVENTS = frozenset({"call_accepted", "call_started", "call_completed", "call_failed", "call_cancelled"})


def fold(
    record: dict[str, Any] | None, event_type: str, data: Mapping[str, Any], actor_id: str, at: str
) -> dict[str, Any] | None:
    """The call's record after one more event; an end stays what it is."""
    if event_type == "call_accepted":
        return {**Call.__defaults__, **data, "state": "accepted", "actor_id": actor_id, "accepted_at": at}
    if record is None or record["state"] != "accepted":
        return record
    if event_type == "call_started":
        return {**record, "pid": data["pid"], "start_time": data["start_time"]}
    ended = {**record, "state": event_type.removeprefix("call_"), "ended_at": at}
    return {**ended, **{key: data[key] for key in ("answer", "error") if key in data}}
