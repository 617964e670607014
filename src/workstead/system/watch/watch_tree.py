"""What a watcher knows of a tree, and how it opens what it looks at.

Only directories are opened, one name at a time beneath a `Root`, and no link is followed: a pipe cannot hold us up, and
a directory that became a link leads nowhere.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

from workstead.errors import WorksteadError
from workstead.model.value import Value
from workstead.system.files.root import Root
from workstead.system.files.walk import open_deep
from workstead.system.kernel.libc import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Tree(Value):
    """Something to watch: a directory of the host, and how the paths in it begin when they are reported."""

    path: str
    prefix: str = ""
    skip: tuple[str, ...] = ()  # names in it that are not looked at
    upper: str = ""  # of an overlay: the layer that takes every change
    lowers: tuple[str, ...] = ()  # from top to bottom
    marks: str = ""  # trusted or user: whose attributes say that a directory hides what is below
    device: int = 0  # of its directories: what is there without the mount is another one


class Seen(Value):
    """One change: the path is relative to what is watched."""

    kind: str  # added, changed, deleted, renamed
    path: str
    entry: str  # file, directory, link, other
    old_path: str = ""  # of what was renamed; all below it moved along
    size: int = 0
    uid: int = -1  # who owns it now


class File:
    """What is known of anything that is no directory, in few bytes: there may be a million of them."""

    __slots__ = ("_packed",)

    def __init__(self, found: os.stat_result) -> None:
        self._packed = _FILE.pack(
            found.st_ctime_ns, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ino, found.st_uid
        )

    def is_same(self, other: File) -> bool:
        # Inode and owner are not the same through an overlay everywhere; whoever changes them changes ctime, too.
        return self._packed[:28] == other._packed[:28]

    def identity(self) -> bytes:
        """What a file takes along when it gets another name."""
        return self._packed[8:36]

    @property
    def inode(self) -> bytes:
        return self._packed[28:36]

    def report(self, kind: str, path: str, old_path: str = "") -> Seen:
        _, mode, size, _, _, uid = _FILE.unpack(self._packed)
        return Seen(kind=kind, path=path, old_path=old_path, entry=_entry(mode), size=size, uid=uid)


_FILE = struct.Struct("<qIqqQI")


def _entry(mode: int) -> str:
    return {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}.get(stat.S_IFMT(mode), "other")


class Folder:
    """What is known of a directory."""

    __slots__ = (
        "entries",
        "inode",
        "is_unread",
        "mode",
        "mtime_ns",
        "name",
        "parent",
        "tree",
        "uid",
        "upper_watch",
        "watch",
    )

    def __init__(self, tree: Tree, parent: Folder | None, name: str, found: os.stat_result | None) -> None:
        self.tree = tree
        self.parent = parent
        self.name = name
        self.mode = found.st_mode if found else 0
        self.uid = found.st_uid if found else -1
        self.mtime_ns = found.st_mtime_ns if found else 0  # when it was last looked at
        self.inode = (found.st_dev, found.st_ino) if found else None  # None: not known yet, or not any more
        self.watch: int | tuple[int, int] | None = None
        self.upper_watch: int | None = None
        self.is_unread = False  # its turn comes: what it holds then is the beginning
        # None: nobody has changed anything in it, so it holds what the lower layers hold.
        self.entries: dict[str, Folder | File] | None = None

    def path(self) -> str:
        """From the top of its tree."""
        names = []
        folder = self
        while folder.parent is not None:
            names.append(folder.name)
            folder = folder.parent
        return "/".join(reversed(names))

    def shown(self, name: str = "") -> str:
        """The path as it is reported."""
        return self.tree.prefix + "/".join(filter(None, (self.path(), name)))

    def is_below(self, other: Folder) -> bool:
        folder: Folder | None = self
        while folder is not None and folder is not other:
            folder = folder.parent
        return folder is other

    def is_known(self) -> bool:
        """Whether the tree still has it, at the place that it says."""
        folder = self
        while folder.parent is not None:
            if not folder.parent.entries or folder.parent.entries.get(folder.name) is not folder:
                return False
            folder = folder.parent
        return True

    def report(self, kind: str, old_path: str = "") -> Seen:
        return Seen(kind=kind, path=self.shown(), old_path=old_path, entry="directory", uid=self.uid)


def all_below(top: Folder) -> Iterator[Folder]:
    """A directory and those below it that were gone into, parents first."""
    return (folder for folder in everything_below(top) if folder.entries is not None or folder.parent is None)


def everything_below(top: Folder) -> Iterator[Folder]:
    stack = [top]
    while stack:
        folder = stack.pop()
        yield folder
        stack += [entry for entry in (folder.entries or {}).values() if isinstance(entry, Folder)]


def list_folder(fd: int) -> dict[str, os.stat_result]:
    """What is in an open directory, links as themselves."""
    found = {}
    with os.scandir(fd) as entries:
        for entry in entries:
            try:
                found[entry.name] = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # removed meanwhile: a notice says so
                continue
    return found


class Opened:
    """A known directory, open for one look; OSError if it is not at its place, or another is there."""

    def __init__(self, roots: Roots, folder: Folder) -> None:
        self._roots = roots
        self.folder = folder
        self._upper: int | None = None
        self._asked = False

    def __enter__(self) -> Opened:
        tree = self.folder.tree
        self.fd = self._roots.open(tree.path, self.folder.path())
        found = os.fstat(self.fd)
        self.device = found.st_dev
        inode = (found.st_dev, found.st_ino)
        if self.folder.inode not in (None, inode) or tree.device not in (0, found.st_dev):
            os.close(self.fd)
            raise FileNotFoundError(self.folder.name)
        self.folder.inode, self.folder.mtime_ns = inode, found.st_mtime_ns
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        if self._upper is not None:
            os.close(self._upper)

    def upper_fd(self) -> int | None:
        """The same directory in the upper layer, if it is there: nothing was changed in it before it is."""
        if not self._asked:
            self._asked = True
            if self.folder.tree.upper:
                try:
                    self._upper = self._roots.open(self.folder.tree.upper, self.folder.path())
                except OSError:
                    self._upper = None
        return self._upper

    def is_changed(self, name: str) -> bool:
        """Whether a directory in it has to be gone into."""
        if not self.folder.tree.upper:
            return True
        upper = self.upper_fd()
        if upper is None:
            return False
        try:
            return stat.S_ISDIR(os.stat(name, dir_fd=upper, follow_symlinks=False).st_mode)
        except OSError:
            return False


class Roots:
    """The tops of trees and layers, held open for the time of one look."""

    def __init__(self) -> None:
        self._open: dict[str, Root] = {}

    def __enter__(self) -> Roots:
        return self

    def __exit__(self, *_: object) -> None:
        for root in self._open.values():
            root.close()

    def open(self, top: str, path: str) -> int:
        """A directory below a top, by a path without links; OSError if it is not there."""
        root = self._open.get(top)
        if root is None:
            try:
                root = self._open[top] = Root.open(top)
            except WorksteadError as error:
                raise FileNotFoundError(error.message) from None
        return open_deep(root, root.fd, os.fsencode(path)) if path else root.open_folder(b".")


def born_ns(folder: int, name: str) -> int:
    """When something in a directory was made; 0 if the file system does not say."""
    answer = ctypes.create_string_buffer(256)
    if libc.statx(folder, os.fsencode(name), _NO_FOLLOW, _BIRTH, answer) != 0:
        return 0
    (told,) = struct.unpack_from("I", answer)
    seconds, nanoseconds = struct.unpack_from("qI", answer, 80)
    return seconds * 1_000_000_000 + nanoseconds if told & _BIRTH else 0


_NO_FOLLOW, _BIRTH = 0x100, 0x800


def known_below(folder: Folder, roots: Roots) -> dict[str, Folder | File]:
    """What the lower layers hold of a directory that nobody has changed: what it held so far."""
    tree, path = folder.tree, folder.path()
    entries: dict[str, Folder | File] = {}
    hidden: set[str] = set()
    for lower in tree.lowers:
        try:
            fd = roots.open(lower, path)
        except FileNotFoundError:
            continue
        except OSError:  # something that is no directory hides what is below
            break
        try:
            for name, found in list_folder(fd).items():
                if name in hidden:
                    continue
                hidden.add(name)
                if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
                    continue  # removed in this layer
                is_folder = stat.S_ISDIR(found.st_mode)
                entries[name] = Folder(tree, folder, name, found) if is_folder else File(found)
            if _is_opaque(fd, tree.marks):
                break
        finally:
            os.close(fd)
    return entries


def _is_opaque(fd: int, marks: str) -> bool:
    try:
        return os.getxattr(fd, f"{marks}.overlay.opaque") == b"y"
    except OSError:
        return False
