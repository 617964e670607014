"""Measure what takes space."""

from __future__ import annotations

import os

from carrel.model.value import Value
from carrel.verbs import show
from carrel.verbs.undo import trashed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from carrel.home import Home


class WorkspaceUsage(Value):
    """What one workspace takes on the disk."""

    workspace_id: str
    state: str
    bytes: int
    files: int
    max_bytes: int | None


class Usage(Value):
    """What everything takes."""

    workspaces: list[WorkspaceUsage]
    workspaces_bytes: int
    trash: int
    trash_bytes: int
    log_bytes: int
    cache_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int


def usage(home: Home, workspace_id: str | None = None) -> Usage:
    """Measure one workspace or all of them, the trash, the log and the disk."""
    from carrel.system.measure import measure

    chosen = [show.get(home, workspace_id)] if workspace_id is not None else show.list_all(home)
    rows = []
    for workspace in chosen:
        limit = workspace.config.get("max_size_mb")
        found = measure(workspace.path, f"{home.private}/layers/{workspace.uid}")
        rows.append(
            WorkspaceUsage(
                workspace_id=workspace.id,
                state=workspace.state,
                bytes=found.bytes,
                files=found.files,
                max_bytes=limit * 1024 * 1024 if isinstance(limit, int) else None,
            )
        )
    thrown_away = trashed(home)
    layers = [f"{home.private}/layers/{workspace.uid}" for workspace in thrown_away]
    disk = os.statvfs(home.path)
    return Usage(
        workspaces=rows,
        workspaces_bytes=sum(row.bytes for row in rows),
        trash=len(thrown_away),
        trash_bytes=measure(*(workspace.trash_path for workspace in thrown_away), *layers).bytes,
        log_bytes=sum(_size(f"{home.path}/log.db{suffix}") for suffix in ("", "-wal")),
        cache_bytes=measure(f"{home.path}/cache").bytes,
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
        disk_total_bytes=disk.f_blocks * disk.f_frsize,
    )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
