"""Write files beneath a `Root`, each all or nothing.

A write never opens the old file for writing. The new bytes go to a fresh file in the same directory, which then takes
the name: readers see all or nothing, a hard link keeps the old bytes under its other name, a link put there in the
meantime is replaced and not followed. A link that was there before is followed as long as it stays inside.
"""

from __future__ import annotations

import os
from errno import EACCES, EINVAL, EISDIR, ELOOP, ENOENT, ENXIO, EOPNOTSUPP, EXDEV
from stat import S_IMODE, S_ISDIR, S_ISLNK, S_ISREG

from workstead.errors import FileChanged, FileExists, NotAFile, QuotaExceeded
from workstead.model.file import Written
from workstead.system.files.durable import sync_file, sync_names
from workstead.system.files.mkdir import give, make_missing, sync_above, unmake
from workstead.system.files.reading import MAX_DIGEST_BYTES, chunks_of, digest_of, find_mark, hasher
from workstead.system.files.resolved_entry import Held
from workstead.system.files.root import HANDLE, MAX_PATH_BYTES, Root, rename_no_replace, reopen
from workstead.system.kernel.openat2 import MAX_LINKS

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Data = bytes | bytearray | memoryview | Iterable[bytes]
    Ready = Callable[["Written", Held], object] | None

MAX_WRITE_BYTES = 1 << 30

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


def write(
    root: Root,
    path: str | bytes,
    data: Data,
    *,
    parents: bool = False,
    create_only: bool = False,
    max_bytes: int = MAX_WRITE_BYTES,
    ready: Ready = None,
    exact: bool = False,
) -> Written:
    """Make `data` the content of a file: all of it, or nothing changes.

    It is on the disk when this returns. A replaced file keeps its permission bits and owner, a new one is 0644 and
    belongs to its directory's owner.
    `create_only` is `file_exists` when anything has the name; more than `max_bytes` is `quota_exceeded`. With `exact`
    what is there has to be what `ready` was told: one that was made since is `file_exists`, a changed one is
    `file_changed`.
    """
    change = _Change(
        root,
        root.check(path),
        create_only=create_only,
        max_bytes=max_bytes,
        ready=ready,
        exact=exact,
    )
    return change.make(data, parents=parents)


def append(
    root: Root,
    path: str | bytes,
    data: Data,
    *,
    parents: bool = False,
    max_bytes: int = MAX_WRITE_BYTES,
    ready: Ready = None,
    exact: bool = False,
) -> Written:
    """Add `data` to the end of a file, by a whole new file as in `write`; `max_bytes` is for the result."""
    change = _Change(root, root.check(path), append=True, max_bytes=max_bytes, ready=ready, exact=exact)
    return change.make(data, parents=parents)


