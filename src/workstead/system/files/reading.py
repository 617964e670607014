"""Read regular files beneath a `Root`: whole, in part, or as a stream, each with a named size limit."""

from __future__ import annotations

import os
import time

from workstead.errors import Invalid
from workstead.model.digest import sha256
from workstead.system.files.root import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Self

MAX_READ_BYTES = 64 << 20
MAX_DIGEST_BYTES = 64 << 20  # larger files get no digest in an answer: a sparse terabyte is free to create
MARK = "stat-"  # prefix of the text that replaces the digest of a larger file
GRAIN_NS = 50_000_000  # several ticks of the clock for the kernel's timestamps

_FIRST_READ = 64 << 10  # one system call for nearly every source file
_CHUNK = 1 << 20
_pread, _close = os.pread, os.close  # cached: `read` is a hot path


def read(
    root: Root,
    path: str | bytes,
    *,
    start: int = 0,
    length: int | None = None,
    max_bytes: int = MAX_READ_BYTES,
    ready: Callable[[int, int], object] | None = None,
) -> bytes:
    """Return the bytes of a regular file, or `length` of them from `start`; more than `max_bytes` raise
    `quota_exceeded`.

    `ready` is called with the open file and its size before anything is read; if it raises, nothing is read."""
    raw = root.check(path)
    try:
        fd = root.open_direct(raw) if ready is None else -1
        if fd >= 0:
            size, short_is_end = 0, root.fills_reads
        else:
            fd, found = root.open_known(raw)
            size, short_is_end = found.st_size, False
        try:
            if ready is not None:
                ready(fd, size)
            want = _FIRST_READ if length is None or length > _FIRST_READ else length
            data = _pread(fd, want, start)
            got = len(data)
            if got <= max_bytes and ((short_is_end and got < want) or got in (0, size - start, length)):
                return data
            return _read_on(root, raw, fd, data, start, length, max_bytes)
        finally:
            _close(fd)
    except OSError as error:
        raise root.failure(error, raw) from None
    except OverflowError:
        raise _no_range(start, length) from None


def _read_on(root: Root, raw: bytes, fd: int, data: bytes, start: int, length: int | None, max_bytes: int) -> bytes:
    """Read until the file ends: a short read does not prove that everywhere, and an inode's size may be wrong."""
    wanted = max_bytes + 1 if length is None else length
    promised = min(os.fstat(fd).st_size - start, wanted)
    parts, got = [data], len(data)
    while got < wanted and max(got, promised) <= max_bytes:
        more = os.pread(fd, min(wanted - got, max(promised - got, _FIRST_READ)), start + got)
        if not more:
            break
        parts.append(more)
        got += len(more)
    if max(got, promised) > max_bytes:
        raise root.over(raw, "max_bytes", max_bytes, "bytes to read")
    return b"".join(parts)


def _no_range(start: int, length: int | None) -> Invalid:
    return Invalid(f"there is no range of {length} bytes from {start}")


class Reader:
    """A regular file open for streaming; iterate over it for chunks of bytes."""

    def __init__(self, fd: int, size: int, start: int, length: int | None) -> None:
        self.fd = fd
        self.size = size  # of the whole file, when it was opened
        self.start = start
        self.length = max(0, size - start) if length is None else min(length, max(0, size - start))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __iter__(self) -> Iterator[bytes]:
        """Yield chunks of up to `length` bytes in total, fewer when the file was truncated meanwhile."""
        at, end = self.start, self.start + self.length
        while at < end:
            chunk = os.pread(self.fd, min(_CHUNK, end - at), at)
            if not chunk:
                return
            at += len(chunk)
            yield chunk


def open_reader(
    root: Root,
    path: str | bytes,
    *,
    start: int = 0,
    length: int | None = None,
    ready: Callable[[int, int], object] | None = None,
) -> Reader:
    """Open a regular file for streaming a range of it; never more than its size when it was opened.

    `ready` is called as by `read`."""
    raw = root.check(path)
    if start < 0 or (length is not None and length < 0):
        raise _no_range(start, length)
    try:
        fd, found = root.open_file(raw) if ready is None else root.open_known(raw)
    except OSError as error:
        raise root.failure(error, raw) from None
    try:
        if ready is not None:
            ready(fd, found.st_size)
    except BaseException:
        os.close(fd)
        raise
    return Reader(fd, found.st_size, start, length)


def digest(root: Root, path: str | bytes, *, max_bytes: int = MAX_DIGEST_BYTES) -> str | None:
    """Return the SHA-256 of a regular file, or None when it is larger than `max_bytes`."""
    raw = root.check(path)
    try:
        fd, found = root.open_file(raw)
        try:
            return digest_of(fd, found.st_size) if found.st_size <= max_bytes else None
        finally:
            os.close(fd)
    except OSError as error:
        raise root.failure(error, raw) from None


def chunks_of(fd: int, size: int) -> Iterator[bytes]:
    """Yield a file from its start, up to the given size: it may grow during the read."""
    at = 0
    while at < size:
        chunk = os.pread(fd, min(_CHUNK, size - at), at)
        if not chunk:
            return
        at += len(chunk)
        yield chunk


def digest_of(fd: int, size: int) -> str:
    """Return the SHA-256 of an open file of that size, in hexadecimal."""
    hashed = hasher(size)
    for chunk in chunks_of(fd, size):
        hashed.update(chunk)
    return str(hashed.hexdigest())


def hasher(size: int | None) -> Any:
    """Return a SHA-256 hasher for so many bytes: OpenSSL's is faster for many, but takes two milliseconds to load."""
    if size is not None and size < _FIRST_READ:
        return sha256()
    from hashlib import sha256 as fast

    return fast()


# -- version marks of large files --------------------------------------------------------------------------------------


def mark_of(found: os.stat_result) -> str:
    """Return a version mark for a file that is too large for a digest; it differs after every change.

    It is made of the inode, the size and the times; only the kernel can set an inode's ctime."""
    said = f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
    return MARK + str(sha256(said.encode()).hexdigest())[:32]


def find_mark(fd: int) -> str | None:
    """Return the mark of an open file; None while it is being changed.

    Two changes within one tick of the kernel's clock have the same time. So wait until that tick is over before
    returning a mark; on file systems with whole seconds, a file just changed has no mark for a moment."""
    for _ in range(3):
        found = os.fstat(fd)
        age = time.time_ns() - found.st_ctime_ns
        if found.st_ctime_ns % 1_000_000_000 == 0:
            return mark_of(found) if age > 2_000_000_000 else None
        if age >= GRAIN_NS:
            return mark_of(found)
        time.sleep(GRAIN_NS / 1e9)
    return None
