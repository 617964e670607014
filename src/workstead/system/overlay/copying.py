"""Copy and remove directory trees by descriptor, safely even if the source is changed by another user meanwhile.

Every directory of the source is opened from its parent's descriptor without following links, and every file is opened
first and checked second, so that a concurrent rename can only substitute other bytes of the same owner, never files
from outside. The target is private until the copy is complete.

A tree may be a *layer* of an overlay: a character device 0/0 (whiteout) then means "removed below", and an `opaque`
mark means "hide the layers below". Copying a layer over a tree either keeps these marks (a new layer) or applies them
(a plain tree).
"""

from __future__ import annotations

import errno
import os
import stat

from workstead.errors import QuotaExceeded
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

COPY, REFLINK, LINK = "copy", "reflink", "link"

_FICLONE = 0x40049409
_HELD = 32  # levels open at a time, with two descriptors each; most processes may have 1,024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_NO_REFLINK = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS)


class Copied(Value):
    """The result of a copy: counts and skipped paths."""

    files: int
    directories: int
    bytes: int
    skipped: list[str]  # sockets, devices, unreadable files, other file systems


class ReflinkError(OSError):
    """The file system cannot share blocks between files, or not between these two directories."""


def copy_tree(
    source: str | int,
    target: str,
    *,
    how: str = COPY,
    owner: tuple[int, int] | None = None,
    keep_marks: bool = False,
    avoid: Iterable[str] = (),
    max_bytes: int | None = None,
    one_file_system: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Copied:
    """Copy the tree at `source` over the one at `target`, created if missing, with modes, times, links and holes.

    `source` is a path, or a directory descriptor if another user can change the path; a link is not followed. With
    `keep_marks` the target is a layer too. Directories in `avoid` are left out, wherever in the source they are.
    `one_file_system` leaves out mounts in the source. Raise QuotaExceeded above `max_bytes`, and ReflinkError if `how`
    is reflink and the blocks of the very first file cannot be shared.
    """
    os.makedirs(target, 0o700, exist_ok=True)
    copy = _Copy(how, owner, keep_marks, progress)
    copy.max_bytes = max_bytes
    copy.one_file_system = one_file_system
    copy.avoid = {_identity(os.stat(path)) for path in avoid if os.path.isdir(path)}
    copy.avoid.add(_identity(os.stat(target)))
    return copy.run(source, target)


def copy_cheaply(
    source: int, target: str, owner: tuple[int, int] | None = None, *, max_bytes: int | None = None
) -> Copied:
    """Copy an agent's directory to a path that does not exist, sharing its blocks if the file system can."""
    try:
        return copy_tree(source, target, how=REFLINK, owner=owner, max_bytes=max_bytes, one_file_system=True)
    except ReflinkError:
        remove_tree(target)
        return copy_tree(source, target, owner=owner, max_bytes=max_bytes, one_file_system=True)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def copy_entry(source: str, target: str, name: str) -> None:
    """Copy one entry of a user's tree, at a real path, to the same path in a tree of ours."""
    from workstead.system.files.foreign import hold_directory

    parent = os.path.dirname(name)
    os.makedirs(f"{target}/{parent}" if parent else target, 0o755, exist_ok=True)
    with hold_directory(f"{source}/{parent}".rstrip("/")) as folder:  # no component of the path may be a link
        source_fd = os.open(f"/proc/self/fd/{folder}", _DIRECTORY & ~os.O_NOFOLLOW)
    target_fd = os.open(f"{target}/{parent}", _DIRECTORY)
    copy = _Copy(COPY, None, False, None)
    try:
        level = copy.enter(source_fd, target_fd, "")
        level.names = [os.path.basename(name)]
        copy.walk()
    finally:
        copy.close()


class _Level:
    """A directory being copied: descriptors of both sides (-1 while closed), and the names left to copy."""

    def __init__(self, source: int, target: int, name: str) -> None:
        self.source = source
        self.target = target
        self.name = name
        self.status = os.fstat(source)
        self.xattrs = _read_xattrs(source)
        with os.scandir(source) as entries:
            self.names = [entry.name for entry in entries]

    def close(self) -> None:
        for descriptor in (self.source, self.target):
            if descriptor >= 0:
                os.close(descriptor)
        self.source = self.target = -1


class _Copy:
    def __init__(
        self, how: str, owner: tuple[int, int] | None, keep_marks: bool, progress: Callable[[str], None] | None
    ) -> None:
        self.how = how
        self.owner = owner
        self.keep_marks = keep_marks
        self.progress = progress
        self.files = self.directories = self.bytes = 0
        self.has_shared = False
        self.skipped: list[str] = []
        self.seen: dict[tuple[int, int], str] = {}  # inode with several names -> path of its first copy
        self.levels: list[_Level] = []
        self.avoid: set[tuple[int, int]] = set()
        self.max_bytes: int | None = None
        self.taken = 0  # disk usage of the files, for `max_bytes`
        self.one_file_system = False

    def run(self, source: str | int, target: str) -> Copied:
        try:
            top = os.open(".", _DIRECTORY, dir_fd=source) if isinstance(source, int) else os.open(source, _DIRECTORY)
            self.enter(top, os.open(target, _DIRECTORY), "")
            self.walk()
        finally:
            self.close()
        return Copied(files=self.files, directories=self.directories, bytes=self.bytes, skipped=self.skipped)

    def close(self) -> None:
        for level in self.levels:
            level.close()

    def enter(self, source: int, target: int, name: str) -> _Level:
        try:
            level = _Level(source, target, name)
        except BaseException:
            os.close(source)
            os.close(target)
            raise
        self.levels.append(level)
        if len(self.levels) > _HELD:
            self.levels[-_HELD].close()  # never levels[0]: the outermost stays open
        return level

    def walk(self) -> None:
        while self.levels:
            level = self.levels[-1]
            if level.target < 0:
                self._reopen()
            if not level.names:
                self._finish(self.levels.pop())
                continue
            name = level.names.pop()
            try:
                self._entry(level, name)
            except FileNotFoundError:
                continue  # the agent removed it meanwhile
            except PermissionError:
                self.skipped.append(self._path(name))

    def _path(self, name: str) -> str:
        return "/".join([*(level.name for level in self.levels[1:]), name])

    def _reopen(self) -> None:
        """Reopen the last levels from the top down; a source directory that was moved away has no more entries."""
        source, target = os.dup(self.levels[0].source), os.dup(self.levels[0].target)
        for position, level in enumerate(self.levels[1:], start=1):
            source = _step(source, level.name)
            target = _step(target, level.name)
            if position > len(self.levels) - _HELD:
                level.source = os.dup(source) if source >= 0 else -1
                level.target = os.dup(target)
                if source < 0:
                    level.names.clear()
        for descriptor in (source, target):
            if descriptor >= 0:
                os.close(descriptor)

    def _entry(self, level: _Level, name: str) -> None:
        status = os.stat(name, dir_fd=level.source, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            if self.one_file_system and status.st_dev != self.levels[0].status.st_dev:
                self.skipped.append(self._path(name))
            elif _identity(status) not in self.avoid:
                self._directory(level, name)
            return
        if is_whiteout(status):
            self._whiteout(level, name)
            return
        clear(level.target, name)
        if stat.S_ISREG(status.st_mode):
            self._file(level, name, status)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=level.source), name, dir_fd=level.target)
            self._own(name, level.target)
            os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=level.target, follow_symlinks=False)
            self.files += 1
        elif stat.S_ISFIFO(status.st_mode):
            os.mkfifo(name, 0o600, dir_fd=level.target)
            self._own(name, level.target)
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=level.target)
            os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=level.target)
        else:
            self.skipped.append(self._path(name))

    def _whiteout(self, level: _Level, name: str) -> None:
        clear(level.target, name)
        if self.keep_marks:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=level.target)

    def _directory(self, level: _Level, name: str) -> None:
        source = os.open(name, _DIRECTORY, dir_fd=level.source)
        try:
            mark = opaque_mark(source)
            if mark:
                clear(level.target, name)
            try:
                os.mkdir(name, 0o700, dir_fd=level.target)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(name, dir_fd=level.target, follow_symlinks=False).st_mode):
                    clear(level.target, name)
                    os.mkdir(name, 0o700, dir_fd=level.target)
            target = os.open(name, _DIRECTORY, dir_fd=level.target)
            if mark and self.keep_marks:
                os.setxattr(target, mark, b"y")
        except BaseException:
            os.close(source)
            raise
        self.directories += 1
        self.enter(source, target, name)

    def _finish(self, level: _Level) -> None:
        """Set a directory's attributes last: filling it changes its mtime, and it may be read-only."""
        try:
            _set_xattrs(level.target, level.xattrs)
            if self.owner:
                os.fchown(level.target, *self.owner)
            os.fchmod(level.target, stat.S_IMODE(level.status.st_mode))
            os.utime(level.target, ns=(level.status.st_atime_ns, level.status.st_mtime_ns))
        finally:
            level.close()

    def _own(self, name: str, directory: int) -> None:
        if self.owner:
            os.chown(name, *self.owner, dir_fd=directory, follow_symlinks=False)

    def _file(self, level: _Level, name: str, status: os.stat_result) -> None:
        if self.how == LINK:
            os.link(name, name, src_dir_fd=level.source, dst_dir_fd=level.target, follow_symlinks=False)
            self.files += 1
            return
        if status.st_nlink > 1 and self._link_again(level, name, status):
            return
        source = os.open(name, _FILE, dir_fd=level.source)
        try:
            status = os.fstat(source)
            if not stat.S_ISREG(status.st_mode):
                self.skipped.append(self._path(name))
                return
            self._refuse_excess(status)
            target = os.open(name, _NEW, 0o600, dir_fd=level.target)
            try:
                self._bytes(source, target, status)
                _set_xattrs(target, _read_xattrs(source))
                if self.owner:
                    os.fchown(target, *self.owner)
                os.fchmod(target, stat.S_IMODE(status.st_mode))
                os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
            finally:
                os.close(target)
        finally:
            os.close(source)
        self.files += 1
        self.bytes += status.st_size
        if self.progress and self.files % 2000 == 0:
            self.progress(f"copied {self.files} files, {self.bytes >> 20} MB")

    def _refuse_excess(self, status: os.stat_result) -> None:
        self.taken += status.st_blocks * 512
        if self.max_bytes is not None and self.taken > self.max_bytes:
            raise QuotaExceeded(
                f"there is more to copy than the {self.max_bytes} bytes that the new workspace may hold",
                hint="remove what is not needed, or raise max_size_mb",
                details={"limit": "size", "allowed": self.max_bytes},
            )

    def _link_again(self, level: _Level, name: str, status: os.stat_result) -> bool:
        path = self._path(name)
        first = self.seen.setdefault(_identity(status), path)
        if first == path:
            return False
        try:
            os.link(first, name, src_dir_fd=self.levels[0].target, dst_dir_fd=level.target, follow_symlinks=False)
        except OSError:  # path too long, or too many links: then make a separate file
            return False
        self.files += 1
        return True

    def _bytes(self, source: int, target: int, status: os.stat_result) -> None:
        if self.how == REFLINK:
            try:
                reflink(source, target)
                self.has_shared = True
                return
            except OSError as error:
                if error.errno not in _NO_REFLINK:
                    raise
                if not self.has_shared:
                    raise ReflinkError(error.errno, error.strerror) from None
        copy_bytes(source, target, status)  # also for the few files that are on another file system than the first


