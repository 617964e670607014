"""The log in one SQLite file of the home.

WAL mode, one connection per thread. Writers queue at a lock file first: SQLite alone would let them sleep and poll,
which is unfair and slow when many processes append; the kernel wakes the next one at once. The threads of one process
queue among themselves, and the first of them waits for the lock file. A process that was stopped (SIGSTOP, a debugger)
while it holds the lock would block all others, so the wait has a timeout and the error names that process.

Group commit: SQLite commits without a sync, and a durable append syncs the write-ahead log after the lock is released.
Concurrent threads share one sync; for concurrent processes the disk writes once. A later sync of the file covers
everything appended before, and a checkpoint syncs before it moves anything: the log never contains an event without the
events before it.
"""

from __future__ import annotations

import fcntl
import os
import time
from _thread import _local, allocate_lock, get_native_id, start_new_thread
from contextlib import contextmanager, suppress
from errno import ENOSPC, EROFS

from workstead.errors import (
    DiskFull,
    FilesystemError,
    Invalid,
    PermissionDenied,
    StoreUnavailable,
    WorksteadError,
    from_os,
)
from workstead.model.shared_call import SharedCall
from workstead.store import head

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Sequence

    from workstead.store.log import Row

    Look = Callable[[str], sqlite3.Connection]
else:
    # `sqlite3` adds date converters, whose import takes two milliseconds.
    try:
        import _sqlite3 as sqlite3
    except ImportError:
        import sqlite3

# Each entry migrates the schema from its index to the next version. Entries are never changed, only added.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE events (
            position INTEGER PRIMARY KEY, stream TEXT NOT NULL, version INTEGER NOT NULL, event_type TEXT NOT NULL,
            event_data TEXT NOT NULL, actor_id TEXT NOT NULL, metadata TEXT NOT NULL, recorded_at TEXT NOT NULL,
            hash TEXT NOT NULL)""",
        "CREATE UNIQUE INDEX events_by_stream ON events (stream, position)",
        "CREATE INDEX events_by_type ON events (event_type, position)",
        "CREATE TABLE streams (stream TEXT PRIMARY KEY, version INTEGER NOT NULL, hash TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE views (
            kind TEXT NOT NULL, key TEXT NOT NULL, task TEXT NOT NULL, label TEXT NOT NULL, live INTEGER NOT NULL,
            pending INTEGER NOT NULL, data TEXT NOT NULL, PRIMARY KEY (key, kind)) WITHOUT ROWID""",
        "CREATE INDEX views_by_task ON views (task, kind)",
        "CREATE UNIQUE INDEX views_live ON views (kind, label) WHERE live = 1",
        "CREATE INDEX views_pending ON views (pending) WHERE pending = 1",
    ),
    ("CREATE INDEX views_by_kind ON views (kind, label)",),
)
BUSY_SECONDS = 60.0
_HASH = "SELECT hash FROM events WHERE position = ?"
LOCK_SECONDS = 20.0  # a transaction takes milliseconds


