"""How the log becomes the present: one pure step from an event to the records that it changes.

The store runs `project` inside the transaction that appends the event, over its tables; `repair --rebuild-views` and
`verify` run the same function over a dict. That the two agree is what makes a view a cache and not a second truth.
"""

from __future__ import annotations

from carrel.model import operation, workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Records(Protocol):
        """Records by kind and key. A `live` record holds its label alone; a `pending` one is found by repair."""

        def get(self, kind: str, key: str) -> dict[str, Any] | None: ...
        def put(
            self, kind: str, key: str, record: dict[str, Any], *, task: str, label: str, live: bool, pending: bool
        ) -> None: ...


def project(records: Records, event_type: str, data: dict[str, Any], stream: str, actor_id: str, at: str) -> None:
    """Let one event change the records; raises WrongStatus, and nothing may be kept then."""
    if event_type in workspace.EVENTS:
        _workspace(records, event_type, data, stream, at)
    if event_type in operation.KINDS:
        _operation(records, event_type, data, stream, actor_id, at)


def _workspace(records: Records, event_type: str, data: dict[str, Any], stream: str, at: str) -> None:
    record = workspace.fold(records.get("workspace", data["uid"]), event_type, data, stream, at)
    state = record["state"]
    records.put(
        "workspace",
        data["uid"],
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
    undone = records.get("operation", record["undoes"]) if record["undoes"] else None
    if undone and not undone["undone_by"]:
        undone = {**undone, "undone_by": key}
        records.put(
            "operation", record["undoes"], undone, task=stream, label=record["undoes"], live=False, pending=False
        )
