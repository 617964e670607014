"""Open directories below a root descriptor without following links; cache a few open descriptors."""

from __future__ import annotations

import os

OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = 64


class Folders:
    """Open directories by relative path. The descriptors belong to this object; later calls may close them."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._open: dict[str, int] = {}

    def close(self) -> None:
        """Close all descriptors, the root included."""
        self.forget()
        os.close(self.root)

    def forget(self) -> None:
        """Close the cached descriptors below the root."""
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def forget_below(self, path: str) -> None:
        """Close the cached descriptors at a path and below, because the path is about to be replaced."""
        for each in [each for each in self._open if each == path or each.startswith(path + "/")]:
            os.close(self._open.pop(each))

    def open(self, path: str) -> int:
        """Return a descriptor of a directory. Raise OSError, also for a symbolic link on the way."""
        if not path:
            return self.root
        fd = self._open.get(path)
        if fd is not None:
            return fd
        # Go up to the nearest open directory, then down, caching the last ones: neighbours are likely to be next.
        above, missing = path, []
        while above and above not in self._open:
            above, _, name = above.rpartition("/")
            missing.append(name)
        fd = self._open[above] if above else self.root
        for name in reversed(missing):
            below = os.open(name, OPEN_DIR, dir_fd=fd)
            above = f"{above}/{name}" if above else name
            if len(self._open) >= _OPEN:
                os.close(self._open.pop(next(iter(self._open))))  # evict the oldest; `fd` is not needed any more
            self._open[above] = fd = below
        return fd
