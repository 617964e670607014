"""Read a state: a stored tree, a layer on the disk, or several layers stacked.

A directory of a state is a stack of layer directories, topmost first, and a name is resolved as in the kernel's
overlay: the first layer that has the name decides; a whiteout ends the search; directories merge until one is opaque or
another type is in the way.

The cost of a comparison is that of the differences: common bottom layers cannot differ, so only the names in the layers
above them are read, and two stored trees with one digest are equal without being read.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256

from workstead.errors import InvalidPath, PathTraversal, SnapshotNotFound, from_os
from workstead.model.snapshot import COVER, EMPTY
from workstead.snapshots.entries import (
    CHUNK,
    DIR,
    FILE,
    LEFT_OUT,
    LINK,
    MODE_BITS,
    NO_DIGEST,
    WHITEOUT,
    Entry,
    decode_pieces,
    decode_tree,
    encode_pieces,
    flags,
    split_tree,
)
from workstead.snapshots.folders import OPEN_DIR, Folders
from workstead.snapshots.walker import OPEN_FILE, read_at
from workstead.system.files.parts import open_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from workstead.model.snapshot import Stack
    from workstead.snapshots.entries import Xattrs
    from workstead.snapshots.objects import Objects

    FindStack = Callable[[str], Stack | None]


def split(path: str) -> list[str]:
    """Split a relative path into components. Raise for `..` and the like: disk layers use names unchecked."""
    parts = path.split("/") if path else []
    if ".." in parts:
        raise PathTraversal(f"the path {path!r} has a '..' component", hint="paths start with work/ or output/")
    if "" in parts or "." in parts or "\0" in path:
        raise InvalidPath(f"the path {path!r} is not a plain relative path", hint="as work/src/app.py")
    return parts


class StoredDir:
    """A directory of a stored tree, read on demand."""

    __slots__ = ("_children", "_encoded", "_entries", "_objects", "digest")

    def __init__(self, objects: Objects, digest: bytes, entries: dict[str, Entry] | None = None) -> None:
        self._objects = objects
        self.digest = digest
        self._encoded: dict[str, bytes] | None = None
        self._entries = entries
        self._children: dict[str, StoredDir] = {}

    def entries(self) -> dict[str, Entry]:
        """Return all entries by name, whiteouts included."""
        if self._entries is None:
            self._entries = decode_tree(self._read())
        return self._entries

    def _read(self) -> bytes:
        return self._objects.get(self.digest) if self.digest != NO_DIGEST else b""

    def find(self, name: str) -> Entry | None:
        if self._encoded is None or self._entries is not None:
            return self.entries().get(name)
        encoded = self._encoded.get(name)
        return decode_tree(encoded)[name] if encoded is not None else None

    def differing(self, other: StoredDir) -> set[str]:
        """Return the names whose entries differ between two directories, without decoding the rest."""
        if self._encoded is None:
            self._encoded = split_tree(self._read())
        if other._encoded is None:
            other._encoded = split_tree(other._read())
        return {name for name, _ in self._encoded.items() ^ other._encoded.items()}

    def child(self, name: str) -> StoredDir:
        found = self._children.get(name)
        if found is None:
            entry = self.find(name)
            found = self._children[name] = StoredDir(self._objects, entry.digest if entry is not None else NO_DIGEST)
        return found

    def is_same(self, other: object) -> bool:
        # The top of a state without objects has no digest either, and is not empty.
        return isinstance(other, StoredDir) and self.digest == other.digest != NO_DIGEST


class DiskLayer:
    """An immutable directory on the disk, held open; caches a few open directories below it."""

    def __init__(self, path: str, marks: str = "", *, is_users: bool = False) -> None:
        self.path = path
        self.is_users = is_users  # the user's own folder, which may change or disappear
        self.prefix = f"{marks}.overlay." if marks else ""
        self._folders: Folders | None = None
        try:
            self._folders = Folders(os.open(path, OPEN_DIR) if is_users else open_part(*os.path.split(path)))
        except OSError as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise from_os(error, "a layer of the workspace") from error
        self.digests: dict[tuple[int, int, int], bytes] = {}  # inode, ctime, size -> digest

    def folder(self, path: str) -> int:
        """Return a descriptor of a directory in the layer. Raise OSError, also for a link on the way."""
        if self._folders is None:
            raise FileNotFoundError(self.path)
        return self._folders.open(path)

    def close(self) -> None:
        """Close the descriptors."""
        if self._folders is not None:
            self._folders.close()

    def entry(self, where: DiskDir, fd: int, name: str) -> Entry | None:
        """Return the entry of a name, or None; its digest and xattrs are read on demand."""
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        kind = status.st_mode & 0o170000
        mode, when = status.st_mode & MODE_BITS, status.st_mtime_ns
        if kind in (stat.S_IFREG, stat.S_IFDIR) and not _may_read(status, fd, name):
            return Entry(LEFT_OUT, kind >> 12, size=status.st_size, target="unreadable", disk=(where, name))
        if kind == stat.S_IFREG:
            sparse = status.st_blocks * 512 < status.st_size
            return Entry(FILE, mode, when, status.st_size, flags=flags(sparse=sparse), disk=(where, name))
        if kind == stat.S_IFDIR:
            opaque = bool(self.prefix) and self._is_opaque(fd, name)
            return Entry(DIR, mode, when, flags=flags(opaque=opaque), disk=(where, name))
        if kind == stat.S_IFLNK:
            try:
                target = os.readlink(name, dir_fd=fd)
            except OSError:  # race: replaced between stat and readlink
                return Entry(LEFT_OUT, target="unreadable")
            return Entry(LINK, 0o777, when, len(os.fsencode(target)), target=target, disk=(where, name))
        if kind == stat.S_IFCHR and status.st_rdev == 0 and self.prefix:
            return Entry(WHITEOUT)
        return Entry(LEFT_OUT, kind >> 12, target="device", disk=(where, name))

    def _is_opaque(self, fd: int, name: str) -> bool:
        try:
            return os.getxattr(f"/proc/self/fd/{fd}/{name}", self.prefix + "opaque", follow_symlinks=False) == b"y"
        except OSError:
            return False


def _may_read(status: os.stat_result, fd: int, name: str) -> bool:
    """Return whether a file, or a directory and its names, can be read: it may lack permission for an ordinary user."""
    wanted, bits = (os.R_OK | os.X_OK, 0o500) if stat.S_ISDIR(status.st_mode) else (os.R_OK, 0o400)
    who = os.geteuid()
    if who == 0 or (who == status.st_uid and status.st_mode & bits == bits):
        return True
    return os.access(name, wanted, dir_fd=fd, effective_ids=True)


class DiskDir:
    """A directory of a layer on the disk."""

    __slots__ = ("layer", "relative")

    def __init__(self, layer: DiskLayer, relative: str = "") -> None:
        self.layer = layer
        self.relative = relative

    @property
    def is_users(self) -> bool:
        return self.layer.is_users

    def _folder(self) -> int:
        return self.layer.folder(self.relative)

    def entries(self) -> dict[str, Entry]:
        """Return all entries by name, whiteouts included."""
        try:
            fd = self._folder()
        except (FileNotFoundError, NotADirectoryError):
            return {}  # a folder of the user that was deleted
        found = {name: self.layer.entry(self, fd, name) for name in os.listdir(fd)}
        return {name: entry for name, entry in found.items() if entry is not None}

    def find(self, name: str) -> Entry | None:
        try:
            return self.layer.entry(self, self._folder(), name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def child(self, name: str) -> DiskDir:
        return DiskDir(self.layer, f"{self.relative}/{name}" if self.relative else name)

    def is_same(self, other: object) -> bool:
        return isinstance(other, DiskDir) and (self.layer.path, self.relative) == (other.layer.path, other.relative)

    def open(self, name: str) -> int:
        """Return a descriptor of a regular file."""
        fd = os.open(name, OPEN_FILE, dir_fd=self._folder())
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileNotFoundError(name)
        return fd

    def ctime_ns(self, name: str) -> int:
        """Return the ctime of the name's inode."""
        return os.stat(name, dir_fd=self._folder(), follow_symlinks=False).st_ctime_ns

    def digest(self, name: str) -> bytes:
        """Return the digest that a walk would compute for this file."""
        fd = self.open(name)
        try:
            status = os.fstat(fd)
            key = (status.st_ino, status.st_ctime_ns, status.st_size)
            found = self.layer.digests.get(key)
            if found is None:
                found = self.layer.digests[key] = digest_of(fd, status.st_size)
            return found
        finally:
            os.close(fd)

    def xattrs(self, name: str) -> Xattrs:
        """Return the xattrs of the user namespace."""
        path = f"/proc/self/fd/{self._folder()}/{name}"
        try:
            names = os.listxattr(path, follow_symlinks=False)
            prefix = self.layer.prefix or "-"
            wanted = [key for key in sorted(names) if key.startswith("user.") and not key.startswith(prefix)]
            return tuple((os.fsencode(key), os.getxattr(path, key, follow_symlinks=False)) for key in wanted)
        except OSError:
            return ()


