"""Walk whole trees: nested listing, disk usage, removal.

A tree may be hostile: thousands of levels, a million names, directories replaced by links during the walk. So:

- Nothing recurses. A walk keeps a list of paths still to visit and one open directory, at any depth.
- A directory is opened from the top of the walk by a resolver that follows no link at all, in one system call if the
  path is short. A link is skipped; a swapped directory leads to another place inside, never out.
- Every walk ends: `Limits` on names, levels and seconds raise errors that name the limit.
- Removal keeps at most 64 levels open. It moves deeper directories up to the top, or, where an overlay cannot move
  them, closes the outer ones and reopens them from the top on the way back; it never goes back through `..`.
"""

from __future__ import annotations

import os
from errno import EACCES, EBUSY, ELOOP, ENOENT, ENOTDIR, ENOTEMPTY, EXDEV
from itertools import islice
from time import monotonic

from workstead.errors import QuotaExceeded, TimedOut
from workstead.model.file import Tree
from workstead.model.value import Value
from workstead.system.files.root import MAX_PATH_BYTES, Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Self

_GONE = (ENOENT, ENOTDIR, ELOOP)  # removed, or no directory any more, since its name was read
_MAX_OPEN_LEVELS = 64
_BATCH = 16_384  # names of one directory that are in memory at a time


class Limits(Value):
    """Limits of a walk."""

    max_entries: int = 2_000_000
    max_depth: int = 10_000
    max_seconds: float = 60.0


NO_LIMITS = Limits(max_entries=1 << 60, max_depth=1 << 60, max_seconds=1e12)


class Usage(Value):
    """Disk usage of a tree; an inode with several names counts once."""

    apparent_bytes: int  # sum of the sizes of regular files
    allocated_bytes: int  # allocated blocks, directories included
    files: int  # all entries except directories
    directories: int  # the top included


class Visit:
    """A directory on a walk: path, depth and entries (None if it could not be read).

    A large directory is split into several consecutive visits, so that no walk holds all of its names in memory.
    """

    __slots__ = ("depth", "entries", "is_first", "path", "subdirectories")

    def __init__(self, path: str, depth: int, entries: list[os.DirEntry[str]] | None, is_first: bool) -> None:
        self.path = path  # relative to the top of the walk, "" for the top
        self.depth = depth
        self.entries = entries
        self.is_first = is_first
        self.subdirectories = [item.name for item in entries or () if item.is_dir(follow_symlinks=False)]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def prefix(self) -> str:
        """Return the prefix that turns a name into its path from the top."""
        return f"{self.path}/" if self.path else ""

    def files(self) -> list[str]:
        """Return the names of the regular files."""
        return [item.name for item in self.entries or () if item.is_file(follow_symlinks=False)]


