"""The event log: append, read, follow, verify. The same on every database.

Rules:
1. Positions have no gaps and are assigned in commit order, inside a transaction that excludes every other writer. A
   reader that asks for the events after a position therefore never misses an event and never sees one twice.
2. The stream's head (version and hash) and the views change in the transaction of the append, or not at all.
3. Each event's hash covers the one before it in its stream and the stored bytes themselves: see `model/chain.py`.
   `verify` detects events that were changed, removed or inserted later.
4. An append is durable when the call returns, unless the caller says `durable=False` (a read, the progress of a run):
   then the next durable append syncs it too, and a power cut before that loses it.
"""

from __future__ import annotations

import json
import time

from workstead.errors import EventsLost, Invalid, LogBroken, VersionConflict, WrongStatus
from workstead.model.chain import GENESIS, link_of, next_hash
from workstead.model.event import EVENT_TYPES, Caller, Event
from workstead.model.verification import Verification
from workstead.model.views import project

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from typing import Any, Protocol

    from workstead.model.value import Value

    Row = tuple[Any, ...]

    class Database(Protocol):
        """The differences between SQLite and PostgreSQL. SQL is written with `?` for both."""

        def transaction(self, *, durable: bool) -> AbstractContextManager[None]:
            """Exclude other writers; commit at the end, roll back on an exception."""

        def snapshot(self) -> AbstractContextManager[None]:
            """Make all reads inside come from one consistent state, despite concurrent writes."""

        def execute(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
            """Run one statement and return all its rows."""

        def stream(self, sql: str, values: Sequence[object] = ()) -> Iterator[Row]:
            """Run one query and yield its rows as they arrive, from one consistent state."""

        def wait(self, position: int, timeout_seconds: float) -> None:
            """Return when there may be an event after `position`, or after the timeout."""

        head_path: str  # the file that `find_head` reads

        def announce(self, position: int, digest: str) -> None:
            """Wake waiting readers when this transaction commits; its last event is then the head."""

        def find_head(self) -> tuple[int, str] | None:
            """Return position and hash of the newest durable event, stored outside of the log; None if unsupported."""

        def accept(self, position: int, digest: str) -> None:
            """Make this event the head, inside a transaction."""

        def is_duplicate(self, error: Exception) -> bool:
            """Return whether the error is a unique key violation."""

        def close(self) -> None: ...


_COLUMNS = "position, stream, version, event_type, event_data, actor_id, metadata, recorded_at, hash"

# ASCII, so that file names that are not UTF-8 (lone surrogates in Python) survive every database.
_dumps = json.JSONEncoder(separators=(",", ":")).encode

# The end of the log and the head of a stream, in one query.
_END = f"""SELECT coalesce(max(position), 0),
    coalesce((SELECT version FROM streams WHERE stream = ?), 0),
    coalesce((SELECT hash FROM streams WHERE stream = ?), '{GENESIS}') FROM events"""
BATCH = 500
FEW = 500  # number of records up to which importing a faster decoder does not pay


class LabelTaken(Exception):
    """A live record already has the label; carries the kind and the label."""


class Log:
    """The source of truth about workspaces, and the views that make queries fast."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def close(self) -> None:
        """Close every connection."""
        self._database.close()

    # -- writing -------------------------------------------------------------------------------------------------------

    def append(
        self,
        stream: str,
        facts: Sequence[Value],
        caller: Caller,
        *,
        expected_version: int | None = None,
        durable: bool = True,
    ) -> list[Event]:
        """Append facts to a stream atomically, and update the views.

        Raise VersionConflict if the stream has moved on, WrongStatus if the lifecycle forbids one of the facts and
        LabelTaken if a live record has the name already. Nothing is written then.
        """
        encoded = [(EVENT_TYPES[type(fact)], fact.as_dict()) for fact in facts]
        return self.append_raw(stream, encoded, caller, expected_version=expected_version, durable=durable)

    def append_raw(
        self,
        stream: str,
        facts: Iterable[tuple[str, dict[str, Any]]],
        caller: Caller,
        *,
        expected_version: int | None = None,
        durable: bool = True,
    ) -> list[Event]:
        """Do the same as `append` for facts given as (event type, data)."""
        _check_text(stream, caller.actor_id)
        metadata = caller.metadata()
        metadata_text = _dumps(metadata)
        database = self._database
        execute = database.execute
        events = []
        with database.transaction(durable=durable):
            ((position, version, last_hash),) = execute(_END, (stream, stream))
            if expected_version is not None and expected_version != version:
                raise VersionConflict(f"stream {stream} is at version {version}, not {expected_version}")
            for event_type, data in facts:
                position += 1
                version += 1
                text = _dumps(data)
                now = _timestamp()
                link = link_of(stream, version, event_type, text, caller.actor_id, metadata_text, now)
                last_hash = next_hash(last_hash, link)
                execute(
                    f"INSERT INTO events ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)",
                    (position, stream, version, event_type, text, caller.actor_id, metadata_text, now, last_hash),
                )
                project(self, event_type, data, stream, caller.actor_id, now)
                events.append(
                    Event(
                        position=position,
                        stream=stream,
                        version=version,
                        event_type=event_type,
                        event_data=data,
                        actor_id=caller.actor_id,
                        metadata=metadata,
                        recorded_at=now,
                        hash=last_hash,
                    )
                )
            execute(
                "INSERT INTO streams (stream, version, hash) VALUES (?,?,?) "
                "ON CONFLICT (stream) DO UPDATE SET version = excluded.version, hash = excluded.hash",
                (stream, version, last_hash),
            )
            database.announce(position, last_hash)
        return events

    def fill(self, rows: Iterable[tuple[str, str, str, str, str, str]]) -> list[tuple[str, str]]:
        """Append existing events to an empty log: stream, type, data, actor, metadata and time of each.

        Return the stream and type of those that the lifecycle refuses, because events before them are missing.
        """
        execute = self._database.execute
        ends: dict[str, tuple[int, str]] = {}
        refused = []
        position, digest = 0, GENESIS
        with self._database.transaction(durable=True):
            for stream, kind, data, actor, metadata, at in rows:
                try:
                    project(self, kind, json.loads(data), stream, actor, at)
                except (WrongStatus, LabelTaken, LookupError, TypeError):
                    refused.append((stream, kind))
                    continue
                version, last = ends.get(stream, (0, GENESIS))
                position, version = position + 1, version + 1
                digest = next_hash(last, link_of(stream, version, kind, data, actor, metadata, at))
                ends[stream] = (version, digest)
                execute(
                    f"INSERT INTO events ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)",
                    (position, stream, version, kind, data, actor, metadata, at, digest),
                )
            for stream, (version, last) in ends.items():
                execute("INSERT INTO streams (stream, version, hash) VALUES (?,?,?)", (stream, version, last))
        return refused

    # -- reading -------------------------------------------------------------------------------------------------------

    def version(self, stream: str) -> int:
        """Return the number of events in the stream."""
        return int(self._database.execute(_END, (stream, stream))[0][1])

    def last_position(self) -> int:
        """Return the position of the newest event, 0 if there is none."""
        return int(self._database.execute("SELECT coalesce(max(position), 0) FROM events")[0][0])

    def read(
        self, *, after: int = 0, stream: str | None = None, types: Sequence[str] = (), limit: int | None = None
    ) -> Iterator[Event]:
        """Yield the events after a position, in order, on demand."""
        left = limit
        while left is None or left > 0:
            size = BATCH if left is None else min(left, BATCH)
            rows = self._database.execute(*_select(after, stream, types, size))
            yield from map(_event, rows)
            if len(rows) < size:
                return
            after = rows[-1][0]
            left = None if left is None else left - len(rows)

    def time_at(self, position: int) -> str:
        """Return the time of the event at a position, "" if there is none."""
        rows = self._database.execute("SELECT recorded_at FROM events WHERE position = ?", (position,))
        return str(rows[0][0]) if rows else ""

    def times(self, first: int) -> Iterator[tuple[int, str]]:
        """Yield position and time of every event from a position on."""
        yield from self._database.stream(
            "SELECT position, recorded_at FROM events WHERE position >= ? ORDER BY position", (first,)
        )

    def read_chain(self, stream: str) -> Iterator[tuple[int, str, str, str, str, str, str]]:
        """Yield version, type, data, actor, metadata, time and hash of every event of a stream, as stored."""
        after = 0
        while rows := self._database.execute(*_select(after, stream, (), BATCH)):
            for _, _, version, kind, data, actor, metadata, at, digest in rows:
                yield version, kind, data, actor, metadata, at, digest
            after = rows[-1][0]

    def follow(
        self,
        *,
        after: int | None = None,
        stream: str | None = None,
        types: Sequence[str] = (),
        until: Callable[[], bool] | None = None,
        timeout_seconds: float | None = None,
    ) -> Iterator[Event]:
        """Yield the events after a position and then each new one as it is committed.

        Start at the present when `after` is omitted. End when `until` returns True or no event came for
        `timeout_seconds`; `until` is called at least five times a second.
        """
        seen = self.last_position() if after is None else after
        idle_since = time.monotonic()
        while until is None or not until():
            newest = self.last_position()
            if newest > seen:
                for event in self.read(after=seen, stream=stream, types=types):
                    seen = event.position
                    yield event
                # Events of other streams and types were skipped; up to `newest` all are processed.
                seen = max(seen, newest)
                idle_since = time.monotonic()
            elif timeout_seconds is not None and time.monotonic() - idle_since >= timeout_seconds:
                return
            else:
                self._database.wait(seen, 0.2)

    # -- views ---------------------------------------------------------------------------------------------------------

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        """Return the record of this kind and key, or None."""
        rows = self._database.execute("SELECT data FROM views WHERE kind = ? AND key = ?", (kind, key))
        return _record(rows[0][0], kind) if rows else None

    def put(
        self, kind: str, key: str, record: dict[str, Any], *, task: str, label: str, live: bool, pending: bool
    ) -> None:
        """Replace a record; only `project` calls this, inside an append."""
        try:
            self._database.execute(
                "INSERT INTO views (kind, key, task, label, live, pending, data) VALUES (?,?,?,?,?,?,?) "
                "ON CONFLICT (key, kind) DO UPDATE SET task = excluded.task, label = excluded.label, "
                "live = excluded.live, pending = excluded.pending, data = excluded.data",
                (kind, key, task, label, int(live), int(pending), _dumps(record)),
            )
        except Exception as error:
            if self._database.is_duplicate(error):
                raise LabelTaken(kind, label) from None
            raise

    def drop(self, kind: str, key: str) -> None:
        """Delete a record; only `project` calls this, inside an append."""
        self._database.execute("DELETE FROM views WHERE kind = ? AND key = ?", (kind, key))

    def find_live(self, kind: str, label: str) -> dict[str, Any] | None:
        """Return the one live record with this label, or None."""
        rows = self._database.execute("SELECT data FROM views WHERE kind = ? AND label = ? AND live = 1", (kind, label))
        return _record(rows[0][0], kind) if rows else None

    def find_all(
        self, kind: str, *, task: str | None = None, label: str | None = None, live_only: bool = False
    ) -> list[dict[str, Any]]:
        """Return the records of a kind, ordered by key, which sorts by age."""
        sql = "SELECT key, data FROM views WHERE kind = ?"
        values = [kind]
        for column, value in (("task", task), ("label", label)):
            if value is not None:
                sql += f" AND {column} = ?"
                values.append(value)
        if live_only:
            sql += " AND live = 1"
        rows = sorted(self._database.execute(sql, values))
        decode = json.loads if len(rows) < FEW else _fast_decoder()
        return [_record(row[1], kind, decode) for row in rows]

    def find_one_each(self, kind: str, *, task: str | None = None, oldest: bool = False) -> list[dict[str, Any]]:
        """Return the newest or the oldest record of each label: of each workspace's runs, the last one."""
        chosen = f"SELECT {'min' if oldest else 'max'}(key) FROM views WHERE kind = ?"
        chosen += "" if task is None else " AND task = ?"
        rows = self._database.execute(
            f"SELECT key, data FROM views WHERE kind = ? AND key IN ({chosen} GROUP BY label)",
            [kind, kind] if task is None else [kind, kind, task],
        )
        decode = json.loads if len(rows) < FEW else _fast_decoder()
        return [_record(data, kind, decode) for _, data in sorted(rows)]

    def find_pending(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the (kind, record) pairs of steps that were begun and not ended."""
        rows = self._database.execute("SELECT kind, data FROM views WHERE pending = 1 ORDER BY key")
        return [(kind, _record(data, kind)) for kind, data in rows]

    # -- verification --------------------------------------------------------------------------------------------------

    def verify(self, progress: Callable[[int, int], None] | None = None) -> Verification:
        """Verify the whole log: positions, versions, hash chains, stream heads, and the views against the fold."""
        import gc

        # Millions of small values stay alive to the end: searching cycles among them would take most of the time.
        gc.disable()
        try:
            with self._database.snapshot():
                return _verify(self._database, progress)
        finally:
            gc.enable()

    def check_head(self) -> bool:
        """Raise EventsLost if the log does not contain its head; return False if there is no head to compare with."""
        head = self._database.find_head()  # read before the log, which only grows
        if head is None:
            return False
        position, digest = head
        if position == 0:  # an empty log was accepted
            return True
        rows = self._database.execute("SELECT hash FROM events WHERE position = ?", (position,))
        if rows == [(digest,)]:
            return True
        last = self.last_position()
        found = f"ends at position {last}" if not rows else f"has another event at position {position}"
        raise EventsLost.of(f"the event log {found}, and {self._database.head_path} says that it had {position} events")

    def accept(self) -> int:
        """Accept the log as complete after events were lost; return the position at which it ends."""
        with self._database.transaction(durable=True):
            rows = self._database.execute("SELECT position, hash FROM events ORDER BY position DESC LIMIT 1")
            position, digest = rows[0] if rows else (0, GENESIS)
            self._database.accept(position, digest)
        return int(position)

    def rebuild_views(self) -> int:
        """Rebuild every view from the events, and return the number of records."""
        with self._database.transaction(durable=True):
            records = _MemoryRecords()
            decode = _fast_decoder()
            for row in self._database.stream(f"SELECT {_COLUMNS} FROM events ORDER BY position"):
                project(records, row[3], decode(row[4]), row[1], row[5], row[7])
            self._database.execute("DELETE FROM views")
            for row in records.rows():
                self._database.execute(
                    "INSERT INTO views (kind, key, task, label, live, pending, data) VALUES (?,?,?,?,?,?,?)", row
                )
        return len(records.found)


class _MemoryRecords:
    """The views as a dict, for folding without a database."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], tuple[dict[str, Any], str, str, bool, bool]] = {}

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        entry = self.found.get((kind, key))
        return entry[0] if entry else None

    def put(
        self, kind: str, key: str, record: dict[str, Any], *, task: str, label: str, live: bool, pending: bool
    ) -> None:
        self.found[kind, key] = (record, task, label, live, pending)

    def drop(self, kind: str, key: str) -> None:
        self.found.pop((kind, key), None)

    def find_all(self, kind: str) -> list[dict[str, Any]]:
        return [entry[0] for (found, _), entry in self.found.items() if found == kind]

    def rows(self) -> Iterator[Row]:
        for (kind, key), (record, task, label, live, pending) in self.found.items():
            yield kind, key, task, label, int(live), int(pending), _dumps(record)


def _verify(database: Database, progress: Callable[[int, int], None] | None) -> Verification:
    decode = _fast_decoder()
    total = int(database.execute("SELECT count(*) FROM events")[0][0])
    heads: dict[str, tuple[int, str]] = {}
    records = _MemoryRecords()
    expected = 0
    for row in database.stream(f"SELECT {_COLUMNS} FROM events ORDER BY position"):
        position, stream, version, event_type, text, actor_id, metadata, recorded_at, digest = row
        expected += 1
        last_version, last_hash = heads.get(stream, (0, GENESIS))
        problem = None
        if position != expected:
            problem = f"position {expected} is missing"
        elif version != last_version + 1:
            problem = f"version {last_version + 1} of the stream is missing"
        elif digest != next_hash(
            last_hash, link_of(stream, version, event_type, text, actor_id, metadata, recorded_at)
        ):
            problem = "the hash does not fit the event and the one before it"
        if problem:
            return Verification(expected, len(heads), 0, _broken(position, stream, version, event_type, problem))
        heads[stream] = (version, digest)
        try:
            project(records, event_type, decode(text), stream, actor_id, recorded_at)
        except WrongStatus as error:
            return Verification(expected, len(heads), 0, _broken(position, stream, version, event_type, error.message))
        if progress and expected % 20_000 == 0:
            progress(expected, total)
    found = len(records.found)
    return Verification(expected, len(heads), found, _check_heads(database, heads) or _check_views(database, records))


def _fast_decoder() -> Callable[[str], Any]:
    """Return a msgspec decoder, with json as fallback.

    msgspec is three times faster, which matters at a million events, but it refuses lone surrogates.
    """
    from msgspec import DecodeError
    from msgspec.json import decode

    def decoder(text: str) -> Any:
        try:
            return decode(text)
        except DecodeError:
            return json.loads(text)

    return decoder


def _check_heads(database: Database, heads: dict[str, tuple[int, str]]) -> dict[str, Any] | None:
    stored = {stream: (version, digest) for stream, version, digest in database.stream("SELECT * FROM streams")}
    for stream in sorted(stored.keys() | heads.keys()):
        if stored.get(stream) != heads.get(stream):
            version = heads.get(stream, (0, ""))[0]
            problem = f"the stream's head says version {stored.get(stream, (0, ''))[0]}, its events end at {version}"
            return _broken(None, stream, version, None, problem)
    return None


def _check_views(database: Database, records: _MemoryRecords) -> dict[str, Any] | None:
    decode = _fast_decoder()
    folded = records.found
    for kind, key, task, label, live, pending, data in database.stream(
        "SELECT kind, key, task, label, live, pending, data FROM views"
    ):
        expected = folded.pop((kind, key), None)
        if expected != (decode(data), task, label, bool(live), bool(pending)):
            return _broken(None, None, None, None, f"the view of {kind} {key} is not what its events say")
    for kind, key in folded:
        return _broken(None, None, None, None, f"the view of {kind} {key} is missing")
    return None


def _broken(
    position: int | None, stream: str | None, version: int | None, kind: str | None, problem: str
) -> dict[str, Any]:
    return {"position": position, "stream": stream, "version": version, "event_type": kind, "problem": problem}


def _select(after: int, stream: str | None, types: Sequence[str], limit: int) -> tuple[str, list[object]]:
    sql = f"SELECT {_COLUMNS} FROM events WHERE position > ?"
    values: list[object] = [after]
    if stream is not None:
        sql += " AND stream = ?"
        values.append(stream)
    if types:
        sql += f" AND event_type IN ({','.join('?' * len(types))})"
        values += types
    return f"{sql} ORDER BY position LIMIT {limit}", values


def _record(text: str, kind: str, decode: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    try:
        found = decode(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise LogBroken(
            f"the event log is damaged: a record of kind {kind} cannot be read",
            hint="keep a copy of the home, then aw repair --rebuild-log: it makes the log anew from what is whole",
        )
    return found


def _event(row: Row) -> Event:
    try:
        return _whole_event(row)
    except ValueError:
        raise LogBroken(
            f"the event log is damaged: the event at position {row[0]} cannot be read",
            hint="keep a copy of the home, then aw repair --rebuild-log: it makes the log anew from what is whole",
        ) from None


def _whole_event(row: Row) -> Event:
    return Event(
        position=row[0],
        stream=row[1],
        version=row[2],
        event_type=row[3],
        event_data=json.loads(row[4]),
        actor_id=row[5],
        metadata=json.loads(row[6]),
        recorded_at=row[7],
        hash=row[8],
    )


def _timestamp() -> str:
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds // 1000:06d}Z"


def _check_text(*texts: str) -> None:
    for text in texts:
        try:
            usable = b"\0" not in text.encode()
        except UnicodeEncodeError:
            usable = False
        if not usable:
            raise Invalid(f"{text!r} cannot go into the log", hint="tasks and actors are UTF-8 text without NUL")
