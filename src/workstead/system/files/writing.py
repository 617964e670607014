"""Write files beneath a `Root` atomically.

A write never opens the old file for writing. The new bytes go to a new file in the same directory, which is then
renamed: readers see all or nothing, a hard link keeps the old bytes under its other name, and a link created meanwhile
is replaced, not followed. A link that existed before is followed as long as it stays inside the root.
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
    """Replace the content of a file by `data` atomically.

    The content is synced to the disk when this returns. A replaced file keeps its permission bits and owner; a new one
    is 0644 and gets the owner of its directory. With `create_only` an existing name raises `file_exists`; more than
    `max_bytes` raises `quota_exceeded`. With `exact` the file must still be the one that `ready` was called with: a
    file created since raises `file_exists`, a changed one `file_changed`.
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
    """Append `data` to a file, by writing a whole new file as `write` does; `max_bytes` limits the result."""
    change = _Change(root, root.check(path), append=True, max_bytes=max_bytes, ready=ready, exact=exact)
    return change.make(data, parents=parents)


class _Change:
    """One write: its target and its conditions."""

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
        """Perform the write; on failure remove the parent directories that were made for it."""
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
        """Write a new file in the same directory and rename it to `name`."""
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
    """Return the open directory and the name that a write to `raw` goes to, after following links that stay inside.

    A link's target is joined to the link's directory as text and resolved unchanged, `..` included: swapping components
    meanwhile can only select another place inside the root.
    """
    for hop in range(MAX_LINKS):
        try:
            folder, name = root.open_parent(raw)
        except OSError as error:
            # a link to `.`, `..` or `x/`: refused, but first check whether it leads out
            if error.errno == EINVAL and hop:
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
            if error.errno in (EINVAL, ENOENT):  # not a link, or missing
                return folder, name
            os.close(folder)
            raise
        os.close(folder)
        raw = _beside(raw, target)
    raise OSError(ELOOP, os.strerror(ELOOP))


def _beside(raw: bytes, target: bytes) -> bytes:
    """Return the path of a link's target, for a link at `raw`."""
    if target.startswith(b"/"):
        raise OSError(EXDEV, os.strerror(EXDEV))
    head, slash, _ = raw.rpartition(b"/")
    joined = head + slash + target
    if len(joined) > MAX_PATH_BYTES:
        raise OSError(ELOOP, os.strerror(ELOOP))
    return joined


def _mark(folder: int, name: bytes, inode: int) -> str:
    """Return the mark of the file just written; "" if another file has its name already."""
    try:
        handle = os.open(name, HANDLE, dir_fd=folder)
    except OSError:
        return ""
    try:
        return (find_mark(handle) or "") if os.fstat(handle).st_ino == inode else ""
    finally:
        os.close(handle)


class _Old:
    """The file that a write replaces, if there is one: open for reading if permitted."""

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
            elif not S_ISLNK(self.found.st_mode):  # a link created after the check; it is replaced, not followed
                raise OSError(ENXIO, os.strerror(ENXIO))
        finally:
            os.close(handle)

    def _open(self, handle: int) -> None:
        try:
            self.fd, _ = reopen(handle)
        except PermissionError:
            self.fd = -1  # replacing a file does not require permission to read it

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class _Sink:
    """The destination of new bytes: the file and its digest, up to the limit."""

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
    """A new file in a directory: without a name (O_TMPFILE) if the file system can, so that a crash leaves no file."""

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._name = b""  # temporary name to remove at the end
        try:
            self.fd = os.open(b".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=folder)
        except OSError as error:
            if error.errno not in (EISDIR, EOPNOTSUPP, ENOENT, EINVAL):  # errors of file systems without O_TMPFILE
                raise
            self._name, self.fd = open_temporary(folder)

    @property
    def has_name(self) -> bool:
        """Return whether it has a temporary name, so that a walk of the directory finds it."""
        return bool(self._name)

    def take(self, name: bytes) -> None:
        """Link it under a new name; raise FileExistsError if the name exists."""
        if self._name:
            rename_no_replace(self._folder, self._name, self._folder, name)
            self._name = b""
        else:
            self._link(name)

    def take_over(self, name: bytes) -> None:
        """Rename it to a name, replacing an existing entry."""
        if not self._name:
            self._name = temporary_name()  # briefly: no system call replaces a name by a file without a name
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
    """Return a random name that is not in use."""
    return b".aw-" + os.urandom(8).hex().encode()


def open_temporary(folder: int, name: bytes | None = None) -> tuple[bytes, int]:
    """Create a file, with a random name unless one is given; return name and descriptor."""
    name = name or temporary_name()
    return name, os.open(name, _NEW_FILE, 0o600, dir_fd=folder)


def take_after(fd: int, old: os.stat_result | None, folder: int) -> None:
    """Give a new inode the permissions and owner of the file it replaces; never a set-id bit."""
    regular = old if old is not None and S_ISREG(old.st_mode) else None
    if os.geteuid() == 0:
        owner = regular or os.fstat(folder)
        if owner.st_uid or owner.st_gid:
            give(fd, owner)
    os.fchmod(fd, S_IMODE(regular.st_mode) & 0o777 if regular else 0o644)


def forget(folder: int, name: bytes) -> None:
    """Remove a file; a missing one is no error."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return  # the agent removed it first


def refuse_changed(root: Root, raw: bytes, folder: int, name: bytes, known: os.stat_result) -> None:
    """Raise FileChanged if the entry of this name differs from `known`; call it immediately before the change."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        found = None
    if found is None or any(
        getattr(found, field) != getattr(known, field) for field in ("st_mode", "st_size", "st_mtime_ns")
    ):
        raise FileChanged(f"{root.shown(raw)} was changed this instant", hint="look at it again and decide anew")
