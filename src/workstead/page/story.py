"""The history of a workspace: read once when a tab is opened, then updated incrementally from the log.

A workspace that was used for weeks has thousands of runs; reading all of them again for every new line of output would
cost more each hour. So only records named by new events are read again, and only the newest of each kind are kept.
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
    """The newest runs, snapshots, operations and approvals of one workspace, oldest first."""

    def __init__(self, workspace_id: str, verbs: Local, board: Board) -> None:
        self.id = workspace_id
        self._verbs = verbs
        self._board = board
        self._lock = threading.Lock()
        self._mark = -1  # of the last known event
        self._position = -1  # the log was read up to here
        self.version = 0  # increases with every update
        self.runs: dict[str, Run] = {}
        self.approvals: dict[str, Approval] = {}
        self.snapshots: list[Snapshot] = []
        self.operations: list[Operation] = []

    def renew(self) -> Story:
        """Read new events; almost free if there are none."""
        with self._lock:
            mark = self._board.story_marks.get(self.id, 0)
            if mark != self._mark:
                head = self._verbs.last_position()  # read first: events that arrive while we read are read again
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
        """Add a snapshot, or remove one: the event contains everything that is shown."""
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
