"""What every open tab shows of all workspaces, kept up to date once for all of them.

One thread follows the log and notes whose rows are old; another brings them up to date, and looks at what active runs
print. A tab asks for what is newer than what it has: cost grows with what changed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from carrel.errors import CarrelError
from carrel.model.moment import seconds
from carrel.model.run import ACTIVE
from carrel.model.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrel.local import Local
    from carrel.model.event import Event
    from carrel.model.run import Run
    from carrel.model.workspace import Workspace
    from carrel.verbs.attend import Glance

Row = dict[str, Any]

TICK_SECONDS = 0.25
MINUTES = 60  # that the charts look back
_RECENT = 200  # events that are kept for a tab that is opened
# What says nothing about what a workspace holds or does.
_QUIET = frozenset({"file_read", "network_denied", "message_sent"})


class Board:
    """The rows of the overview, by the uid of the workspace."""

    def __init__(self, workspaces: Local) -> None:
        self._workspaces = workspaces.acting_as("page")
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._dirty: set[str] = set()  # ids whose row is old
        self._runs: dict[str, Run] = {}  # active ones
        self._glances: dict[str, Glance] = {}
        self._threads: list[threading.Thread] = []
        self.rows: dict[str, Row] = {}
        self.gone: dict[str, int] = {}  # uid: the version in which it went
        self.version = 0
        self.events: deque[Event] = deque(maxlen=_RECENT)
        self._minutes: dict[str, dict[int, int]] = {"events": {}, "runs": {}}  # counted by minute since the epoch
        self.approvals = 0  # open ones
        self.approval_mark = 0  # the position of the last event about one
        self.marks: dict[str, int] = {}  # workspace: the position of the last event that its page shows

    def start(self) -> None:
        """Begin to follow."""
        head = self._read_past()
        for workspace in self._workspaces.list():
            self._dirty.add(workspace.id)
        for work in (self._follow, self._refresh):
            thread = threading.Thread(target=work, args=(head,) if work == self._follow else (), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop following, and wait for the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join(5)

    def newer_than(self, version: int) -> tuple[int, list[Row], list[str]]:
        """The version now, the rows that changed since, and the uids of those that are gone."""
        with self._lock:
            if version == self.version:
                return version, [], []
            rows = [row for row in self.rows.values() if row["version"] > version]
            return self.version, rows, [uid for uid, at in self.gone.items() if at > version]

    def row_of(self, workspace_id: str) -> Row | None:
        """The row of one workspace, if it is live."""
        with self._lock:
            return next((row for row in self.rows.values() if row["id"] == workspace_id), None)

    def active_runs(self) -> list[Run]:
        """The runs that have not ended."""
        with self._lock:
            return list(self._runs.values())

    def per_minute(self, kind: str) -> dict[int, int]:
        """How many events or runs there were in each minute of the last hour."""
        now = int(time.time() // 60)
        return {minute: self._minutes[kind].get(minute, 0) for minute in range(now - MINUTES + 1, now + 1)}

    # -- following -----------------------------------------------------------------------------------------------------

    def _read_past(self) -> int:
        """What happened in the last hour; gives the last position."""
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
            except CarrelError:
                self._stop.wait(1)  # the log is busy or away for a moment: go on from where we were

    def _note(self, event: Event) -> None:
        self._count(event)
        self.events.append(event)
        if event.event_type.startswith("approval_"):
            self._count_approvals(event.position)
        workspace_id = str(event.event_data.get("workspace_id") or "")
        with self._lock:
            if workspace_id and event.event_type not in _QUIET:
                self._dirty.add(workspace_id)
                self.marks[workspace_id] = event.position
            run_id = event.event_data.get("run_id")
            if isinstance(run_id, str):
                self._runs.pop(run_id, None)
                self._dirty_run(run_id)

    def _count_approvals(self, position: int) -> None:
        try:
            self.approvals = len(self._workspaces.approvals())
        except CarrelError:
            return
        self.approval_mark = position

    def _dirty_run(self, run_id: str) -> None:
        try:
            run = self._workspaces.get_run(run_id)
        except CarrelError:
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
                self._renew(workspace_id)
            self._look_at_runs()

    def _renew(self, workspace_id: str) -> None:
        workspace = next(iter(self._found(workspace_id)), None)
        known = self.row_of(workspace_id)
        if workspace is None:
            if known:
                self._drop(known["uid"])
            return
        if known and known["uid"] != workspace.uid:
            self._drop(known["uid"])
        self._put(self._row(workspace))

    def _found(self, workspace_id: str) -> Iterable[Workspace]:
        try:
            yield self._workspaces.get(workspace_id)
        except CarrelError:
            return

    def _row(self, workspace: Workspace) -> Row:
        run = next((each for each in self.active_runs() if each.workspace_id == workspace.id), None)
        return {
            "uid": workspace.uid,
            "id": workspace.id,
            "task": workspace.task_id,
            "agent": workspace.agent_id,
            "state": "running" if run else workspace.state,
            "origin": printable(workspace.source),
            "created_at": workspace.created_at,
            "updated_at": workspace.updated_at,
            "run": run.id if run else "",
            "since": run.created_at if run else workspace.updated_at,
            "doing": "",
            "changed": self._changed(workspace),
            "size": self._size(workspace),
        }

    def _changed(self, workspace: Workspace) -> int | None:
        try:
            return len(self._workspaces.status(workspace.id))
        except CarrelError:
            return None

    def _size(self, workspace: Workspace) -> int | None:
        try:
            return self._workspaces.usage(workspace.id).workspaces_bytes
        except CarrelError:
            return None

    def _look_at_runs(self) -> None:
        for run in self.active_runs():
            before = self._glances.get(run.id)
            now = self._workspaces.glance(run.id, *((before.offset, before.line) if before else ()))
            self._glances[run.id] = now
            row = self.row_of(run.workspace_id)
            if row and row["doing"] != now.line:
                self._put({**row, "doing": printable(now.line)[:200]})

    def _put(self, row: Row) -> None:
        with self._lock:
            known = self.rows.get(row["uid"], {})
            if row["run"] and row["run"] == known.get("run") and not row["doing"]:
                row["doing"] = known["doing"]
            if {**known, "version": 0} == {**row, "version": 0}:
                return
            self.version += 1
            self.rows[row["uid"]] = {**row, "version": self.version}

    def _drop(self, uid: str) -> None:
        with self._lock:
            if self.rows.pop(uid, None) is not None:
                self.version += 1
                self.gone[uid] = self.version
                while len(self.gone) > 10_000:
                    del self.gone[next(iter(self.gone))]