class Sqlite:
    """A SQLite file as the database of the log."""

    def __init__(
        self, path: str, migrations: tuple[tuple[str, ...], ...] = MIGRATIONS, *, look: Look | None = None
    ) -> None:
        self._path = path
        self._look = look  # opens the file read-only
        self.head_path = f"{path}.head"
        self._local = _local()
        self._open: list[_Connection] = []
        self._threads = _Threads()
        try:
            self._migrate(migrations)
        except BaseException:
            self.close()
            raise

    def _migrate(self, migrations: tuple[tuple[str, ...], ...]) -> None:
        version = self._version()
        if version == len(migrations):
            return
        if version < len(migrations):
            with self.transaction(durable=True):
                # Another process may have migrated while we waited for the lock.
                for step in migrations[self._version() :]:
                    for statement in step:
                        self.execute(statement)
                self.execute(f"PRAGMA user_version = {len(migrations)}")
            return
        raise StoreUnavailable(
            f"the event log has schema {version}, and this version of Workstead knows {len(migrations)}",
            hint="a newer Workstead has used this home: upgrade this one, or choose another --home",
        )

    def _version(self) -> int:
        return int(self.execute("PRAGMA user_version")[0][0])

    def _connection(self, *, to_write: bool = False) -> _Connection:
        found: _Connection | None = getattr(self._local, "connection", None)
        if found is not None and found.is_read_only and to_write:  # the disk may have space again
            self._drop(found)
            found = None
        if found is None or found.pid != os.getpid():  # a connection must not be used across a fork
            self._close_orphans()
            found = self._local.connection = self._connect(to_write=to_write)
            self._open.append(found)
        return found

    def _connect(self, *, to_write: bool) -> _Connection:
        """Return a connection, read-only if the disk is full or read-only: reading must stay possible then."""
        try:
            return _Connection(self._path)
        except (DiskFull, FilesystemError):
            if to_write or self._look is None:
                raise
            with suppress(WorksteadError):  # the first error has the reason
                return _Connection(self._path, self._look)
            raise

    def _of_this_process(self) -> _Threads:
        if self._threads.pid != os.getpid():  # after a fork, locks may be held by threads of the parent
            self._threads = _Threads()
        return self._threads

    def _drop(self, connection: _Connection) -> None:
        self._local.connection = None
        with suppress(ValueError):
            self._open.remove(connection)
        connection.close()

    def _close_orphans(self) -> None:
        """Close the connections of threads that have ended: those of a server come and go."""
        pid, own = os.getpid(), get_native_id()
        for connection in list(self._open):
            # Ask the kernel: Python's own list of threads can block forever while it is built. Connections of a parent
            # process are kept, because dropping the last reference would close them.
            is_gone = connection.thread == own or not os.path.exists(f"/proc/self/task/{connection.thread}")
            if connection.pid == pid and is_gone:
                with suppress(ValueError):  # another thread was faster
                    self._open.remove(connection)
                    connection.close()

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[None]:
        """Queue for the write lock, run the body in one transaction, sync at the end if it has to be durable."""
        connection = self._connection(to_write=True)
        threads = self._of_this_process()
        with threads.enter(connection.lock):
            with _errors(self._path):
                _take(connection.lock)
            try:
                with _errors(self._path):
                    connection.execute("BEGIN IMMEDIATE")
                connection.newest = None
                try:
                    yield
                except BaseException:
                    connection.rollback()
                    raise
                with _errors(self._path):
                    try:
                        connection.execute("COMMIT")
                    except sqlite3.Error:
                        connection.rollback()
                        raise
            finally:
                fcntl.flock(connection.lock, fcntl.LOCK_UN)
        if durable:
            try:
                threads.sync.run(connection.sync)
            except OSError as error:
                # Never DiskFull: the facts are committed, and a caller that frees space and retries would write them
                # twice.
                raise FilesystemError(
                    f"the event log at {self._path} cannot be synced: {error.strerror}",
                    hint="the disk may be full or failing: see df and dmesg, then aw list",
                ) from error
            if connection.newest:
                # Without the lock: an older head that is written late is valid too.
                with suppress(OSError):  # the event is durable even if the head is not written
                    head.write(self.head_path, *connection.newest)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read from one state: in WAL mode a read transaction does not see later commits, and blocks no writer."""
        connection = self._connection()
        with _errors(self._path):
            connection.execute("BEGIN")
        try:
            yield
        finally:
            connection.rollback()

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement and return all its rows."""
        connection = self._connection()
        try:
            return connection.execute(sql, values).fetchall()
        except sqlite3.IntegrityError:
            raise
        except UnicodeEncodeError as error:  # a name from a command line whose bytes are not text
            raise Invalid(f"{error.object!r:.100} is not UTF-8", hint="no id or name of ours is written so") from None
        except sqlite3.Error as error:
            raise _translate(error, self._path) from error

    def stream(self, sql: str, values: Sequence[object] = ()) -> Iterator[Row]:
        """Yield the rows as they arrive; one statement is one consistent state."""
        with _errors(self._path):
            yield from self._connection().execute(sql, values)

    def wait(self, position: int, timeout_seconds: float) -> None:
        """Poll for a newer event, frequently at first, then a hundred times a second: a query costs microseconds."""
        end = time.monotonic() + timeout_seconds
        pause = 0.001
        while time.monotonic() < end:
            time.sleep(pause)
            if self.execute("SELECT coalesce(max(position), 0) FROM events")[0][0] > position:
                return
            pause = min(pause * 1.5, 0.01)

    def announce(self, position: int, digest: str) -> None:
        """Make this event the head when it is durable. Waiting readers poll by themselves."""
        found = head.read(self.head_path)
        # A log that lost events keeps the head that proves it, however many events are appended after the loss.
        if found is None or found[0] == 0 or self.execute(_HASH, found[:1]) == [found[1:]]:
            self._connection().newest = (position, digest)

    def find_head(self) -> tuple[int, str] | None:
        """Return the newest event that was durable, from the file beside the log; None if there is no such file."""
        return head.read(self.head_path)

    def accept(self, position: int, digest: str) -> None:
        """Make this event the head, replacing any other; the caller excludes other writers."""
        with _errors(self._path):
            head.write(self.head_path, position, digest)

    def is_duplicate(self, error: Exception) -> bool:
        """Return whether the error is a unique key violation."""
        return isinstance(error, sqlite3.IntegrityError)

    def close(self) -> None:
        """Close the connections of every thread."""
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._local = _local()


