"""The object store: bytes by digest, for all workspaces of a home, outside every one of them.

    packs/       what is kept (see packs.py)
    format       the version of this store; a store without it has version 1
    index.db     which pack holds which object: derived, and made again from the packs when it is lost or damaged
    reserve      a little room for sweeping a full disk
    lock, gate   shared by writers, exclusive for the short moments in which `collect` drops objects
    generation   how often objects were dropped: a stat cache of an older one has to ask whether its objects exist

Rules:
1. A pack is complete and durable before the index names it, and the index names it before anybody hears of its objects.
2. A writer that finds an object in the store relies on it. `hold` therefore spans the look, the writing and the
   caller's record of the root; `collect` decides and drops under the exclusive lock, with roots read inside it.
3. Every read is verified by digest. What the store gives is what was put in, or `StoreDamaged`.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from errno import ENOSPC, EROFS
from hashlib import sha256

from workstead.errors import FilesystemError, FormatUnknown, StoreDamaged, StoreFull, WorkspaceBusy, from_os
from workstead.snapshots import packs
from workstead.system.files import format_version, reserve
from workstead.system.files.durable import make_folders, sync_file
from workstead.system.files.pool import identify
from workstead.system.files.wal_mode import use_wal
from workstead.system.kernel.locks import Held, take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _sqlite3 import Connection, DatabaseError
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Any, Protocol, Self

    from workstead.system.files.pool import Pool

    Row = tuple[bytes, int, bytes, int, int]  # digest, offset, coding, raw and stored length

    class Objects(Protocol):
        """What trees are read from."""

        def get(self, digest: bytes) -> bytes:
            """The bytes of an object; raises StoreDamaged when they are gone or changed."""

    class Sink(Objects, Protocol):
        """What a walk puts its findings into: a `Writer` keeps them, a `Scratch` only looks."""

        stored_bytes: int

        def has(self, digest: bytes) -> bool: ...
        def put(self, data: bytes) -> bytes: ...
        def put_tree(self, data: bytes) -> bytes: ...


_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS packs (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, bytes INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS objects (digest BLOB PRIMARY KEY, pack INTEGER NOT NULL, at INTEGER NOT NULL,"
    " coding BLOB NOT NULL, raw INTEGER NOT NULL, stored INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS objects_by_pack ON objects (pack)",
)
_ROLL = 512 << 20  # a pack is closed at this size, so that rewriting one stays bounded
_OPEN_PACKS = 16
_BUSY_SECONDS = 30.0  # a transaction takes milliseconds


class Store:
    """The objects of one home. Made on the first write; cheap to open; one thread at a time.

    With a pool, the connection to the index comes from there and returns to it."""

    def __init__(self, path: str, *, max_bytes: int | None = None, pool: Pool | None = None) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.packs_path = os.path.join(path, "packs")
        self._index_path = os.path.join(path, "index.db")
        self._pool = pool
        self._connection: Connection | None = None
        self._identity: tuple[int, int] | None = None  # of the file that the connection has open
        self._is_read_only = False  # the connection, because the disk is full or read-only
        self._open: dict[int, int] = {}  # pack id -> descriptor
        self._is_remade = False  # the index, because it did not fit the packs
        self._holding = False
        self._is_known = False  # whether the format of the store was looked at

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._pool is not None and self._connection is not None and not self._is_read_only:
            self._pool.give(self._connection, self._identity)
            self._connection = None
        self.close()

    def close(self) -> None:
        """Close the descriptors and the connection."""
        self._disconnect()
        self.forget_packs()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def forget_packs(self) -> None:
        """Close the packs that are open for reading."""
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    # -- locks ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep `collect` from dropping anything: around a snapshot and the record of it."""
        if self._holding:  # `take` holds, and so does the verb around it
            yield
            return
        with ExitStack() as locks:
            with self._locked("gate", fcntl.LOCK_SH, 600.0):
                locks.enter_context(self._locked("lock", fcntl.LOCK_SH, 600.0))
            self._holding = True
            try:
                yield
            finally:
                self._holding = False

    @contextmanager
    def hold_alone(self, wait_seconds: float = 60.0) -> Iterator[None]:
        """Keep every writer out. The gate stops new ones, else a busy home would never let us in."""
        with self._locked("gate", fcntl.LOCK_EX, wait_seconds), self._locked("lock", fcntl.LOCK_EX, wait_seconds):
            yield

    @contextmanager
    def hold_collecting(self) -> Iterator[None]:
        """Keep other collections out."""
        with self._locked("collecting", fcntl.LOCK_EX, 60.0):
            yield

    @contextmanager
    def _locked(self, name: str, kind: int, wait_seconds: float) -> Iterator[None]:
        self._make()
        fd = self._open_lock(name)
        try:
            try:
                take(fd, self.path, kind=kind, wait_seconds=wait_seconds)
            except Held as held:
                who = f": {held.holder} holds it" if held.holder else ""
                raise WorkspaceBusy(f"the snapshot store is busy{who}", hint="try again in a moment") from None
            yield
        finally:
            os.close(fd)

    def _open_lock(self, name: str) -> int:
        path = os.path.join(self.path, name)
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno != EROFS:
                raise from_os(error, "the snapshot store") from error
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    # -- generation ----------------------------------------------------------------------------------------------------

    def generation(self) -> int:
        """How often objects were dropped."""
        try:
            fd = os.open(os.path.join(self.path, "generation"), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        try:
            text = os.read(fd, 32)
        finally:
            os.close(fd)
        return int(text) if text.isdigit() else -1  # -1 matches no cache

    def next_generation(self) -> None:
        """Say that objects are about to be dropped. Written in place: that works on a full disk too."""
        number = max(self.generation(), 0) + 1
        fd = os.open(os.path.join(self.path, "generation"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, b"%016d" % number, 0)
            sync_file(fd)
        finally:
            os.close(fd)

    # -- the reserve ---------------------------------------------------------------------------------------------------

    def make_reserve(self) -> None:
        """Put a little room aside, so that a full disk can still be swept."""
        reserve.make(self.path)

    def use_reserve(self) -> bool:
        """Return the room to the disk; False if there was none."""
        if self._is_read_only:  # open the index for writing now
            self._disconnect()
        return reserve.use(self.path)

    # -- the index -----------------------------------------------------------------------------------------------------

    def _make(self) -> None:
        try:
            make_folders(self.packs_path)
        except OSError as error:
            raise from_os(error, "the snapshot store") from error
        if not self._is_known:
            self._check_format()
            self._is_known = True

    def _check_format(self) -> None:
        """Raise FormatUnknown if a newer Workstead changed this store; one without a version has the first."""
        version = format_version.read(self.path)
        if not version:
            with suppress(OSError):  # a store that can only be read
                format_version.write(self.path, packs.VERSION)
        if version > packs.VERSION:
            raise FormatUnknown.of(f"the snapshot store {self.path}", version, packs.VERSION)

    def index(self) -> Connection:
        """The open index, made again from the packs if it is damaged."""
        if self._connection is None:
            from _sqlite3 import DatabaseError

            self._is_read_only = False
            if self._pool is not None:
                pooled = self._pool.take(self._index_path)
                if pooled is not None:
                    self._connection, self._identity = pooled
                    return self._connection
            self._make()
            try:
                self._connection = self._connect()
            except DatabaseError as error:
                if not _is_damage(error):
                    self._connection = self._connect_to_look(error)
                    return self._connection
                self._drop_index()
                try:
                    self._connection = self._connect()
                except DatabaseError as again:
                    raise _index_error(again, self.path) from again
        return self._connection

    def _connect(self) -> Connection:
        from _sqlite3 import connect

        found = identify(self._index_path)
        fresh = found is None
        connection: Connection = connect(
            self._index_path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            # NORMAL: a power cut may take the last rows, never the file; `refresh` finds their packs again.
            use_wal(connection, _BUSY_SECONDS)
            connection.execute("PRAGMA synchronous=NORMAL")
            if connection.execute("PRAGMA user_version").fetchone()[0] != 1:
                connection.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.execute("PRAGMA user_version=1")
                connection.execute("COMMIT")
                fresh = True
            if fresh:
                self._connection = connection
                for name in ("gate", "lock", "collecting"):  # while there are inodes: sweeping needs them
                    os.close(self._open_lock(name))
                self.make_reserve()
                self.refresh()
        except BaseException:
            self._connection = None
            connection.close()
            raise
        self._identity = found if found == identify(self._index_path) else None  # unsure if it was replaced meanwhile
        return connection

    def _connect_to_look(self, refused: DatabaseError) -> Connection:
        """The index for reading, where the disk is full or read-only: looking at states has to go on."""
        from _sqlite3 import DatabaseError

        from workstead.system.files.readonly_database import connect

        try:
            connection = connect(self._index_path)
        except DatabaseError:
            raise _index_error(refused, self.path) from refused
        self._is_read_only = True
        return connection

    def _drop_index(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            try:
                os.unlink(self._index_path + suffix)
            except FileNotFoundError:
                continue

    def refresh(self) -> bool:
        """Make the index fit the packs that are there: after a crash, or what another process did a moment ago.

        The index is not synced. After a power cut it may lack the newest packs, or name one that `collect` has replaced
        and removed: then all of it is made again, because an object has one row and may be in another pack too.
        """
        if self._known() == self._packs():
            return False
        with self.transaction() as index:
            known, there = self._known(), self._packs()  # again: `collect` may have been at work, and is not now
            if not known <= there:
                index.execute("DELETE FROM objects")
                index.execute("DELETE FROM packs")
                self.forget_packs()
                known = set()
            for name in sorted(there - known):
                found = self._read_pack(name)
                if found:
                    _add_pack(index, name, *found)
        return True

    def _known(self) -> set[str]:
        return {name for (name,) in self._select("SELECT name FROM packs")}

    def _packs(self) -> set[str]:
        names = os.listdir(self.packs_path)
        return {name for name in names if name.endswith(packs.SUFFIX) and not name.startswith(packs.TEMPORARY)}

    def _read_pack(self, name: str, *, whatever: bool = False) -> tuple[int, list[Row]] | None:
        """Its size and rows; None if it is damaged, which `verify` says, or gone this instant. With `whatever`, the
        rows before the damage: each object is verified when it is read."""
        try:
            fd = os.open(os.path.join(self.packs_path, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        rows: list[Row] = []
        try:
            rows.extend(packs.read_rows(fd))
            return os.fstat(fd).st_size, rows
        except packs.Damaged:
            return (os.fstat(fd).st_size, rows) if whatever and rows else None
        finally:
            os.close(fd)

    def add_pack(self, name: str, size: int, rows: Iterable[Row], *, replace: bool = False) -> None:
        """Name a finished pack's objects in the index."""
        with self.transaction() as index:
            _add_pack(index, name, size, rows, replace=replace)

    def _select(self, sql: str, values: tuple[object, ...] = ()) -> list[Any]:
        from _sqlite3 import DatabaseError

        try:
            return self.index().execute(sql, values).fetchall()
        except DatabaseError as error:
            if not _is_damage(error) or not self._may_remake():
                raise _index_error(error, self.path) from error
        self.close()
        self._drop_index()
        return self._select(sql, values)

    def _may_remake(self) -> bool:
        """Whether the index may be made anew now: once, and not where it can only be read."""
        may, self._is_remade = not self._is_remade and not self._is_read_only, True
        return may

    def _remake(self) -> bool:
        """Make the rows of the index anew from the packs: one of them led nowhere, and the packs know better."""
        if self.index().in_transaction or not self._may_remake():
            return False
        try:
            with self.transaction() as index:
                index.execute("DELETE FROM objects")
                index.execute("DELETE FROM packs")
                self.forget_packs()
                for name in sorted(self._packs()):
                    found = self._read_pack(name, whatever=True)
                    if found:
                        _add_pack(index, name, *found)
        except FilesystemError:
            return self._connection is None  # it was dropped, and is made anew by the next look
        return True

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Change the index as a whole or not at all."""
        from _sqlite3 import DatabaseError

        if self._is_read_only:  # the disk may have space again
            self._disconnect()
        index = self.index()
        try:
            with self._pool.turn_to_write(_BUSY_SECONDS) if self._pool is not None else nullcontext():
                index.execute("BEGIN IMMEDIATE")
                try:
                    yield index
                    index.execute("COMMIT")
                except BaseException:
                    if index.in_transaction:
                        index.execute("ROLLBACK")
                    raise
        except DatabaseError as error:
            if _is_damage(error) and not self._is_read_only:
                self.close()
                self._drop_index()  # whoever looks next makes it anew
            raise _index_error(error, self.path) from error

    def sync_index(self) -> None:
        """Write the index to the disk, as far as it is committed."""
        try:
            fd = os.open(f"{self._index_path}-wal", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # the last connection that closed has synced it
            return
        try:
            sync_file(fd)
        finally:
            os.close(fd)

    # -- objects -------------------------------------------------------------------------------------------------------

    def has(self, digest: bytes) -> bool:
        """Whether the object is here."""
        return bool(self._select("SELECT 1 FROM objects WHERE digest = ?", (digest,)))

    def get(self, digest: bytes) -> bytes:
        """The bytes of an object; raises StoreDamaged when they are gone or changed."""
        try:
            return self._get(digest)
        except StoreDamaged:
            if not self._remake():
                raise
        return self._get(digest)

    def _get(self, digest: bytes) -> bytes:
        for attempt in range(3):
            try:
                row = self._row(digest)
                if row is None:
                    if attempt == 0 and self.refresh():
                        continue
                    break
                pack, at, coding, stored = row
                return packs.read_object(self._pack(pack), digest, at, coding, stored)
            except FileNotFoundError:  # `collect` moved it to another pack between the look and the open, or long ago
                self.forget_packs()
                if attempt == 1:
                    self.refresh()
            except packs.Damaged as error:
                raise StoreDamaged(
                    f"object {digest.hex()}: {error}", hint="aw verify --deep lists what is damaged"
                ) from error
            except OSError as error:
                raise from_os(error, "the snapshot store") from error
        raise StoreDamaged(f"object {digest.hex()} is missing", hint="aw verify --deep lists what is damaged")

    def _row(self, digest: bytes) -> tuple[int, int, bytes, int] | None:
        found = self._select("SELECT pack, at, coding, stored FROM objects WHERE digest = ?", (digest,))
        return found[0] if found else None

    def _pack(self, pack: int) -> int:
        fd = self._open.get(pack)
        if fd is None:
            row = self.index().execute("SELECT name FROM packs WHERE id = ?", (pack,)).fetchone()
            if row is None:
                raise FileNotFoundError(pack)
            if len(self._open) >= _OPEN_PACKS:
                os.close(self._open.pop(next(iter(self._open))))
            fd = os.open(os.path.join(self.packs_path, row[0]), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            self._open[pack] = fd
        return fd

    def stored_bytes(self) -> int:
        """How much the packs take on the disk."""
        (total,) = self.index().execute("SELECT COALESCE(SUM(bytes), 0) FROM packs").fetchone()
        return int(total)

    def writer(self) -> Writer:
        """Something to put objects into; nothing is kept before `commit`."""
        return Writer(self)


def _add_pack(index: Connection, name: str, size: int, rows: Iterable[Row], *, replace: bool = False) -> None:
    verb = "REPLACE" if replace else "IGNORE"
    index.execute("INSERT OR IGNORE INTO packs (name, bytes) VALUES (?, ?)", (name, size))
    (pack,) = index.execute("SELECT id FROM packs WHERE name = ?", (name,)).fetchone()
    index.executemany(
        f"INSERT OR {verb} INTO objects (digest, pack, at, coding, raw, stored) VALUES (?, ?, ?, ?, ?, ?)",
        [(digest, pack, at, coding, raw, stored) for digest, at, coding, raw, stored in rows],
    )


def _is_damage(error: DatabaseError) -> bool:
    """Whether the index itself is broken, and the packs know better; a full, locked or failing disk is not that."""
    from _sqlite3 import SQLITE_CORRUPT, SQLITE_IOERR_SHORT_READ, SQLITE_NOTADB

    code = getattr(error, "sqlite_errorcode", SQLITE_CORRUPT)
    return code & 0xFF in (SQLITE_CORRUPT, SQLITE_NOTADB) or code == SQLITE_IOERR_SHORT_READ


def _index_error(error: Exception, path: str) -> Exception:
    disk = os.statvfs(path)
    if disk.f_flag & os.ST_RDONLY:
        return from_os(OSError(EROFS, os.strerror(EROFS)), "the snapshot index")
    # What SQLite keeps beside the index needs room too, and says "I/O error" or "unable to open" when there is none.
    if "full" in str(error) or disk.f_bavail * disk.f_frsize < 1 << 16 or (disk.f_files and not disk.f_favail):
        return from_os(OSError(ENOSPC, os.strerror(ENOSPC)), "the snapshot index")
    return FilesystemError(f"the snapshot index: {error}", hint="aw doctor checks this machine")


class Writer:
    """The new objects of one snapshot. Use as a context: without `commit`, nothing of it stays."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._new: set[bytes] = set()
        self._packer: packs.Packer | None = None
        self._finished: list[packs.Packer] = []
        self._room: int | None = None
        self.stored_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._packer is not None:
            self._packer.abandon()

    def has(self, digest: bytes) -> bool:
        """Whether the object is in the store, or will be with `commit`."""
        return digest in self._new or self._store.has(digest)

    def put(self, data: bytes) -> bytes:
        """Keep these bytes and give their digest."""
        digest = sha256(data).digest()
        if not self.has(digest):
            try:
                self._add(digest, data)
            except OSError as error:
                raise from_os(error, "the snapshot store") from error
        return digest

    def put_tree(self, data: bytes) -> bytes:
        """Keep a tree and give its digest."""
        return self.put(data)

    def _add(self, digest: bytes, data: bytes) -> None:
        if self._packer is None:
            self._packer = packs.Packer(self._store.packs_path)
            if self._store.max_bytes is not None and self._room is None:
                self._room = self._store.max_bytes - self._store.stored_bytes()
        self._packer.add(digest, data)
        self._new.add(digest)
        written = self._packer.size
        if self._room is not None and self.stored_bytes + written > self._room:
            raise StoreFull(
                f"snapshots would take more than the {self._store.max_bytes} bytes that the settings allow",
                hint="aw sweep drops old snapshots, or raise the limit",
            )
        if written >= _ROLL:
            self._finish()

    def get(self, digest: bytes) -> bytes:
        """An object of the store."""
        return self._store.get(digest)

    def commit(self) -> None:
        """Make everything durable; afterwards the digests that `put` gave can be relied on."""
        try:
            self._finish()
        except OSError as error:
            raise from_os(error, "the snapshot store") from error

    def _finish(self) -> None:
        packer = self._packer
        if packer is None:
            return
        packer.finish()
        self._packer = None
        self.stored_bytes += packer.size
        self._store.add_pack(packer.name, packer.size, packer.rows)


class Scratch:
    """A writer that adds nothing to the store: for looking at the live state.

    Trees stay in memory. Contents are dropped after hashing unless they are wanted for showing; then what does not fit
    into a little memory goes to a file without a name, which is gone with the process however it ends.
    """

    def __init__(self, store: Store, *, contents: bool) -> None:
        self._store = store
        self._contents = contents
        self._memory: dict[bytes, bytes] = {}
        self._room = 16 << 20
        self._spilled: dict[bytes, tuple[int, int]] = {}
        self._fd = -1
        self._end = 0
        self.stored_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def has(self, digest: bytes) -> bool:
        """Whether the object is known here or in the store."""
        return digest in self._memory or digest in self._spilled or self._store.has(digest)

    def put_tree(self, data: bytes) -> bytes:
        """Remember a tree and give its digest."""
        digest = sha256(data).digest()
        self._memory[digest] = data
        return digest

    def put(self, data: bytes) -> bytes:
        """Give the digest of a content, and remember it if contents are wanted."""
        digest = sha256(data).digest()
        if self._contents and digest not in self._memory and digest not in self._spilled:
            if len(data) <= self._room:
                self._room -= len(data)
                self._memory[digest] = data
            else:
                self._spill(digest, data)
        return digest

    def _spill(self, digest: bytes, data: bytes) -> None:
        try:
            if self._fd < 0:
                os.makedirs(self._store.path, mode=0o700, exist_ok=True)
                self._fd = os.open(self._store.path, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
            at = 0
            while at < len(data):
                at += os.pwrite(self._fd, data[at:], self._end + at)
        except OSError as error:
            raise from_os(error, "the snapshot store") from error
        self._spilled[digest] = (self._end, len(data))
        self._end += len(data)

    def get(self, digest: bytes) -> bytes:
        """An object of this look, or of the store."""
        found = self._memory.get(digest)
        if found is not None:
            return found
        where = self._spilled.get(digest)
        return os.pread(self._fd, where[1], where[0]) if where is not None else self._store.get(digest)
