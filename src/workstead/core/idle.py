"""Find out since when nobody has used a workspace, and what keeps it from a sweep."""

from __future__ import annotations

import os
import time

from workstead.core import lookup
from workstead.errors import WorkspaceBusy, WorksteadError
from workstead.model.moment import seconds
from workstead.model.retention import Desk, Rules, Verdict, judge_desk
from workstead.system.files.parts import open_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home
    from workstead.model.workspace import Workspace

DAY = 86400.0
LEAP_DAYS = 120.0  # no home in use is left alone for so long
LOOK_BACK = 10_000  # events before one that may tell that it was recorded with a wrong clock


def rules_of(home: Home, *, pressed: bool = False) -> Rules:
    """What the settings want to be taken."""
    wanted = home.settings.workspaces
    return Rules(
        retention_days=wanted.retention_days,
        trash_days=wanted.trash_days,
        archive_first=wanted.archive_workspaces,
        pressed=pressed,
        clock_fault=find_clock_fault(home),
    )


def find_clock_fault(home: Home) -> str:
    """Why ages by the clock of this machine cannot be trusted now, or "" if they can.

    The log is the witness: a clock that is months away from its newest event is wrong, or nobody was here for months.
    The same holds for the first `workspaces.trash_days` after such a leap, so that a person has time to notice.
    """
    now = time.time()
    newest = home.log.last_position()
    if not newest:
        return ""
    days = (now - seconds(home.log.time_at(newest))) / DAY
    if abs(days) > LEAP_DAYS:
        return f"the clock is {abs(days):.0f} days {'ahead of' if days > 0 else 'behind'} the newest event of the log"
    since = now - home.settings.workspaces.trash_days * DAY

    def is_recent(position: int) -> bool:  # neither old nor from a time when the clock was ahead
        return since <= seconds(home.log.time_at(position)) <= now

    # Times grow with positions but for leaps, so halving finds the first event of the last days, or such a leap.
    before, first = (0, newest) if is_recent(newest) else (0, 0)
    while first - before > 1:
        middle = (before + first) // 2
        before, first = (before, middle) if is_recent(middle) else (middle, first)
    if before:
        moment = home.log.time_at(first)
        days = (seconds(moment) - seconds(home.log.time_at(before))) / DAY
        if days > LEAP_DAYS:
            return f"the clock leapt by {days:.0f} days at {moment[:19]}Z"
    return ""


def days_since(moment: float) -> float:
    """How long ago that was; what a clock set back dates in the future is now."""
    return max(0.0, (time.time() - moment) / DAY)


class LogTime:
    """Ages along the log, which a clock that was wrong for a while does not change.

    Time passes from event to event and never back, so what was recorded while the clock was set back is as old as the
    events around it. A leap of months, in either direction, is no time at all. Read only when something is about to be
    deleted for good.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._positions: dict[str, dict[str, int]] = {}
        self._moments: dict[int, float] = {}  # of each event, on the corrected line
        self._now = 0.0

    def days_since(self, event_type: str, field: str, value: str) -> float:
        """Days since the last event of a type whose field has this value; 0 if there is none."""
        if event_type not in self._positions:
            events = self._home.log.read(types=(event_type,))
            self._positions[event_type] = {str(each.event_data[field]): each.position for each in events}
        position = self._positions[event_type].get(value)
        if position is None:
            return 0.0
        if position not in self._moments:
            self._read(max(1, position - LOOK_BACK))
        return (self._now - self._moments[position]) / DAY

    def _read(self, first: int) -> None:
        self._moments = {}
        line = leaps = 0.0
        last: float | None = None
        for position, at in (*self._home.log.times(first), (0, "")):
            moment = seconds(at) if at else time.time()
            if last is not None and abs(moment - last) > LEAP_DAYS * DAY:
                leaps += moment - last
            last = moment
            line = max(line, moment - leaps)
            self._moments[position] = line
        self._now = line


def last_uses(home: Home) -> dict[str, float]:
    """When each workspace, by its uid, last did something that the log knows of."""
    found: dict[str, float] = {}
    moments = [(record["uid"], record["updated_at"]) for record in home.log.find_all("workspace")]
    for record in home.log.find_all("run"):
        moments += [(record["uid"], record[key]) for key in ("created_at", "finished_at") if record.get(key)]
    moments += [(record["uid"], record["taken_at"]) for record in home.log.find_all("snapshot")]
    for uid, at in moments:
        found[uid] = max(found.get(uid, 0.0), seconds(at))
    return found


def last_use(home: Home, workspace: Workspace, known: dict[str, float]) -> float:
    """When it was last used, also by somebody who wrote into its directories without us."""
    moment = max(known.get(workspace.uid, 0.0), seconds(workspace.updated_at))
    for path in (f"{workspace.path}/work", f"{workspace.path}/output", f"{home.path}/quota/{workspace.uid}"):
        try:
            moment = max(moment, os.lstat(path).st_mtime)
        except OSError:
            continue
    return moment


def judge(
    home: Home, workspace: Workspace, rules: Rules, known: dict[str, float], *, is_ours: bool = False
) -> tuple[Desk, Verdict]:
    """What is known about the workspace and what follows; what costs time is looked at only if all else lets it go.

    `is_ours` is for who holds the workspace already."""
    desk = Desk(
        state=workspace.state,
        idle_days=days_since(last_use(home, workspace, known)),
        is_here=workspace.home == home.id,
        pinned=workspace.pinned,
        active_runs=len(lookup.active_runs(home, workspace)),
    )
    verdict = judge_desk(desk, rules)
    if not verdict.goes:
        return desk, verdict
    desk = desk.replace(
        is_held=not is_ours and _is_held(home, workspace),
        unapplied=_unapplied(home, workspace),
        results=_has_results(workspace),
    )
    return desk, judge_desk(desk, rules)


def _is_held(home: Home, workspace: Workspace) -> bool:
    try:
        with home.hold(workspace.id, wait_seconds=0):
            return False
    except WorkspaceBusy:
        return True


def _unapplied(home: Home, workspace: Workspace) -> bool | None:
    """Whether it holds work that is nowhere else: changes that its origin does not have, or anything if it has none."""
    from workstead.core.changes import has_unapplied

    if workspace.state == "ready" and not os.path.isdir(workspace.path):
        return None  # somebody moved it, and may bring it back
    try:
        return has_unapplied(home, workspace)
    except (WorksteadError, OSError):
        return None


def _has_results(workspace: Workspace) -> bool | None:
    if not os.path.lexists(f"{workspace.path}/output"):
        return False
    try:
        output = open_part(workspace.path, "output")
    except WorksteadError:
        return None  # something else is in its place
    try:
        return bool(os.listdir(output))
    finally:
        os.close(output)