def reflink(source: int, target: int) -> None:
    """Let `target` share all blocks of `source`."""
    import fcntl

    fcntl.ioctl(target, _FICLONE, source)


def copy_bytes(source: int, target: int, status: os.stat_result) -> None:
    """Copy a file's content, holes as holes; bytes appended meanwhile are left out."""
    size = status.st_size
    for start, end in _extents(source, size, sparse=status.st_blocks * 512 < size):
        _copy_range(source, target, start, end)
    os.ftruncate(target, size)


def _extents(source: int, size: int, *, sparse: bool) -> Iterator[tuple[int, int]]:
    if not sparse:
        yield 0, size
        return
    position = 0
    while position < size:
        try:
            start = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        position = min(os.lseek(source, start, os.SEEK_HOLE), size)
        yield start, position


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        try:
            done = os.copy_file_range(source, target, min(end - start, 1 << 30), start, start)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF):
                raise
            done = os.pwrite(target, os.pread(source, min(end - start, 1 << 20), start), start)
        if done == 0:  # the file became shorter
            return
        start += done


def _step(directory: int, name: str) -> int:
    """Replace the descriptor of a directory by one of its subdirectory; return -1 if that is gone."""
    if directory < 0:
        return -1
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except OSError:
        return -1
    finally:
        os.close(directory)


