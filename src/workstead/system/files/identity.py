"""The file `HOME/id`: the id of this home.

    0123456789abcdef 89abcdef      the id and its checksum

Older versions wrote the id alone. A file in neither format is damaged, and `Home` looks up the id in the log: one
flipped bit here must not make every workspace belong to another home.
"""

from __future__ import annotations

import os
from binascii import crc32
from contextlib import suppress

from workstead.system.files.durable import sync_file, sync_names

_DIGITS = frozenset("0123456789abcdef")


def read(path: str) -> tuple[str, bool] | None:
    """Return the id and whether it has a valid checksum; "" for a damaged file, None for a missing one."""
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
    """Write the given or a new id unless the file exists; return the id in the file."""
    # Two processes may race here at the first use: the link can be created only once, and both read its content.
    own = _write(path, found or os.urandom(8).hex())
    try:
        with suppress(FileExistsError, FileNotFoundError):  # another process was first, or a repair removed ours
            os.link(own, f"{path}/id")
    finally:
        with suppress(FileNotFoundError):
            os.unlink(own)
    sync_names(path)
    return (read(path) or ("", False))[0]


def replace(path: str, found: str) -> None:
    """Replace a file that is damaged or has no checksum."""
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
