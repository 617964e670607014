"""The record of a background watcher."""

from __future__ import annotations

from contextlib import suppress

from workstead.core import lookup
from workstead.errors import WorkspaceBusy, WorksteadError
from workstead.model.event import WatchStopped
from workstead.model.moment import seconds
from workstead.model.text import word
from workstead.model.watch import Watching
from workstead.system.process.crash_log import explain, log_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home
    from workstead.model.workspace import Workspace

ACTOR = "watcher"


def settle(home: Home, uid: str) -> str | None:
    """Record that a watcher died; None if it is alive, or there is none."""
    try:
        with home.hold(watch_lock(uid), wait_seconds=0):
            found = find_watch(home, uid)
            if found is None or found.home != home.id:
                return None
            log, since = log_path(home.path, "watcher"), seconds(found.since)
            reason = explain("its process died", log, title=watcher_title(found.workspace_id), since=since)
            record_watch_end(home, lookup.by_uid(home, uid), reason)
            return f"written down as ended; aw watch --start {word(found.workspace_id)} starts another"
    except WorkspaceBusy:
        return None


def find_watch(home: Home, uid: str) -> Watching | None:
    record = home.log.get("watch", uid)
    return Watching(**record) if record else None


def watch_lock(uid: str) -> str:
    return f"watch {uid}"


def record_watch_end(home: Home, workspace: Workspace, reason: str) -> None:
    with suppress(WorksteadError):  # the next process that opens the home finds a record whose lock is free
        home.record(workspace.task_id, WatchStopped(**workspace.names(), reason=reason))


def watcher_title(workspace_id: str) -> str:
    return f"watcher of {workspace_id},"
