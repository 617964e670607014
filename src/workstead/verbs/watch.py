"""Background watchers: one process per workspace that records file changes.

    start → the process takes its lock → watch_started → file_changed … → watch_stopped

The process holds the lock of its workspace's watcher as long as it lives, so there is only one, and a watcher that died
is a record whose lock is free. It holds no other lock: a watched workspace can be forked, restored and destroyed, and
its watcher ends with it.
"""

from __future__ import annotations

import os
import time

from workstead.core import lookup
from workstead.core.building import materialise
from workstead.core.watchers import ACTOR, find_watch, record_watch_end, settle, watch_lock, watcher_title
from workstead.errors import Conflict, DiskFull, FilesystemError, TimedOut, Unavailable, WorkspaceBusy
from workstead.model.event import Caller, FileChanged, WatchStarted, WatchStopping, WatchWeakened
from workstead.model.text import word
from workstead.model.watch import Watching
from workstead.system.process.crash_log import explain, last_line, log_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from workstead.core.home import Home
    from workstead.core.watching import Watch
    from workstead.model.change import FileChange
    from workstead.model.workspace import Workspace

START_SECONDS = 20.0
STOP_SECONDS = 20.0
_ASK_SECONDS = 0.2
_TOGETHER = 500  # events per write
_FACTS_A_SECOND = 1000  # an agent that changes files continuously must not fill the disk with events
_MOST_SECONDS = 5.0


def start_watching(home: Home, workspace_id: str) -> Watching:
    """Start a background process that records the changes of a workspace; idempotent."""
    workspace = lookup.check_here(home, materialise(home, lookup.get(home, workspace_id)))
    if workspace.state != "ready":
        raise Conflict(f"workspace {workspace.id} is {workspace.state}", hint=f"aw show {word(workspace.id)}")
    settle(home, workspace.uid)
    found = find_watch(home, workspace.uid)
    log, title, since = log_path(home.path, "watcher"), watcher_title(workspace.id), time.time()
    if found is None:
        from workstead.system.process.background import start_aw

        words = ["watch", "--record", workspace.id, "--home", home.path, "--actor", home.caller.actor_id]
        start_aw(words, home.settings.as_environment(), log=log, title=title)
    end = time.monotonic() + START_SECONDS
    while found is None:
        has_crashed = last_line(log, title=title, since=since)
        if has_crashed or (time.monotonic() >= end and not _is_at_work(home, workspace.uid)):
            message = explain(f"the watcher of {workspace.id} did not come up", log, title=title, since=since)
            raise Unavailable(message, hint="aw watch ID shows what is wrong")
        time.sleep(0.01)
        found = find_watch(home, workspace.uid)
    return found


def stop_watching(home: Home, workspace_id: str) -> Watching | None:
    """Stop the watcher of a workspace, after it has recorded what it saw; return None if there was none."""
    workspace = lookup.get(home, workspace_id)
    settle(home, workspace.uid)
    found = find_watch(home, workspace.uid)
    if found is None:
        return None
    if found.state == "watching":
        home.record(workspace.task_id, WatchStopping(**workspace.names()))
    end = time.monotonic() + STOP_SECONDS
    while find_watch(home, workspace.uid) is not None:
        settle(home, workspace.uid)
        if time.monotonic() >= end:
            raise TimedOut(f"the watcher of {workspace.id} is still at work", hint="try again in a moment")
        time.sleep(0.01)
    return found


def watching(home: Home) -> list[Watching]:
    """Return the active watchers of this home, oldest first."""
    records = home.log.find_all("watch", live_only=True)
    return [Watching(**record) for record in records if record["home"] == home.id]


def _is_at_work(home: Home, uid: str) -> bool:
    """Return whether a process holds the watcher's lock: it may still be reading a large folder for the first time."""
    try:
        with home.hold(watch_lock(uid), wait_seconds=0):
            return False
    except WorkspaceBusy:
        return True


# -- in the watcher process --------------------------------------------------------------------------------------------


def record(home: Home, workspace_id: str) -> None:
    """Record the changes of a workspace until it is destroyed or we are stopped; return at once if it has a watcher."""
    from workstead.core.watching import watch

    os.chdir("/")  # to block no unmount
    workspace = lookup.get(home, workspace_id)
    recorder = home.acting_as(Caller(actor_id=ACTOR, correlation_id=home.caller.correlation_id))
    weaker: list[str] = []
    try:
        with (
            home.hold(watch_lock(workspace.uid), wait_seconds=0),
            watch(home, workspace_id, note=weaker.append) as seen,
        ):
            before = _read_all(seen)  # from here on no change is missed; a large folder in place takes some seconds
            started = WatchStarted(**workspace.names(), mechanism=seen.mechanism, home=home.id)
            home.record(workspace.task_id, started)
            reason = "it failed"
            try:
                _write(recorder, workspace, before)
                reason = _follow(recorder, workspace, seen, weaker)
            finally:
                record_watch_end(recorder, lookup.by_uid(home, workspace.uid), reason)
    except WorkspaceBusy:
        return


def _read_all(seen: Watch) -> list[FileChange]:
    """Walk the whole workspace; return changes seen meanwhile."""
    found = []
    while seen.is_reading and not seen.is_over:
        found += seen.batch(0)
    return found


def _follow(home: Home, workspace: Workspace, seen: Watch, weaker: list[str]) -> str:
    """Record changes until the end; return its reason."""
    while True:
        if weaker:
            fact = WatchWeakened(**workspace.names(), mechanism=seen.mechanism, reason=weaker.pop())
            home.record(workspace.task_id, fact)
        changes = seen.batch(_ASK_SECONDS)
        _write(home, workspace, changes)
        if changes:
            from workstead.core.overlaps import notice

            # Changes during the pause are merged into one at the next look, so none is missed.
            time.sleep(min(_MOST_SECONDS, len(changes) / _FACTS_A_SECOND))
            notice(
                home,
                workspace.uid,
                within=[path for change in changes for path in (change.path, change.from_path) if path],
            )
        if seen.is_over:
            return "the workspace is gone"
        found = find_watch(home, workspace.uid)
        if found is None or found.state == "stopping":
            _write(home, workspace, seen.batch(_ASK_SECONDS))
            return "stopped"
        if not os.path.exists(f"{home.path}/id"):
            return "the home is gone"


def _write(home: Home, workspace: Workspace, changes: Sequence[FileChange]) -> None:
    facts = [
        FileChanged(
            **workspace.names(),
            **{key: value for key, value in change.as_dict().items() if key != "workspace_id"},
        )
        for change in changes
    ]
    for start in range(0, len(facts), _TOGETHER):
        _insist(home, workspace.task_id, facts[start : start + _TOGETHER])


def _insist(home: Home, task: str, facts: Sequence[FileChanged]) -> None:
    """On a full disk, wait for space: observed changes are not lost while the process lives."""
    while True:
        try:
            home.record(task, *facts, durable=False)
            return
        except (DiskFull, FilesystemError):
            if not os.path.exists(f"{home.path}/id"):
                return
            time.sleep(1.0)
