"""One command executed in a workspace, and the table of its state transitions.

starting ─> running ─> completed | failed | cancelled | timed_out
    └──────────────────> failed | cancelled
"""

from __future__ import annotations

from workstead.errors import WrongStatus
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Run(Value):
    """One command in a workspace."""

    run_id: str
    workspace_id: str
    task_id: str
    uid: str  # of the workspace
    state: str
    command: list[str]
    sandbox: str
    network: str
    prompt: str | None
    actor_id: str
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    exit_code: int | None = None
    reason: str = ""
    error: dict[str, object] | None = None
    enforcement: dict[str, object] = {}
    output_bytes: int = 0
    dropped_bytes: int = 0
    usage: dict[str, int] = {}
    denials: int = 0  # requests refused by the proxy
    concurrent: bool = False
    snapshot_before: str | None = None
    snapshot_after: str | None = None
    home: str = ""
    box: str = ""  # digest of the configuration of a command server for many commands; "" is an ordinary run
    commands: int = 0  # number that ended in the command server

    @property
    def id(self) -> str:
        """Return the run's id."""
        return self.run_id

    @property
    def is_active(self) -> bool:
        """Return whether it has not ended yet."""
        return self.state in ACTIVE


class Command(Value):
    """One command in a kept sandbox (`run --keep`), and its output."""

    run_id: str  # of the command server
    command: list[str]
    exit_code: int  # 128 + n for a signal, 124 for a timeout, 125 if it could not be started
    seconds: float
    reason: str = ""
    error: dict[str, object] | None = None  # why it could not be started
    stdout: bytes = b""
    stderr: bytes = b""
    dropped_bytes: int = 0


# The caller of a command may record its end shortly after the command server has ended.
_STATES = ("starting", "running", "completed", "failed", "cancelled", "timed_out")
TABLE: dict[tuple[str, str], str] = {
    ("", "run_starting"): "starting",
    ("starting", "run_started"): "running",
    ("running", "run_completed"): "completed",
    ("running", "run_failed"): "failed",
    ("running", "run_cancelled"): "cancelled",
    ("running", "run_timed_out"): "timed_out",
    ("starting", "run_failed"): "failed",
    ("starting", "run_cancelled"): "cancelled",
    ("running", "network_denied"): "running",
    ("starting", "network_denied"): "starting",
    **{(state, "command_completed"): state for state in _STATES},
}
EVENTS = frozenset(event for _, event in TABLE)
ACTIVE = frozenset({"starting", "running"})


def fold(
    record: dict[str, Any] | None, event_type: str, data: Mapping[str, Any], stream: str, actor: str, at: str
) -> dict[str, Any]:
    """Return the run's record after one more event."""
    state = TABLE.get((record["state"] if record else "", event_type))
    if state is None:
        now = record["state"] if record else "absent"
        raise WrongStatus(f"run {data.get('run_id')} is {now}: {event_type} cannot happen now")
    if record is None:
        record = {
            "task_id": stream,
            "actor_id": actor,
            "created_at": at,
            **{key: data[key] for key in _FROM_START if key in data},
        }
        record = {**Run.__defaults__, **record}
    new = {**record, "state": state}
    if event_type == "run_started":
        new.update(started_at=at, enforcement=data["enforcement"])
    elif event_type == "network_denied":
        new["denials"] = record["denials"] + data.get("count", 1)
    elif event_type == "command_completed":
        new["commands"] = record.get("commands", 0) + 1
    elif state not in ACTIVE:
        new.update({key: data[key] for key in _FROM_END if key in data}, finished_at=at)
    return new


_FROM_START = (
    "run_id",
    "workspace_id",
    "uid",
    "command",
    "sandbox",
    "network",
    "prompt",
    "concurrent",
    "snapshot_before",
    "home",
    "box",
)
_FROM_END = ("exit_code", "reason", "error", "output_bytes", "dropped_bytes", "usage", "snapshot_after")


class Glance(Value):
    """The position and last line of a run's output, for a list of many runs."""

    offset: int
    line: str
