"""Change a live directory tree safely: every name is reached by descriptor and replaced, never written through.

Rules:
1. A directory is opened step by step with O_NOFOLLOW from one that we hold. A symbolic link on the way is an error.
2. A file is created under a temporary name in its own directory and renamed over the old one. An existing open file,
   link or hard link is replaced; its target or other names are not touched.
3. Mode, times and xattrs of an existing file are changed through a descriptor of that inode, and only if it has no
   other hard link.
4. Removal is iterative and holds few directories open, however deep the tree.
"""

from __future__ import annotations

import errno
import os
import stat

from workstead.snapshots.folders import OPEN_DIR, Folders
from workstead.system.files.remove import remove_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workstead.snapshots.entries import Xattrs

TEMPORARY = ".aw-new-"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 4096
_ZEROS = bytes(_BLOCK)


class Hands:
    """Write below one directory. Root sets `owner` on new files; for an ordinary user they are its own."""

    def __init__(self, fd: int, owner: tuple[int, int] | None = None) -> None:
        self._folders = Folders(os.dup(fd))
        self._owner = owner if os.geteuid() == 0 else None
        self.is_root = os.geteuid() == 0
        self.forget = self._folders.forget
        self.forget_below = self._folders.forget_below

    def close(self) -> None:
        """Close all descriptors."""
        self._folders.close()

    def folder(self, path: str) -> int:
        """Return a descriptor of a directory, which stays owned by this object."""
        return self._folders.open(path)

    def parent(self, path: str) -> tuple[int, str]:
        """Return the parent directory of a path, and the name in it."""
        above, _, name = path.rpartition("/")
        return self._folders.open(above), name

    def status(self, path: str) -> os.stat_result | None:
        """Return the status of a path, or None."""
        try:
            fd, name = self.parent(path)
            return os.stat(name, dir_fd=fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    # -- creating ------------------------------------------------------------------------------------------------------

    def write(
        self,
        path: str,
        pieces: Iterable[tuple[int, bytes]],
        size: int,
        *,
        mode: int,
        mtime_ns: int,
        xattrs: Xattrs = (),
        sparse: bool = False,
    ) -> None:
        """Write a file at a path, replacing a file or link."""
        parent, name = self.parent(path)
        temporary = TEMPORARY + os.urandom(8).hex()
        fd = os.open(temporary, _NEW_FILE, 0o600, dir_fd=parent)
        try:
            try:
                write_pieces(fd, pieces, size, sparse=sparse)
                if self._owner is not None:
                    os.fchown(fd, *self._owner)
                set_xattrs(fd, xattrs)
                os.fchmod(fd, mode & 0o1777)
                os.utime(fd, ns=(mtime_ns, mtime_ns))
            finally:
                os.close(fd)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            _unlink(temporary, parent)
            raise

    def link(self, path: str, target: str, mtime_ns: int) -> None:
        """Create a symbolic link at a path."""
        parent, name = self.parent(path)
        temporary = TEMPORARY + os.urandom(8).hex()
        os.symlink(target, temporary, dir_fd=parent)
        try:
            if self._owner is not None:
                os.chown(temporary, *self._owner, dir_fd=parent, follow_symlinks=False)
            os.utime(temporary, ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            _unlink(temporary, parent)
            raise

    def join(self, path: str, name_too: str, *, size: int, mtime_ns: int, mode: int) -> bool:
        """Create a hard link to the file at a path, if its size, mtime and mode match; else change nothing."""
        try:
            handle = self._handle(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        with handle as fd:
            status = os.fstat(fd)
            found = (stat.S_ISREG(status.st_mode), status.st_size, status.st_mtime_ns, status.st_mode & 0o1777)
            if found != (True, size, mtime_ns, mode & 0o1777):
                return False
            parent, name = self.parent(name_too)
            temporary = TEMPORARY + os.urandom(8).hex()
            try:
                # The magic link leads to the inode that we hold, even if the path was replaced meanwhile.
                os.link(f"/proc/self/fd/{fd}", temporary, dst_dir_fd=parent, follow_symlinks=True)
            except OSError as error:
                if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP):
                    return False  # no hard links on this disk, or too many: make a copy instead
                raise
            try:
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            finally:
                _unlink(temporary, parent)  # a rename between two hard links of one inode does nothing
        return True

    def make_folder(self, path: str) -> None:
        """Create a directory that we can write to; its mode is set last. An existing one is accepted."""
        parent, name = self.parent(path)
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            os.close(os.open(name, OPEN_DIR, dir_fd=parent))  # a link in its place is an error
            return
        if self._owner is not None:
            os.chown(name, *self._owner, dir_fd=parent, follow_symlinks=False)

    def open_up(self, path: str) -> bool:
        """Make a directory writable for us, which an ordinary user needs; return whether its mode was changed."""
        if self.is_root:
            return False
        with self._handle(path) as fd:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISDIR(mode) or mode & 0o700 == 0o700:
                return False
            os.chmod(f"/proc/self/fd/{fd}", (mode & 0o7777) | 0o700)
            return True

    def set_folder_mode(self, path: str, mode: int) -> None:
        """Set the mode of a directory; ignore other types."""
        with self._handle(path) as fd:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                os.chmod(f"/proc/self/fd/{fd}", mode & 0o1777)

    def set_meta(self, path: str, *, mode: int, mtime_ns: int, xattrs: Xattrs | None) -> bool:
        """Set mode, xattrs and time of a file or directory. False if the inode has other names: replace it."""
        with self._handle(path) as fd:
            status = os.fstat(fd)
            if not stat.S_ISDIR(status.st_mode) and (not stat.S_ISREG(status.st_mode) or status.st_nlink > 1):
                return False
            # O_PATH descriptors refuse fchmod and similar calls; the magic link leads to exactly the inode that we
            # hold.
            here = f"/proc/self/fd/{fd}"
            if xattrs is not None:
                set_xattrs(here, xattrs)
            if status.st_mode & 0o7777 != mode & 0o1777:
                os.chmod(here, mode & 0o1777)
            if status.st_mtime_ns != mtime_ns:
                os.utime(here, ns=(mtime_ns, mtime_ns))
        return True

    def set_link_time(self, path: str, mtime_ns: int) -> None:
        """Set the mtime of a symbolic link."""
        parent, name = self.parent(path)
        os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)

    def _handle(self, path: str) -> _Handle:
        if not path:
            return _Handle(os.dup(self._folders.root))
        parent, name = self.parent(path)
        return _Handle(os.open(name, _HANDLE, dir_fd=parent))

    # -- removing ------------------------------------------------------------------------------------------------------

    def remove(self, path: str) -> None:
        """Remove a name and everything below it. Idempotent."""
        self.forget_below(path)
        try:
            parent, name = self.parent(path)
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            remove_folder(parent, name)


class _Handle:
    """A descriptor that is closed on exit."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _unlink(name: str, parent: int) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except OSError:
        return  # the next restore or snapshot reports it


def write_pieces(fd: int, pieces: Iterable[tuple[int, bytes]], size: int, *, sparse: bool) -> None:
    """Fill an empty file; ranges without a piece, and zero blocks of a sparse file, stay holes."""
    end = 0
    for at, data in pieces:
        for start, part in _runs(data) if sparse else ((0, data),):
            view, done = memoryview(part), 0
            while done < len(view):
                done += os.pwrite(fd, view[done:], at + start + done)
            end = at + start + len(part)
    if end < size:
        os.ftruncate(fd, size)


def _runs(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of the data that are not blocks of zeros."""
    start = -1
    for at in range(0, len(data), _BLOCK):
        if data[at : at + _BLOCK] == _ZEROS[: len(data) - at]:
            if start >= 0:
                yield start, data[start:at]
                start = -1
        elif start < 0:
            start = at
    if start >= 0:
        yield start, data[start:]


def set_xattrs(where: int | str, xattrs: Xattrs) -> None:
    """Set exactly these user attributes on a file or directory."""
    wanted = {os.fsdecode(key): value for key, value in xattrs}
    try:
        present = [key for key in os.listxattr(where) if key.startswith("user.")]
        for key in present:
            if key not in wanted and not key.startswith("user.overlay."):
                os.removexattr(where, key)
        for key, value in wanted.items():
            if key not in present or os.getxattr(where, key) != value:
                os.setxattr(where, key, value)
    except OSError as error:
        if error.errno != errno.ENOTSUP:  # a file system without xattrs loses them, as with any copy
            raise


def remove_folder(parent: int, name: str) -> None:
    """Remove a directory and everything below it, by descriptor, never through a link."""
    remove_below(parent, os.fsencode(name))