def digest_of(fd: int, size: int) -> bytes:
    """Return the digest that a walk computes for an open file of this size."""
    if size <= CHUNK:
        return sha256(read_at(fd, size, 0)).digest()
    pieces = []
    number = 0
    while number * CHUNK < size:
        try:
            number = os.lseek(fd, number * CHUNK, os.SEEK_DATA) // CHUNK  # a hole of a terabyte costs nothing
        except OSError:
            break  # only a hole up to the end
        data = read_at(fd, CHUNK, number * CHUNK)
        if data.count(0) != len(data):
            pieces.append((number, sha256(data).digest()))
        number += 1
    return sha256(encode_pieces(size, pieces)).digest()


class Pile:
    """A directory of a state: layer directories stacked, topmost first."""

    __slots__ = ("layers",)

    def __init__(self, layers: tuple[StoredDir | DiskDir, ...]) -> None:
        self.layers = layers

    def find(self, name: str) -> Entry | None:
        """Return the visible entry of a name, or None."""
        for layer in self.layers:
            entry = layer.find(name)
            if entry is not None:
                return None if entry.kind == WHITEOUT else entry
        return None

    def raw(self, name: str) -> Entry | None:
        """Return the topmost layer's entry of a name, a whiteout included."""
        return self.layers[0].find(name) if self.layers else None

    def names(self, common: int = 0) -> set[str]:
        """Return the names in all layers except the `common` lowest."""
        found: set[str] = set()
        for layer in self.layers[: len(self.layers) - common]:
            found.update(layer.entries())
        return found

    def child(self, name: str) -> Pile:
        """Return the directory of a name; empty if there is none."""
        layers: list[StoredDir | DiskDir] = []
        for layer in self.layers:
            entry = layer.find(name)
            if entry is None:
                continue
            if entry.kind != DIR:
                break
            layers.append(layer.child(name))
            if entry.opaque:
                break
        return Pile(tuple(layers))

    def common_with(self, other: Pile) -> int:
        """Return how many bottom layers are the same in both."""
        count = 0
        for mine, theirs in zip(reversed(self.layers), reversed(other.layers), strict=False):
            if not mine.is_same(theirs):
                break
            count += 1
        return count


