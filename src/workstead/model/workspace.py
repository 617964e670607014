"""A workspace, and the table of its state transitions.

    planned ─> creating ─> ready ─> destroying ─> destroyed ─> purging ─> purged
                  │  └──> failed ──────┘  ^            │
                  v                       └ restoring <┘
               aborted            ready <─> reverting, applying

`creating`, `destroying`, `restoring`, `purging`, `reverting` (to a snapshot) and `applying` are intents: a process is
at work, or has died and `repair` finishes or undoes the step. Folding a workspace's events through `TABLE` returns its
state; an event without a transition from the present state is refused, and nothing changes.
"""

from __future__ import annotations

from workstead.errors import WrongStatus
from workstead.model.names import AgentId, TaskId, WorkspaceId
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Workspace(Value):
    """One isolated directory and its history."""

    workspace_id: WorkspaceId
    task_id: TaskId
    agent_id: AgentId
    path: str
    state: str
    created_at: str
    updated_at: str
    source: str
    config: dict[str, object]
    uid: str
    home: str
    filled: dict[str, object] = {}
    metadata_digest: str = ""
    trash_path: str = ""
    operation_id: str = ""  # of the step in progress, or of the last one
    undoes: str = ""  # the operation that this one undoes
    reason: str = ""  # why it was destroyed, or why it failed
    settled: str = ""  # the state to return to when a step in progress is undone
    before: dict[str, object] = {}  # old values of the fields that the step in progress changed
    base: str = ""  # the state that its changes are compared with
    last_root: str = ""  # root of the last snapshot
    covers: list[str] = []  # for each of its applies, the content that it replaced in the folder below
    last_snapshot: str = ""  # id of the last snapshot
    step: dict[str, object] = {}  # details of a restore or apply in progress
    pinned: bool = False  # no sweep deletes it
    policy: dict[str, object] = {}  # permissions of agents
    host: str = ""  # the machine on which it was created

    @property
    def id(self) -> WorkspaceId:
        """Return the id, `TASK/AGENT`."""
        return self.workspace_id

    def names(self) -> dict[str, Any]:
        """Return the identifying fields that every event of the workspace begins with."""
        return {"workspace_id": self.workspace_id, "agent_id": self.agent_id, "uid": self.uid}


# (state, event) -> next state. `=` is the state before the step that failed or was undone.
TABLE: dict[tuple[str, str], str] = {
    ("", "workspace_planned"): "planned",
    ("", "workspace_creating"): "creating",
    ("planned", "workspace_creating"): "creating",
    ("creating", "workspace_created"): "ready",
    ("creating", "workspace_create_failed"): "aborted",
    ("planned", "workspace_destroying"): "destroying",
    ("ready", "workspace_destroying"): "destroying",
    ("failed", "workspace_destroying"): "destroying",
    ("destroying", "workspace_cleanup"): "destroyed",
    ("destroying", "workspace_destroy_failed"): "=",
    ("destroyed", "workspace_restoring"): "restoring",
    ("restoring", "workspace_restored"): "=",
    ("restoring", "workspace_restore_failed"): "destroyed",
    ("destroyed", "workspace_purging"): "purging",
    ("purging", "workspace_purged"): "purged",
    ("ready", "snapshot_restoring"): "reverting",
    ("reverting", "snapshot_restored"): "ready",
    ("reverting", "snapshot_restore_failed"): "ready",
    ("ready", "changes_applying"): "applying",
    ("applying", "changes_applied"): "ready",
    ("applying", "changes_apply_failed"): "ready",
    ("ready", "workspace_relayered"): "ready",
    ("ready", "workspace_rebased"): "ready",
    ("destroyed", "workspace_rebased"): "destroyed",
    ("ready", "workspace_mended"): "ready",
    **{
        (state, event): state
        for state in ("planned", "ready", "failed")
        for event in ("workspace_pinned", "workspace_unpinned")
    },
    ("ready", "policy_changed"): "ready",
    ("planned", "policy_changed"): "planned",
    ("ready", "workspace_archived"): "ready",
    ("destroyed", "workspace_archived"): "destroyed",
}

