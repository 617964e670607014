"""Find out how long a workspace has been idle, and whether something protects it from a sweep."""

from __future__ import annotations

import os
import time

from workstead.core import lookup
from workstead.errors import WorkspaceBusy, WorksteadError
from workstead.model.moment import seconds
from workstead.model.retention import Live, Rules, Verdict, judge_live
from workstead.system.files.parts import open_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home
    from workstead.model.workspace import Workspace

DAY = 86400.0
LEAP_DAYS = 120.0  # longer than any home in use stays without an event
LOOK_BACK = 10_000  # events to look back for one that was recorded with a wrong clock


def rules_of(home: Home, *, pressed: bool = False) -> Rules:
    """Return the retention rules from the settings."""
    wanted = home.settings.workspaces
    return Rules(
        retention_days=wanted.retention_days,
        trash_days=wanted.trash_days,
        archive_first=wanted.archive_workspaces,
        pressed=pressed,
        clock_fault=find_clock_fault(home),
    )


def find_clock_fault(home: Home) -> str:
    """Return why ages by this machine's clock cannot be trusted now; "" if they can.

    The log is the reference: if the clock is months away from its newest event, either the clock is wrong or the home
    was unused for months. Ages stay untrusted for the first `workspaces.trash_days` after such a jump, so that a person
    has time to notice.
    """
    now = time.time()
    newest = home.log.last_position()
    if not newest:
        return ""
    days = (now - seconds(home.log.time_at(newest))) / DAY
    if abs(days) > LEAP_DAYS:
        return f"the clock is {abs(days):.0f} days {'ahead of' if days > 0 else 'behind'} the newest event of the log"
    since = now - home.settings.workspaces.trash_days * DAY

    def is_recent(position: int) -> bool:  # neither old nor recorded while the clock was ahead
        return since <= seconds(home.log.time_at(position)) <= now

    # Times grow with positions except for jumps, so bisection finds the first recent event, or such a jump.
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
    """Return the days since a moment; 0 for a time in the future (the clock was set back)."""
    return max(0.0, (time.time() - moment) / DAY)


class LogTime:
    """Ages along the log, robust against a clock that was wrong for a while.

    Time passes from event to event and never backwards, so an event recorded while the clock was set back is as old as
    the events around it. A jump of months, in either direction, counts as no time. Read only before something is
    deleted for good.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._positions: dict[str, dict[str, int]] = {}
        self._moments: dict[int, float] = {}  # time of each event, corrected
        self._now = 0.0

    def days_since(self, event_type: str, field: str, value: str) -> float:
        """Return the days since the last event of a type whose field has this value; 0 if there is none."""
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
    """Return the time of each workspace's last event, by uid."""
    found: dict[str, float] = {}
    moments = [(record["uid"], record["updated_at"]) for record in home.log.find_all("workspace")]
    for record in home.log.find_all("run"):
        moments += [(record["uid"], record[key]) for key in ("created_at", "finished_at") if record.get(key)]
    moments += [(record["uid"], record["taken_at"]) for record in home.log.find_all("snapshot")]
    for uid, at in moments:
        found[uid] = max(found.get(uid, 0.0), seconds(at))
    return found


def last_use(home: Home, workspace: Workspace, known: dict[str, float]) -> float:
    """Return the time of last use, including writes to its directories without us."""
    moment = max(known.get(workspace.uid, 0.0), seconds(workspace.updated_at))
    for path in (f"{workspace.path}/work", f"{workspace.path}/output", f"{home.path}/quota/{workspace.uid}"):
        try:
            moment = max(moment, os.lstat(path).st_mtime)
        except OSError:
            continue
    return moment


def judge(
    home: Home, workspace: Workspace, rules: Rules, known: dict[str, float], *, is_ours: bool = False
) -> tuple[Live, Verdict]:
    """Return the facts about the workspace and the verdict; expensive checks run only if the others allow deletion.

    `is_ours` says that the caller already holds the workspace's lock.
    """
    facts = Live(
        state=workspace.state,
        idle_days=days_since(last_use(home, workspace, known)),
        is_here=workspace.home == home.id,
        pinned=workspace.pinned,
        active_runs=len(lookup.active_runs(home, workspace)),
    )
    verdict = judge_live(facts, rules)
    if not verdict.goes:
        return facts, verdict
    facts = facts.replace(
        is_held=not is_ours and _is_held(home, workspace),
        unapplied=_unapplied(home, workspace),
        results=_has_results(workspace),
    )
    return facts, judge_live(facts, rules)


def _is_held(home: Home, workspace: Workspace) -> bool:
    try:
        with home.hold(workspace.id, wait_seconds=0):
            return False
    except WorkspaceBusy:
        return True


def _unapplied(home: Home, workspace: Workspace) -> bool | None:
    """Return whether it has work that is nowhere else: unapplied changes, or any file if it has no origin."""
    from workstead.core.changes import has_unapplied

    if workspace.state == "ready" and not os.path.isdir(workspace.path):
        return None  # the directory was moved, and may come back
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
        return None  # something else is at its path
    try:
        return bool(os.listdir(output))
    finally:
        os.close(output)