class Tree:
    """A readable state: a root of the store, the layers below it, and the contents. Use as a context manager."""

    def __init__(self, objects: Objects, root: str, find_stack: FindStack = lambda _: None) -> None:
        self.objects = objects
        self.root = root
        self._find_stack = find_stack
        self._layers: dict[str, DiskLayer] = {}
        self._top: Pile | None = None
        self._work: Pile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def sibling(self, root: str) -> Tree:
        """Return another state that lies on layers known here."""
        return Tree(self.objects, root, self._find_stack)

    def close(self) -> None:
        """Close the descriptors of the layers."""
        for layer in self._layers.values():
            layer.close()
        self._layers.clear()
        self._top = self._work = None

    # -- directories ---------------------------------------------------------------------------------------------------

    @property
    def top(self) -> Pile:
        """Return the directory that holds `work` and `output`."""
        if self._top is None:
            self._top = Pile((self._open_top(),))
        return self._top

    def _open_top(self) -> StoredDir:
        if self.root == EMPTY:
            return StoredDir(self.objects, NO_DIGEST, {"work": _bare(), "output": _bare()})
        if self.root.startswith("layer:"):
            return StoredDir(self.objects, NO_DIGEST, {"work": _bare(self.root[6:]), "output": _bare()})
        try:
            digest = bytes.fromhex(self.root)
        except ValueError:
            digest = b""
        if len(digest) != 32:
            raise SnapshotNotFound(f"{self.root!r} is not a state that was kept", hint="aw snapshots lists them")
        return StoredDir(self.objects, digest)

    def child(self, pile: Pile, name: str) -> Pile:
        """Return the directory of a name, with the stack below it if it lies on one."""
        if pile is not self._top or name != "work":
            return pile.child(name)
        if self._work is None:
            entry = pile.find(name)
            below = self._stack(entry.over) if entry is not None and entry.kind == DIR and entry.over else ()
            own: tuple[StoredDir | DiskDir, ...] = ()
            if entry is not None and entry.kind == DIR and entry.digest != NO_DIGEST:
                own = (pile.layers[0].child(name),)
            self._work = Pile(own + below)
        return self._work

    def _stack(self, key: str) -> tuple[StoredDir | DiskDir, ...]:
        stack = self._find_stack(key)
        if stack is None:
            raise SnapshotNotFound(
                f"the files that this state lies on ({key}) are gone", hint="aw snapshots lists what can be restored"
            )
        # The user may delete the whole folder: then nothing of it is visible, and the layers above stay.
        users = stack.layers[-1] if stack.fixed_ns else ""
        return tuple(self._layer(path, stack.marks, is_users=path == users) for path in stack.layers)

    def _layer(self, path: str, marks: str, *, is_users: bool) -> StoredDir | DiskDir:
        if path.startswith(COVER):
            return StoredDir(self.objects, bytes.fromhex(path[len(COVER) :]))
        if path not in self._layers:
            self._layers[path] = DiskLayer(path, marks, is_users=is_users)
        return DiskDir(self._layers[path])

    def folder(self, path: str) -> Pile:
        """Return the directory at a path; empty if there is none."""
        pile = self.top
        for name in split(path):
            pile = self.child(pile, name)
        return pile

    def find(self, path: str) -> Entry | None:
        """Return the entry at a path such as `work/src/a.py`, or None."""
        above, _, name = path.rpartition("/")
        split(path)
        return self.folder(above).find(name)

    def hides(self, path: str) -> bool:
        """Return whether the state itself, not a lower layer, says that a path does not exist."""
        pile = self.top
        for name in split(path):
            own = pile.raw(name)
            if own is not None and own.disk is None and (own.kind == WHITEOUT or own.opaque):
                return self.find(path) is None
            pile = self.child(pile, name)
        return False

    @property
    def stack_key(self) -> str:
        """Return the stack that `work` lies on, or an empty string."""
        entry = self.top.find("work")
        return entry.over if entry is not None else ""

    # -- contents ------------------------------------------------------------------------------------------------------

    def digest(self, entry: Entry) -> bytes:
        """Return the digest of a file's content."""
        if entry.digest == NO_DIGEST and entry.disk is not None and entry.kind == FILE:
            where, name = entry.disk
            try:
                entry.digest = where.digest(name)
            except OSError as error:
                raise from_os(error, "a layer of the workspace") from error
        return entry.digest

    def xattrs(self, entry: Entry) -> Xattrs:
        """Return the xattrs of a file or directory."""
        if entry.disk is not None and not entry.xattrs:
            where, name = entry.disk
            entry.xattrs = where.xattrs(name)
        return entry.xattrs

    def pieces(self, entry: Entry) -> Iterator[tuple[int, bytes]]:
        """Yield the content of a file as offset and bytes, without all-zero chunks of a large one."""
        if entry.disk is not None:
            yield from self._disk_pieces(entry)
        elif entry.size <= CHUNK:
            yield 0, self.objects.get(entry.digest)
        else:
            for number, digest in decode_pieces(self.objects.get(entry.digest)):
                yield number * CHUNK, self.objects.get(digest)

    def _disk_pieces(self, entry: Entry) -> Iterator[tuple[int, bytes]]:
        assert entry.disk is not None
        where, name = entry.disk
        try:
            fd = where.open(name)
        except OSError as error:
            raise from_os(error, "a layer of the workspace") from error
        try:
            at = 0
            while at < entry.size:
                try:
                    at = os.lseek(fd, at, os.SEEK_DATA) // CHUNK * CHUNK
                except OSError:
                    break
                data = read_at(fd, min(CHUNK, entry.size - at), at)
                if not data:
                    break
                yield at, data
                at += CHUNK
        finally:
            os.close(fd)

    def read(self, entry: Entry) -> bytes:
        """Return the whole content of a file; the caller has checked its size."""
        data = bytearray(entry.size)
        for at, piece in self.pieces(entry):
            data[at : at + len(piece)] = piece
        return bytes(data)

    def was(self, path: str) -> bytes:
        """Return the lower layers' digest of a path when its change was first seen, if the state has it.

        It is stored in the state itself: no layer is opened.
        """
        *above, name = split(path)
        (folder,) = self.top.layers
        for each in above:
            entry = folder.find(each)
            if entry is None or entry.kind != DIR:
                return b""
            folder = folder.child(each)
        entry = folder.find(name)
        return entry.was if entry is not None else b""

    def is_users(self, entry: Entry) -> bool:
        """Return whether the entry comes from a folder of the user, who may change it at any time."""
        return entry.disk is not None and entry.disk[0].is_users

    def ctime_ns(self, entry: Entry) -> int:
        """Return the ctime of a layer's file; 0 for an entry of the store, which never changes."""
        if entry.disk is None:
            return 0
        where, name = entry.disk
        try:
            return where.ctime_ns(name)
        except OSError:
            return 1 << 63  # just deleted: treat as changed

    # -- entries that are not fully stored -----------------------------------------------------------------------------

    def unkept(self, path: str) -> Iterator[tuple[str, Entry]]:
        """Yield entries at, above or below a path that no snapshot holds: too large, too deep or unreadable."""
        pile, parts = self.top, split(path)
        for number, name in enumerate(parts, 1):
            entry = pile.find(name)
            if entry is not None and entry.unkept:
                yield "/".join(parts[:number]), entry
            if entry is None or entry.kind != DIR:
                return
            pile = self.child(pile, name)
        todo = [(path, pile)]
        while todo:
            where, pile = todo.pop()
            for name in sorted(pile.names()):
                entry = pile.find(name)
                if entry is None:
                    continue
                if entry.unkept:
                    yield f"{where}/{name}", entry
                elif entry.kind == DIR:
                    below = self.child(pile, name)
                    if entry.gaps or entry.disk is not None or len(below.layers) > 1:
                        todo.append((f"{where}/{name}", below))

    def gaps(self) -> Iterator[tuple[str, Entry]]:
        """Yield the entries of this state that are left out or torn, without visiting the rest."""
        todo: list[tuple[str, StoredDir]] = [("", self._open_top())]
        while todo:
            path, folder = todo.pop()
            for name, entry in folder.entries().items():
                where = f"{path}/{name}" if path else name
                if entry.kind == LEFT_OUT or (entry.kind == FILE and entry.torn):
                    yield where, entry
                elif entry.kind == DIR and entry.gaps:
                    todo.append((where, folder.child(name)))


