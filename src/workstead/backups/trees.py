"""Convert directories to entries of a manifest, and back.

An entry is a list: path, kind, mode, uid, gid, mtime in ns, attributes, and by kind

    f   size, inode, ctime in ns, size of a piece, pieces (digest, or null for zeros) in order
    h   path of the first name of the same file (hard link)
    l   target
    d w p   nothing: a directory, an overlay whiteout, a pipe

Paths are relative to the tree, the tree itself is "". Names that are not UTF-8 are text with surrogates, as in Python.
Directories are walked by descriptor and links are never followed, because another process may swap them meanwhile.
"""

from __future__ import annotations

import base64
import errno
import os
import stat
from contextlib import suppress

from workstead.errors import from_os
from workstead.snapshots.folders import OPEN_DIR, Folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from workstead.backups.repository import PackReader, PackWriter

PIECE = 1 << 20
SMALL_PIECE = 1 << 16  # for files that change in the middle, such as databases and disk images
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 3
# A mapped page that is written again before writeback keeps its mtime; writeback takes up to half a minute.
SETTLED_NS = 60 * 10**9


class Keeper:
    """Read trees into packs, and record files that could not be read consistently."""

    def __init__(
        self, writer: PackWriter, known: dict[str, list[Any]], trusted_before_ns: int, progress: Callable[[int], None]
    ) -> None:
        self._writer = writer
        self._known = known  # tree/path -> the entry of the last backup in the same boot
        self._trusted_before_ns = trusted_before_ns
        self._progress = progress
        self.left_out: list[str] = []
        self.torn: list[str] = []
        self.files = 0
        self.bytes = 0

    def tree(self, name: str, root: int, skip: Iterable[str] = (), small_pieces: Iterable[str] = ()) -> list[Any]:
        """Return the entries of the tree at a descriptor, which is closed. Omit the paths in `skip` and below."""
        walk = _Walk(self, name, root, frozenset(skip), frozenset(small_pieces))
        try:
            return walk.run()
        finally:
            walk.close()

    def file(self, fd: int, piece: int) -> list[str | None]:
        """Return the pieces of an open file."""
        pieces: list[str | None] = []
        zeros = bytes(piece)
        offset = 0
        while data := os.pread(fd, piece, offset):
            while len(data) < piece and (more := os.pread(fd, piece - len(data), offset + len(data))):
                data += more
            pieces.append(None if data == zeros else self._writer.add(data))
            offset += len(data)
            self.bytes += len(data)
            self._progress(self.bytes)
        return pieces

    def reuse(self, key: str, status: os.stat_result) -> list[Any] | None:
        """Return the last backup's fields after the attributes, if the file has not changed since."""
        entry = self._known.get(key)
        if entry is None or entry[1] != "f" or status.st_ctime_ns >= self._trusted_before_ns:
            return None
        size, inode, ctime_ns, piece_size, pieces = entry[7:]
        if (size, inode, ctime_ns, entry[5]) != (status.st_size, status.st_ino, status.st_ctime_ns, status.st_mtime_ns):
            return None
        if not all(piece is None or self._writer.has(piece) for piece in pieces):
            return None
        self.bytes += size
        return [size, inode, ctime_ns, piece_size, pieces]


class _Walk:
    def __init__(self, keeper: Keeper, name: str, root: int, skip: frozenset[str], small: frozenset[str]) -> None:
        self._keeper = keeper
        self._name = name
        self._folders = Folders(root)
        self._device = os.fstat(root).st_dev
        self._skip = skip
        self._small = small
        self._seen: dict[tuple[int, int], str] = {}
        self._entries: list[Any] = []

    def close(self) -> None:
        self._folders.close()

    def run(self) -> list[Any]:
        waiting = [""]
        while waiting:
            path = waiting.pop()
            try:
                fd = self._folders.open(path)
                names = sorted(os.listdir(fd))
            except OSError as error:
                self._leave_out(path, error)
                continue
            if not path:
                self._entries.append(_entry("", "d", os.fstat(fd), _attributes(fd)))
            below = []
            for name in names:
                child = f"{path}/{name}" if path else name
                if child not in self._skip and self._add(self._folders.open(path), name, child):
                    below.append(child)
            waiting += reversed(below)
        return self._entries

    def _leave_out(self, path: str, error: OSError) -> None:
        if error.errno != errno.ENOENT:  # removed meanwhile: then it is not part of this backup
            self._keeper.left_out.append(f"{self._name}/{path}: {error.strerror}")

    def _add(self, folder: int, name: str, path: str) -> bool:
        """Add one entry; return True if it is a directory to enter."""
        try:
            status = os.lstat(name, dir_fd=folder)
            kind = _KINDS.get(stat.S_IFMT(status.st_mode))
            if kind == "d":
                return self._add_folder(path, status)
            if kind == "f":
                self._add_file(folder, name, path, status)
            elif kind == "l":
                entry = _entry(path, "l", status, _link_attributes(folder, name))
                self._entries.append([*entry, os.readlink(name, dir_fd=folder)])
            elif kind == "p":
                self._entries.append(_entry(path, "p", status, {}))
            elif stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                self._entries.append(_entry(path, "w", status, {}))
            # Sockets and devices have no content; running programs create them again.
        except OSError as error:
            self._leave_out(path, error)
        return False

    def _add_folder(self, path: str, status: os.stat_result) -> bool:
        if status.st_dev != self._device:  # a mount point; the mount's own layers are backed up instead
            self._entries.append(_entry(path, "d", status, {}))
            return False
        try:
            fd = self._folders.open(path)
        except PermissionError as error:  # it is restored empty, with its mode
            self._leave_out(path, error)
            self._entries.append(_entry(path, "d", status, {}))
            return False
        self._entries.append(_entry(path, "d", os.fstat(fd), _attributes(fd)))
        return True

    def _add_file(self, folder: int, name: str, path: str, status: os.stat_result) -> None:
        if status.st_nlink > 1:
            first = self._seen.setdefault((status.st_dev, status.st_ino), path)
            if first != path:
                self._entries.append([*_entry(path, "h", status, {}), first])
                return
        self._keeper.files += 1
        fd = os.open(name, _READ, dir_fd=folder)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return
            said = self._keeper.reuse(f"{self._name}/{path}", status)
            piece = SMALL_PIECE if path in self._small else PIECE
            for _ in range(_TRIES):
                if said is not None:
                    break
                pieces = self._keeper.file(fd, piece)
                before, status = status, os.fstat(fd)
                if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (
                    status.st_size,
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                ):
                    said = [status.st_size, status.st_ino, status.st_ctime_ns, piece, pieces]
            if said is None:
                self._keeper.torn.append(f"{self._name}/{path}")
                said = [status.st_size, 0, 0, piece, pieces]
            self._entries.append([*_entry(path, "f", status, _attributes(fd)), *said])
        finally:
            os.close(fd)


