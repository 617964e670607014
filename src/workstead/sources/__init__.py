"""Where the files of a workspace come from: one driver for each kind of source.

A driver is a module with `fill`. It gets values and paths, and makes `work/` under `place.root`, which is a staging
directory that the caller renames into place afterwards; then the caller calls `attach`. A fork is filled from a second
workspace, by a function of its own: `sources.fork.fork`. An archive brings states and a history too: see `archives/`.
"""

from __future__ import annotations

from workstead.errors import InvalidSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.model.source import Filled, FillOptions, Place, Source


class Driver:
    """One kind of source; its module is imported when it fills, so that `aw create` pays for one and not for all."""

    def __init__(self, name: str) -> None:
        self.name = name

    def fill(self, source: Source, place: Place, options: FillOptions, progress: Callable[[str], None]) -> Filled:
        """Make `work/` in the staging directory; raises what is wrong with the source."""
        module = __import__(f"workstead.sources.{self.name}", fromlist=["fill"])  # importlib would cost a millisecond
        filled: Filled = module.fill(source, place, options, progress)
        return filled


SOURCES: dict[str, Driver] = {
    "empty": Driver("empty"),
    "clone": Driver("clone"),
    "worktree": Driver("worktree"),
    "folder": Driver("folder"),
    "overlay": Driver("overlay"),
    "template": Driver("template"),
}


def driver_of(source: Source) -> Driver:
    """The driver of a source, or InvalidSource if there is none that fills by itself."""
    found = SOURCES.get(source.kind)
    if found is None:
        raise InvalidSource(
            f"a workspace cannot be made from {source.kind}: here",
            hint=f"one of {', '.join(SOURCES)}",
            details={"kind": source.kind},
        )
    return found


def attach(filled: Filled, place: Place) -> None:
    """See to it that `work/` shows the files, whatever happened to the mount; costs two stats if it does."""
    from workstead.system.overlay import layers

    layers.attach(filled, place)
    if _is_registered(filled):
        from workstead.sources import worktree

        worktree.point_back(filled, place)


def refresh(filled: Filled, place: Place) -> None:
    """See to it that `work/` shows all that the workspace has, whatever happened to the folder below."""
    from workstead.system.overlay import layers

    layers.refresh(filled, place)


def detach(filled: Filled, place: Place) -> bool:
    """Unmount, also when busy, before the workspace is renamed or removed; False if somebody may still write."""
    from workstead.system.overlay import layers

    return layers.detach(filled, place)


def release(filled: Filled, place: Place) -> None:
    """Give back what a workspace holds elsewhere, when it is gone for good: layers, an entry in a repository."""
    from workstead.system.overlay import copying

    detach(filled, place)
    if _is_registered(filled):
        from workstead.sources import worktree

        worktree.unregister(filled)
    copying.remove_tree(place.layers)


def _is_registered(filled: Filled) -> bool:
    return filled.origin.get("kind") == "worktree" and not filled.origin.get("forked")
