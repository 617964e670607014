"""Races: several workspaces of one source that try the same task, and their comparison.

running ─> ended | stopped
"""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

MAX_PATHS = 500  # stored in the log for one workspace
NUMBER = "{n}"  # in a command: replaced by the number of the workspace


class Lane(Value):
    """One workspace of a comparison: its command, the result, and its changes."""

    workspace_id: str
    uid: str
    rank: int = 0  # from 1; 0 before the ranking
    run_id: str = ""
    state: str = "waiting"  # waiting, then the run's state: starting, running, completed, failed, cancelled, timed_out
    exit_code: int | None = None
    seconds: float = 0.0
    reason: str = ""
    check_id: str = ""
    check_state: str = ""  # "" without a check, or before it
    check_code: int | None = None
    check_seconds: float = 0.0
    check_changed: int = 0  # files that the check changed; they were restored
    files: int = 0
    added: int = 0
    removed: int = 0
    paths: list[str] = []  # changed paths, the first of them
    shared_paths: int = 0  # of these, the number also changed by other workspaces

    @property
    def ran_well(self) -> bool:
        """Return whether the command ended with exit code 0."""
        return self.state == "completed" and self.exit_code == 0

    @property
    def passed(self) -> bool:
        """Return whether the check ended with exit code 0."""
        return self.check_state == "completed" and self.check_code == 0

    @property
    def is_good(self) -> bool:
        """Return whether its changes can be applied: the command succeeded, and the check if there was one."""
        return self.ran_well and (self.passed or not self.check_state)


class SharedPath(Value):
    """A path that several workspaces changed."""

    path: str
    workspace_ids: list[str]


class Comparison(Value):
    """Workspaces side by side, best first."""

    lanes: list[Lane]
    shared: list[SharedPath] = []

    @property
    def best(self) -> Lane | None:
        """Return the first lane, if it is good."""
        return self.lanes[0] if self.lanes and self.lanes[0].is_good else None


class Race(Value):
    """A race and its present state."""

    race_id: str
    task_id: str
    source: str  # the common source
    state: str  # running, ended, stopped; interrupted: the process that ran it died
    command: list[str]
    check: list[str]
    started_at: str
    at_once: int
    lanes: list[Lane]
    shared: list[SharedPath] = []
    ended_at: str | None = None
    applied: str = ""  # the operation that applied the winner's changes
    destroyed: list[str] = []  # workspaces that were not kept
    home: str = ""

    @property
    def best(self) -> Lane | None:
        """Return the winner, or None."""
        return Comparison(lanes=self.lanes).best if self.state == "ended" else None


def ranked(lanes: Iterable[Lane]) -> Comparison:
    """Rank the lanes, best first, and count the paths that several of them changed.

    Order: check passed, command succeeded, any change at all, fewer changed lines, less time.
    """
    found = sorted(lanes, key=_order)
    users: dict[str, list[str]] = {}
    for lane in found:
        for path in lane.paths:
            users.setdefault(path, []).append(lane.workspace_id)
    shared = [SharedPath(path=path, workspace_ids=ids) for path, ids in sorted(users.items()) if len(ids) > 1]
    common = {each.path for each in shared}
    return Comparison(
        lanes=[
            lane.replace(rank=rank, shared_paths=sum(path in common for path in lane.paths))
            for rank, lane in enumerate(found, 1)
        ],
        shared=shared,
    )


def _order(lane: Lane) -> tuple[object, ...]:
    lines = lane.added + lane.removed
    good = (not lane.passed, not lane.ran_well, lane.state == "waiting", not lane.files)
    return (*good, lines, lane.files, lane.seconds, lane.workspace_id)


def numbered(words: Sequence[str], number: int) -> list[str]:
    """Return the command of one workspace, with `{n}` replaced by its number."""
    return [word.replace(NUMBER, str(number)) for word in words]


EVENTS = frozenset({"race_started", "race_run_started", "race_ended", "race_settled"})


def fold(
    record: dict[str, Any] | None, event_type: str, data: Mapping[str, Any], stream: str, at: str
) -> dict[str, Any]:
    """Return the race's record after one more event; details of its runs are in the records of the runs."""
    if record is None:
        lanes = [
            Lane(workspace_id=workspace_id, uid=uid).as_dict()
            for workspace_id, uid in zip(data.get("workspaces", ()), data.get("uids", ()), strict=True)
        ]
        known = {key: data.get(key) for key in ("race_id", "source", "command", "check", "at_once", "home")}
        return {**Race.__defaults__, **known, "task_id": stream, "state": "running", "started_at": at, "lanes": lanes}
    if event_type == "race_run_started":
        field = "check_id" if data["is_check"] else "run_id"
        lanes = [{**lane, field: data["run_id"]} if lane["uid"] == data["uid"] else lane for lane in record["lanes"]]
        return {**record, "lanes": lanes}
    if event_type == "race_settled":
        return {**record, "applied": data["applied"], "destroyed": data["destroyed"]}
    return {**record, **{key: data[key] for key in ("state", "lanes", "shared")}, "ended_at": at}
