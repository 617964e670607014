"""Measure disk usage: of each workspace itself, of shared layers, and of the rest of the home.

Only files that workspaces added are measured each time. A shared layer never changes: it is measured once, and its size
cached.
"""

from __future__ import annotations

import json
import os

from workstead.core import lookup
from workstead.core.quota import exclusive, present
from workstead.core.trash import trashed
from workstead.model.usage import Usage, WorkspaceUsage
from workstead.system.files.measure import measure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home
    from workstead.model.workspace import Workspace

MIB = 1 << 20


def usage(home: Home, workspace_id: str | None = None) -> Usage:
    """Measure one workspace or all of them, and everything else in the home."""
    if workspace_id is None:
        workspace_id = home.caller.agent_of or None
    from workstead.core.archives import archives_path

    chosen = [lookup.get(home, workspace_id)] if workspace_id is not None else lookup.list_all(home)
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
        archives_bytes=measure(archives_path(home)).bytes,  # buckets are not queried
        runs_bytes=measure(f"{home.path}/runs").bytes,
        log_bytes=sum(_size(f"{home.path}/log.db{suffix}") for suffix in ("", "-wal")),
        areas_bytes=measure(f"{home.path}/shares", f"{home.path}/mail").bytes,
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
        disk_total_bytes=disk.f_blocks * disk.f_frsize,
        sweepable_bytes=_sweepable(home) if workspace_id is None else None,
    )


def usage_of(home: Home, workspace_id: str) -> WorkspaceUsage:
    """Measure one workspace and nothing else, for callers that show many and query each."""
    layers = _Layers(home)
    row = _row(home, lookup.get(home, workspace_id), layers)
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
    from workstead.flows.sweep import plan

    return sum(candidate.bytes for candidate in plan(home) if candidate.goes)


class _Layers:
    """The sizes of shared layers, each measured at first use."""

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
        """Return the size of the workspace's lower layers, as far as they are in this home."""
        from workstead.system.overlay.stack import read_stack

        stack = read_stack(f"{self._home.private}/layers/{workspace.uid}")
        return sum(self._measured(path) for path in stack.lowers if path.startswith(self._ours)) if stack else 0

    def total(self) -> int:
        """Return the size of all layers that workspaces share, each once; those in the cache count as cache."""
        frozen = f"{self._home.private}/frozen"
        names = os.listdir(frozen) if os.path.isdir(frozen) else []
        return sum(self._measured(f"{frozen}/{name}") for name in names)

    def remember(self) -> None:
        """Write the measured sizes, without deleted layers."""
        kept = {path: size for path, size in self._known.items() if os.path.isdir(path)}
        if kept == self._before:
            return
        fresh = f"{self._path}.{os.urandom(4).hex()}"
        try:
            with open(fresh, "w") as file:
                json.dump(kept, file)
            os.rename(fresh, self._path)
        except OSError:  # a full disk must not prevent the report of its usage
            return


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
