"""Compare workspaces side by side: their runs, results, changes, and the changes they have in common.

Comparing records no event. For a workspace that is gone, the record of its race is used.
"""

from __future__ import annotations

from workstead.core import lookup
from workstead.core.changes import diff
from workstead.core.runs import runs
from workstead.errors import Invalid, WorksteadError
from workstead.model.moment import seconds
from workstead.model.race import MAX_PATHS, Comparison, Lane, ranked
from workstead.model.run import Run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.workspace import Workspace


def compare(home: Home, ids: Sequence[str]) -> Comparison:
    """Compare workspaces as they are now, best first; the last run counts, or the runs of their race."""
    wanted = [lookup.normal_id(id) for id in ids]
    if len(set(wanted)) != len(wanted):
        raise Invalid("a workspace was named twice", hint="name each once")
    return ranked([look(home, lookup.get(home, id)) for id in wanted])


def look(home: Home, workspace: Workspace) -> Lane:
    """Return the lane of one workspace, unranked."""
    known = _in_race(home, workspace)
    lane = Lane(workspace_id=workspace.id, uid=workspace.uid, check_changed=known.get("check_changed", 0))
    found = {each.run_id: each for each in runs(home, workspace.id) if each.uid == workspace.uid and not each.box}
    command = found.get(known["run_id"]) if known else next(reversed(found.values()), None)
    if command is not None:
        lane = with_run(lane, command)
    check = found.get(known.get("check_id", ""))
    if check is not None:
        lane = with_check(lane, check)
    return with_changes(home, lane)


def _in_race(home: Home, workspace: Workspace) -> Mapping[str, Any]:
    """Return the record of this workspace in its last race."""
    for record in reversed(home.log.find_all("race", task=workspace.task_id)):
        for lane in record["lanes"]:
            if lane["uid"] == workspace.uid:
                return dict(lane)
    return {}


def with_run(lane: Lane, run: Run) -> Lane:
    """Return the lane with the result of its command."""
    return lane.replace(
        run_id=run.run_id, state=run.state, exit_code=run.exit_code, seconds=_time_of(run), reason=run.reason
    )


def with_check(lane: Lane, run: Run) -> Lane:
    """Return the lane with the result of its check."""
    return lane.replace(
        check_id=run.run_id, check_state=run.state, check_code=run.exit_code, check_seconds=_time_of(run)
    )


def _time_of(run: Run) -> float:
    if run.started_at is None or run.finished_at is None:
        return 0.0
    return round(max(0.0, seconds(run.finished_at) - seconds(run.started_at)), 3)


def with_changes(home: Home, lane: Lane) -> Lane:
    """Return the lane with its changes since the base, or with the reason why they cannot be computed."""
    try:
        found = diff(home, lane.workspace_id)
    except WorksteadError as error:
        return lane.replace(reason=lane.reason or f"what changed cannot be shown: {error.message}")
    return lane.replace(
        files=len(found.changes),
        added=found.added,
        removed=found.removed,
        paths=[change.path for change in found.changes[:MAX_PATHS]],
    )
