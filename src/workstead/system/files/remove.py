"""Delete trees that nobody needs any more, however deep, and nothing that is mounted in them."""

from __future__ import annotations

import os

from workstead.system.files.walk import NO_LIMITS
from workstead.system.files.walk import remove_tree as remove_limited


def remove_tree(path: str) -> None:
    """Delete a directory of ours and all that is in it; OSError if something below is a file system of its own."""
    parent, name = os.path.split(path)
    folder = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_below(folder, os.fsencode(name))
    finally:
        os.close(folder)


def remove_below(folder: int, name: bytes) -> None:
    """Delete a directory in an open one and all that is in it, without limits on how much that is."""
    remove_limited(folder, name, NO_LIMITS)
