"""Measure the disk usage of trees: allocated blocks, not apparent sizes, and without other mounts.

The owner of the tree may want it to look small. So it is walked by descriptor, one name at a time: no path gets too
long for the kernel, and no link is followed. A directory whose mode denies access to its owner (mode 000) is made
accessible during the walk; directories that stay inaccessible are counted as `unreadable`, for the caller to judge.
"""

from __future__ import annotations

import os
from contextlib import suppress
from errno import ELOOP, ENOENT, ENOTDIR
from stat import S_IMODE, S_ISDIR

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_OPEN = 64  # levels kept open; further up the walk returns through `..` and verifies the directory it reaches
_GONE = (ENOENT, ENOTDIR, ELOOP)  # removed or replaced since its name was read
_HERE = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSABLE = 0o500


class Measured(Value):
    """The sum over some trees."""

    bytes: int
    files: int
    directories: int = 0
    unreadable: int = 0  # directories that could not be read

    @property
    def inodes(self) -> int:
        """Return the number of files and directories."""
        return self.files + self.directories


def measure(*paths: str, also: Iterable[str] = ()) -> Measured:
    """Sum up the allocated blocks of the contents of directories, and `also` of these entries themselves.

    Hard links count once; other mounts and missing paths do not count."""
    found = _Sum()
    for path in paths:
        found.add_top(path, itself=False)
    for path in also:
        found.add_top(path, itself=True)
    return Measured(bytes=found.bytes, files=found.files, directories=found.directories, unreadable=found.unreadable)


class _Level:
    """A directory on the path from the top to the current position."""

    __slots__ = ("closed_mode", "fd", "identity", "inner")

    def __init__(self, parent: int, name: str) -> None:
        self.inner: list[str] = []  # subdirectories still to be entered
        self.fd, self.closed_mode = _open(parent, name)  # fd -1: closed for now; the mode to restore
        found = os.fstat(self.fd)
        self.identity = (found.st_dev, found.st_ino)

    def leave(self) -> None:
        """Close it; restore a mode that was changed to open it, unless another process has changed it meanwhile."""
        if self.fd < 0:
            return
        if self.closed_mode is not None:
            with suppress(OSError):
                if S_IMODE(os.fstat(self.fd).st_mode) == self.closed_mode | _PASSABLE:
                    os.fchmod(self.fd, self.closed_mode)
        os.close(self.fd)
        self.fd = -1


class _Sum:
    def __init__(self) -> None:
        self.bytes = self.files = self.directories = self.unreadable = 0
        self.device = -1
        self._seen: set[tuple[int, int]] = set()

    def add_top(self, path: str, *, itself: bool) -> None:
        """Count everything below a path, and the path itself with `itself`, also if it is no longer a directory."""
        try:
            top = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return
        try:
            found = os.fstat(top)
            self.device = found.st_dev
            is_directory = S_ISDIR(found.st_mode)
            if itself or not is_directory:
                self.add(found)
            if is_directory:
                self.add_below(top)
        finally:
            os.close(top)

    def add(self, stat: os.stat_result) -> bool:
        """Count one entry; return True if it is a directory to enter."""
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

    def add_below(self, top: int) -> None:
        """Count everything in a directory of any depth, with a bounded number of descriptors."""
        levels: list[_Level] = []
        try:
            self._enter(levels, top, ".")
            while levels:
                level = levels[-1]
                if level.inner:
                    self._enter(levels, level.fd, level.inner.pop())
                else:
                    self._leave(levels)
        finally:
            for level in levels:
                level.leave()

    def _enter(self, levels: list[_Level], parent: int, name: str) -> None:
        try:
            level = _Level(parent, name)
        except OSError as error:
            self.unreadable += error.errno not in _GONE
            return
        levels.append(level)
        if len(levels) > _MAX_OPEN and levels[-_MAX_OPEN].fd >= 0:  # never the top
            os.close(levels[-_MAX_OPEN].fd)
            levels[-_MAX_OPEN].fd = -1
        try:
            with os.scandir(level.fd) as entries:
                for entry in entries:
                    self._add_entry(level, entry)
        except OSError:
            self.unreadable += 1

    def _add_entry(self, level: _Level, entry: os.DirEntry[str]) -> None:
        try:
            if self.add(entry.stat(follow_symlinks=False)):
                level.inner.append(entry.name)
        except OSError as error:
            self.unreadable += error.errno not in _GONE

    def _leave(self, levels: list[_Level]) -> None:
        """Return to the level above, or skip levels that are no longer above."""
        left = levels.pop()
        if levels and levels[-1].fd < 0:
            levels[-1].fd = _reopen(levels[-1], left)
            if levels[-1].fd < 0:  # moved during the walk: it may be found again elsewhere, or not
                self.unreadable += 1
                while levels[-1].fd < 0:
                    levels.pop()
        left.leave()


def _reopen(level: _Level, below: _Level) -> int:
    """Reopen a level from the one below it; return -1 if that was moved elsewhere."""
    try:
        fd = os.open("..", os.O_RDONLY | _HERE, dir_fd=below.fd)
    except OSError:
        return -1
    found = os.fstat(fd)
    if (found.st_dev, found.st_ino) == level.identity:
        return fd
    os.close(fd)
    return -1


def _open(parent: int, name: str) -> tuple[int, int | None]:
    """Open a directory for reading, even if its mode denies its owner access; return fd and the mode to restore."""
    with suppress(PermissionError):
        fd = os.open(name, os.O_RDONLY | _HERE, dir_fd=parent)
        if os.geteuid() == 0 or os.fstat(fd).st_mode & _PASSABLE == _PASSABLE:
            return fd, None
        os.close(fd)
    handle = os.open(name, os.O_PATH | _HERE, dir_fd=parent)
    try:
        mode = S_IMODE(os.fstat(handle).st_mode)
        os.chmod(f"/proc/self/fd/{handle}", mode | _PASSABLE)
        return os.open(".", os.O_RDONLY | _HERE, dir_fd=handle), mode
    finally:
        os.close(handle)
