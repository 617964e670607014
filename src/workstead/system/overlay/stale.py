"""Detect stale overlay mounts, which list a directory as empty because its lower directory was deleted.

It happens when a user deletes a directory of the folder below an overlay, or checks out another branch there. If the
workspace has files of its own in that directory, the kernel keeps the merged directory cached and lists neither side:
the agent's files exist, but are invisible. A remount repairs it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ORIGIN = {"trusted.overlay.origin", "user.overlay.origin"}
_DEEPEST = 100  # two descriptors for each level; only directories that the folder had, too, are entered


def is_stale(own: Iterable[str], view: str) -> bool:
    """Return whether a directory of the view lists nothing although one of the workspace's own layers has entries."""
    try:
        with _opened(view) as seen:
            for layer in own:
                with _opened(layer) as top:
                    if _has_lost_sight(top, seen, 0):
                        return True
    except OSError:
        return False  # being removed right now; it is mounted when it is needed
    return False


@contextmanager
def _opened(path: str, above: int | None = None) -> Iterator[int]:
    fd = os.open(path, _OPEN, dir_fd=above)
    try:
        yield fd
    finally:
        os.close(fd)


def _has_lost_sight(layer: int, view: int, depth: int) -> bool:
    with os.scandir(layer) as found:
        names = {each.name: each.is_dir(follow_symlinks=False) for each in found}
    if names and not _lists_anything(view):
        return any(_is_there(view, name) for name in names)
    folders = [name for name, is_folder in names.items() if is_folder]
    return depth < _DEEPEST and any(_has_lost_below(layer, view, name, depth) for name in folders)


def _has_lost_below(layer: int, view: int, name: str, depth: int) -> bool:
    try:
        with _opened(name, layer) as below:
            if not _is_of_both(below):
                return False
            with _opened(name, view) as seen:
                return _has_lost_sight(below, seen, depth + 1)
    except OSError:  # another kind of entry in a layer above, or just removed
        return False


def _lists_anything(fd: int) -> bool:
    with os.scandir(fd) as names:
        return next(names, None) is not None


def _is_there(fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def _is_of_both(fd: int) -> bool:
    """Return whether a lower layer had this directory when the workspace began to change it.

    Otherwise it is the workspace's own, with everything in it: the output of a build or installation is not searched.
    """
    return not _ORIGIN.isdisjoint(os.listxattr(fd))
