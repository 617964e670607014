"""Reserve disk space and inodes in a directory, so that files can be deleted even on a full disk.

Deleting needs a little space itself: the log records the deletion, and SQLite creates two files beside a database when
it opens it (`-wal`, `-shm`). The reserve is released when that space is missing, and made again when there is some.
"""

from __future__ import annotations

import os

_BYTES = 1 << 20
_INODES = ("reserve.1", "reserve.2")  # empty files


def make(directory: str) -> None:
    """Make the reserve unless it exists; on a full disk there is none."""
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
        descriptor = os.open(path, flags, 0o600)  # last: its size proves that the reserve is complete
        try:
            os.posix_fallocate(descriptor, 0, _BYTES)
        finally:
            os.close(descriptor)
    except OSError:
        use(directory)


def use(directory: str) -> bool:
    """Release the reserve; return False if there was none."""
    released = False
    for name in ("reserve", *_INODES):
        try:
            os.unlink(f"{directory}/{name}")
            released = True
        except OSError:
            continue
    return released
