"""Operations: completed changes that `undo` can take back."""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Operation(Value):
    """One operation, perhaps on several workspaces at once."""

    operation_id: str
    kind: str  # destroy | restore | apply | change | undo | purge
    at: str
    actor_id: str
    workspaces: list[str]  # ids, for display
    uids: list[str]  # uids, for undo
    undoes: str = ""
    undone_by: str = ""  # the operation that undid the last part of it
    undone_uids: list[str] = []  # workspaces for which it was undone
    before: str = ""  # the snapshot of the workspace before it
    changed: bool = False  # it changed the content of a workspace or origin, not the workspace's location
    places: list[str] = []  # the paths of a file change through a verb
    kept: list[str] = []  # copies, in the origin, of files that the user saved during the operation or its undo
    left: list[str] = []  # in the result of undo: content that could not be restored, or had to be left unchanged


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
    """Return the operation's record after it affected one more workspace."""
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
    """Return the operation's record after it was undone for one of its workspaces."""
    uids = [*record["undone_uids"], uid]
    return {**record, "undone_uids": uids, "undone_by": by if set(uids) >= set(record["uids"]) else ""}