class _Connection:
    """One connection with its descriptor of the write lock."""

    def __init__(self, path: str, look: Look | None = None) -> None:
        self.pid = os.getpid()
        self.thread = get_native_id()  # thread id of the kernel
        self.is_read_only = look is not None
        self.lock = -1
        with _errors(path):
            self._db = look(path) if look else self._connect_to_write(path)
        self.execute = self._db.execute
        self.newest: tuple[int, str] | None = None  # the head after the current transaction
        self._wal = -1  # the write-ahead log, once it exists; it stays as long as this connection
        self._path = path

    def _connect_to_write(self, path: str) -> sqlite3.Connection:
        self.lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            return self._connect(path)
        except BaseException:
            os.close(self.lock)
            raise

    def _connect(self, path: str) -> sqlite3.Connection:
        # SQLite itself would make a new file readable for others. An existing file must not be opened here: closing it
        # again would drop the locks of all connections of this process.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                self._use_wal(db, path)
            db.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            db.close()
            raise
        return db

    def _use_wal(self, db: sqlite3.Connection, path: str) -> None:
        """Switch a new file to WAL mode. SQLite does not wait for others here, so we do; writers wait for the lock."""
        _take(self.lock)
        try:
            end = time.monotonic() + BUSY_SECONDS
            while True:
                try:
                    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                    break
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error) or time.monotonic() > end:
                        raise
                    time.sleep(0.002)
        finally:
            fcntl.flock(self.lock, fcntl.LOCK_UN)
        if mode != "wal":
            raise StoreUnavailable(
                f"SQLite cannot use write-ahead logging at {path}", hint="put the home on a local file system"
            )

    def sync(self) -> None:
        """Sync the committed transactions to the disk. SQLite takes no lock on this file that closing it would drop."""
        if self._wal < 0:
            self._wal = os.open(f"{self._path}-wal", os.O_RDWR | os.O_CLOEXEC)
        os.fdatasync(self._wal)

    def rollback(self) -> None:
        if self._db.in_transaction:
            self.execute("ROLLBACK")

    def close(self) -> None:
        if self.pid == os.getpid():
            self._db.close()
            for descriptor in (self.lock, self._wal):
                if descriptor >= 0:
                    os.close(descriptor)


