"""Delete what has been in the trash for its time: the only verb that removes data, and only what was thrown away."""

from __future__ import annotations

import os
import time

from carrel.errors import CleanupFailed, WorkspaceBusy
from carrel.model.event import WorkspacePurged, WorkspacePurging
from carrel.model.moment import seconds
from carrel.model.value import Value
from carrel.model.workspace import Workspace
from carrel.verbs.undo import trashed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrel.home import Home


HOUR = 3600


class Candidate(Value):
    """Something that a sweep looked at, and what it decided."""

    workspace_id: str
    uid: str
    destroyed_at: str
    age_days: float
    goes: bool
    why: str


def sweep(home: Home, *, dry_run: bool = False, everything: bool = False, uids: Sequence[str] = ()) -> list[Candidate]:
    """Delete trash that is older than `workspaces.trash_days`; with `everything`, all of it; or just these uids.

    Raises nothing for a workspace that is being brought back this instant: it stays. CleanupFailed says which files
    could not be deleted; all others are, and the next sweep tries again.
    """
    problems = [problem for _, problem in ([] if dry_run else finish_purging(home)) if problem]
    limit = home.settings.workspaces.trash_days
    now = time.time()
    looked_at = []
    for workspace in trashed(home):
        if uids and workspace.uid not in uids:
            continue
        age = max(0.0, (now - seconds(workspace.updated_at)) / 86400)
        goes = everything or bool(uids) or age >= limit
        why = "asked for" if everything or uids else f"in the trash for {age:.1f} of {limit:g} days"
        looked_at.append(
            Candidate(
                workspace_id=workspace.id,
                uid=workspace.uid,
                destroyed_at=workspace.updated_at,
                age_days=round(age, 3),
                goes=goes,
                why=why,
            )
        )
        if goes and not dry_run:
            try:
                _purge(home, workspace)
            except CleanupFailed as problem:
                problems.append(problem)
    if problems:
        raise problems[0]
    return looked_at


def sweep_in_background(home: Home) -> None:
    """Once an hour at most, start a process of its own that deletes what is due; nobody waits for it."""
    stamp = f"{home.path}/swept"
    try:
        age = time.time() - os.stat(stamp).st_mtime
    except FileNotFoundError:
        age = 0.0  # a new home has nothing that is due
    if age >= HOUR:
        from carrel.system.background import start_aw

        start_aw(["sweep", "--quiet", "--home", home.path], home.settings.as_environment())
    if age == 0.0 or age >= HOUR:
        with open(stamp, "w"):
            os.utime(stamp)


def _purge(home: Home, workspace: Workspace) -> None:
    try:
        with home.hold(workspace.id, wait_seconds=0):
            record = home.log.get("workspace", workspace.uid)
            if record is None or record["state"] != "destroyed":
                return
            names = workspace.names()
            step = {"trash_path": workspace.trash_path, "operation_id": home.new_id()}
            # From here on undo refuses: what is half deleted cannot come back.
            home.record(workspace.task_id, WorkspacePurging(**names, **step))
            delete_files(home, workspace)
            home.record(workspace.task_id, WorkspacePurged(**names, **step))
    except WorkspaceBusy:
        return


def finish_purging(home: Home) -> list[tuple[Workspace, CleanupFailed | None]]:
    """Go on with deletions that somebody began and did not end; gives each, with what keeps it from ending."""
    found: list[tuple[Workspace, CleanupFailed | None]] = []
    for kind, record in home.log.find_pending():
        if kind == "workspace" and record["state"] == "purging" and record["home"] == home.id:
            workspace = Workspace(**record)
            try:
                if _finish(home, workspace):
                    found.append((workspace, None))
            except CleanupFailed as problem:
                found.append((workspace, problem))
            except WorkspaceBusy:
                continue
    return found


def _finish(home: Home, workspace: Workspace) -> bool:
    with home.hold(workspace.id, wait_seconds=0):
        current = home.log.get("workspace", workspace.uid)
        if current is None or current["state"] != "purging":
            return False
        delete_files(home, workspace)
        names = workspace.names()
        step = {"trash_path": workspace.trash_path, "operation_id": workspace.operation_id}
        home.record(workspace.task_id, WorkspacePurged(**names, **step))
        return True


def delete_files(home: Home, workspace: Workspace) -> None:
    """Delete a trashed workspace's files and give back what it holds elsewhere: layers, an entry in a repository."""
    from carrel import sources
    from carrel.system.removal import remove_tree
    from carrel.verbs.destroy import filled_in

    try:
        if workspace.filled:
            filled, place = filled_in(home, workspace.replace(path=workspace.trash_path))
            sources.detach(filled, place)
        if workspace.trash_path and os.path.lexists(workspace.trash_path):
            remove_tree(workspace.trash_path)
        if workspace.filled:
            sources.release(filled, place)
    except OSError as error:
        raise CleanupFailed(
            f"the files of {workspace.id} could not be deleted: {error.strerror or error}",
            hint=f"see what uses {workspace.trash_path}; the next aw sweep goes on",
        ) from error