def _bare(over: str = "") -> Entry:
    return Entry(DIR, 0o755, over=over)


def is_bare(entry: Entry) -> bool:
    """Return whether this is `work` or `output` of a state without objects, whose mode and mtime were never read."""
    return entry.kind == DIR and entry.digest == NO_DIGEST and entry.disk is None


class Delta:
    """A path at which two states differ."""

    __slots__ = ("new", "old", "path")

    def __init__(self, path: str, old: Entry | None, new: Entry | None) -> None:
        self.path = path
        self.old = old
        self.new = new

    def __repr__(self) -> str:
        return f"Delta({self.path!r}, {self.old}, {self.new})"


def compare(old: Tree, new: Tree, paths: Iterable[str] | None = None, *, times: bool = False) -> Iterator[Delta]:
    """Yield every path at which two states differ, parents before children.

    With `times`, also where only the mtime or the hard links differ.

    A directory in only one state is followed by everything below it. `paths` limits the comparison to these and below.
    """
    wanted = _outermost(paths) if paths is not None else [""]
    if wanted[:1] == [""]:
        yield from _compare_folders(old, new, "", old.top, new.top, times)
        return
    for path in wanted:
        split(path)
        above, _, name = path.rpartition("/")
        yield from _compare_name(old, new, above, old.folder(above), new.folder(above), name, times)


