"""Disk usage of workspaces and of the home."""

from __future__ import annotations

from workstead.model.value import Value


class WorkspaceUsage(Value):
    """Disk usage of one workspace."""

    workspace_id: str
    state: str
    bytes: int  # exclusive: bytes it added itself, which deleting it would free
    files: int  # including directories; both include unlinked files that a run has open
    max_bytes: int | None
    max_files: int | None = None
    shared_bytes: int = 0  # of layers that other workspaces may use too; an origin's own files do not count
    pinned: bool = False


class Usage(Value):
    """Disk usage of the home."""

    workspaces: list[WorkspaceUsage]
    workspaces_bytes: int  # exclusive bytes
    shared_bytes: int  # every shared layer once
    snapshots_bytes: int
    trash: int
    trash_bytes: int
    cache_bytes: int
    archives_bytes: int
    runs_bytes: int  # output of runs
    log_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int
    areas_bytes: int = 0  # of tasks: shared directories and mailboxes, which no quota counts
    sweepable_bytes: int | None = None  # freed or moved to the trash by aw sweep, without snapshots; None: not computed
