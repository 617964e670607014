"""Recover the intact events of a damaged SQLite log.

The file is copied first, so that SQLite recovers the copy and the damaged one stays unchanged. An event counts as
intact when its hash fits its own content and the hash of the event before it in its stream.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, suppress

from workstead.model.chain import GENESIS, link_of, next_hash

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from workstead.store.log import Row

_COLUMNS = "position, stream, version, event_type, event_data, actor_id, metadata, recorded_at, hash"
SUFFIXES = ("", "-wal")


def read_whole(path: str, scratch: str, newest: int) -> tuple[list[Row], int]:
    """Return the intact events of the log at `path` in order, and the number of damaged rows.

    `scratch` is a directory for the copy, which is removed again; `newest` is the last position to look for if a
    damaged page keeps SQLite from finding it.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    os.mkdir(scratch, 0o700)
    try:
        for suffix in SUFFIXES:
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", f"{scratch}/log.db{suffix}")
        rows = _rows(f"{scratch}/log.db", newest)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    hashes = {(row[1], row[2]): row[8] for row in rows}
    whole = [row for row in rows if _is_whole(row, hashes)]
    return whole, len(rows) - len(whole)


def _rows(path: str, newest: int) -> list[Row]:
    found: dict[int, Row] = {}
    try:
        with closing(sqlite3.connect(path)) as database:
            for row in _in_order(database):
                found[row[0]] = row
            last = max(found, default=0)
            for position in range(last + 1, newest + 1):  # after the first damaged page
                with suppress(sqlite3.Error):
                    query = f"SELECT {_COLUMNS} FROM events NOT INDEXED WHERE position = ?"
                    found.update({row[0]: row for row in database.execute(query, (position,))})
    except sqlite3.Error:
        pass
    return [found[position] for position in sorted(found)]


def _in_order(database: sqlite3.Connection) -> Iterator[Row]:
    with suppress(sqlite3.Error):
        yield from database.execute(f"SELECT {_COLUMNS} FROM events NOT INDEXED ORDER BY position")


def _is_whole(row: Row, hashes: dict[tuple[str, int], str]) -> bool:
    _, stream, version, kind, data, actor, metadata, at, digest = row
    try:
        before = GENESIS if version == 1 else hashes.get((stream, version - 1))
        return before is not None and digest == next_hash(
            before, link_of(stream, version, kind, data, actor, metadata, at)
        )
    except (TypeError, UnicodeEncodeError):  # a value of another type than we store
        return False