_KINDS = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFIFO: "p"}


def _entry(path: str, kind: str, status: os.stat_result, attributes: dict[str, str]) -> list[Any]:
    mode = stat.S_IMODE(status.st_mode)
    return [path, kind, mode, status.st_uid, status.st_gid, status.st_mtime_ns, attributes]


def _attributes(target: int | str, *, follow: bool = True) -> dict[str, str]:
    found: dict[str, str] = {}
    with suppress(OSError):  # a file system without attributes
        for name in os.listxattr(target, follow_symlinks=follow):
            with suppress(OSError):  # no permission to read it
                value = os.getxattr(target, name, follow_symlinks=follow)
                found[name] = base64.b64encode(value).decode()
    return found


def _link_attributes(folder: int, name: str) -> dict[str, str]:
    return _attributes(f"/proc/self/fd/{folder}/{name}", follow=False)


class Layer:
    """Write the entries of one tree into a new directory."""

    def __init__(self, reader: PackReader, target: str, *, owns: bool) -> None:
        self._reader = reader
        self._owns = owns  # whether owners are restored: only root can
        os.makedirs(target, 0o700, exist_ok=True)
        self._folders = Folders(os.open(target, OPEN_DIR))

    def close(self) -> None:
        """Close the directories that are open."""
        self._folders.close()

    def lay(self, entries: list[list[Any]]) -> int:
        """Write everything; return the number of files."""
        folders = [entry for entry in entries if entry[1] == "d"]
        for entry in entries:
            path, kind = entry[0], entry[1]
            parent, _, name = path.rpartition("/")
            if not path:
                continue
            try:
                self._make(self._folders.open(parent), name, kind, entry)
            except OSError as error:
                raise from_os(error, path) from error
        for entry in reversed(folders):  # last: filling a directory changes its mtime, and it may be read-only
            fd = self._folders.open(entry[0])
            self._finish(fd, entry)
        return sum(entry[1] in "fh" for entry in entries)

    def _make(self, folder: int, name: str, kind: str, entry: list[Any]) -> None:
        if kind == "d":
            os.mkdir(name, 0o700, dir_fd=folder)
        elif kind == "f":
            self._file(folder, name, entry)
        elif kind == "h":
            self._link(os.dup(folder), name, entry[7])
        else:
            if kind == "l":
                os.symlink(entry[7], name, dir_fd=folder)
            elif kind == "w":
                os.mknod(name, stat.S_IFCHR | entry[2], 0, dir_fd=folder)
            else:
                os.mkfifo(name, entry[2], dir_fd=folder)
            if self._owns:
                os.chown(name, entry[3], entry[4], dir_fd=folder, follow_symlinks=False)
            _set(f"/proc/self/fd/{folder}/{name}", entry[6], follow=False)
            os.utime(name, ns=(entry[5], entry[5]), dir_fd=folder, follow_symlinks=False)

    def _link(self, folder: int, name: str, first: str) -> None:
        parent, _, first_name = first.rpartition("/")
        try:  # opening a directory may close a cached one, so `folder` is the caller's own descriptor
            os.link(first_name, name, src_dir_fd=self._folders.open(parent), dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(folder)

    def _file(self, folder: int, name: str, entry: list[Any]) -> None:
        fd = os.open(name, _NEW, 0o600, dir_fd=folder)
        try:
            write_pieces(self._reader, fd, entry[7], entry[10], entry[11])
            self._finish(fd, entry)
        finally:
            os.close(fd)

    def _finish(self, fd: int, entry: list[Any]) -> None:
        if self._owns:
            os.fchown(fd, entry[3], entry[4])
        _set(fd, entry[6])
        os.fchmod(fd, entry[2])
        os.utime(fd, ns=(entry[5], entry[5]))


def write_pieces(reader: PackReader, fd: int, size: int, piece_size: int, pieces: list[str | None]) -> None:
    """Write the content of a file; pieces of zeros become holes."""
    for number, piece in enumerate(pieces):
        view = memoryview(reader.get(piece) if piece is not None else b"")
        offset = number * piece_size
        while view:
            done = os.pwrite(fd, view, offset)
            view, offset = view[done:], offset + done
    os.ftruncate(fd, size)


def _set(target: int | str, attributes: dict[str, str], *, follow: bool = True) -> None:
    for name, value in attributes.items():
        try:
            os.setxattr(target, name, base64.b64decode(value), follow_symlinks=follow)
        except OSError:
            if name.startswith(("user.", "trusted.overlay.")):
                raise
            # Security labels are specific to this machine.
