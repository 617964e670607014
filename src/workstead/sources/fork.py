"""A workspace from another one: all of its files, uncommitted and ignored ones too."""

from __future__ import annotations

from workstead.system.overlay import forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.model.source import Filled, FillOptions, Place


def fork(
    parent: Filled, parent_place: Place, place: Place, options: FillOptions, progress: Callable[[str], None]
) -> tuple[Filled, Filled]:
    """Fill `place` from a live workspace; return the record of the fork, and the new record of its parent.

    The parent's record changes when its changes become a layer that both share. Its stack file already says so: a crash
    before the new record is written loses nothing.
    """
    if parent.origin.get("kind") == "folder" and not parent.origin.get("forked"):
        from workstead.sources import overlay

        # A folder used in place: the fork is a copy, whose changes can be applied to the folder.
        copy = overlay.lay(parent.origin["path"], place, options, progress, mounted=False)
        return copy.replace(origin={**copy.origin, "forked": True}), parent
    above: list[str] = []
    if parent.origin.get("kind") == "worktree" and not parent.origin.get("forked"):
        from workstead.sources import worktree

        above = [worktree.private_layer(parent, place)]
    return forking.fork(parent, parent_place, place, choice=options.mechanism, above=above, progress=progress)
