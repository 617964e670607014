"""Delete trees that nobody needs any more."""

from __future__ import annotations

import shutil


def remove_tree(path: str) -> None:
    """Delete a directory and all that is in it."""
    shutil.rmtree(path)
