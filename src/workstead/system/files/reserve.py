"""Disk space and inodes put aside in a directory, so that a full disk can still be freed.

Deleting needs a little room itself: the log writes down what is deleted, and SQLite makes two files beside a database
that is opened (`-wal`, `-shm`). The reserve is released when that room is missing and made again when there is some.
"""

from __future__ import annotations

import os

_BYTES = 1 << 20
_INODES = ("reserve.1", "reserve.2")  # empty files


def make(directory: str) -> None:
    """Put the room aside unless that is done already; on a full disk there is no reserve."""
    path = f"{directory}/reserve"
    try:
        if os.stat(path).st_size >= _BYTES:
            return
    except OSError:
        pass
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        for name in _INODES:
            os.close(os.open(f"{directory}/{name}", flags, 0o600))
        descriptor = os.open(path, flags, 0o600)  # last: its size says that the reserve is complete
        try:
            os.posix_fallocate(descriptor, 0, _BYTES)
        finally:
            os.close(descriptor)
    except OSError:
        use(directory)


def use(directory: str) -> bool:
    """Return the room to the disk; False if there was none."""
    released = False
    for name in ("reserve", *_INODES):
        try:
            os.unlink(f"{directory}/{name}")
            released = True
        except OSError:
            continue
    return released