def _read_xattrs(source: int) -> list[tuple[str, bytes]]:
    """Return the `user.*` attributes only: others concern this machine's security; overlay marks are set separately."""
    try:
        names = os.listxattr(source)
    except OSError:
        return []
    wanted = (name for name in names if name.startswith("user.") and not name.startswith("user.overlay."))
    return [(name, os.getxattr(source, name)) for name in wanted]


def _set_xattrs(target: int, attributes: list[tuple[str, bytes]]) -> None:
    for name, value in attributes:
        os.setxattr(target, name, value)


def is_whiteout(status: os.stat_result) -> bool:
    """Return whether this entry of a layer marks a removed name."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def opaque_mark(directory: int) -> str | None:
    """Return the attribute that marks this directory of a layer as opaque, or None."""
    for name in _OPAQUE:
        try:
            if os.getxattr(directory, name) == b"y":
                return name
        except OSError:  # missing, or not readable for us
            continue
    return None


def clear(directory: int, name: str) -> None:
    """Remove the entry of this name, of any kind, from a directory of ours."""
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
        remove_tree(name, dir_fd=directory)


def remove_tree(path: str, *, dir_fd: int | None = None) -> None:
    """Remove a directory of any depth; a missing path is no error, and an entry of another kind is unlinked.

    Subdirectories are moved up beside their parent before they are read, so one descriptor is enough and no path grows.
    Directories without access get mode 0700 first; they are ours, or we are root.
    """
    try:
        top = os.open(path, _DIRECTORY, dir_fd=dir_fd)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(path, dir_fd=dir_fd)
        return
    except PermissionError:
        os.chmod(path, 0o700, dir_fd=dir_fd)
        top = os.open(path, _DIRECTORY, dir_fd=dir_fd)
    try:
        os.fchmod(top, 0o700)
        fresh = _fresh_names()
        pending = _empty(top, None, fresh)
        while pending:
            name = pending.pop()
            directory = _open_own(top, name)
            try:
                pending += _empty(directory, top, fresh)
            finally:
                os.close(directory)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path, dir_fd=dir_fd)


def _open_own(top: int, name: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=top)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=top)
        return os.open(name, _DIRECTORY, dir_fd=top)


def _fresh_names() -> Iterator[str]:
    """Yield names that the author of the tree cannot have predicted."""
    prefix = os.urandom(8).hex()
    number = 0
    while True:
        yield f"{prefix}-{number}"
        number += 1


def _empty(directory: int, top: int | None, fresh: Iterator[str]) -> list[str]:
    """Unlink every file here and move every directory to `top`; return the new names of the directories."""
    directories: list[str] = []
    with os.scandir(directory) as entries:
        found = list(entries)
    for entry in found:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=directory)
        elif top is None:
            directories.append(entry.name)
        else:
            name = next(fresh)
            try:
                os.rename(entry.name, name, src_dir_fd=directory, dst_dir_fd=top)
            except PermissionError:  # a directory must itself be writable to be moved
                os.chmod(entry.name, 0o700, dir_fd=directory)
                os.rename(entry.name, name, src_dir_fd=directory, dst_dir_fd=top)
            directories.append(name)
    return directories


# -- btrfs -------------------------------------------------------------------------------------------------------------

_SNAP_CREATE_V2 = 0x50009417
_SUBVOL_CREATE = 0x5000940E
_SUBVOLUME_INODE = 256


def is_subvolume(path: str) -> bool:
    """Return whether a directory on btrfs is the root of a subvolume."""
    return os.stat(path).st_ino == _SUBVOLUME_INODE


def btrfs_snapshot(source: str, target: str) -> None:
    """Make `target` a writable snapshot of the subvolume `source`."""
    import fcntl
    import struct

    subvolume = os.open(source, _DIRECTORY)
    parent = os.open(os.path.dirname(target), _DIRECTORY)
    try:
        name = os.fsencode(os.path.basename(target))
        arguments = bytearray(struct.pack("=qQQ32s4040s", subvolume, 0, 0, b"", name))
        fcntl.ioctl(parent, _SNAP_CREATE_V2, arguments)
    finally:
        os.close(subvolume)
        os.close(parent)


def btrfs_subvolume(target: str) -> None:
    """Make `target` an empty subvolume."""
    import fcntl
    import struct

    parent = os.open(os.path.dirname(target), _DIRECTORY)
    try:
        fcntl.ioctl(parent, _SUBVOL_CREATE, bytearray(struct.pack("=q4088s", 0, os.fsencode(os.path.basename(target)))))
    finally:
        os.close(parent)


def give_tree(path: str, owner: tuple[int, int]) -> None:
    """Change the owner of everything in a tree of ours, keeping modes (chown drops set-id bits)."""
    from workstead.system.files.root import Root
    from workstead.system.files.walk import NO_LIMITS, Walk

    with Root.open(path) as root, Walk(root, ".", NO_LIMITS) as walk:  # os.fwalk recurses, and keeps every level open
        for visit in walk:
            for item in visit.entries or ():
                status = item.stat(follow_symlinks=False)
                os.chown(item.name, *owner, dir_fd=walk.fd, follow_symlinks=False)
                if not stat.S_ISLNK(status.st_mode):
                    os.chmod(item.name, stat.S_IMODE(status.st_mode), dir_fd=walk.fd)
    os.chown(path, *owner)