EVENTS = frozenset(event for _, event in TABLE)
# States in which the id is in use.
LIVE = frozenset({"planned", "creating", "ready", "failed", "destroying", "restoring", "reverting", "applying"})
# Fields that contain paths inside the home.
PATHS = ("path", "trash_path", "filled", "before", "step")
# States in which a process is at work, or has died.
PENDING = frozenset({"creating", "destroying", "restoring", "purging", "reverting", "applying"})


def next_state(record: Mapping[str, Any] | None, event_type: str, data: Mapping[str, Any]) -> str:
    """Return the next state by the table; raise WrongStatus if there is none."""
    state = record["state"] if record else ""
    found = TABLE.get((state, event_type))
    if found is None:
        raise WrongStatus(
            f"workspace {data.get('workspace_id')} is {state or 'absent'}: {event_type} cannot happen now",
            details={"state": state, "event_type": event_type},
        )
    if found == "=":
        return str(record["settled"]) if record else found
    if event_type == "workspace_create_failed":
        if data.get("kept"):
            return "failed"
        return "planned" if record and record["settled"] == "planned" else found
    return found


def fold(
    record: dict[str, Any] | None, event_type: str, data: Mapping[str, Any], stream: str, at: str
) -> dict[str, Any]:
    """Return the workspace's record after one more event."""
    state = next_state(record, event_type, data)
    if record and event_type in _PINS:
        kept = {key: value for key, value in record.items() if key != "pinned"}
        return {**kept, **_PINS[event_type], "updated_at": at}
    if record and event_type in _TAKEN_BACK and state == record["before"].get("state"):
        return {**record, **record["before"], "updated_at": at, "before": {}, "step": {}}
    new = _fresh(data, stream, at) if record is None else dict(record)
    new["before"] = {key: record[key] for key in _STEP} if record and state in PENDING else {}
    if state in ("ready", "failed", "planned"):
        new["settled"] = state
    if event_type == "workspace_restoring":  # it may be restored under another id
        new.update(task_id=stream, agent_id=data["agent_id"], workspace_id=data["workspace_id"])
    if event_type == "workspace_restored":
        new["reason"] = ""
    new["step"] = dict(data) if event_type in _ANNOUNCED else {}
    new["state"] = state
    if record is None or record["state"] != "destroyed" or state != "destroyed":  # keep the time when it was trashed
        new["updated_at"] = at
    for key, source_key in _CARRIED:
        if source_key in data:
            new[key] = data[source_key]
    if data.get("cover"):
        new["covers"] = [*new.get("covers", ()), data["cover"]]
    return new


_PINS: dict[str, dict[str, Any]] = {"workspace_pinned": {"pinned": True}, "workspace_unpinned": {}}
_ANNOUNCED = ("snapshot_restoring", "changes_applying")
# A failed step has changed nothing: the fields that its intent set are reset.
_TAKEN_BACK = (
    "workspace_create_failed",
    "workspace_destroy_failed",
    "workspace_restore_failed",
    "snapshot_restore_failed",
    "changes_apply_failed",
)
_STEP = (
    "state",
    "workspace_id",
    "task_id",
    "agent_id",
    "path",
    "trash_path",
    "operation_id",
    "undoes",
    "reason",
)
_CARRIED = (
    ("path", "workspace_path"),
    ("config", "config"),
    ("policy", "policy"),
    ("filled", "filled"),
    ("metadata_digest", "metadata_digest"),
    ("base", "base"),
    ("trash_path", "trash_path"),
    ("operation_id", "operation_id"),
    ("undoes", "undoes"),
    ("reason", "reason"),
    ("reason", "cleanup_reason"),
)


def _fresh(data: Mapping[str, Any], stream: str, at: str) -> dict[str, Any]:
    return {
        "workspace_id": data["workspace_id"],
        "task_id": stream,
        "agent_id": data["agent_id"],
        "path": data["workspace_path"],
        "state": "",
        "created_at": at,
        "updated_at": at,
        "source": data["source"],
        "config": data["config"],
        "uid": data["uid"],
        "home": data["home"],
        "filled": {},
        "metadata_digest": "",
        "trash_path": "",
        "operation_id": "",
        "undoes": "",
        "reason": "",
        "settled": "",
        "before": {},
        "base": "",
        "last_root": "",
        "step": {},
        **({"host": data["host"]} if data.get("host") else {}),  # events of older versions have none
    }
