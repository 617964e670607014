"""Background watchers, as recorded in the log."""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

EVENTS = frozenset({"watch_started", "watch_weakened", "watch_stopping", "watch_stopped"})


class Watching(Value):
    """A process that records file changes of a workspace."""

    workspace_id: str
    uid: str
    home: str
    state: str  # watching, stopping
    mechanism: str  # inotify, or scanning
    since: str
    note: str = ""  # why the mechanism is weaker than possible


def fold(record: dict[str, Any] | None, event_type: str, data: Mapping[str, Any], at: str) -> dict[str, Any] | None:
    """Return the watcher's record after one more event; None when there is no watcher any more."""
    if event_type == "watch_started":
        fields = {key: data[key] for key in ("workspace_id", "uid", "home", "mechanism")}
        return Watching(**fields, state="watching", since=at).as_dict()
    if record is None or event_type == "watch_stopped":
        return None
    if event_type == "watch_weakened":
        return {**record, "mechanism": data["mechanism"], "note": data["reason"]}
    return {**record, "state": "stopping"}


def pair(uid: str, other_uid: str) -> str:
    """Return the key of a pair of workspaces, independent of their order."""
    return "+".join(sorted((uid, other_uid)))
