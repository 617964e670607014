"""Packs: one immutable file for all new objects of a snapshot, written once, synced once, renamed into place.

    CARRELP1 | record… | end
    record    digest (32) · coding (1: r raw, z zstd) · raw length (8) · stored length (8) · bytes
    end       32 zeros · `e` · number of records (8) · 0 (8)

A pack appears under its name only when it is complete and durable, so a killed writer leaves only an unreferenced
temporary file. A writer holds a lock on its temporary file; `collect` removes unlocked ones.
"""

from __future__ import annotations

import fcntl
import os
from _struct import Struct
from hashlib import sha256

from workstead.system.files.durable import sync_file, sync_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

VERSION = 1
MAGIC = b"CARRELP%d" % VERSION
RECORD = Struct("!32scQQ")
END = bytes(32)
RAW, ZSTD = b"r", b"z"
SUFFIX = ".pack"
TEMPORARY = ".new-"

_FLUSH = 4 << 20
# Importing zstd takes longer than compressing a few small files saves; `collect` compresses them when it joins packs.
_WORTH_LOADING = 64 << 10
_SMALL = 256  # smaller objects are not compressed


class Damaged(Exception):
    """Bytes in the store differ from the bytes that were written."""


class Packer:
    """Write one pack. Nothing is visible before `finish`; `abandon` removes the temporary file."""

    def __init__(self, folder: str, *, compress: bool = False) -> None:
        self._folder = folder
        self.name = os.urandom(8).hex() + SUFFIX
        self._temporary = os.path.join(folder, TEMPORARY + self.name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._temporary, flags, 0o600)
        self._buffer = bytearray(MAGIC)
        self._flushed = 0
        self._waiting = 0  # bytes added before compression was worthwhile
        self._compress = compress
        self.rows: list[tuple[bytes, int, bytes, int, int]] = []  # digest, offset, coding, raw length, stored length
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except BaseException:
            self.abandon()
            raise

    @property
    def size(self) -> int:
        return self._flushed + len(self._buffer)

    def add(self, digest: bytes, data: bytes) -> None:
        """Append one object."""
        coding, stored = RAW, data
        self._waiting += len(data)
        if len(data) >= _SMALL and (self._compress or self._waiting >= _WORTH_LOADING):
            coding, stored = squeeze(data)
        self.append(digest, coding, len(data), stored)

    def append(self, digest: bytes, coding: bytes, raw_length: int, stored: bytes) -> None:
        """Append one object in its stored encoding."""
        self._buffer += RECORD.pack(digest, coding, raw_length, len(stored))
        self.rows.append((digest, self.size, coding, raw_length, len(stored)))
        self._buffer += stored
        if len(self._buffer) >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        view = memoryview(self._buffer)
        at = 0
        try:
            while at < len(view):
                at += os.write(self._fd, view[at:])
        finally:
            view.release()
        self._flushed += len(self._buffer)
        self._buffer.clear()

    def finish(self) -> None:
        """Make the pack durable and visible."""
        self._buffer += RECORD.pack(END, b"e", len(self.rows), 0)
        self._flush()
        sync_file(self._fd)
        os.rename(self._temporary, os.path.join(self._folder, self.name))
        os.close(self._fd)
        self._fd = -1
        sync_names(self._folder)

    def abandon(self) -> None:
        """Remove the temporary file, unless the pack is finished."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            try:
                os.unlink(self._temporary)
            except FileNotFoundError:
                return


def zstd_of_this_python() -> Any:
    """Return the zstd module of this Python, or None."""
    try:
        from backports import zstd
    except ImportError:
        try:
            from compression import zstd  # type: ignore[import-not-found,no-redef,unused-ignore] # Python 3.14
        except ImportError:
            return None
    return zstd


def squeeze(data: bytes) -> tuple[bytes, bytes]:
    """Compress the data if that saves space, else return it as is. Media and archives show in their first 64 KB."""
    zstd = zstd_of_this_python()
    if zstd is None:
        return RAW, data
    if len(data) > 128 << 10:
        sample = data[: 64 << 10]
        if len(zstd.compress(sample, 1)) > len(sample) * 0.95:
            return RAW, data
    stored: bytes = zstd.compress(data, 3)
    return (ZSTD, stored) if len(stored) < len(data) * 0.95 else (RAW, data)


def unsqueeze(coding: bytes, stored: bytes) -> bytes:
    """Decompress the data."""
    if coding == RAW:
        return stored
    zstd = zstd_of_this_python()
    if zstd is None:
        raise Damaged("this Python has no zstd to read it with")
    try:
        data: bytes = zstd.decompress(stored)
    except zstd.ZstdError as error:
        raise Damaged(str(error)) from error
    return data


def read_object(fd: int, digest: bytes, offset: int, coding: bytes, stored_length: int) -> bytes:
    """Read and verify one object of an open pack."""
    stored = os.pread(fd, stored_length, offset)
    while len(stored) < stored_length:  # one read returns at most 2 GB, and less when interrupted
        more = os.pread(fd, stored_length - len(stored), offset + len(stored))
        if not more:
            raise Damaged("the pack is too short")
        stored += more
    data = unsqueeze(coding, stored)
    if sha256(data).digest() != digest:
        raise Damaged("the bytes do not match their digest")
    return data


def read_rows(fd: int) -> Iterator[tuple[bytes, int, bytes, int, int]]:
    """Yield digest, offset, coding, raw and stored length of every record. Raise Damaged if the pack is malformed."""
    size = os.fstat(fd).st_size
    if os.pread(fd, len(MAGIC), 0) != MAGIC:
        raise Damaged("not a pack")
    at, count = len(MAGIC), 0
    window, start = b"", 0
    while True:
        if not start <= at <= start + len(window) - RECORD.size:
            window, start = os.pread(fd, 1 << 16, at), at
            if len(window) < RECORD.size:
                raise Damaged("the pack has no end")
        digest, coding, raw, stored = RECORD.unpack_from(window, at - start)
        at += RECORD.size
        if coding == b"e":
            if digest != END or raw != count:
                raise Damaged("the pack has a wrong end")
            return
        if coding not in (RAW, ZSTD) or at + stored > size:
            raise Damaged("a record is damaged")
        yield digest, at, coding, raw, stored
        at += stored
        count += 1
