"""Read small files from an untrusted author: an agent, the author of a repository or of an archive.

The author controls the kind of each entry. A link could expose a file of the host, a named pipe would block forever,
opening a device may have side effects. So the directory is held by a descriptor, the name is resolved beneath it
without following any link, and only a regular file of limited size is opened. Anything else is an error that names the
file: treating a refused file as missing would silently weaken protection (an ignore file that is not obeyed).
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from errno import ELOOP, ENOENT, ENOTDIR, ENXIO
from stat import S_ISLNK

from workstead.errors import NotAFile, QuotaExceeded
from workstead.model.text import printable
from workstead.system.files.root import failure, reopen
from workstead.system.kernel.openat2 import RESOLVERS, probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL_BYTES = 1 << 20
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 1 << 16


@contextmanager
def hold_directory(path: str) -> Iterator[int]:
    """Yield a descriptor of the directory at a real, absolute path; raise OSError ELOOP if any component is a link."""
    top = os.open("/", _FOLDER)
    try:
        fd = open_beneath(top, path.strip("/") or ".", os.O_DIRECTORY)
    finally:
        os.close(top)
    try:
        yield fd
    finally:
        os.close(fd)


def open_beneath(directory: int, name: str, flags: int = 0) -> int:
    """Return an O_PATH descriptor of the entry at a relative path, without following any link, also the last."""
    raw = os.fsencode(name)
    if raw.startswith(b"/") or b"\0" in raw:
        raise OSError(ENOENT, os.strerror(ENOENT))
    fd = RESOLVERS[probe(directory)](directory, raw, os.O_PATH | os.O_NOFOLLOW | flags, links=False)
    if S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(ELOOP, os.strerror(ELOOP))
    return fd


def open_regular(directory: int, name: str) -> tuple[int, os.stat_result]:
    """Return a readable descriptor of a regular file beneath a directory, and its stat; raise ELOOP or ENXIO."""
    handle = open_beneath(directory, name)
    try:
        return reopen(handle)
    finally:
        os.close(handle)


def read_small(directory: str | int, name: str, max_bytes: int = SMALL_BYTES) -> bytes | None:
    """Return the content of a regular file beneath a directory, or None if it does not exist."""
    if isinstance(directory, str):
        try:
            fd = os.open(directory, _FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise failure(error, printable(directory)) from None
        try:
            return read_small(fd, name, max_bytes)
        finally:
            os.close(fd)
    try:
        reader, _ = open_regular(directory, name)
    except OSError as error:
        if error.errno in (ENOENT, ENOTDIR):
            return None
        raise unreadable(error, name) from None
    try:
        # In small pieces: to read a megabyte at once, Python first allocates a megabyte.
        content = piece = os.read(reader, _PIECE)
        while piece:
            if len(content) > max_bytes:
                raise QuotaExceeded(
                    f"{printable(name)} is larger than {max_bytes} bytes",
                    hint="a file of this kind is small; make it shorter",
                    details={"limit": "max_bytes", "max": max_bytes},
                )
            piece = os.read(reader, _PIECE)
            content += piece
        return content
    except OSError as error:
        raise failure(error, printable(name)) from None
    finally:
        os.close(reader)


def unreadable(error: OSError, name: str) -> Exception:
    """Return our error for an untrusted file that cannot be opened."""
    if error.errno in (ELOOP, ENXIO):
        kind = "a symbolic link, or lies behind one" if error.errno == ELOOP else "not a regular file"
        return NotAFile(f"{printable(name)} is {kind}, and is not read", hint="put a regular file in its place")
    return failure(error, printable(name))
