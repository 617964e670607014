"""Find out since when nobody has used a workspace, and what keeps it from a sweep."""

from __future__ import annotations

import os
import time

from carrel.errors import CarrelError, WorkspaceBusy
from carrel.model.moment import seconds
from carrel.model.retention import Desk, Rules, Verdict, judge_desk
from carrel.verbs import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from carrel.home import Home
    from carrel.model.workspace import Workspace

DAY = 86400.0


def rules_of(home: Home, *, pressed: bool = False) -> Rules:
    """What the settings want to be taken."""
    wanted = home.settings.workspaces
    return Rules(
        retention_days=wanted.retention_days,
        trash_days=wanted.trash_days,
        archive_first=wanted.archive_workspaces,
        pressed=pressed,
    )


def days_since(moment: float) -> float:
    """How long ago that was; what a clock set back dates in the future is now."""
    return max(0.0, (time.time() - moment) / DAY)


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
            moment = max(moment, os.stat(path).st_mtime)
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
        active_runs=len(show.active_runs(home, workspace)),
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
    from carrel.verbs.diff import has_unapplied

    if workspace.state == "ready" and not os.path.isdir(workspace.path):
        return None  # somebody moved it, and may bring it back
    try:
        return has_unapplied(home, workspace)
    except (CarrelError, OSError):
        return None


def _has_results(workspace: Workspace) -> bool | None:
    try:
        with os.scandir(f"{workspace.path}/output") as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return None