class _Change:
    """One write: where to, and under which conditions."""

    def __init__(
        self,
        root: Root,
        raw: bytes,
        *,
        max_bytes: int,
        ready: Ready,
        create_only: bool = False,
        append: bool = False,
        exact: bool = False,
    ) -> None:
        self._root = root
        self._exact = exact
        self._raw = raw
        self._max_bytes = max_bytes
        self._ready = ready
        self._create_only = create_only
        self._append = append

    def make(self, data: Data, *, parents: bool) -> Written:
        """Do it; parent directories that were made for it go again if it fails."""
        made: list[bytes] = []
        try:
            if self._raw.endswith((b"/", b"/.")) or self._raw == b".":
                raise NotAFile(f"{self._root.shown(self._raw)} names a directory")
            follow = not self._create_only
            folder, name = _open_landing(self._root, self._raw, follow=follow, made=made if parents else None)
            try:
                written = self._replace(folder, name, data)
            finally:
                os.close(folder)
            sync_above(self._root, made)
            return written
        except BaseException as error:
            unmake(self._root, made)
            if isinstance(error, OSError):
                raise self._root.failure(error, self._raw) from None
            raise

    def _replace(self, folder: int, name: bytes, data: Data) -> Written:
        """Write a fresh file beside `name` and give it that name."""
        old = _Old(folder, name)
        try:
            if self._create_only and old.found is not None:
                raise FileExists(f"{self._root.shown(self._raw)} exists already")
            if self._append and old.found is not None and old.fd < 0:
                raise OSError(EACCES, "cannot be read, so nothing can be appended to it")
            if self._append and old.size > self._max_bytes:
                raise self._over()
            fresh = _Fresh(folder)
            try:
                written = self._fill(fresh.fd, data, old)
                take_after(fresh.fd, old.found, folder)
                sync_file(fresh.fd)
                inode = os.fstat(fresh.fd).st_ino
                if self._ready:
                    self._ready(written, Held(self._root, folder, name, has_temporary=fresh.has_name))
                if self._create_only or (self._exact and old.found is None):
                    fresh.take(name)
                else:
                    if self._exact and old.found is not None:
                        refuse_changed(self._root, self._raw, folder, name, old.found)
                    fresh.take_over(name)
            finally:
                fresh.close()
        finally:
            old.close()
        sync_names(folder)
        return written if written.tag else written.replace(tag=_mark(folder, name, inode))

    def _fill(self, fd: int, data: Data, old: _Old) -> Written:
        sink = _Sink(fd, self._max_bytes, len(data) if isinstance(data, bytes) and not self._append else None)
        digest_before = None
        if self._append and old.fd >= 0:
            sink.take(chunks_of(old.fd, old.size))
            digest_before = sink.digest
        elif old.fd >= 0 and old.size <= MAX_DIGEST_BYTES:
            digest_before = digest_of(old.fd, old.size)
        sink.take((data,) if isinstance(data, bytes | bytearray | memoryview) else data)
        if sink.is_over:
            raise self._over()
        size_before = None if old.found is None else old.size
        return Written(
            size=sink.size,
            digest=sink.digest,
            size_before=size_before,
            digest_before=digest_before,
            tag=sink.digest if sink.size <= MAX_DIGEST_BYTES else "",
        )

    def _over(self) -> QuotaExceeded:
        return self._root.over(self._raw, "max_bytes", self._max_bytes, "bytes to write")


def _open_landing(root: Root, raw: bytes, *, follow: bool, made: list[bytes] | None) -> tuple[int, bytes]:
    """The directory, open, and the name in it that a write to `raw` is for, after links that stay inside.

    A link's target is joined to the link's directory as text and goes to the resolver as it stands, `..` and all: who
    swaps parts meanwhile only chooses another place inside.
    """
    for hop in range(MAX_LINKS):
        try:
            folder, name = root.open_parent(raw)
        except OSError as error:
            if error.errno == EINVAL and hop:  # a link to `.`, `..` or `x/`: refused, but first see whether it leaves
                os.close(root.open_path(raw))
                raise OSError(EISDIR, os.strerror(EISDIR)) from None
            if error.errno != ENOENT or made is None or hop:
                raise
            made += make_missing(root, raw.rpartition(b"/")[0])
            folder, name = root.open_parent(raw)
        if not follow:
            return folder, name
        try:
            target = os.readlink(name, dir_fd=folder)
        except OSError as error:
            if error.errno in (EINVAL, ENOENT):  # no link, or nothing yet
                return folder, name
            os.close(folder)
            raise
        os.close(folder)
        raw = _beside(raw, target)
    raise OSError(ELOOP, os.strerror(ELOOP))


def _beside(raw: bytes, target: bytes) -> bytes:
    """The path of a link's target, for a link at `raw`."""
    if target.startswith(b"/"):
        raise OSError(EXDEV, os.strerror(EXDEV))
    head, slash, _ = raw.rpartition(b"/")
    joined = head + slash + target
    if len(joined) > MAX_PATH_BYTES:
        raise OSError(ELOOP, os.strerror(ELOOP))
    return joined


def _mark(folder: int, name: bytes, inode: int) -> str:
    """The mark of the file that was just written; "" if another one has its name already."""
    try:
        handle = os.open(name, HANDLE, dir_fd=folder)
    except OSError:
        return ""
    try:
        return (find_mark(handle) or "") if os.fstat(handle).st_ino == inode else ""
    finally:
        os.close(handle)