class Walk:
    """Iterate over every directory of a tree, a parent immediately before its children.

    `stat` of the entries works until the next step, and `fd` is the directory's descriptor until then.
    """

    def __init__(self, root: Root, path: str | bytes, limits: Limits | None = None) -> None:
        self._root = root
        self._raw = root.check(path)
        self._limits = limits or Limits()
        self._until = monotonic() + self._limits.max_seconds
        self._left = self._limits.max_entries
        self._last = ""  # path of `fd` relative to the top
        try:
            self._top = root.open_folder(self._raw)
        except OSError as error:
            raise root.failure(error, self._raw) from None
        self.fd = self._top

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()
        os.close(self._top)

    def __iter__(self) -> Iterator[Visit]:
        pending = [("", 0)]
        while pending:
            path, depth = pending.pop()
            inner: list[str] = []
            for visit in self._visits(path, depth):
                yield visit
                inner += visit.subdirectories
            if inner:
                if depth >= self._limits.max_depth:
                    raise self._over("max_depth", self._limits.max_depth, "levels")
                prefix = visit.prefix()
                inner.sort(reverse=True)
                pending += [(prefix + name, depth + 1) for name in inner]

    def _visits(self, path: str, depth: int) -> Iterator[Visit]:
        try:
            if path:
                self._open(path)
            found = os.scandir(self.fd)
        except OSError as error:
            if not path:
                raise self._root.failure(error, self._raw) from None
            yield Visit(path, depth, None, True)
            return
        with found:
            is_first = True
            while True:
                self.check_time()
                entries = list(islice(found, _BATCH))
                self._left -= len(entries)
                if self._left < 0:
                    raise self._over("max_entries", self._limits.max_entries, "names")
                if entries or is_first:
                    yield Visit(path, depth, entries, is_first)
                if len(entries) < _BATCH:
                    return
                is_first = False

    def _open(self, path: str) -> None:
        """Open the directory at `path` as `fd`: from the previous one if that is above it, else from the top."""
        start, rest = self._top, path
        if self._last and path.startswith(self._last + "/"):
            start, rest = self.fd, path[len(self._last) + 1 :]
        fd = open_deep(self._root, start, os.fsencode(rest))
        self._let_go()
        self.fd, self._last = fd, path

    def _let_go(self) -> None:
        if self.fd != self._top:
            os.close(self.fd)
            self.fd = self._top

    def check_time(self) -> None:
        """Raise an error when the walk exceeds its time limit."""
        if monotonic() > self._until:
            seconds = self._limits.max_seconds
            raise TimedOut(
                f"{self._root.shown(self._raw)} took longer than {seconds:g} seconds to go through",
                hint="the limit is max_seconds; go through a part, or raise it",
                details={"limit": "max_seconds", "max": seconds},
            )

    def _over(self, limit: str, most: int, what: str) -> QuotaExceeded:
        return self._root.over(self._raw, limit, most, what)


def open_deep(root: Root, start: int, rest: bytes) -> int:
    """Open a directory below `start` by a path of any length, in pieces that the kernel accepts."""
    fd = start
    while True:
        piece, rest = _split(rest)
        try:
            inner = root.open_below(fd, piece)
        finally:
            if fd != start:
                os.close(fd)
        fd = inner
        if not rest:
            return fd


def _split(path: bytes) -> tuple[bytes, bytes]:
    if len(path) <= MAX_PATH_BYTES:
        return path, b""
    at = path.rindex(b"/", 0, MAX_PATH_BYTES)  # exists: a name has at most 255 bytes
    return path[:at], path[at + 1 :]


# -- listing -----------------------------------------------------------------------------------------------------------


def tree(root: Root, path: str | bytes = ".", *, limits: Limits | None = None) -> Tree:
    """Return the nested listing of a directory; links, special files and unreadable directories are skipped and
    counted.

    It is nested as deep as the tree, so printing or encoding it recurses: `tree_json` does not.
    """
    count = _Count()
    node: dict[str, Any] = {}
    around: dict[str, Any] = {}
    waiting = {"": around}  # path of a directory to visit -> dict for its entries
    with Walk(root, path, limits) as walk:
        for visit in walk:
            if visit.is_first:
                node = {}
                parent = waiting.pop(visit.path)
                if visit.entries is None:
                    count.unreadable += 1
                    continue
                parent[visit.name] = node
            files = visit.files()
            node.update(dict.fromkeys(files, "file"))
            count.add(visit, len(files))
            prefix = visit.prefix()
            for name in visit.subdirectories:
                waiting[prefix + name] = node
    return Tree(tree=around[""], **vars(count))


class _Count:
    """Counters of a listing."""

    def __init__(self) -> None:
        self.files = self.links = self.special = self.unreadable = 0
        self.directories = -1  # the top is not one of its own entries

    def add(self, visit: Visit, files: int) -> None:
        entries = visit.entries or []
        self.directories += visit.is_first
        self.files += files
        others = len(entries) - len(visit.subdirectories) - files
        if others:
            links = sum(item.is_symlink() for item in entries)
            self.links += links
            self.special += others - links


