"""Snapshots, and the location of a workspace's state on disk.

A snapshot is a root: the digest of a tree in the object store, or one of two names that need no object at all, so that
creating a workspace writes none:

    empty          nothing in `work/` and `output/`
    layer:KEY      the content of the immutable lower stack KEY in `work/`, nothing changed
"""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


EMPTY = "empty"
COVER = "tree:"  # prefix of a layer that is stored in the object store, not at a path


def layer_root(key: str) -> str:
    """Return the root of a workspace that shows the lower stack `key` without changes."""
    return f"layer:{key}"


class Stack(Value):
    """The immutable layers below an overlay, topmost first.

    A layer is identified by its host path: a path is never reused for other content. `fixed_ns` is the time from which
    the layers count as immutable; a file of a user's folder with a later ctime was edited since and is not part of the
    base.

    A folder of the user, always the lowest layer, is changed when its workspace applies changes to it. A snapshot from
    before an apply is read through a cover: a stored tree, directly above the folder, of the content that the apply
    replaced.
    """

    key: str
    layers: tuple[str, ...]  # paths, and covers
    marks: str = "trusted"  # xattr namespace of opaque marks: "trusted" (mounted by root) or "user" (rootless)
    fixed_ns: int = 0  # 0: never changes
    owner: str = ""  # the workspace whose applies change the lowest layer
    applied: int = 0  # number of its applies when the snapshot was taken

    def covered(self, covers: Sequence[str]) -> Stack:
        """Return the stack with covers above the folder, the oldest on top: its replaced content is the nearest to the
        snapshot."""
        *above, folder = self.layers
        return self.replace(layers=(*above, *(COVER + cover for cover in covers), folder))


class Overlay(Value):
    """The layout of `work/`: a writable upper directory over a stack."""

    upper: str
    stack: Stack


class Place(Value):
    """The location of a workspace's state: `root` holds `output/` and the metadata; `work` is the merged view."""

    root: str
    work: str = ""  # empty: `work` below the root
    in_place: bool = False  # `work` is a folder of the user
    overlay: Overlay | None = None


class Limits(Value):
    """The size limits of a snapshot; entries over a limit are listed as left out."""

    max_file_bytes: int = 4 << 30  # allocated blocks, so that a sparse file counts by its data
    max_entries: int = 5_000_000
    max_depth: int = 3_000


class LeftOut(Value):
    """An entry that a snapshot does not include."""

    path: str
    kind: str  # fifo, socket, device, large, unreadable, deep, many, foreign
    size: int = 0


class Taken(Value):
    """The result of taking a snapshot: the root to record, and warnings for the user."""

    root: str
    files: int  # in `output/` and, over an overlay, in the upper layer: changed files, not all files
    size: int
    left_out: tuple[LeftOut, ...] = ()
    torn: tuple[str, ...] = ()  # still changing after several reads
    live: bool = False
    stored_bytes: int = 0  # bytes added to the object store


class Snapshot(Value):
    """A stored state of a workspace."""

    id: str
    root: str
    taken_at: float  # seconds since the epoch
    cause: str = "manual"  # base, before_run, after_run, before_restore, before_apply, before_destroy, answer, manual
    label: str = ""
    live: bool = False
    files: int = 0
    size: int = 0
    left_out: tuple[LeftOut, ...] = ()
    torn: tuple[str, ...] = ()


class Restored(Value):
    """The result of a restore."""

    written: int = 0
    removed: int = 0
    adjusted: int = 0  # only mode, time or xattrs
    kept: tuple[str, ...] = ()  # in the way, but in no snapshot (too large or unreadable), so not removed
    missing: tuple[str, ...] = ()  # part of the state, but never stored: devices and other special files
