"""Views that have lost sight of a directory.

Somebody removes a directory of the folder below an overlay, or goes to another branch there. Where the workspace has
files of its own in that directory the kernel keeps both for one, and lists neither any more: the agent's files are
there, and nobody sees them. Mounting anew heals it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ORIGIN = {"trusted.overlay.origin", "user.overlay.origin"}
_DEEPEST = 100  # two descriptors for each level; only directories that the folder had, too, are gone into


def is_stale(own: Iterable[str], view: str) -> bool:
    """Whether a directory of the view lists nothing, though it has what one of the workspace's own layers has in it."""
    try:
        with _opened(view) as seen:
            for layer in own:
                with _opened(layer) as top:
                    if _has_lost_sight(top, seen, 0):
                        return True
    except OSError:
        return False  # it goes this moment, and is mounted when it is needed
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
    except OSError:  # something else in a layer above, or gone this moment
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
    """Whether a layer below had this directory when the workspace began to change it. Else it is its own, as all in it:
    what a build or an installation made is not looked through."""
    return not _ORIGIN.isdisjoint(os.listxattr(fd))
