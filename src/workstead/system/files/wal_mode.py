"""Switch a SQLite database to write-ahead logging while other processes open it."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _sqlite3 import Connection

_PAUSE_SECONDS = 0.002


def use_wal(connection: Connection, wait_seconds: float) -> str:
    """Return the journal mode after the switch; raise OperationalError if others use the database for too long.

    SQLite itself does not wait here, whatever the timeout of the connection.
    """
    from _sqlite3 import SQLITE_BUSY, OperationalError

    end = time.monotonic() + wait_seconds
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except OperationalError as error:
            if error.sqlite_errorcode & 0xFF != SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(_PAUSE_SECONDS)
