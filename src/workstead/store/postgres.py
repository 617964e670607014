"""The log in PostgreSQL, for homes on many machines.

Sequences hand out numbers before commit, so a reader that follows them misses events. Appends therefore take one
advisory lock for the length of their transaction: positions are given and committed in the same order.
"""

from __future__ import annotations

import os
from _thread import _local
from contextlib import contextmanager

from workstead.errors import DiskFull, StoreUnavailable, ToolMissing, WorksteadError
from workstead.installation import install_command

try:
    import psycopg
except ImportError as missing:
    raise ToolMissing(
        "store.url names PostgreSQL, and its driver is not installed", hint=install_command("postgres")
    ) from missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from workstead.store.log import Row

# The schema and the channel keep the first name of the project, so that databases of older versions open.
# Each entry brings the schema from its index to the next version. Entries are never changed, only added.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE carrel.events (
            position bigint PRIMARY KEY, stream text COLLATE "C" NOT NULL, version bigint NOT NULL,
            event_type text NOT NULL, event_data text NOT NULL, actor_id text NOT NULL, metadata text NOT NULL,
            recorded_at text NOT NULL, hash text NOT NULL)""",
        "CREATE UNIQUE INDEX events_by_stream ON carrel.events (stream, position)",
        "CREATE INDEX events_by_type ON carrel.events (event_type, position)",
        """CREATE TABLE carrel.streams (
            stream text COLLATE "C" PRIMARY KEY, version bigint NOT NULL, hash text NOT NULL)""",
        """CREATE TABLE carrel.views (
            kind text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, task text COLLATE "C" NOT NULL,
            label text COLLATE "C" NOT NULL, live integer NOT NULL, pending integer NOT NULL, data text NOT NULL,
            PRIMARY KEY (key, kind))""",
        "CREATE INDEX views_by_task ON carrel.views (task, kind)",
        "CREATE UNIQUE INDEX views_live ON carrel.views (kind, label) WHERE live = 1",
        "CREATE INDEX views_pending ON carrel.views (pending) WHERE pending = 1",
    ),
    ("CREATE INDEX views_by_kind ON carrel.views (kind, label)",),
)
LOCK = 0x43415252454C  # the ASCII codes of the first name of the project: one writer at a time in this database
CHANNEL = "carrel_events"


class Postgres:
    """A PostgreSQL database as the database of the log."""

    head_path = ""

    def __init__(self, url: str, migrations: tuple[tuple[str, ...], ...] = MIGRATIONS) -> None:
        self._url = url
        self._local = _local()
        self._open: list[tuple[int, psycopg.Connection[Row]]] = []
        try:
            self._migrate(migrations)
        except BaseException:
            self.close()
            raise

    def _migrate(self, migrations: tuple[tuple[str, ...], ...]) -> None:
        if self._version() == len(migrations):
            return
        with self.transaction(durable=True):
            self.execute("CREATE SCHEMA IF NOT EXISTS carrel")
            self.execute("CREATE TABLE IF NOT EXISTS carrel.schema (version integer NOT NULL)")
            version = self._version()
            if version > len(migrations):
                raise StoreUnavailable(
                    f"the event log has schema {version}, and this version of Workstead knows {len(migrations)}",
                    hint="a newer Workstead has used this database: upgrade this one",
                )
            for step in migrations[version:]:
                for statement in step:
                    self.execute(statement)
            self.execute("DELETE FROM carrel.schema")
            self.execute("INSERT INTO carrel.schema VALUES (?)", (len(migrations),))

    def _version(self) -> int:
        if not self.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'carrel' AND tablename = 'schema'"):
            return 0
        rows = self.execute("SELECT version FROM carrel.schema")
        return int(rows[0][0]) if rows else 0

    def _connection(self, role: str = "main") -> psycopg.Connection[Row]:
        pid, found = getattr(self._local, role, (0, None))
        if found is None or pid != os.getpid() or found.closed:  # a connection must not cross a fork
            with _errors():
                found = psycopg.connect(self._url, autocommit=True, connect_timeout=10)
                found.execute("SET search_path TO carrel, pg_catalog")
            setattr(self._local, role, (os.getpid(), found))
            self._open.append((os.getpid(), found))
        return found

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[None]:
        """Run the body in one transaction that excludes other writers."""
        connection = self._connection()
        with _errors(), connection.transaction():
            if not durable:
                connection.execute("SET LOCAL synchronous_commit = off")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read from one state, whatever others commit meanwhile."""
        connection = self._connection()
        with _errors(), connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement and give all its rows."""
        with _errors():
            cursor = self._connection().execute(sql.replace("?", "%s").encode(), values)
            return cursor.fetchall() if cursor.description else []

    def stream(self, sql: str, values: Sequence[object] = ()) -> Iterator[Row]:
        """Give the rows as they come, through a cursor on the server."""
        connection = self._connection()
        with _errors(), connection.transaction(), connection.cursor(name="workstead_stream") as cursor:
            cursor.itersize = 5000
            cursor.execute(sql.replace("?", "%s").encode(), values)
            yield from cursor

    def wait(self, position: int, timeout_seconds: float) -> None:
        """Sleep until a commit is announced; a look after listening closes the gap before it."""
        connection = self._connection("listener")
        with _errors():
            if getattr(self._local, "listening", None) is not connection:
                connection.execute(f"LISTEN {CHANNEL}".encode())
                self._local.listening = connection
            if self.execute("SELECT coalesce(max(position), 0) FROM events")[0][0] > position:
                return
            for _ in connection.notifies(timeout=timeout_seconds, stop_after=1):
                return

    def announce(self, position: int, digest: str) -> None:
        """Wake the followers at commit; only the position travels."""
        self.execute(f"SELECT pg_notify('{CHANNEL}', ?)", (str(position),))

    def find_head(self) -> None:
        """No head: the server looks after its own files."""

    def accept(self, position: int, digest: str) -> None:
        """Nothing to do without a head."""

    def is_duplicate(self, error: Exception) -> bool:
        """Whether a unique key was hit."""
        return isinstance(error, psycopg.errors.UniqueViolation)

    def close(self) -> None:
        """Close the connections of every thread."""
        for pid, connection in self._open:
            if pid == os.getpid():
                connection.close()
        self._open.clear()
        self._local = _local()


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.UniqueViolation:
        raise
    except psycopg.Error as error:
        raise _translate(error) from error


def _translate(error: psycopg.Error) -> WorksteadError:
    # The driver's message may hold the address, never the password; only its first line is for people.
    text = str(error).strip().splitlines()
    what = f"PostgreSQL: {text[0] if text else type(error).__name__}"
    if isinstance(error, psycopg.errors.DiskFull):
        return DiskFull(what, hint="free some space on the database server")
    return StoreUnavailable(what, hint="check store.url, and that the server runs and lets you in")
