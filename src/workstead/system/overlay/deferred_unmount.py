"""Mounts on their way out.

The last mount of an overlay to go first writes the whole file system of its upper layer to the disk, everybody's files
included: a second for a gigabyte, and whoever syncs anything meanwhile waits too. Nobody needs that. So a mount that
was taken away lives on for a moment as one that nobody can see, and goes in the background when things are quieter, or
with its process. Whoever wants to mount the same upper layer again waits until it is gone: only then does the kernel
know the next mount as the only user of it.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, start_new_thread

PAUSE_SECONDS = 1.0
_GOING = -1  # instead of a descriptor, while it is closed: a second, in which a child may be forked

_left: dict[str, int] = {}  # upper layer -> the mount, by a descriptor that is the last thing that holds it
_table = allocate_lock()  # for a look at the dict
_closing = allocate_lock()  # for as long as one of them takes
_forks: list[bool] = []  # whether children were told about


def keep(upper: str, mount: int) -> None:
    """Take a mount that nobody sees any more, and let it go later."""
    if not _forks:
        _forks.append(True)
        os.register_at_fork(after_in_child=_forget)
    with _table:
        is_first = not _left
        _left[upper] = mount
    if is_first:
        start_new_thread(_close_later, ())


def wait_for(upper: str) -> None:
    """Go on when no mount of this upper layer is left."""
    if upper in _left:
        _close(upper)


def _close_later() -> None:
    from time import sleep

    while True:
        sleep(PAUSE_SECONDS)
        with _table:
            uppers = list(_left)
        for upper in uppers:
            _close(upper)
        with _table:
            if not _left:
                return


def _close(upper: str) -> None:
    with _closing:
        mount = _left.get(upper)
        if mount is not None:  # else another thread has just done it
            _left[upper] = _GOING
            os.close(mount)
            with _table:
                del _left[upper]


def _forget() -> None:
    """In a forked child: the thread is not there, its locks may be held for ever, and the mounts are its parent's."""
    global _table, _closing
    _table, _closing = allocate_lock(), allocate_lock()
    for mount in _left.values():
        if mount != _GOING:
            os.close(mount)
    _left.clear()
