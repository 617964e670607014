"""Directories below one that we hold, reached step by step without ever following a link; a few stay open."""

from __future__ import annotations

import os

OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = 64


class Folders:
    """Opens directories by relative path. What it gives belongs to it and lives until others are asked for."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._open: dict[str, int] = {}

    def close(self) -> None:
        """Close everything, the root too."""
        self.forget()
        os.close(self.root)

    def forget(self) -> None:
        """Close what is held open below the root."""
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def forget_below(self, path: str) -> None:
        """Close what is held open at a path and below: it is about to be something else."""
        for each in [each for each in self._open if each == path or each.startswith(path + "/")]:
            os.close(self._open.pop(each))

    def open(self, path: str) -> int:
        """A descriptor of a directory. Raises OSError, also for a link on the way."""
        if not path:
            return self.root
        fd = self._open.get(path)
        if fd is not None:
            return fd
        # Up to the nearest one that is open, then down, keeping the last ones: neighbours are asked for next.
        above, missing = path, []
        while above and above not in self._open:
            above, _, name = above.rpartition("/")
            missing.append(name)
        fd = self._open[above] if above else self.root
        for name in reversed(missing):
            below = os.open(name, OPEN_DIR, dir_fd=fd)
            above = f"{above}/{name}" if above else name
            if len(self._open) >= _OPEN:
                os.close(self._open.pop(next(iter(self._open))))  # the one we stood on is not needed any more
            self._open[above] = fd = below
        return fd
