"""Delete trees of any depth, but nothing that is mounted in them."""

from __future__ import annotations

import os

from workstead.system.files.walk import NO_LIMITS
from workstead.system.files.walk import remove_tree as remove_limited


def remove_tree(path: str) -> None:
    """Delete a directory of ours with its contents; raise OSError if another file system is mounted below it."""
    parent, name = os.path.split(path)
    folder = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_below(folder, os.fsencode(name))
    finally:
        os.close(folder)


def remove_below(folder: int, name: bytes) -> None:
    """Delete a subdirectory of an open directory with its contents, without limits on their number."""
    remove_limited(folder, name, NO_LIMITS)
