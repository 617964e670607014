"""inotify: change events of directories.

A watch is on a directory itself, not on its name: it stays with the directory when that is moved, and adding a watch
for an already watched directory returns the same number. That number therefore identifies the directory better than an
inode number, which is reused as soon as it is free.
"""

from __future__ import annotations

import ctypes
import os
import struct
from errno import EINTR

from workstead.system.kernel.libc import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MODIFY, ATTRIB = 0x2, 0x4
DELETE_SELF, MOVE_SELF = 0x400, 0x800
UNMOUNT, OVERFLOW, IGNORED = 0x2000, 0x4000, 0x8000
_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
CHANGES = MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE  # changes of content and names
_ONLY_DIRECTORIES, _NOT_UNLINKED = 0x01000000, 0x04000000
_MASK = (
    (MODIFY | ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | DELETE_SELF | MOVE_SELF)
    | _ONLY_DIRECTORIES
    | _NOT_UNLINKED
)
_HEADER = struct.Struct("iIII")
_READ_BYTES = 1 << 18
_MAX_READS = 64  # limit: other processes may write faster than we read


class Inotify:
    """One inotify queue. Its descriptor is a Python file object, so garbage collection closes it."""

    def __init__(self) -> None:
        descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor < 0:
            raise _error()
        self._queue = open(descriptor, "rb", buffering=0)  # noqa: SIM115

    def close(self) -> None:
        """Close the queue with all its watches."""
        self._queue.close()

    def fileno(self) -> int:
        """Return the queue's descriptor, for poll."""
        return self._queue.fileno()

    def watch(self, folder: int) -> int:
        """Watch an open directory, independent of its name; return the number that its events carry."""
        number: int = libc.inotify_add_watch(self._queue.fileno(), b"/proc/self/fd/%d" % folder, _MASK)
        if number < 0:
            raise _error()
        return number

    def forget(self, number: int) -> None:
        """Stop watching a directory; it may be gone already."""
        libc.inotify_rm_watch(self._queue.fileno(), number)

    def wait(self, seconds: float) -> bool:
        """Return whether an event arrived within the timeout."""
        import select

        poll = select.poll()
        poll.register(self._queue.fileno(), select.POLLIN)
        return bool(poll.poll(max(0.0, seconds) * 1000))

    def notices(self) -> Iterator[tuple[int, int, str]]:
        """Yield the pending events: watch number, mask, and name in the directory ("" for the directory itself)."""
        for _ in range(_MAX_READS):
            data = self._queue.read(_READ_BYTES)
            if not data:
                return
            place = 0
            while place < len(data):
                number, mask, _, length = _HEADER.unpack_from(data, place)
                place += _HEADER.size + length
                yield number, mask, os.fsdecode(data[place - length : place].rstrip(b"\0"))


def most_watches() -> int:
    """Return the kernel's limit of inotify watches for all programs of a user together."""
    with open("/proc/sys/fs/inotify/max_user_watches", "rb") as file:
        return int(file.read())


def _error() -> OSError:
    code = ctypes.get_errno() or EINTR
    return OSError(code, os.strerror(code))