def tree_json(root: Root, path: str | bytes = ".", *, limits: Limits | None = None) -> Iterator[bytes]:
    """Yield the nested listing as JSON text in pieces, at any depth; bytes that are not UTF-8 are escaped
    surrogates."""
    from json.encoder import encode_basestring_ascii as quoted

    open_levels = 0
    needs_comma = False
    with Walk(root, path, limits) as walk:
        for visit in walk:
            if visit.entries is None:
                continue
            files = ",".join([f'{quoted(name)}:"file"' for name in sorted(visit.files())])
            if visit.is_first:
                closing = "}" * (open_levels - visit.depth)
                comma = "," if closing or needs_comma else ""
                opening = f"{closing}{comma}{quoted(visit.name)}:{{" if visit.depth else "{"
                open_levels, needs_comma = visit.depth + 1, False
            else:
                opening = "," if files and needs_comma else ""
            needs_comma = needs_comma or bool(files)
            yield (opening + files).encode()
    yield b"}" * open_levels


# -- usage -------------------------------------------------------------------------------------------------------------


def usage(root: Root, path: str | bytes = ".", *, limits: Limits | None = None) -> Usage:
    """Return the disk usage of a directory; links are not followed, and unreadable directories count as empty."""
    apparent = blocks = files = directories = 0
    several: set[tuple[int, int]] = set()  # inodes with several names
    with Walk(root, path, limits) as walk:
        for visit in walk:
            directories += visit.is_first
            if visit.is_first and not visit.depth:
                blocks += os.fstat(walk.fd).st_blocks
            for item in visit.entries or ():
                try:
                    found = item.stat(follow_symlinks=False)
                except OSError:
                    continue  # removed since
                if item.is_dir(follow_symlinks=False):
                    blocks += found.st_blocks
                    continue
                if found.st_nlink > 1:
                    inode = (found.st_dev, found.st_ino)
                    if inode in several:
                        continue
                    several.add(inode)
                files += 1
                blocks += found.st_blocks
                if item.is_file(follow_symlinks=False):
                    apparent += found.st_size
    return Usage(apparent_bytes=apparent, allocated_bytes=blocks * 512, files=files, directories=directories)


# -- removal -----------------------------------------------------------------------------------------------------------


def remove_tree(folder: int, name: bytes, limits: Limits) -> int:
    """Remove a directory with everything below; return the number of names. Raise OSError or the error of a limit."""
    removal = _Removal(limits, os.fstat(folder).st_dev)
    try:
        removal.enter(folder, name)
        while removal.levels:
            level = removal.levels[-1]
            if level.inner:
                removal.go_into(level, level.inner.pop())
            else:
                removal.leave(folder)
    finally:
        for level in removal.levels:
            level.close()
    return removal.removed


