"""The format version of a directory, in a sealed file: a damaged one proves nothing, so it refuses nothing."""

from __future__ import annotations

from workstead.system.files.durable import replace_file
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
    """Write the format version."""
    replace_file(f"{directory}/{NAME}", seal(b"%d" % version))
