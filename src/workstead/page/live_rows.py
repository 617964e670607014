"""The rows of all workspaces for every open tab, updated once for all tabs.

One thread follows the log and marks outdated rows; another refreshes them, and reads the output of active runs; a third
measures the size of workspaces, which takes longer, so each is measured at most once a second, and those without events
since the start one after another with pauses. A tab requests the rows newer than its version: the cost grows with the
number of changes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from workstead.errors import WorksteadError
from workstead.model.moment import seconds
from workstead.model.run import ACTIVE
from workstead.model.text import printable
from workstead.server.access_log import note

if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.local import Local
    from workstead.model.event import Event
    from workstead.model.run import Glance, Run
    from workstead.model.workspace import Workspace

Row = dict[str, Any]

TICK_SECONDS = 0.25
_REST_SECONDS = 1.0  # between two measurements of one workspace; at least ten times the duration of the last one
_RETRY_SECONDS = 5.0  # after a failed measurement
_SLICE_SECONDS = 0.1  # of each tick, for workspaces not measured yet
MINUTES = 60  # range of the charts
_MOST_GONE = 10_000
_RECENT = 200  # events stored for a newly opened tab
# Events that change neither the content nor the activity of a workspace.
_QUIET = frozenset({"file_read", "network_denied", "message_sent"})


class Board:
    """The rows of the overview, by the uid of the workspace."""

    def __init__(self, workspaces: Local) -> None:
        self._workspaces = workspaces.acting_as("page")
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._dirty: set[str] = set()  # ids of outdated rows
        self._due: dict[str, float] = {}  # ids to measure, and the earliest time
        self._rested: dict[str, float] = {}  # earliest time of the next measurement
        self._unmeasured: deque[str] = deque()  # ids without events since the start, the next one at the end
        self._uids: dict[str, str] = {}  # of live workspaces, by id
        self._tasks: dict[str, set[str]] = {}  # uids of live workspaces, by task
        self._runs: dict[str, Run] = {}  # active ones
        self._glances: dict[str, Glance] = {}
        self._threads: list[threading.Thread] = []
        self.rows: dict[str, Row] = {}
        self.gone: dict[str, int] = {}  # uid: the version in which it was removed
        self.version = 0
        self.events: deque[Event] = deque(maxlen=_RECENT)
        self._minutes: dict[str, dict[int, int]] = {"events": {}, "runs": {}}  # counts by minute since the epoch
        self.approvals = 0  # number of open ones
        self.approval_mark = 0  # the position of the last event of an approval
        self.race_mark = 0  # the position of the last event of a race
        self.marks: dict[str, int] = {}  # workspace id: the position of the last event that its page shows
        self.story_marks: dict[str, int] = {}  # the same, without file changes

    def start(self) -> None:
        """Start the threads."""
        head = self._read_past()
        found = sorted(self._workspaces.list(), key=lambda workspace: workspace.updated_at)
        for workspace in found:
            self._put(self._row(workspace))
        self._unmeasured.extend(workspace.id for workspace in found)
        for work in (self._follow, self._refresh, self._measure):
            thread = threading.Thread(target=work, args=(head,) if work == self._follow else (), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop following, and wait for the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join(5)

    def newer_than(self, version: int) -> tuple[int, list[Row], list[str]]:
        """Return the current version, the rows that changed since `version`, and the uids of removed rows."""
        with self._lock:
            if version == self.version:
                return version, [], []
            rows = [row for row in self.rows.values() if row["version"] > version]
            return self.version, rows, [uid for uid, at in self.gone.items() if at > version]

    def row_of(self, workspace_id: str) -> Row | None:
        """Return the row of one workspace, if it is live."""
        with self._lock:
            return self.rows.get(self._uids.get(workspace_id, ""))

    def rows_of(self, task: str) -> list[Row]:
        """Return the rows of the live workspaces of one task."""
        with self._lock:
            return sorted((self.rows[uid] for uid in self._tasks.get(task, ())), key=lambda row: str(row["id"]))

    def active_runs(self) -> list[Run]:
        """Return the active runs."""
        with self._lock:
            return list(self._runs.values())

    def per_minute(self, kind: str) -> dict[int, int]:
        """Return the number of events or runs in each minute of the last hour."""
        now = int(time.time() // 60)
        return {minute: self._minutes[kind].get(minute, 0) for minute in range(now - MINUTES + 1, now + 1)}

    # -- following -----------------------------------------------------------------------------------------------------

    def _read_past(self) -> int:
        """Read the events of the last hour; return the last position."""
        head = self._workspaces.last_position()
        since = time.time() - MINUTES * 60
        for event in self._workspaces.events(after=max(0, head - 20_000)):
            if seconds(event.recorded_at) >= since:
                self._count(event)
            self.events.append(event)
        self._count_approvals(head)
        for run in self._workspaces.runs():
            if run.is_active:
                self._runs[run.id] = run
        return head

    def _follow(self, head: int) -> None:
        while not self._stop.is_set():
            try:
                for event in self._workspaces.follow(after=head, until=self._stop.is_set):
                    head = event.position
                    self._note(event)
            except Exception as error:  # the log is temporarily busy or unavailable: continue from the last position
                note("board", error=error)
                self._stop.wait(1)

    def _note(self, event: Event) -> None:
        self._count(event)
        self.events.append(event)
        if event.event_type.startswith("approval_"):
            self._count_approvals(event.position)
        if event.event_type.startswith("race_"):
            self.race_mark = event.position
        workspace_id = str(event.event_data.get("workspace_id") or "")
        with self._lock:
            if workspace_id and event.event_type not in _QUIET:
                self._dirty.add(workspace_id)
                self.marks[workspace_id] = event.position
                if not event.event_type.startswith("file_"):
                    self.story_marks[workspace_id] = event.position
            run_id = event.event_data.get("run_id")
            if isinstance(run_id, str):
                self._runs.pop(run_id, None)
                self._dirty_run(run_id)

    def _count_approvals(self, position: int) -> None:
        try:
            self.approvals = len(self._workspaces.approvals())
        except WorksteadError:
            return
        self.approval_mark = position

    def _dirty_run(self, run_id: str) -> None:
        try:
            run = self._workspaces.get_run(run_id)
        except WorksteadError:
            return
        if run.state in ACTIVE:
            self._runs[run_id] = run
        else:
            self._glances.pop(run_id, None)

    def _count(self, event: Event) -> None:
        minute = int(seconds(event.recorded_at) // 60)
        for kind, is_one in (("events", True), ("runs", event.event_type == "run_starting")):
            counted = self._minutes[kind]
            counted[minute] = counted.get(minute, 0) + is_one
            while len(counted) > 2 * MINUTES:
                del counted[min(counted)]

    # -- refreshing ----------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        while not self._stop.wait(TICK_SECONDS):
            with self._lock:
                dirty, self._dirty = self._dirty, set()
            for workspace_id in dirty:
                if self._stop.is_set():
                    return
                if not self._survive(self._renew, workspace_id):
                    with self._lock:
                        self._dirty.add(workspace_id)
            self._survive(self._look_at_runs)

    def _survive(self, work: Callable[..., None], *words: str) -> bool:
        """Do one piece of work of a thread; return False if it failed, which is logged and does not end the thread."""
        try:
            work(*words)
        except Exception as error:
            note("board", error=error)
            return False
        return True

    def _renew(self, workspace_id: str) -> None:
        workspace = self._find(workspace_id)
        known = self.row_of(workspace_id)
        if known and (workspace is None or known["uid"] != workspace.uid):
            self._drop(known["uid"])
        if workspace is not None:
            self._put(self._row(workspace))
            with self._lock:
                self._due.setdefault(workspace_id, self._rested.get(workspace_id, 0.0))

    def _find(self, workspace_id: str) -> Workspace | None:
        try:
            return self._workspaces.get(workspace_id)
        except WorksteadError:
            return None

    def _row(self, workspace: Workspace) -> Row:
        run = next((each for each in self.active_runs() if each.workspace_id == workspace.id), None)
        return {
            "uid": workspace.uid,
            "id": workspace.id,
            "task": workspace.task_id,
            "state": "running" if run else workspace.state,
            "origin": printable(workspace.source),
            "pinned": workspace.pinned,
            "run": run.id if run else "",
            "since": run.created_at if run else workspace.updated_at,
        }

    def _look_at_runs(self) -> None:
        for run in self.active_runs():
            before = self._glances.get(run.id)
            now = self._workspaces.glance(run.id, *((before.offset, before.line) if before else ()))
            self._glances[run.id] = now
            row = self.row_of(run.workspace_id)
            if row and now != before:
                self._put({"uid": row["uid"], "doing": printable(now.line)[:200]})
                with self._lock:  # a run that prints may also have changed files, which no event records
                    self._due.setdefault(run.workspace_id, self._rested.get(run.workspace_id, 0.0))
        for run_id in self._glances.keys() - self._runs.keys():  # ended during this refresh
            self._glances.pop(run_id, None)

    # -- measuring -----------------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        spent = 0.0
        while not self._stop.wait(max(TICK_SECONDS, spent)):
            now = time.monotonic()
            with self._lock:
                due = [workspace_id for workspace_id, at in self._due.items() if at <= now]
                for workspace_id in due:
                    del self._due[workspace_id]
            for workspace_id in due:
                self._measure_or_retry(workspace_id)
            until = time.monotonic() + _SLICE_SECONDS
            while self._unmeasured and time.monotonic() < until:
                workspace_id = self._unmeasured.pop()
                if workspace_id not in self._rested:
                    self._measure_or_retry(workspace_id)
            spent = time.monotonic() - now

    def _measure_or_retry(self, workspace_id: str) -> None:
        if not self._survive(self._measure_one, workspace_id):
            with self._lock:
                self._due.setdefault(workspace_id, time.monotonic() + _RETRY_SECONDS)

    def _measure_one(self, workspace_id: str) -> None:
        row = self.row_of(workspace_id)
        if row is None or self._stop.is_set():
            return
        began = time.monotonic()
        try:
            used = self._workspaces.usage_of(workspace_id)
            changed = len(self._workspaces.status(workspace_id))
        except WorksteadError:
            return  # removed, or temporarily unavailable; the next event schedules it again
        ended = time.monotonic()
        self._rested[workspace_id] = ended + max(_REST_SECONDS, 10 * (ended - began))
        self._put({"uid": row["uid"], "changed": changed, "size": used.bytes, "shared": used.shared_bytes})

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _put(self, part: Row) -> None:
        """Update a row, or the given part of it."""
        with self._lock:
            known = self.rows.get(part["uid"])
            if known is None and "id" not in part:
                return  # removed while it was being read
            row = {**(known or _BLANK), **part}
            if not row["run"]:
                row["doing"] = ""
            if known == row:
                return
            self.version += 1
            self.rows[row["uid"]] = {**row, "version": self.version}
            if known is None:
                self._add(row)

    def _add(self, row: Row) -> None:
        self.gone.pop(row["uid"], None)  # the removal was undone
        self._uids[row["id"]] = row["uid"]
        members = self._tasks.setdefault(row["task"], set())
        members.add(row["uid"])
        if len(members) > 1:
            self._flag(members if len(members) == 2 else {row["uid"]}, several=True)

    def _drop(self, uid: str) -> None:
        with self._lock:
            row = self.rows.pop(uid, None)
            if row is None:
                return
            self.version += 1
            self.gone[uid] = self.version
            while len(self.gone) > _MOST_GONE:
                del self.gone[next(iter(self.gone))]
            self._uids.pop(row["id"], None)
            for noted in (self._due, self._rested, self.marks, self.story_marks):
                noted.pop(row["id"], None)
            members = self._tasks[row["task"]]
            members.discard(uid)
            if len(members) == 1:
                self._flag(members, several=False)
            elif not members:
                del self._tasks[row["task"]]

    def _flag(self, uids: set[str], *, several: bool) -> None:
        """Set whether the workspaces' task has others to compare them with."""
        for uid in uids:
            self.rows[uid] = {**self.rows[uid], "several": several, "version": self.version}


_BLANK: Row = {"doing": "", "changed": None, "size": None, "shared": None, "several": False, "version": 0}
