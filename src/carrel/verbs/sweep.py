"""Delete what has been in the trash for its time, and states that nobody needs: the only verb that removes data."""

from __future__ import annotations

import os
import time

from carrel.errors import CarrelError, CleanupFailed, WorkspaceBusy
from carrel.model.event import WorkspacePurged, WorkspacePurging
from carrel.model.moment import seconds
from carrel.model.value import Value
from carrel.model.workspace import Workspace
from carrel.verbs.undo import trashed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

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
    kind: str = "workspace"  # or snapshot, objects, layers
    name: str = ""  # the id of a snapshot
    bytes: int = 0  # what it frees, as far as that is known beforehand


def sweep(home: Home, *, dry_run: bool = False, everything: bool = False, uids: Sequence[str] = ()) -> list[Candidate]:
    """Delete trash that is older than `workspaces.trash_days`; with `everything`, all of it; or just these uids.

    Unless only trash was asked for, old snapshots are thinned out too. What no state needs any more is given back to
    the disk in any case.

    Raises nothing for a workspace that is being brought back this instant: it stays. CleanupFailed says which files
    could not be deleted; all others are, and the next sweep tries again.
    """
    problems: list[CarrelError] = [problem for _, problem in ([] if dry_run else finish_purging(home)) if problem]
    only_trash = everything or bool(uids)
    looked_at = []
    for workspace in trashed(home):
        if workspace.home != home.id or (uids and workspace.uid not in uids):
            continue
        candidate = _judge(home, workspace, asked_for=only_trash, measured=dry_run)
        looked_at.append(candidate)
        if candidate.goes and not dry_run:
            try:
                _purge(home, workspace)
            except CleanupFailed as problem:
                problems.append(problem)
    try:
        with home.hold("the states of this home", wait_seconds=0):  # one sweeper at a time
            looked_at += _sweep_states(home, looked_at, dry_run=dry_run, thin=not only_trash)
    except WorkspaceBusy:
        pass  # another one is at it
    except CarrelError as problem:
        problems.append(problem)
    if problems:
        raise problems[0]
    return looked_at


def _judge(home: Home, workspace: Workspace, *, asked_for: bool, measured: bool) -> Candidate:
    from carrel.system.measure import measure

    limit = home.settings.workspaces.trash_days
    age = max(0.0, (time.time() - seconds(workspace.updated_at)) / 86400)
    layers = f"{home.private}/layers/{workspace.uid}"
    return Candidate(
        workspace_id=workspace.id,
        uid=workspace.uid,
        destroyed_at=workspace.updated_at,
        age_days=round(age, 3),
        goes=asked_for or age >= limit,
        why="asked for" if asked_for else f"in the trash for {age:.1f} of {limit:g} days",
        bytes=measure(workspace.trash_path, layers).bytes if measured else 0,
    )


def _sweep_states(home: Home, trash: list[Candidate], *, dry_run: bool, thin: bool) -> list[Candidate]:
    """Thin out snapshots and give back what nothing needs; gives what went, if more than the trash was asked for."""
    from carrel.verbs.retention import collect, drop, find_leaving

    leaving = find_leaving(home, (each.uid for each in trash if each.goes and dry_run), thin=thin)
    if not dry_run:
        drop(home, leaving)
    freed = collect(home, leaving, dry_run=dry_run)
    if not thin:
        return []
    now = time.time()
    found = [
        _of_states(
            "snapshot",
            f"{snapshot.cause}, thinned out with age",
            workspace_id=workspace.id,
            uid=workspace.uid,
            name=snapshot.id,
            age_days=round(max(0.0, (now - snapshot.taken_at) / 86400), 3),
        )
        for workspace, snapshot in leaving.snapshots
        if workspace.uid not in leaving.uids
    ]
    if freed.objects:
        found.append(_of_states("objects", f"{freed.objects} contents that no state needs", bytes=freed.objects_bytes))
    if freed.layers:
        found.append(_of_states("layers", f"{len(freed.layers)} layers that nothing lies on", bytes=freed.layers_bytes))
    return found


def _of_states(kind: str, why: str, **more: Any) -> Candidate:
    fields = {"workspace_id": "", "uid": "", "destroyed_at": "", "age_days": 0.0, **more}
    return Candidate(goes=True, kind=kind, why=why, **fields)


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
