"""Pool of open database connections, each used by one thread at a time.

SQLite checkpoints and deletes a write-ahead log when its last connection closes, which costs four syncs; a pooled
connection stays open until the pool is closed. Writing threads queue here, because SQLite itself makes them sleep and
poll.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _sqlite3 import Connection
    from collections.abc import Iterator


_MOST = 16  # idle connections kept open


class Pool:
    """The idle connections to one database file."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._idle: list[tuple[Connection, tuple[int, int]]] = []
        self._inherited: list[object] = []
        self._turn = allocate_lock()

    def take(self, path: str) -> tuple[Connection, tuple[int, int]] | None:
        """Return an idle connection to the file that is now at this path, with the file's identity, or None."""
        self._forget_parent()
        while self._idle:
            try:
                connection, identity = self._idle.pop()
            except IndexError:  # another thread took the last one
                return None
            if identity == identify(path):
                return connection, identity
            connection.close()  # the file was replaced
        return None

    def give(self, connection: Connection, identity: tuple[int, int] | None) -> None:
        """Return a connection to the pool, with the identity of its file; close it if it cannot be reused."""
        self._forget_parent()
        if identity is None or connection.in_transaction or len(self._idle) >= _MOST:
            connection.close()
        else:
            self._idle.append((connection, identity))

    @contextmanager
    def turn_to_write(self, wait_seconds: float) -> Iterator[None]:
        """Make this the only writing thread of this process; continue after the timeout, as SQLite has its own lock."""
        self._forget_parent()
        turn = self._turn
        is_ours = turn.acquire(timeout=wait_seconds)
        try:
            yield
        finally:
            if is_ours:
                turn.release()

    def close(self) -> None:
        """Close every idle connection."""
        self._forget_parent()
        while self._idle:
            try:
                self._idle.pop()[0].close()
            except IndexError:
                return

    def _forget_parent(self) -> None:
        """Drop the connections of a parent process after a fork: they must be neither used nor closed."""
        if self._pid != os.getpid():
            self._inherited, self._idle, self._pid = [*self._idle], [], os.getpid()
            self._turn = allocate_lock()  # a thread that does not exist in this process may have locked it


def identify(path: str) -> tuple[int, int] | None:
    """Return device and inode of a file, None if it is missing. An open file's inode number is not reused."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
