"""Projection of events to views: one pure step from an event to the records that it changes.

The store runs `project` over its tables, inside the transaction that appends the event; `repair --rebuild-views` and
`verify` run the same function over a dict. Because both agree, a view is a cache and not a second source of truth.
"""

from __future__ import annotations

from workstead.model import approval, call, operation, race, run, watch, workspace
from workstead.model.moving import move_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Records(Protocol):
        """Records by kind and key. A `live` record owns its label exclusively; a `pending` one is found by repair."""

        def get(self, kind: str, key: str) -> dict[str, Any] | None: ...
        def put(
            self, kind: str, key: str, record: dict[str, Any], *, task: str, label: str, live: bool, pending: bool
        ) -> None: ...
        def drop(self, kind: str, key: str) -> None: ...
        def find_all(self, kind: str) -> list[dict[str, Any]]: ...


def project(records: Records, event_type: str, data: dict[str, Any], stream: str, actor_id: str, at: str) -> None:
    """Update the records for one event; raise WrongStatus, after which the caller must roll back."""
    if event_type in workspace.EVENTS:
        _workspace(records, event_type, data, stream, at)
    if event_type in run.EVENTS:
        _run(records, event_type, data, stream, actor_id, at)
    if event_type in ("snapshot_taken", "snapshot_imported"):
        _snapshot(records, data, stream, at)
    if event_type == "snapshot_dropped":
        records.drop("snapshot", data["snapshot_id"])
    if event_type in ("token_created", "token_revoked"):
        _token(records, event_type, data, stream, at)
    if event_type in race.EVENTS:
        _race(records, event_type, data, stream, at)
    if event_type in call.EVENTS:
        _call(records, event_type, data, stream, actor_id, at)
    if event_type in approval.EVENTS:
        _approval(records, event_type, data, stream, actor_id, at)
    if event_type in operation.KINDS and data.get("operation_id"):
        _operation(records, event_type, data, stream, actor_id, at)
    if event_type in watch.EVENTS:
        _watch(records, event_type, data, stream, at)
    if event_type == "paths_overlap":
        _overlap(records, data, stream)
    if event_type == "home_adopted":
        _adopt(records, data, stream)


def _watch(records: Records, event_type: str, data: dict[str, Any], stream: str, at: str) -> None:
    key = data["uid"]
    record = watch.fold(records.get("watch", key), event_type, data, at)
    if record is None:
        records.drop("watch", key)
    else:
        records.put("watch", key, record, task=stream, label=key, live=True, pending=True)


def _overlap(records: Records, data: dict[str, Any], stream: str) -> None:
    key = watch.pair(data["uid"], data["other_uid"])
    told = records.get("overlap", key)
    paths = sorted({*(told["paths"] if told else ()), *data["paths"]})
    records.put("overlap", key, {"paths": paths}, task=stream, label=key, live=False, pending=False)


def _adopt(records: Records, data: dict[str, Any], stream: str) -> None:
    moves = ((data["from_workspaces"], data["to_workspaces"]), (data["from_path"], data["to_path"]))
    for record in records.find_all("workspace"):
        if record["home"] == data["home"]:
            moved = {key: move_value(record[key], moves) for key in workspace.PATHS if key in record}
            _put_workspace(records, {**record, **moved})
    key = data["home"]
    if records.get("home", key) is None:  # snapshots refer to the paths of the home's first location
        first = {"first_path": data["from_path"], "first_workspaces": data["from_workspaces"]}
        records.put("home", key, first, task=stream, label=key, live=False, pending=False)


def _workspace(records: Records, event_type: str, data: dict[str, Any], stream: str, at: str) -> None:
    _put_workspace(records, workspace.fold(records.get("workspace", data["uid"]), event_type, data, stream, at))


def _put_workspace(records: Records, record: dict[str, Any]) -> None:
    state = record["state"]
    records.put(
        "workspace",
        record["uid"],
        record,
        task=record["task_id"],
        label=record["workspace_id"],
        live=state in workspace.LIVE,
        pending=state in workspace.PENDING,
    )


def _operation(records: Records, event_type: str, data: dict[str, Any], stream: str, actor_id: str, at: str) -> None:
    key = data["operation_id"]
    record = operation.fold(records.get("operation", key), event_type, data, actor_id, at)
    records.put("operation", key, record, task=stream, label=key, live=False, pending=False)
    undone_key = data.get("undoes")
    undone = records.get("operation", undone_key) if undone_key else None
    if undone_key and undone:
        undone = operation.undone(undone, data["uid"], key)
        records.put("operation", undone_key, undone, task=stream, label=undone_key, live=False, pending=False)


def _run(records: Records, event_type: str, data: dict[str, Any], stream: str, actor_id: str, at: str) -> None:
    key = data["run_id"]
    record = run.fold(records.get("run", key), event_type, data, stream, actor_id, at)
    active = record["state"] in run.ACTIVE
    # One active run for each workspace: its label is the workspace's uid, unless it may run concurrently.
    label = key if record["concurrent"] else record["uid"]
    records.put("run", key, record, task=stream, label=label, live=active, pending=active)
    workspace = records.get("workspace", data["uid"]) if data.get("metadata_digest") else None
    if workspace:
        workspace = {**workspace, "metadata_digest": data["metadata_digest"]}
        _put_workspace(records, workspace)


def _snapshot(records: Records, data: dict[str, Any], stream: str, at: str) -> None:
    key = data["snapshot_id"]
    workspace = records.get("workspace", data["uid"])
    kept = {"taken_at": at, **data}
    if workspace and workspace.get("covers"):
        kept["applied"] = len(workspace["covers"])
    # Indexed by uid: a workspace may be restored from the trash in another task, with all its snapshots.
    records.put("snapshot", key, kept, task=stream, label=data["uid"], live=False, pending=False)
    if workspace:
        _put_workspace(records, {**workspace, "last_root": data["root"], "last_snapshot": key})


def _token(records: Records, event_type: str, data: dict[str, Any], stream: str, at: str) -> None:
    key = data["token_id"]
    if event_type == "token_created":
        record: dict[str, Any] | None = {**data, "created_at": at, "revoked_at": None}
    else:
        record = records.get("token", key)
        record = record and {**record, "revoked_at": at}
    if record:  # found by the digest while it is valid
        live = record["revoked_at"] is None
        records.put("token", key, record, task=stream, label=record["digest"], live=live, pending=False)


def _race(records: Records, event_type: str, data: dict[str, Any], stream: str, at: str) -> None:
    record = race.fold(records.get("race", data["race_id"]), event_type, data, stream, at)
    records.put("race", data["race_id"], record, task=stream, label=data["race_id"], live=False, pending=False)


def _call(records: Records, event_type: str, data: dict[str, Any], stream: str, actor_id: str, at: str) -> None:
    record = call.fold(records.get("call", data["call_id"]), event_type, data, actor_id, at)
    if record:  # it owns its key forever: a retry returns the same answer and never executes again
        records.put("call", data["call_id"], record, task=stream, label=record["key"], live=True, pending=False)


def _approval(records: Records, event_type: str, data: dict[str, Any], stream: str, actor_id: str, at: str) -> None:
    key = data["approval_id"]
    record = approval.fold(records.get("approval", key), event_type, data, stream, actor_id, at)
    # An open or granted approval owns its key exclusively, so that a request is asked only once at a time.
    live = record["state"] in approval.LIVE
    records.put("approval", key, record, task=stream, label=record["key"], live=live, pending=False)