class _Threads:
    """State shared by the threads of one process: one at a time waits for the write lock, and one syncs for many."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.sync = SharedCall()
        self._turn = allocate_lock()

    @contextmanager
    def enter(self, lock: int) -> Iterator[None]:
        """Be the one thread at the write lock, or raise StoreUnavailable after LOCK_SECONDS."""
        if not self._turn.acquire(timeout=LOCK_SECONDS):
            raise _locked(lock)
        try:
            yield
        finally:
            self._turn.release()


def _locked(lock: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"the event log is locked for {LOCK_SECONDS:.0f} seconds by {_holder_of(lock)}",
        hint="let that process go on (kill -CONT PID) or end it, then try again",
    )


def _take(lock: int) -> None:
    """Take the write lock, or raise StoreUnavailable after LOCK_SECONDS with the name of the process that holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    # flock has no timeout, so a helper thread waits for the lock. The lock belongs to the open file: whichever thread
    # takes it, it is ours. `done` decides the race: a helper that gets the lock too late releases it.
    own, done, turn = os.dup(lock), allocate_lock(), allocate_lock()
    turn.acquire()

    def wait() -> None:
        fcntl.flock(own, fcntl.LOCK_EX)
        if done.acquire(blocking=False):
            turn.release()
        else:
            fcntl.flock(own, fcntl.LOCK_UN)
        os.close(own)

    start_new_thread(wait, ())
    if not turn.acquire(timeout=LOCK_SECONDS) and done.acquire(blocking=False):
        raise _locked(lock)


def _holder_of(lock: int) -> str:
    """Return a description of the process that holds a lock: its command, and whether it is stopped."""
    inode = os.fstat(lock).st_ino
    try:
        with open("/proc/locks") as table:
            holders = [line.split() for line in table]
        pid = next(words[4] for words in holders if words[1] == "FLOCK" and words[5].endswith(f":{inode}"))
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read(200).replace(b"\0", b" ").decode(errors="replace").strip()
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, StopIteration, IndexError):
        return "another process"
    return f"process {pid} ({command!r}{', which is stopped' if state in 'Tt' else ''})"


DAMAGED = "the file is damaged: restore it from a backup, or aw repair --rebuild-log makes it anew from what is whole"


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.Error as error:
        raise _translate(error, path) from error
    except OSError as error:
        raise from_os(error, f"the event log at {path}") from error


def _translate(error: sqlite3.Error, path: str) -> WorksteadError:
    code = getattr(error, "sqlite_errorname", "") or ""
    what = f"the event log at {path}: {error}"
    # SQLite's files beside the log need space too; without it SQLite says "I/O error".
    if _is_read_only(path):
        return from_os(OSError(EROFS, os.strerror(EROFS)), f"the event log at {path}")
    if code.startswith("SQLITE_FULL") or (code.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN")) and _is_full(path)):
        return from_os(OSError(ENOSPC, os.strerror(ENOSPC)), f"the event log at {path}")
    if code.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
        return PermissionDenied(
            what, hint="the home must be writable for you: check its owner, or choose another --home"
        )
    if code.startswith("SQLITE_CANTOPEN"):
        return PermissionDenied(what, hint="check the owner and mode of the home, or choose another --home")
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreUnavailable(what, hint=DAMAGED)
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreUnavailable(what, hint="another process holds the log for long: try again")
    return FilesystemError(what, hint="aw doctor checks this machine")


def _is_read_only(path: str) -> bool:
    try:
        return bool(os.statvfs(os.path.dirname(path)).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _is_full(path: str) -> bool:
    try:
        stats = os.statvfs(os.path.dirname(path))
    except OSError:
        return False
    return stats.f_bavail * stats.f_frsize < 64 * 1024 or (stats.f_files > 0 and not stats.f_favail)
