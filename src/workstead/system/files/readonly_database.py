"""Read a SQLite database where nothing can be written: on a full disk, without inodes, on a read-only file system."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _sqlite3 import Connection


def connect(path: str) -> Connection:
    """Open the database for reading; raises sqlite3.Error if that is impossible without writing.

    SQLite reads a database in WAL mode with the two files beside it, and makes them if they are missing. Where it
    cannot, it reads the main file alone, which is complete as long as the write-ahead log is missing or empty.
    """
    from _sqlite3 import Error
    from _sqlite3 import connect as connect_to
    from urllib.parse import quote

    uri = f"file:{quote(os.fsencode(path))}"
    # `immutable` also ignores the locks of others, so it comes last.
    for option in ("mode=ro", "immutable=1"):
        connection: Connection = connect_to(
            f"{uri}?{option}", timeout=30.0, isolation_level=None, check_same_thread=False, uri=True
        )
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return connection
        except Error:
            connection.close()
            if option == "immutable=1" or _size(f"{path}-wal"):
                raise
    raise AssertionError("not reached")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
