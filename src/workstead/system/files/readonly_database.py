"""Read a SQLite database where nothing can be written: on a full disk, without inodes, on a read-only file system."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _sqlite3 import Connection


def connect(path: str) -> Connection:
    """Open the database for reading; raise sqlite3.Error if that is impossible without writing.

    SQLite reads a database in WAL mode with the two files beside it, and creates them if they are missing. Where it
    cannot, the fallback reads the main file alone, which is complete if the write-ahead log is missing or empty.
    """
    from _sqlite3 import Error
    from _sqlite3 import connect as connect_to
    from urllib.parse import quote

    uri = f"file:{quote(os.fsencode(path))}"
    # `immutable` also ignores locks of other processes, so it is tried last.
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