class _Old:
    """The file that a write replaces, if there is one: open for reading where that is allowed."""

    def __init__(self, folder: int, name: bytes) -> None:
        self.found: os.stat_result | None = None
        self.fd = -1
        self.size = 0
        try:
            handle = os.open(name, HANDLE, dir_fd=folder)
        except OSError as error:
            if error.errno == ENOENT:
                return
            raise
        try:
            self.found = os.fstat(handle)
            if S_ISDIR(self.found.st_mode):
                raise OSError(EISDIR, os.strerror(EISDIR))
            if S_ISREG(self.found.st_mode):
                self.size = self.found.st_size
                self._open(handle)
            elif not S_ISLNK(self.found.st_mode):  # a link came after we looked; it is replaced, not followed
                raise OSError(ENXIO, os.strerror(ENXIO))
        finally:
            os.close(handle)

    def _open(self, handle: int) -> None:
        try:
            self.fd, _ = reopen(handle)
        except PermissionError:
            self.fd = -1  # a file may be replaced by somebody who may not read it

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class _Sink:
    """Where new bytes go: to the file, through the digest, up to the limit."""

    def __init__(self, fd: int, max_bytes: int, size: int | None) -> None:
        self._fd = fd
        self._hash = hasher(size)
        self._max_bytes = max_bytes
        self.size = 0

    def take(self, chunks: Iterable[bytes | bytearray | memoryview]) -> None:
        for chunk in chunks:
            self.size += len(chunk)
            if self.is_over:
                return
            self._hash.update(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    @property
    def is_over(self) -> bool:
        return self.size > self._max_bytes

    @property
    def digest(self) -> str:
        return str(self._hash.hexdigest())


class _Fresh:
    """A new file in a directory: without a name where the file system can, so that a crash leaves nothing of it."""

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._name = b""  # to be removed at the end
        try:
            self.fd = os.open(b".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=folder)
        except OSError as error:
            if error.errno not in (EISDIR, EOPNOTSUPP, ENOENT, EINVAL):  # what file systems say that know no such thing
                raise
            self._name, self.fd = open_temporary(folder)

    @property
    def has_name(self) -> bool:
        """Whether it stands under a temporary name, so that a walk of the directory finds it."""
        return bool(self._name)

    def take(self, name: bytes) -> None:
        """Give it a name that nothing has; FileExistsError if something has it."""
        if self._name:
            rename_no_replace(self._folder, self._name, self._folder, name)
            self._name = b""
        else:
            self._link(name)

    def take_over(self, name: bytes) -> None:
        """Give it a name, in place of what has it."""
        if not self._name:
            self._name = temporary_name()  # for an instant: no call puts a file without a name in the place of another
            self._link(self._name)
        os.rename(self._name, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._name = b""

    def _link(self, name: bytes) -> None:
        os.link(f"/proc/self/fd/{self.fd}".encode(), name, dst_dir_fd=self._folder, follow_symlinks=True)

    def close(self) -> None:
        os.close(self.fd)
        if self._name:
            forget(self._folder, self._name)


def temporary_name() -> bytes:
    """A name that nobody else has thought of."""
    return b".aw-" + os.urandom(8).hex().encode()


def open_temporary(folder: int, name: bytes | None = None) -> tuple[bytes, int]:
    """A fresh file, under a name of its own unless one is given."""
    name = name or temporary_name()
    return name, os.open(name, _NEW_FILE, 0o600, dir_fd=folder)


def take_after(fd: int, old: os.stat_result | None, folder: int) -> None:
    """Give a new inode the permissions and owner of what it replaces; never a set-id bit."""
    regular = old if old is not None and S_ISREG(old.st_mode) else None
    if os.geteuid() == 0:
        owner = regular or os.fstat(folder)
        if owner.st_uid or owner.st_gid:
            give(fd, owner)
    os.fchmod(fd, S_IMODE(regular.st_mode) & 0o777 if regular else 0o644)


def forget(folder: int, name: bytes) -> None:
    """Remove a file, if it is still there."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return  # the agent was quicker; there is nothing of ours left


def refuse_changed(root: Root, raw: bytes, folder: int, name: bytes, known: os.stat_result) -> None:
    """FileChanged if what has this name is not what was looked at; asked at the very last moment."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        found = None
    if found is None or any(
        getattr(found, field) != getattr(known, field) for field in ("st_mode", "st_size", "st_mtime_ns")
    ):
        raise FileChanged(f"{root.shown(raw)} was changed this instant", hint="look at it again and decide anew")
