"""Read small files that somebody else wrote: an agent, the author of a repository, whoever packed an archive.

The writer chooses what stands at a name. A link would bring a file of the host's in, a named pipe would never answer,
a device may act when it is opened. So the directory is held by a descriptor, the name is resolved beneath it without
following any link, and only a regular file of limited size is opened. Anything else is an error that names the file:
to treat a refused file as a missing one would be silently weaker (an ignore file that is not obeyed).
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
    """A descriptor of the directory at a real, absolute path; OSError ELOOP if a link stands anywhere on the way."""
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
    """An O_PATH descriptor of what stands at a relative path, with no link followed on the way or at the end."""
    raw = os.fsencode(name)
    if raw.startswith(b"/") or b"\0" in raw:
        raise OSError(ENOENT, os.strerror(ENOENT))
    fd = RESOLVERS[probe(directory)](directory, raw, os.O_PATH | os.O_NOFOLLOW | flags, links=False)
    if S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(ELOOP, os.strerror(ELOOP))
    return fd


def open_regular(directory: int, name: str) -> tuple[int, os.stat_result]:
    """A readable descriptor of a regular file beneath a directory, and its stat; OSError ELOOP or ENXIO otherwise."""
    handle = open_beneath(directory, name)
    try:
        return reopen(handle)
    finally:
        os.close(handle)


def read_small(directory: str | int, name: str, max_bytes: int = SMALL_BYTES) -> bytes | None:
    """The content of a regular file beneath a directory, or None if nothing has that name."""
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
        # In small pieces: to read a megabyte at once, Python first gets itself a megabyte.
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
    """Our error for a foreign file that cannot be opened."""
    if error.errno in (ELOOP, ENXIO):
        kind = "a symbolic link, or lies behind one" if error.errno == ELOOP else "not a regular file"
        return NotAFile(f"{printable(name)} is {kind}, and is not read", hint="put a regular file in its place")
    return failure(error, printable(name))
