"""Measure what takes space: what each workspace added itself, what it shares, and what else there is.

Only what workspaces added is measured each time. A layer that is shared never changes: its size is looked up, and
measured once.
"""

from __future__ import annotations

import json
import os

from workstead.model.value import Value
from workstead.system.measure import measure
from workstead.verbs import show
from workstead.verbs.quota import exclusive, present
from workstead.verbs.undo import trashed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.home import Home
    from workstead.model.workspace import Workspace

MIB = 1 << 20


class WorkspaceUsage(Value):
    """What one workspace takes on the disk."""

    workspace_id: str
    state: str
    bytes: int  # exclusive: what it added itself, and what would come free without it
    files: int  # with directories; both with what a run has open without a name
    max_bytes: int | None
    max_files: int | None = None
    shared_bytes: int = 0  # of layers of ours that others may stand on too; an origin's own files do not count
    pinned: bool = False


class Usage(Value):
    """What everything takes."""

    workspaces: list[WorkspaceUsage]
    workspaces_bytes: int  # exclusive ones
    shared_bytes: int  # every shared layer once
    snapshots_bytes: int
    trash: int
    trash_bytes: int
    cache_bytes: int
    archives_bytes: int
    runs_bytes: int  # what runs printed
    log_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int
    areas_bytes: int = 0  # of tasks: shared areas and mailboxes, which no quota counts
    sweepable_bytes: int | None = None  # what aw sweep frees or takes to the trash, states aside; None: not looked


def usage(home: Home, workspace_id: str | None = None) -> Usage:
    """Measure one workspace or all of them, and everything else that takes space."""
    if workspace_id is None:
        workspace_id = home.caller.agent_of or None
    from workstead.verbs.archive import archives_path

    chosen = [show.get(home, workspace_id)] if workspace_id is not None else show.list_all(home)
    layers = _Layers(home)
    rows = [_row(home, workspace, layers) for workspace in chosen]
    shared = layers.total()
    layers.remember()
    thrown_away = trashed(home)
    disk = os.statvfs(home.path)
    return Usage(
        workspaces=rows,
        workspaces_bytes=sum(row.bytes for row in rows),
        shared_bytes=shared,
        snapshots_bytes=measure(f"{home.path}/snapshots").bytes,
        trash=len(thrown_away),
        trash_bytes=sum(exclusive(home, workspace).bytes for workspace in thrown_away),
        cache_bytes=measure(f"{home.path}/cache").bytes,
        archives_bytes=measure(archives_path(home)).bytes,  # a bucket is not asked
        runs_bytes=measure(f"{home.path}/runs").bytes,
        log_bytes=sum(_size(f"{home.path}/log.db{suffix}") for suffix in ("", "-wal")),
        areas_bytes=measure(f"{home.path}/shares", f"{home.path}/mail").bytes,
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
        disk_total_bytes=disk.f_blocks * disk.f_frsize,
        sweepable_bytes=_sweepable(home) if workspace_id is None else None,
    )


def usage_of(home: Home, workspace_id: str) -> WorkspaceUsage:
    """Measure one workspace and nothing else, so that whoever shows many of them can ask for each."""
    layers = _Layers(home)
    row = _row(home, show.get(home, workspace_id), layers)
    layers.remember()
    return row


def _row(home: Home, workspace: Workspace, layers: _Layers) -> WorkspaceUsage:
    found = present(home, workspace)
    size, files = workspace.config.get("max_size_mb"), workspace.config.get("max_files")
    return WorkspaceUsage(
        workspace_id=workspace.id,
        state=workspace.state,
        bytes=found.bytes,
        files=found.inodes,
        max_bytes=size * MIB if isinstance(size, int) else None,
        max_files=files if isinstance(files, int) else None,
        shared_bytes=layers.below(workspace),
        pinned=workspace.pinned,
    )


def _sweepable(home: Home) -> int:
    from workstead.verbs.sweep import plan

    return sum(candidate.bytes for candidate in plan(home) if candidate.goes)


class _Layers:
    """The sizes of shared layers, each measured when it is seen first."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path = f"{home.path}/layer-sizes"
        self._ours = (f"{home.private}/frozen/", f"{home.path}/cache/")
        try:
            with open(self._path) as file:
                self._known: dict[str, int] = json.load(file)
        except (OSError, ValueError):
            self._known = {}
        self._before = dict(self._known)

    def _measured(self, path: str) -> int:
        if path not in self._known:
            self._known[path] = measure(path).bytes
        return self._known[path]

    def below(self, workspace: Workspace) -> int:
        """What the workspace stands on, as far as it is ours."""
        from workstead.system.stack import read_stack

        stack = read_stack(f"{self._home.private}/layers/{workspace.uid}")
        return sum(self._measured(path) for path in stack.lowers if path.startswith(self._ours)) if stack else 0

    def total(self) -> int:
        """All layers that workspaces made and share, each once; what lies in the cache is counted there."""
        frozen = f"{self._home.private}/frozen"
        names = os.listdir(frozen) if os.path.isdir(frozen) else []
        return sum(self._measured(f"{frozen}/{name}") for name in names)

    def remember(self) -> None:
        """Write down what was measured, without the layers that are gone."""
        kept = {path: size for path, size in self._known.items() if os.path.isdir(path)}
        if kept == self._before:
            return
        fresh = f"{self._path}.{os.urandom(4).hex()}"
        try:
            with open(fresh, "w") as file:
                json.dump(kept, file)
            os.rename(fresh, self._path)
        except OSError:  # a full disk is no reason not to say what fills it
            return


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
