"""The known state of a watched tree, and safe opening of its directories.

Only directories are opened, one name at a time beneath a `Root`, and no link is followed: a named pipe cannot block the
watcher, and a directory replaced by a link cannot lead it out of the tree.
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
    """A tree to watch: a directory of the host, and the prefix of its paths in reports."""

    path: str
    prefix: str = ""
    skip: tuple[str, ...] = ()  # names at the top that are ignored
    upper: str = ""  # of an overlay: the writable layer
    lowers: tuple[str, ...] = ()  # from top to bottom
    marks: str = ""  # trusted or user: the namespace of the xattr that marks opaque directories
    device: int = 0  # device number of its directories: without the mount it is a different one


class Seen(Value):
    """One change; the path is relative to the watched tree."""

    kind: str  # added, changed, deleted, renamed
    path: str
    entry: str  # file, directory, link, other
    old_path: str = ""  # of a rename; everything below it moved along
    size: int = 0
    uid: int = -1  # the present owner


class File:
    """The known state of any entry except a directory, packed in few bytes: there may be a million of them."""

    __slots__ = ("_packed",)

    def __init__(self, found: os.stat_result) -> None:
        self._packed = _FILE.pack(
            found.st_ctime_ns, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ino, found.st_uid
        )

    def is_same(self, other: File) -> bool:
        # Inode and owner may differ through an overlay; a change of either changes ctime, too.
        return self._packed[:28] == other._packed[:28]

    def identity(self) -> bytes:
        """Return the attributes that a file keeps when it is renamed."""
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
    """The known state of a directory."""

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
        self.mtime_ns = found.st_mtime_ns if found else 0  # at the last comparison
        self.inode = (found.st_dev, found.st_ino) if found else None  # None: not known yet, or invalidated
        self.watch: int | tuple[int, int] | None = None
        self.upper_watch: int | None = None
        self.is_unread = False  # queued for its first read, which sets the initial state
        # None: unchanged since the start, so its entries are those of the lower layers.
        self.entries: dict[str, Folder | File] | None = None

    def path(self) -> str:
        """Return the path relative to the top of its tree."""
        names = []
        folder = self
        while folder.parent is not None:
            names.append(folder.name)
            folder = folder.parent
        return "/".join(reversed(names))

    def shown(self, name: str = "") -> str:
        """Return the path as it is reported."""
        return self.tree.prefix + "/".join(filter(None, (self.path(), name)))

    def is_below(self, other: Folder) -> bool:
        folder: Folder | None = self
        while folder is not None and folder is not other:
            folder = folder.parent
        return folder is other

    def is_known(self) -> bool:
        """Return whether the known tree still contains this directory at its path."""
        folder = self
        while folder.parent is not None:
            if not folder.parent.entries or folder.parent.entries.get(folder.name) is not folder:
                return False
            folder = folder.parent
        return True

    def report(self, kind: str, old_path: str = "") -> Seen:
        return Seen(kind=kind, path=self.shown(), old_path=old_path, entry="directory", uid=self.uid)


def all_below(top: Folder) -> Iterator[Folder]:
    """Yield a directory and all directories below it that have been read, parents first."""
    return (folder for folder in everything_below(top) if folder.entries is not None or folder.parent is None)


def everything_below(top: Folder) -> Iterator[Folder]:
    stack = [top]
    while stack:
        folder = stack.pop()
        yield folder
        stack += [entry for entry in (folder.entries or {}).values() if isinstance(entry, Folder)]


def list_folder(fd: int) -> dict[str, os.stat_result]:
    """Return the entries of an open directory, without following links."""
    found = {}
    with os.scandir(fd) as entries:
        for entry in entries:
            try:
                found[entry.name] = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # removed meanwhile: an inotify event follows
                continue
    return found


class Opened:
    """A known directory, open for one comparison. Raise OSError if it is not at its path, or another one is."""

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
        """Open the same directory in the upper layer; return None if it is missing there, which means unchanged."""
        if not self._asked:
            self._asked = True
            if self.folder.tree.upper:
                try:
                    self._upper = self._roots.open(self.folder.tree.upper, self.folder.path())
                except OSError:
                    self._upper = None
        return self._upper

    def is_changed(self, name: str) -> bool:
        """Return whether a subdirectory has to be read."""
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
    """The tops of trees and layers, kept open during one comparison."""

    def __init__(self) -> None:
        self._open: dict[str, Root] = {}

    def __enter__(self) -> Roots:
        return self

    def __exit__(self, *_: object) -> None:
        for root in self._open.values():
            root.close()

    def open(self, top: str, path: str) -> int:
        """Open a directory below a top by a path without links; raise OSError if it is missing."""
        root = self._open.get(top)
        if root is None:
            try:
                root = self._open[top] = Root.open(top)
            except WorksteadError as error:
                raise FileNotFoundError(error.message) from None
        return open_deep(root, root.fd, os.fsencode(path)) if path else root.open_folder(b".")


def born_ns(folder: int, name: str) -> int:
    """Return the birth time of a directory's entry; 0 if the file system does not record it."""
    answer = ctypes.create_string_buffer(256)
    if libc.statx(folder, os.fsencode(name), _NO_FOLLOW, _BIRTH, answer) != 0:
        return 0
    (told,) = struct.unpack_from("I", answer)
    seconds, nanoseconds = struct.unpack_from("qI", answer, 80)
    return seconds * 1_000_000_000 + nanoseconds if told & _BIRTH else 0


_NO_FOLLOW, _BIRTH = 0x100, 0x800


def known_below(folder: Folder, roots: Roots) -> dict[str, Folder | File]:
    """Return the entries of an unchanged directory as the lower layers define them: its contents so far."""
    tree, path = folder.tree, folder.path()
    entries: dict[str, Folder | File] = {}
    hidden: set[str] = set()
    for lower in tree.lowers:
        try:
            fd = roots.open(lower, path)
        except FileNotFoundError:
            continue
        except OSError:  # an entry that is no directory hides the layers below
            break
        try:
            for name, found in list_folder(fd).items():
                if name in hidden:
                    continue
                hidden.add(name)
                if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
                    continue  # whiteout: removed in this layer
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