def _outermost(paths: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for path in sorted({path.strip("/") for path in paths}, key=lambda path: path.split("/")):
        if not kept or not (path + "/").startswith(kept[-1] + "/"):
            kept.append(path)
    return kept


def _compare_folders(old: Tree, new: Tree, path: str, mine: Pile, theirs: Pile, times: bool) -> Iterator[Delta]:
    todo = [(path, mine, theirs)]
    while todo:
        path, mine, theirs = todo.pop()
        common = mine.common_with(theirs)
        if common == len(mine.layers) == len(theirs.layers):
            continue
        below = []
        for name in sorted(_names_to_compare(path, mine, theirs, common)):
            before, after = mine.find(name), theirs.find(name)
            where = f"{path}/{name}" if path else name
            if is_different(old, before, new, after, times=times):
                yield Delta(where, before, after)
            if (before is not None and before.kind == DIR) or (after is not None and after.kind == DIR):
                below.append((where, old.child(mine, name), new.child(theirs, name)))
        todo += reversed(below)


def _names_to_compare(path: str, mine: Pile, theirs: Pile, common: int) -> set[str]:
    if path and len(mine.layers) == len(theirs.layers) == 1:  # at the top, the same `work` may lie on other layers
        (one,), (other,) = mine.layers, theirs.layers
        if isinstance(one, StoredDir) and isinstance(other, StoredDir):
            return one.differing(other)
    return mine.names(common) | theirs.names(common)


def _compare_name(
    old: Tree, new: Tree, above: str, mine: Pile, theirs: Pile, name: str, times: bool
) -> Iterator[Delta]:
    before, after = mine.find(name), theirs.find(name)
    path = f"{above}/{name}" if above else name
    if is_different(old, before, new, after, times=times):
        yield Delta(path, before, after)
    if (before is not None and before.kind == DIR) or (after is not None and after.kind == DIR):
        yield from _compare_folders(old, new, path, old.child(mine, name), new.child(theirs, name), times)


def is_different(old: Tree, before: Entry | None, new: Tree, after: Entry | None, *, times: bool = False) -> bool:
    """Return whether two entries differ, not counting the content of a directory."""
    if before is None or after is None:
        return before is not after
    if before.kind != after.kind:
        return True
    if before.kind == DIR and (is_bare(before) or is_bare(after)):
        return False
    if before.kind == LINK:
        return before.target != after.target or (times and before.mtime_ns != after.mtime_ns)
    if before.kind == LEFT_OUT:
        return (before.mode, before.target) != (after.mode, after.target)
    if before.mode != after.mode or (times and before.mtime_ns != after.mtime_ns):
        return True
    if before.kind == FILE and (before.size != after.size or old.digest(before) != new.digest(after)):
        return True
    if times and before.twin != after.twin:
        return True
    return old.xattrs(before) != new.xattrs(after)