class _Level:
    """A directory that is being emptied; its descriptor is -1 while it is closed."""

    __slots__ = ("fd", "inner", "name")

    def __init__(self, name: bytes, fd: int) -> None:
        self.name = name
        self.fd = fd
        self.inner: list[bytes] = []  # its subdirectories still to be removed

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class _Removal:
    def __init__(self, limits: Limits, device: int) -> None:
        self._limits = limits
        self._until = monotonic() + limits.max_seconds
        self._device = device
        self.levels: list[_Level] = []
        self.removed = 0

    def enter(self, folder: int, name: bytes) -> None:
        """Open a directory and remove everything in it except subdirectories."""
        fd = _open_to_empty(folder, name)
        level = _Level(name, fd)
        self.levels.append(level)
        if len(self.levels) > _MAX_OPEN_LEVELS:
            self.levels[-_MAX_OPEN_LEVELS].close()  # never the top
        if os.fstat(fd).st_dev != self._device:
            raise OSError(EBUSY, "a file system is mounted in it")
        self._empty(level)

    def _empty(self, level: _Level) -> None:
        with os.scandir(level.fd) as found:
            for item in found:
                name = os.fsencode(item.name)
                if item.is_dir(follow_symlinks=False) or not self._unlink(level.fd, name):
                    level.inner.append(name)

    def _unlink(self, fd: int, name: bytes) -> bool:
        """Unlink an entry; return False if it has become a directory, which the next pass over its parent handles."""
        try:
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            return True
        except IsADirectoryError:
            return False
        self._count()
        return True

    def go_into(self, level: _Level, name: bytes) -> None:
        """Continue with a subdirectory of `level`: enter it, or, if too deep, move it to the top and enter it there."""
        if len(self.levels) >= _MAX_OPEN_LEVELS and self._bring_up(level, name):
            return
        try:
            self.enter(level.fd, name)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            self._unlink(level.fd, name)

    def _bring_up(self, level: _Level, name: bytes) -> bool:
        """Move a directory to the top; return False if an overlay cannot, so that it must be entered in place."""
        top = self.levels[0]
        fresh = b".aw-" + os.urandom(8).hex().encode()
        try:
            os.rename(name, fresh, src_dir_fd=level.fd, dst_dir_fd=top.fd)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno == EXDEV:
                return False
            raise
        top.inner.append(fresh)
        return True

    def leave(self, folder: int) -> None:
        """Remove the innermost open directory; if another process added entries meanwhile, empty it again."""
        level = self.levels[-1]
        if len(self.levels) > 1 and self.levels[-2].fd < 0:
            self._reopen(len(self.levels) - 1)
        parent = self.levels[-2].fd if len(self.levels) > 1 else folder
        try:
            os.rmdir(level.name, dir_fd=parent)
        except FileNotFoundError:
            pass  # moved away by its owner, with the rest of its entries
        except OSError as error:
            if error.errno == ENOTDIR:
                self._unlink(parent, level.name)
            elif error.errno == ENOTEMPTY:
                self._count()  # so that an endless race reaches a limit
                self._empty(level)
                return
            else:
                raise
        self.levels.pop()
        level.close()
        self._count()

    def _reopen(self, count: int) -> None:
        """Reopen the innermost of the first `count` levels, from the top down."""
        here = os.dup(self.levels[0].fd)
        try:
            for position in range(1, count):
                level = self.levels[position]
                inner = _open_here(here, level.name)
                os.close(here)
                here = inner
                if position > count - _MAX_OPEN_LEVELS // 2:
                    level.fd = os.dup(here)
        finally:
            os.close(here)

    def _count(self) -> None:
        self.removed += 1
        if self.removed > self._limits.max_entries:
            most = self._limits.max_entries
            raise QuotaExceeded(
                f"more than {most} names to remove",
                hint="the limit is max_entries; what was removed stays removed, remove again for the rest",
                details={"limit": "max_entries", "max": most},
            )
        if not self.removed & 0xFF and monotonic() > self._until:
            raise TimedOut(
                f"removal took longer than {self._limits.max_seconds:g} seconds",
                hint="the limit is max_seconds; what was removed stays removed, remove again for the rest",
                details={"limit": "max_seconds", "max": self._limits.max_seconds},
            )


def _open_to_empty(folder: int, name: bytes) -> int:
    """Open a directory to read and remove its names, also one whose mode denies access to its owner."""
    try:
        fd = _open_here(folder, name)
    except PermissionError:
        _unlock(folder, name)
        fd = _open_here(folder, name)
    if os.geteuid() and os.fstat(fd).st_mode & 0o700 != 0o700:
        os.fchmod(fd, 0o700)
    return fd


def _open_here(folder: int, name: bytes) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


def _unlock(folder: int, name: bytes) -> None:
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
    except OSError:
        raise OSError(EACCES, os.strerror(EACCES)) from None
    finally:
        os.close(handle)
