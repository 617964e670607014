"""Delete trees that nobody needs any more, however deep, and nothing that is mounted in them."""

from __future__ import annotations

import os

from carrel.system.walk import Limits
from carrel.system.walk import remove_tree as remove_below

_NO_LIMITS = Limits(max_entries=1 << 60, max_depth=1 << 60, max_seconds=1e12)


def remove_tree(path: str) -> None:
    """Delete a directory of ours and all that is in it; OSError if something below is a file system of its own."""
    parent, name = os.path.split(path)
    folder = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_below(folder, os.fsencode(name), _NO_LIMITS)
    finally:
        os.close(folder)
