"""Folders of the host for a folder chooser, and recently used folders."""

from __future__ import annotations

from workstead.model.value import Value


class RecentFolder(Value):
    """A folder that the user selected."""

    path: str
    opened_at: float  # seconds since the epoch


class Folder(Value):
    """A folder of this machine, as a folder chooser shows it."""

    path: str
    parent: str  # "" for the root directory
    folders: list[str]  # names, hidden ones last
    is_repository: bool
