"""The log in PostgreSQL, for homes on many machines.

Sequences assign numbers before commit, so a reader that follows them misses events. Appends therefore take one advisory
lock for the length of their transaction: positions are assigned and committed in the same order.

Every wait has a timeout. A client that was stopped in the middle of a transaction keeps the lock: others get an error
that names it after LOCK_SECONDS, and the server ends that transaction after IDLE_SECONDS. A machine that vanished from
the network is detected by TCP keepalives. A connection that died while idle, because the server was restarted, is
replaced before it is used, so that a long-lived process needs no restart of its own.
"""

from __future__ import annotations

import os
import select
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
    from typing import Any

    from workstead.store.log import Row

# The schema and the channel keep the first name of the project, so that databases of older versions open. Each entry
# migrates the schema from its index to the next version. Entries are never changed, only added.
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
LOCK_SECONDS = 20  # a transaction takes milliseconds
IDLE_SECONDS = 60  # until the server ends an idle transaction
_NETWORK = {  # defaults that the URL may override
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_SESSION = (
    "SET search_path TO carrel, pg_catalog; "
    f"SET lock_timeout TO '{LOCK_SECONDS}s'; "
    f"SET idle_in_transaction_session_timeout TO '{IDLE_SECONDS}s'"
)
_HOLDER = """SELECT a.application_name, coalesce(host(a.client_addr), 'the same machine'), a.pid
    FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.granted
    AND l.classid = %s AND l.objid = %s
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


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
        if found is None or pid != os.getpid() or found.closed or _is_dead(role, found):  # not across a fork
            if found is not None and pid == os.getpid():
                found.close()
                self._open = [each for each in self._open if each[1] is not found]
            with _errors():
                found = self._connect()
            setattr(self._local, role, (os.getpid(), found))
            self._open.append((os.getpid(), found))
        return found

    def _connect(self) -> psycopg.Connection[Row]:
        asked = psycopg.conninfo.conninfo_to_dict(self._url)
        defaults: dict[str, Any] = {name: value for name, value in _NETWORK.items() if name not in asked}
        who = f"workstead {os.uname().nodename} process {os.getpid()}"[:63]
        connection = psycopg.connect(self._url, autocommit=True, application_name=who, **defaults)
        connection.execute(_SESSION)
        return connection

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[None]:
        """Run the body in one transaction that excludes other writers."""
        connection = self._connection()
        with _errors(), connection.transaction():
            if not durable:
                connection.execute("SET LOCAL synchronous_commit = off")
            try:
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            except psycopg.errors.LockNotAvailable as error:
                raise self._locked() from error
            yield

    def _locked(self) -> StoreUnavailable:
        """Return why the lock was not granted, using another connection: the transaction of this one has failed."""
        with _errors(), self._connect() as connection:
            rows = connection.execute(_HOLDER, (LOCK >> 32, LOCK & 0xFFFFFFFF)).fetchall()
        name, address, pid = rows[0] if rows else ("another client", "an unknown address", 0)
        return StoreUnavailable(
            f"the event log is locked for {LOCK_SECONDS} seconds by {name or 'a client'} at {address} "
            f"(backend {pid} of the PostgreSQL server)",
            hint="let that process go on (kill -CONT PID) or end it, then try again; "
            f"the server ends its transaction after {IDLE_SECONDS} seconds without a word",
        )

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read from one consistent state, despite concurrent commits."""
        connection = self._connection()
        with _errors(), connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement and return all its rows."""
        with _errors():
            cursor = self._connection().execute(sql.replace("?", "%s").encode(), values)
            return cursor.fetchall() if cursor.description else []

    def stream(self, sql: str, values: Sequence[object] = ()) -> Iterator[Row]:
        """Yield the rows as they arrive, through a cursor on the server."""
        connection = self._connection()
        with _errors(), connection.transaction(), connection.cursor(name="workstead_stream") as cursor:
            cursor.itersize = 5000
            cursor.execute(sql.replace("?", "%s").encode(), values)
            yield from cursor

    def wait(self, position: int, timeout_seconds: float) -> None:
        """Sleep until a commit is announced; a query after LISTEN closes the race with an earlier commit."""
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
        """Notify the followers at commit; only the position is sent."""
        self.execute(f"SELECT pg_notify('{CHANNEL}', ?)", (str(position),))

    def find_head(self) -> None:
        """Return None: the server protects its own files."""

    def accept(self, position: int, digest: str) -> None:
        """Do nothing: there is no head."""

    def is_duplicate(self, error: Exception) -> bool:
        """Return whether the error is a unique key violation."""
        return isinstance(error, psycopg.errors.UniqueViolation)

    def close(self) -> None:
        """Close the connections of every thread."""
        for pid, connection in self._open:
            if pid == os.getpid():
                connection.close()
        self._open.clear()
        self._local = _local()


def _is_dead(role: str, connection: psycopg.Connection[Row]) -> bool:
    """Return whether the server closed an idle connection: its socket is readable without a query."""
    if role == "listener" or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return False  # a listener gets notifications without a query
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.UniqueViolation:
        raise
    except psycopg.Error as error:
        raise _translate(error) from error


def _translate(error: psycopg.Error) -> WorksteadError:
    # The driver's message may contain the address, never the password; only its first line is for people.
    text = str(error).strip().splitlines()
    what = f"PostgreSQL: {text[0] if text else type(error).__name__}"
    if isinstance(error, psycopg.errors.DiskFull):
        return DiskFull(what, hint="free some space on the database server")
    return StoreUnavailable(what, hint="check store.url, and that the server runs and lets you in")
