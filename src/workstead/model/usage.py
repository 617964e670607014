"""Disk usage of workspaces and of the home."""

from __future__ import annotations

from workstead.model.value import Value


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
