"""Adopt a home that was moved, copied or restored: rewrite its records to its present path.

    adopting (intent) → stack files, git alternates → home_adopted (one event, and all views with it) → place

Until `place` names this directory every verb that writes is refused, so after a crash `aw repair --adopt` runs again:
each step is idempotent, it rewrites old paths and leaves the rest. Only files of this home are written. Steps that
belong to an original that still exists are refused before anything is changed.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from workstead.core.home import has_id, read_adopting
from workstead.errors import HomeCopied, WorkspaceBusy
from workstead.model.event import ChangesApplyFailed, HomeAdopted, RunFailed, WatchStopped
from workstead.model.health import Finding
from workstead.model.moving import is_below, move_path
from workstead.model.names import directory_name
from workstead.model.run import Run
from workstead.model.text import word
from workstead.model.workspace import Workspace
from workstead.snapshots.folders import OPEN_DIR, Folders
from workstead.system.files.durable import replace_file, sync_file, sync_names
from workstead.system.kernel import locks
from workstead.system.overlay.stack import move_stacks
from workstead.system.process import supervisor_client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from workstead.core.home import Home
    from workstead.model.moving import Moves

STREAM = ""  # for events that belong to no task
_GONE = ("purged", "aborted")
_SMALL = 1 << 16
_MOST_LEVELS = 40  # maximum depth below a workspace at which a repository is searched


def adopt(home: Home) -> tuple[Home, list[Finding]]:
    """Adopt the home at this directory; return the home to use from now on, and what was done."""
    if not home.is_copy:
        return home, []
    original = home.original
    try:
        with locks.hold(f"{home.path}/locks", "adopt", wait_seconds=10.0):
            places = _places(home)
            is_living = any(has_id(place, home.id) for place, _ in places if not _is_here(place, home.path))
            _refuse(home, places, is_living=is_living)
            replace_file(f"{home.path}/adopting", json.dumps([*places, (home.path, home.workspaces_path)]).encode())
            _end_steps(home, is_living=is_living)
            moves = [
                move
                for place, workspaces in places
                for move in ((workspaces, home.workspaces_path), (place, home.path))
                if move[0] != move[1]
            ]
            move_stacks(home.private, moves)
            _move_alternates(home, moves)
            for place, workspaces in places:
                if place == home.path:
                    continue
                fact = HomeAdopted(
                    home=home.id,
                    from_path=place,
                    to_path=home.path,
                    from_workspaces=workspaces,
                    to_workspaces=home.workspaces_path,
                )
                home.log.append(STREAM, (fact,), home.caller)
            replace_file(f"{home.path}/place", home.path.encode())
            os.unlink(f"{home.path}/adopting")
            sync_names(home.path)
    except locks.Held:
        raise WorkspaceBusy(f"another process adopts {home.path}", hint="try again when it is done") from None
    done = "this copy works here from now on" if is_living else "it works here from now on"
    return home.taken_over(), [Finding(what=f"the home was at {original}", done=done)]


def _is_here(place: str, path: str) -> bool:
    try:
        return os.path.samefile(place, path)
    except OSError:
        return False


def _places(home: Home) -> list[tuple[str, str]]:
    """Return all pairs (home, workspaces) that stored paths may start with: the recorded one, and interrupted ones."""
    found = read_adopting(home.path)
    roots = {_root_of(workspace) for workspace in _workspaces(home)}
    known = {workspaces for _, workspaces in found}
    others = sorted(root for root in roots if root != home.workspaces_path and root not in known)
    found += [(home.original, root) for root in others or [f"{home.original}/workspaces"]]
    # Two roots of one place would be two events, which does no harm.
    return list(dict.fromkeys(place for place in found if place != (home.path, home.workspaces_path)))


def _workspaces(home: Home) -> list[Workspace]:
    records = home.log.find_all("workspace")
    return [Workspace(**each) for each in records if each["home"] == home.id and each["state"] not in _GONE]


def _root_of(workspace: Workspace) -> str:
    below = f"/{directory_name(workspace.task_id)}/{directory_name(workspace.agent_id)}"
    return workspace.path.removesuffix(below)


def _refuse(home: Home, places: list[tuple[str, str]], *, is_living: bool) -> None:
    """Raise if the home cannot be used here without touching another home, or while it is in use itself."""
    for place, workspaces in places:
        if place != home.path and (is_below(place, home.path) or is_below(home.path, place)):
            raise HomeCopied(
                f"home {home.path} cannot be adopted: it and its former place {place} lie in each other",
                hint="move it to a directory beside the former place, then adopt it there",
            )
        if is_living and workspaces == home.workspaces_path:
            raise HomeCopied(
                f"home {home.path} cannot be adopted: its workspaces are in {workspaces}, where {place} has its own",
                hint="set storage.workspaces_path to a directory of its own with a copy of them, or move the original",
            )
    if is_living and home.settings.store.url:
        raise HomeCopied(
            f"home {home.path} cannot be adopted: it and {home.original} would use the same database under one id",
            hint="move the original away, or use another database",
        )
    shared = [each.id for each in _workspaces(home) if _kind_of(each) == "worktree" and each.state != "destroyed"]
    if is_living and shared:
        raise HomeCopied(
            f"home {home.path} cannot be adopted while {home.original} exists: both would use the same work trees of "
            f"git, of {', '.join(shared[:5])}",
            hint=f"apply and destroy them there (aw destroy {word(shared[0])}) and copy again, or move it away",
        )
    for kind, record in home.log.find_pending():
        if kind == "run" and supervisor_client.find_supervisor(f"{home.path}/runs/{record['run_id']}"):
            raise WorkspaceBusy(
                f"{record['run_id']} is running in this home", hint="let it end before the home is moved"
            )


def _kind_of(workspace: Workspace) -> str:
    origin = workspace.filled.get("origin")
    return str(origin.get("kind")) if isinstance(origin, dict) else ""


def _end_steps(home: Home, *, is_living: bool) -> None:
    """End steps that only the original can continue. Nothing outside of this home is searched or stopped."""
    from workstead.core.runs import run_names

    for kind, record in home.log.find_pending():
        if record["home"] != home.id:
            continue
        if kind == "run":
            run = Run(**record)
            with suppress(OSError):
                os.unlink(f"{home.path}/runs/{run.run_id}/spec")  # may hold secrets
            reason = "the home was moved or copied while it ran"
            home.log.append(run.task_id, (RunFailed(**run_names(run), exit_code=125, reason=reason),), home.caller)
        elif kind == "watch":
            watched = home.log.get("workspace", record["uid"])
            if watched:
                workspace = Workspace(**watched)
                fact = WatchStopped(**workspace.names(), reason="the home was moved or copied")
                home.log.append(workspace.task_id, (fact,), home.caller)
        elif is_living and record["state"] == "applying":
            workspace = Workspace(**record)
            _drop_job(home, workspace.operation_id)
            failed = ChangesApplyFailed(
                **workspace.names(),
                operation_id=workspace.operation_id,
                reason="the home was copied meanwhile: the original finishes it",
            )
            home.log.append(workspace.task_id, (failed,), home.caller)


def _drop_job(home: Home, operation_id: str) -> None:
    from workstead.core.applying import JOB_SUFFIXES, jobs_path

    for suffix in JOB_SUFFIXES:
        with suppress(FileNotFoundError):
            os.unlink(f"{jobs_path(home)}/{operation_id}{suffix}")


def _move_alternates(home: Home, moves: Moves) -> None:
    """Rewrite git alternates to the present path of the objects: clones borrow from mirrors in the cache."""
    for top in dict.fromkeys((f"{home.path}/cache", f"{home.path}/templates", home.workspaces_path)):
        try:
            root = os.open(top, OPEN_DIR)
        except (FileNotFoundError, NotADirectoryError):
            continue
        folders = Folders(root)
        try:
            for path in _repositories(folders):
                _move_lines(folders, path, moves)
        finally:
            folders.close()


def _repositories(folders: Folders) -> Iterator[str]:
    """Yield directories that have `objects/info`, by path below the root; links are not followed."""
    waiting = [("", 0)]
    while waiting:
        path, level = waiting.pop()
        try:
            names = os.listdir(folders.open(path))
        except OSError:  # not a directory, no permission, or gone
            continue
        if "objects" in names:
            yield path
        if level < _MOST_LEVELS:
            waiting += [(f"{path}/{name}" if path else name, level + 1) for name in names if name != "objects"]


def _move_lines(folders: Folders, path: str, moves: Moves) -> None:
    below = f"{path}/objects/info" if path else "objects/info"
    try:
        fd = os.open("alternates", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folders.open(below))
    except OSError:
        return
    try:
        old = os.pread(fd, _SMALL, 0)
        lines = [move_path(os.fsdecode(line), moves) for line in old.split(b"\n")]
        new = b"\n".join(map(os.fsencode, lines))
        if new != old and len(old) < _SMALL:
            # In place and in one write, because a mounted layer may show this very file; git skips empty lines.
            os.pwrite(fd, new.ljust(len(old), b"\n"), 0)
            sync_file(fd)
    finally:
        os.close(fd)
