"""What the manager did and can take back."""

from __future__ import annotations

from carrel.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Operation(Value):
    """One thing that was done, perhaps to several workspaces at once."""

    operation_id: str
    kind: str  # destroy | undo | purge
    at: str
    actor_id: str
    workspaces: list[str]  # the ids, for people
    uids: list[str]  # the incarnations, for undo
    undoes: str = ""
    undone_by: str = ""


KINDS: dict[str, str] = {
    "workspace_cleanup": "destroy",
    "workspace_restored": "undo",
    "workspace_purged": "purge",
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
        }
    return {
        **record,
        "workspaces": [*record["workspaces"], data["workspace_id"]],
        "uids": [*record["uids"], data["uid"]],
    }
