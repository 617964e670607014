"""Sources of a workspace's files: one driver for each kind of source.

A driver is a module with `fill`. It gets values and paths, and creates `work/` under `place.root`, a staging directory
that the caller renames into place afterwards; then the caller calls `attach`. A fork is filled from a second workspace,
by a function of its own: `sources.fork.fork`. An archive also has snapshots and a history: see `archives/`.
"""

from __future__ import annotations

from workstead.errors import InvalidSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.model.source import Filled, FillOptions, Place, Source


class Driver:
    """One kind of source; its module is imported on first use, so that `aw create` imports only one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def fill(self, source: Source, place: Place, options: FillOptions, progress: Callable[[str], None]) -> Filled:
        """Create `work/` in the staging directory; raise the errors of the source."""
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
    """Return the driver of a source; raise InvalidSource if it has no driver of its own."""
    found = SOURCES.get(source.kind)
    if found is None:
        raise InvalidSource(
            f"a workspace cannot be made from {source.kind}: here",
            hint=f"one of {', '.join(SOURCES)}",
            details={"kind": source.kind},
        )
    return found


def attach(filled: Filled, place: Place) -> None:
    """Ensure that `work/` shows the files, mounting it if necessary; costs two stats if it is mounted."""
    from workstead.system.overlay import layers

    layers.attach(filled, place)
    if _is_registered(filled):
        from workstead.sources import worktree

        worktree.point_back(filled, place)


def refresh(filled: Filled, place: Place) -> None:
    """Ensure that `work/` shows all files of the workspace, even if the folder below was changed or deleted."""
    from workstead.system.overlay import layers

    layers.refresh(filled, place)


def detach(filled: Filled, place: Place) -> bool:
    """Unmount, even if busy, before the workspace is renamed or removed; False if a process may still write."""
    from workstead.system.overlay import layers

    return layers.detach(filled, place)


def release(filled: Filled, place: Place) -> None:
    """Release external resources of a workspace that is gone for good: layers, an entry in a repository."""
    from workstead.system.overlay import copying

    detach(filled, place)
    if _is_registered(filled):
        from workstead.sources import worktree

        worktree.unregister(filled)
    copying.remove_tree(place.layers)


def _is_registered(filled: Filled) -> bool:
    return filled.origin.get("kind") == "worktree" and not filled.origin.get("forked")
