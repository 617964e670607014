"""The position and hash of the newest durable event, in a file beside the log (`log.db.head`).

A damaged write-ahead log makes SQLite drop the end of the log, or all of it, without an error. The head is outside of
it and shows the loss. It is written in place, after the sync of the log and without a sync of its own: after a power
cut it may name an older event than the newest, never one that is not on the disk. A head that cannot be read (a torn or
damaged file) counts as none.
"""

from __future__ import annotations

import os
from binascii import crc32
from contextlib import suppress


def read(path: str) -> tuple[int, str] | None:
    """Return the position and hash in the file, or None if there is no valid one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # read by every append: `open` makes 4 more calls
        try:
            line = os.read(descriptor, 200)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    with suppress(ValueError):
        position, digest, _ = line.decode("ascii").split()
        if line == _line(int(position), digest):
            return int(position), digest
    return None


def write(path: str, position: int, digest: str, *, durable: bool = False) -> None:
    """Replace the content in one write of constant length: a reader sees the old line or the new one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(descriptor, _line(position, digest), 0)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _line(position: int, digest: str) -> bytes:
    text = f"{position:020} {digest:64}".encode("ascii")
    return text + b" %08x\n" % crc32(text)
