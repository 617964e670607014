"""The file `HOME/id`: which home this is.

    0123456789abcdef 89abcdef      the id and its checksum

An older version wrote the id alone. A file that is neither is damaged, and `Home` looks the id up in the log: one bad
bit here must not make every workspace belong to another home.
"""

from __future__ import annotations

import os
from binascii import crc32
from contextlib import suppress

from workstead.system.files.durable import sync_file, sync_names

_DIGITS = frozenset("0123456789abcdef")


def read(path: str) -> tuple[str, bool] | None:
    """The id and whether it has a valid checksum; "" for a damaged file, None for no file."""
    try:
        with open(f"{path}/id", "rb") as file:
            line = file.read(200)
    except FileNotFoundError:
        return None
    text = line.decode("ascii", "replace")
    found = text[:16]
    if text == _line(found):
        return found, True
    return (found, False) if len(text) == 17 and _DIGITS.issuperset(found) and text[16] == "\n" else ("", False)


def make(path: str, found: str = "") -> str:
    """Write an id, a new one if none is given, unless the file is there; return what stands."""
    # Two first users may meet here: the link can be made only once, and both read what stands.
    own = _write(path, found or os.urandom(8).hex())
    try:
        with suppress(FileExistsError, FileNotFoundError):  # somebody was first, or a repair has tidied ours away
            os.link(own, f"{path}/id")
    finally:
        with suppress(FileNotFoundError):
            os.unlink(own)
    sync_names(path)
    return (read(path) or ("", False))[0]


def replace(path: str, found: str) -> None:
    """Write an id over a file that is damaged or has no checksum."""
    os.rename(_write(path, found), f"{path}/id")
    sync_names(path)


def _write(path: str, found: str) -> str:
    own = f"{path}/id.{os.getpid()}.{os.urandom(4).hex()}"
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(_line(found))
        file.flush()
        sync_file(file.fileno())
    return own


def _line(found: str) -> str:
    return f"{found} {crc32(found.encode('ascii', 'replace')):08x}\n"
