"""What happened to a desk: read once when a tab is opened, then kept up to date with what the log adds.

A desk that was worked at for weeks has thousands of runs; to read all of them again whenever one more line is printed
would cost more each hour. So only what an event names is looked up again, and only the newest of each kind are kept.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from workstead.model.moment import seconds
from workstead.model.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workstead.local import Local
    from workstead.model.approval import Approval
    from workstead.model.event import Event
    from workstead.model.operation import Operation
    from workstead.model.run import Run
    from workstead.page.live_rows import Board

MOST = 500  # of each kind
T = TypeVar("T")


class Story:
    """The newest runs, states, operations and approvals of one workspace, the oldest of them first."""

    def __init__(self, workspace_id: str, verbs: Local, board: Board) -> None:
        self.id = workspace_id
        self._verbs = verbs
        self._board = board
        self._lock = threading.Lock()
        self._mark = -1  # of the last event that is known here
        self._position = -1  # up to here the log was read
        self.version = 0  # another one whenever something was learned
        self.runs: dict[str, Run] = {}
        self.approvals: dict[str, Approval] = {}
        self.snapshots: list[Snapshot] = []
        self.operations: list[Operation] = []

    def renew(self) -> Story:
        """Learn what is new; costs next to nothing when it is nothing."""
        with self._lock:
            mark = self._board.story_marks.get(self.id, 0)
            if mark != self._mark:
                head = self._verbs.last_position()  # asked first: what comes while we read is read again
                if self._position < 0:
                    self._read_all()
                else:
                    self._read_on()
                self._mark, self._position = mark, head
                self.version += 1
        return self

    def _read_all(self) -> None:
        verbs = self._verbs
        self.runs = {each.id: each for each in _newest(verbs.runs(self.id))}
        self.approvals = {each.id: each for each in _newest(verbs.approvals(self.id, all=True))}
        self._read_states()

    def _read_states(self) -> None:
        self.snapshots = _newest(self._verbs.snapshots(self.id))
        done = [each for each in self._verbs.operations() if self.id in each.workspaces]
        self.operations = _newest(reversed(done))

    def _read_on(self) -> None:
        events = self._verbs.events(after=self._position, task=self.id.partition("/")[0])
        own = [event for event in events if event.event_data.get("workspace_id") == self.id]
        for event in own:
            self._look_up(event)
        if any(event.event_data.get("operation_id") or event.event_type == "snapshot_imported" for event in own):
            self._read_states()

    def _look_up(self, event: Event) -> None:
        if event.event_type in ("snapshot_taken", "snapshot_dropped"):
            self._take_state(event)
        run_id, approval_id = (str(event.event_data.get(key) or "") for key in ("run_id", "approval_id"))
        if event.event_type.startswith("run_") and run_id:
            self.runs[run_id] = self._verbs.get_run(run_id)
            _forget_oldest(self.runs)
        elif event.event_type.startswith("approval_") and approval_id:
            self.approvals[approval_id] = self._verbs.get_approval(approval_id)
            _forget_oldest(self.approvals)

    def _take_state(self, event: Event) -> None:
        """Add a kept state, or leave one out: the event says all that is shown of it."""
        said = event.event_data
        self.snapshots = [each for each in self.snapshots if each.id != said["snapshot_id"]]
        if event.event_type == "snapshot_taken":
            root, cause, label = (str(said.get(name, "")) for name in ("root", "cause", "label"))
            at = seconds(event.recorded_at)
            kept = Snapshot(id=str(said["snapshot_id"]), root=root, taken_at=at, cause=cause, label=label)
            self.snapshots = _newest([*self.snapshots, kept])


def _newest(found: Iterable[T]) -> list[T]:
    return list(found)[-MOST:]


def _forget_oldest(kept: dict[str, T]) -> None:
    while len(kept) > MOST:
        del kept[next(iter(kept))]
