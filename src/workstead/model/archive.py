"""Archives: the contents of one archive file, and the archives that the log knows."""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    pass


class Contents(Value):
    """The contents of an archive, as verified."""

    head: dict[str, object]
    summary: dict[str, object]
    digest: str  # of the file
    bytes: int  # of the file
    full_bytes: int
    members: int
    outside: list[tuple[str, str]]  # the first links that lead out of the workspace: name and target
    pack: str = ""  # digest of the objects that its repository borrows, if the archive includes them


class Archived(Value):
    """An archive that was written."""

    workspace_id: str
    path: str  # a file or an s3:// URL
    bytes: int
    digest: str  # sha256 of the file
    files: int
    states: int  # number of snapshots that can be restored
    snapshot_id: str  # the snapshot that its files belong to
    chain: list[dict[str, object]]  # the task's stream, its number of events, and its last hash


class KnownArchive(Value):
    """An archive that the log records."""

    workspace_id: str
    path: str
    bytes: int
    digest: str
    archived_at: str
