"""Extract checked archive content: files into a new directory and objects into the store.

Every name is created with O_EXCL in a directory that was just created and is reached by descriptor, never through a
link. The directory and the objects are not referenced yet: the caller drops both if the archive turns out to be bad.
"""

from __future__ import annotations

import os

from workstead.errors import from_os
from workstead.snapshots.entries import CHUNK
from workstead.snapshots.folders import Folders
from workstead.snapshots.tree_writer import set_xattrs, write_pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

    from workstead.snapshots.entries import Entry
    from workstead.snapshots.objects import Writer

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Extractor:
    """The receiver of a `Reader`.

    `fd` is the directory to fill, which this closes; `history` gets the event lines; the borrowed objects go to the
    file at `pack`, which is created only if there are any.
    """

    def __init__(self, fd: int, objects: Writer, history: IO[bytes], owner: tuple[int, int] | None, pack: str) -> None:
        self._folders = Folders(fd)
        self._objects = objects
        self._history = history
        self._owner = owner
        self._large = -1
        self._pack = pack
        self._packed = -1

    def close(self) -> None:
        """Close all descriptors."""
        self._folders.close()
        for descriptor in (self._large, self._packed):
            if descriptor >= 0:
                os.close(descriptor)

    def line(self, line: bytes) -> None:
        """Write a line of the history."""
        self._history.write(line)

    def object(self, data: bytes) -> None:
        """Store an object of a snapshot."""
        self._objects.put(data)

    def pack(self, data: bytes) -> None:
        """Append to the pack of borrowed objects."""
        try:
            if self._packed < 0:
                self._packed = os.open(self._pack, _NEW, 0o600)
            view = memoryview(data)
            while view:
                view = view[os.write(self._packed, view) :]
        except OSError as error:
            raise from_os(error, "the new workspace") from error

    def folder(self, path: str) -> None:
        """Create a directory that we can write to; its mode is set last."""
        try:
            parent, name = self._parent(path)
            os.mkdir(name, 0o700, dir_fd=parent)
        except OSError as error:
            raise from_os(error, "the new workspace") from error

    def folder_done(self, path: str, entry: Entry) -> None:
        """Set mode and time of a directory, now that it is complete."""
        try:
            fd = self._folders.open(path)
            self._finish(fd, entry)
        except OSError as error:
            raise from_os(error, "the new workspace") from error

    def link(self, path: str, entry: Entry) -> None:
        """Create a symbolic link; our code never follows it."""
        try:
            parent, name = self._parent(path)
            os.symlink(entry.target, name, dir_fd=parent)
            if self._owner is not None:
                os.chown(name, *self._owner, dir_fd=parent, follow_symlinks=False)
            os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            raise from_os(error, "the new workspace") from error

    def file(self, path: str, entry: Entry, data: bytes) -> None:
        """Create a file."""
        self.begin(path)
        self.piece(0, data)
        self.end(path, entry)

    def begin(self, path: str) -> None:
        """Create a file whose pieces follow."""
        try:
            parent, name = self._parent(path)
            self._large = os.open(name, _NEW, 0o600, dir_fd=parent)
        except OSError as error:
            raise from_os(error, "the new workspace") from error

    def piece(self, at: int, data: bytes) -> None:
        """Write some bytes of the current file."""
        try:
            write_pieces(self._large, ((at, data),), 0, sparse=False)
        except OSError as error:
            raise from_os(error, "the new workspace") from error

    def end(self, path: str, entry: Entry) -> None:
        """Complete the current file."""
        del path
        fd, self._large = self._large, -1
        try:
            try:
                if entry.size > CHUNK:
                    os.ftruncate(fd, entry.size)  # it may end with a hole
                self._finish(fd, entry)
            finally:
                os.close(fd)
        except OSError as error:
            raise from_os(error, "the new workspace") from error

    def _parent(self, path: str) -> tuple[int, str]:
        above, _, name = path.rpartition("/")
        return self._folders.open(above), name

    def _finish(self, fd: int, entry: Entry) -> None:
        if self._owner is not None:
            os.fchown(fd, *self._owner)
        if entry.xattrs:
            set_xattrs(fd, entry.xattrs)
        os.fchmod(fd, entry.mode)
        os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
