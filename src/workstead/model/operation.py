"""What the manager did and can take back."""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Operation(Value):
    """One thing that was done, perhaps to several workspaces at once."""

    operation_id: str
    kind: str  # destroy | restore | apply | change | undo | purge
    at: str
    actor_id: str
    workspaces: list[str]  # the ids, for people
    uids: list[str]  # the incarnations, for undo
    undoes: str = ""
    undone_by: str = ""  # the operation that took the last of it back
    undone_uids: list[str] = []  # those of its workspaces for which it was taken back
    before: str = ""  # the snapshot of the workspace as it was before
    changed: bool = False  # it changed what a workspace or its origin holds, not where the workspace is
    places: list[str] = []  # the paths that a change through us was about
    kept: list[str] = []  # copies, in the origin, of what the user saved while it was done or taken back
    left: list[str] = []  # in the answer of undo: what it could not bring back, or had to leave as it is


KINDS: dict[str, str] = {
    "workspace_cleanup": "destroy",
    "workspace_restored": "undo",
    "workspace_purged": "purge",
    "snapshot_restored": "restore",
    "changes_applied": "apply",
    "file_written": "change",
    "file_deleted": "change",
    "file_moved": "change",
}


def fold(
    record: dict[str, Any] | None, event_type: str, data: dict[str, Any], actor_id: str, at: str
) -> dict[str, Any]:
    """The operation's record after one more workspace was affected by it."""
    if record is None:
        record = {
            "operation_id": data["operation_id"],
            "kind": "undo" if data.get("undoes") else KINDS[event_type],
            "at": at,
            "actor_id": actor_id,
            "workspaces": [],
            "uids": [],
            "undoes": data.get("undoes", ""),
            "undone_by": "",
            "undone_uids": [],
            "before": data.get("before", ""),
            "changed": KINDS[event_type] in ("restore", "apply", "change"),
            **{key: data[key] for key in ("places", "kept") if data.get(key)},
        }
    return {
        **record,
        "workspaces": [*record["workspaces"], data["workspace_id"]],
        "uids": [*record["uids"], data["uid"]],
    }


def undone(record: dict[str, Any], uid: str, by: str) -> dict[str, Any]:
    """The operation's record after it was taken back for one of its workspaces."""
    uids = [*record["undone_uids"], uid]
    return {**record, "undone_uids": uids, "undone_by": by if set(uids) >= set(record["uids"]) else ""}
