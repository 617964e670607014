"""How much space trees take: allocated blocks, not what sizes claim, and nothing behind another mount."""

from __future__ import annotations

import os
from contextlib import suppress
from stat import S_ISDIR

from carrel.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Measured(Value):
    """The sum over some trees."""

    bytes: int
    files: int
    directories: int = 0

    @property
    def inodes(self) -> int:
        """Files and directories."""
        return self.files + self.directories


def measure(*paths: str, also: Iterable[str] = ()) -> Measured:
    """Sum up what is in directories by its allocated blocks, and `also` these entries themselves.

    Hard links count once, other mounts and missing paths do not."""
    found = _Sum()
    for path in paths:
        with suppress(OSError):
            found.device = os.lstat(path).st_dev
            found.add_below(path)
    for path in also:
        with suppress(OSError):
            stat = os.lstat(path)
            found.device = stat.st_dev
            if found.add(stat):
                found.add_below(path)
    return Measured(bytes=found.bytes, files=found.files, directories=found.directories)


class _Sum:
    def __init__(self) -> None:
        self.bytes = self.files = self.directories = 0
        self.device = -1
        self._seen: set[tuple[int, int]] = set()

    def add(self, stat: os.stat_result) -> bool:
        """Count one entry; True if it is a directory to go into."""
        if stat.st_dev != self.device:
            return False
        is_directory = S_ISDIR(stat.st_mode)
        if is_directory:
            self.directories += 1
        else:
            self.files += 1
            if stat.st_nlink > 1:
                if (stat.st_dev, stat.st_ino) in self._seen:
                    return False
                self._seen.add((stat.st_dev, stat.st_ino))
        self.bytes += stat.st_blocks * 512
        return is_directory

    def add_below(self, path: str) -> None:
        stack = [path]
        while stack:
            try:
                entries = os.scandir(stack.pop())
            except OSError:
                continue
            with entries:
                for entry in entries:
                    try:
                        if self.add(entry.stat(follow_symlinks=False)):
                            stack.append(entry.path)
                    except OSError:
                        continue
