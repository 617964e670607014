"""Backups of a home: the known ones, and the result of a restore."""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    pass


class BackupRestored(Value):
    """The result of restoring a home from a backup."""

    path: str
    number: int
    made_at: str
    position: int
    files: int
    findings: list[str]  # repairs made after the restore
    left_out: list[str]
    torn: list[str]


class KnownBackup(Value):
    """A backup at a location."""

    number: int
    made_at: str
    home: str
    home_path: str
    position: int
    files: int
    bytes: int
    left_out: list[str]
    torn: list[str]
