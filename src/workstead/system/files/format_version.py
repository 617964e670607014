"""The format version of a directory, in a sealed file: a damaged one proves nothing, so it refuses nothing."""

from __future__ import annotations

import os

from workstead.system.files.durable import sync_file, sync_names
from workstead.system.files.sealed import seal, unseal

NAME = "format"


def read(directory: str) -> int:
    """Return the format version; 0 if the directory has none, or the file is damaged."""
    try:
        with open(f"{directory}/{NAME}", "rb") as file:
            text = unseal(file.read(64))
    except OSError:
        return 0
    return int(text) if text and text.isdigit() else 0


def write(directory: str, version: int) -> None:
    """Write the format version, in place: processes that make a home at the same time write the same bytes."""
    line = seal(b"%d" % version)
    descriptor = os.open(f"{directory}/{NAME}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(descriptor, line, 0)
        os.ftruncate(descriptor, len(line))
        sync_file(descriptor)
    finally:
        os.close(descriptor)
    sync_names(directory)
