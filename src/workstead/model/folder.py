"""Folders that a person can choose, and the recent ones."""

from __future__ import annotations

from workstead.model.value import Value


class RecentFolder(Value):
    """A folder that somebody selected."""

    path: str
    opened_at: float  # seconds since the epoch


class Folder(Value):
    """A folder of this machine, as a chooser shows it."""

    path: str
    parent: str  # "" at the top
    folders: list[str]  # names, hidden ones last
    is_repository: bool
