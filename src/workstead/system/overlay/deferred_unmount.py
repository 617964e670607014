"""Deferred unmount: the last unmount of an overlay syncs the whole disk, so it runs in the background.

The kernel writes the entire file system of the upper layer to the disk when its last overlay mount goes, including
unrelated files: a second for a gigabyte, during which every other sync waits too. That is unnecessary. So an unmounted
overlay is kept for a moment as a detached mount, which no process can see, and is closed in the background when the
machine is quieter, or with its process. A new mount of the same upper layer has to wait until the old one is gone: only
then does the kernel treat the new mount as its only user.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, start_new_thread

PAUSE_SECONDS = 1.0
_GOING = -1  # in place of the descriptor during the close, which takes a second in which a child may be forked

_left: dict[str, int] = {}  # upper layer -> descriptor that is the last reference to its mount
_table = allocate_lock()  # protects the dict
_closing = allocate_lock()  # locked while one mount is being closed
_forks: list[bool] = []  # non-empty once the fork handler is registered


def keep(upper: str, mount: int) -> None:
    """Take a detached mount, and close it later in the background."""
    if not _forks:
        _forks.append(True)
        os.register_at_fork(after_in_child=_forget)
    with _table:
        is_first = not _left
        _left[upper] = mount
    if is_first:
        start_new_thread(_close_later, ())


def wait_for(upper: str) -> None:
    """Wait until no mount of this upper layer is left."""
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
        if mount is not None:  # otherwise another thread has just closed it
            _left[upper] = _GOING
            os.close(mount)
            with _table:
                del _left[upper]


def _forget() -> None:
    """Reset in a forked child: it lacks the thread, its locks may stay locked forever, the mounts are its parent's."""
    global _table, _closing
    _table, _closing = allocate_lock(), allocate_lock()
    for mount in _left.values():
        if mount != _GOING:
            os.close(mount)
    _left.clear()
