"""What a kept state is, and where the state of a workspace lies on the disk.

A snapshot is a root: the digest of a tree in the object store, or one of two names that need no object at all, so that
creating a workspace writes none:

    empty          nothing in `work/` and `output/`
    layer:KEY      what the immutable lower stack KEY shows in `work/`, nothing changed
"""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


EMPTY = "empty"
COVER = "tree:"  # what a layer begins with that is kept in the store, not at a path


def layer_root(key: str) -> str:
    """The root of a workspace that shows the lower stack `key` and has changed nothing yet."""
    return f"layer:{key}"


class Stack(Value):
    """The immutable layers below an overlay, topmost first.

    A layer is known by its host path: a path is never used again for other content. `fixed_ns` is the moment from which
    the layers count as immutable; a file of a user's folder whose ctime is later was edited since and is not base.

    A folder of the user's, always the lowest layer, is changed by what its workspace gives back to it. A state from
    before an apply is seen through a cover: a kept tree, right above the folder, of what that apply replaced.
    """

    key: str
    layers: tuple[str, ...]  # paths, and covers
    marks: str = "trusted"  # the xattr namespace of opaque marks: "trusted" (mounted by root) or "user" (rootless)
    fixed_ns: int = 0  # 0: never changes
    owner: str = ""  # the workspace whose applies change the lowest layer
    applied: int = 0  # how many of them were done when the state was kept

    def covered(self, covers: Sequence[str]) -> Stack:
        """The same with covers above the folder, the oldest on top: what it replaced is nearest to the state."""
        *above, folder = self.layers
        return self.replace(layers=(*above, *(COVER + cover for cover in covers), folder))


class Overlay(Value):
    """How `work/` is made: a writable upper directory over a stack."""

    upper: str
    stack: Stack


class Place(Value):
    """Where the state of one workspace lies: `root` holds `output/` and the notes; `work` is the merged view."""

    root: str
    work: str = ""  # empty: `work` in the root
    in_place: bool = False  # `work` is a folder of the user's
    overlay: Overlay | None = None


class Limits(Value):
    """What a snapshot refuses to keep; what is over a limit is listed as left out."""

    max_file_bytes: int = 4 << 30  # by allocated blocks: a sparse file costs what it holds
    max_entries: int = 5_000_000
    max_depth: int = 3_000


class LeftOut(Value):
    """Something in the tree that a snapshot does not keep."""

    path: str
    kind: str  # fifo, socket, device, large, unreadable, deep, many, foreign
    size: int = 0


class Taken(Value):
    """What taking a snapshot found: the root to remember and what a person should know about it."""

    root: str
    files: int  # in `output/` and, over an overlay, in the upper layer: what was changed, not what exists
    size: int
    left_out: tuple[LeftOut, ...] = ()
    torn: tuple[str, ...] = ()  # still changing after several reads
    live: bool = False
    stored_bytes: int = 0  # what it added to the store


class Snapshot(Value):
    """A kept state of a workspace."""

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
    """What a restore did."""

    written: int = 0
    removed: int = 0
    adjusted: int = 0  # only mode, time or xattrs
    kept: tuple[str, ...] = ()  # in the way, but in no snapshot: too large or unreadable, so not removed
    missing: tuple[str, ...] = ()  # in the state, but never kept: devices and the like
