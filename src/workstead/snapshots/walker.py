"""Read a live directory into a tree: by descriptor, never by path, never through a link.

Rules:
1. Each step down is `openat` with O_NOFOLLOW|O_DIRECTORY from the parent directory, which we hold. A name that was
   swapped for a link in the meantime does not open. There is no `..`.
2. The walk is iterative, and its stack holds a bounded number of descriptors. A directory whose descriptor was closed
   is opened again from the nearest open directory above, and must be the same inode.
3. Whatever the agent does, the walk ends with a tree. An entry that cannot be stored is marked as left out, with the
   reason; a file that changes while it is read is retried a few times and then stored as torn.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import stat
import time

from workstead.errors import from_os
from workstead.snapshots.cache import FOLDER, Directory, count_sights, is_settled, never, pack_sights, unpack_sights
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
    decode_tree,
    encode_entry,
    encode_pieces,
    encode_tree,
    flags,
)
from workstead.snapshots.folders import OPEN_DIR
from workstead.snapshots.unchanged import find_unchanged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.model.snapshot import Limits
    from workstead.snapshots.cache import Directories, Sight
    from workstead.snapshots.entries import Xattrs
    from workstead.snapshots.objects import Sink

_TRIES = 4
_HELD = 200  # maximum number of open directories
# The name was a regular file a moment ago. If it has become a pipe, O_NONBLOCK keeps the open from blocking.
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ZEROS = bytes(CHUNK)
_KINDS = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


class Redirected(Exception):
    """The upper layer has redirects or metadata-only copies: the merged mount has to be walked instead."""


class _Vanished(Exception):
    """The name is gone, or has another type now."""


class _IsFolder(Exception):
    """The name has become a directory."""


class _Frame:
    """A directory that is being read."""

    __slots__ = (
        "depth",
        "fd",
        "files",
        "folders",
        "gaps",
        "head",
        "key",
        "known",
        "name",
        "names",
        "old",
        "own",
        "path",
        "pending",
        "seen",
        "size",
        "status",
    )

    def __init__(self, name: str, path: str, depth: int, fd: int, old: Directory | None) -> None:
        self.name = name
        self.path = path
        self.depth = depth
        self.fd = fd
        now = time.time_ns()
        self.status = os.fstat(fd)
        # 0 matches nothing: a directory that changed within this clock tick may change again with the same ctime.
        settled = is_settled(self.status.st_ctime_ns, now)
        self.key = (self.status.st_dev, self.status.st_ino, self.status.st_ctime_ns if settled else 0)
        self.old = old
        self.head = b""
        self.pending: list[str] = []
        self.seen = b""
        self.known: dict[str, bytes] | None = None  # None: all files are unchanged
        self.folders: dict[str, bytes] = {}
        self.own = (0, 0)  # number and size of the files here; the next fields include everything below
        self.names = 0
        self.files = 0
        self.size = 0
        self.gaps = 0


class Walk:
    """One walk. `changed` and `gone` are its differences from the stat cache."""

    def __init__(
        self,
        sink: Sink,
        limits: Limits,
        *,
        cached: Directories | None = None,
        trust_objects: bool = True,
        live: bool = False,
        marks: str = "",
        find_was: Callable[[str], bytes] | None = None,
    ) -> None:
        self._sink = sink
        self._limits = limits
        self._cached = cached if cached is not None else {}
        self._trust_objects = trust_objects
        self._live = live
        # Only the namespace that the kernel uses here counts: in root's mounts the agent may write `user.overlay.*`.
        self._prefix = f"{marks}.overlay." if marks else ""
        self._find_was = find_was
        self._entries = 0
        self._stack: list[_Frame] = []
        self._held = 0
        self._inodes: dict[tuple[int, int], str] = {}  # of files with several hard links: the first path
        self._same: set[str] = set()  # directories with an unchanged listing
        self._doubtful: set[str] = set()  # cached directories that have to be entered
        self._has_writer = False  # the last file read was open for writing
        self.changed: Directories = {}
        self.gone: set[str] = set()

    def run(self, fd: int, path: str) -> tuple[Entry, int]:
        """Read the directory `fd`; return its entry and the number of files. `path` is its key in the cache."""
        self._base = os.dup(fd)
        self._held = 1
        try:
            self._find_doubtful(fd, path)
            return self._run(os.dup(fd), path)
        except OSError as error:
            raise from_os(error, "reading the workspace") from error
        finally:
            os.close(self._base)
            for frame in self._stack:
                if frame.fd >= 0:
                    os.close(frame.fd)
            self._stack.clear()

    def _find_doubtful(self, fd: int, path: str) -> None:
        """Find the changed directories and those above them. The top is always entered."""
        remembered = {
            each: found for each, found in self._cached.items() if each == path or each.startswith(f"{path}/")
        }
        # Near the entry limit the order of names matters, so every directory is entered and counted.
        is_near = path in remembered and remembered[path].total[2] > self._limits.max_entries // 2
        if self._trust_objects and not is_near:
            self._same = find_unchanged(fd, path, remembered)
        self._doubtful = {path} & remembered.keys()
        for each in remembered.keys() - self._same:
            while each and each not in self._doubtful:
                self._doubtful.add(each)
                each = each.rpartition("/")[0]
        self.gone = set(self._doubtful)  # until the walk has left them

    def _run(self, fd: int, path: str) -> tuple[Entry, int]:
        frame = self._enter("", path, 0, fd)
        while True:
            if frame.pending:
                name = frame.pending.pop()
                if self._passes_by(frame, name):
                    continue
                try:
                    child = self._descend(frame, name)
                except (_Vanished, OSError) as error:
                    self._put_gap(frame, name, error)
                    continue
                frame = self._enter(name, f"{frame.path}/{name}", frame.depth + 1, child)
                continue
            entry = self._leave(frame)
            if not self._stack:
                return entry, frame.files
            done, frame = frame, self._stack[-1]
            frame.files += done.files
            frame.size += done.size
            frame.names += done.names
            frame.gaps |= done.gaps
            frame.folders[done.name] = encode_entry(done.name, entry)

    # -- directories ---------------------------------------------------------------------------------------------------

    def _passes_by(self, frame: _Frame, name: str) -> bool:
        """Return whether a directory is unchanged with everything below it; if so, take it from the cache."""
        path = f"{frame.path}/{name}"
        found = self._cached.get(path)
        if found is None or path in self._doubtful or frame.old is None or name not in frame.old.folders:
            return False
        files, size, names = found.total
        self._entries += names
        frame.folders[name] = frame.old.folders[name]
        frame.files += files
        frame.size += size
        frame.names += names
        return True

    def _enter(self, name: str, path: str, depth: int, fd: int) -> _Frame:
        try:
            frame = _Frame(name, path, depth, fd, self._cached.get(path))
        except BaseException:
            os.close(fd)
            raise
        self._stack.append(frame)
        self._held += 1
        old = frame.old
        # ctime of a directory changes with its xattrs, so those of an unchanged one need not be read.
        same = old is not None and old.key == frame.key and frame.key[2] != 0
        frame.head = old.head if old is not None and same else encode_entry("", self._dir_head(fd))
        if old is not None and same and path in self._same:
            self._recall(frame, old)
        else:
            self._scan(frame)
        if not frame.pending:
            self._release(frame)
        return frame

    def _dir_head(self, fd: int) -> Entry:
        xattrs, marks = _read_xattrs(fd, self._prefix)
        if "redirect" in marks:
            raise Redirected
        return Entry(DIR, xattrs=xattrs, flags=flags(opaque=marks.get("opaque") == b"y"))

    def _descend(self, frame: _Frame, name: str) -> int:
        if frame.depth >= self._limits.max_depth:
            raise _Vanished("deep")
        if self._entries > self._limits.max_entries:
            raise _Vanished("many")
        if frame.fd < 0:
            self._reopen(frame)
        child = os.open(name, OPEN_DIR, dir_fd=frame.fd)
        if not frame.pending:  # the last one: a chain of any depth needs two descriptors
            self._release(frame)
        if self._held >= _HELD:
            for other in self._stack:
                if other.fd >= 0:
                    self._release(other)
                    break
        return child

    def _release(self, frame: _Frame) -> None:
        if frame.fd >= 0:
            os.close(frame.fd)
            frame.fd = -1
            self._held -= 1

    def _reopen(self, frame: _Frame) -> None:
        """Open a directory again from the nearest open directory above it."""
        at = self._stack.index(frame)
        start = at
        while start > 0 and self._stack[start].fd < 0:
            start -= 1
        fd = os.dup(self._stack[start].fd if self._stack[start].fd >= 0 else self._base)
        try:
            for level in self._stack[start + 1 : at + 1]:
                below = os.open(level.name, OPEN_DIR, dir_fd=fd)
                os.close(fd)
                fd = below
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) != frame.key[:2]:
                raise _Vanished("moved")
        except BaseException:
            os.close(fd)
            raise
        frame.fd = fd
        self._held += 1

    def _leave(self, frame: _Frame) -> Entry:
        """Finish a directory: write its tree, unless it is the cached one."""
        self._stack.pop()
        self._release(frame)
        old = frame.old
        digest = self._tree_of_last_time(frame)
        files = b""
        if frame.known is not None:
            files = marshal.dumps(frame.known)
        elif old is not None:
            files = old.known
        if digest is None:
            known: dict[str, bytes] = frame.known if frame.known is not None else marshal.loads(files)
            digest = self._sink.put_tree(encode_tree({**known, **frame.folders}))
        key = frame.key
        if self._live and (old is None or old.key != key):
            key = (*key[:2], 0)
        self.gone.discard(frame.path)
        total = (frame.files, frame.size, frame.names)
        if old is None or (old.key, old.digest, old.total, old.seen) != (key, digest, total, frame.seen):
            found = Directory(key, frame.head, digest, frame.own, total, frame.seen, files, frame.folders)
            self.changed[frame.path] = found
        head = decode_tree(frame.head)[""]
        return Entry(
            DIR,
            frame.status.st_mode & MODE_BITS,
            frame.status.st_mtime_ns,
            frame.size,
            digest,
            xattrs=head.xattrs,
            flags=head.flags | frame.gaps,
        )

    def _tree_of_last_time(self, frame: _Frame) -> bytes | None:
        """Return the cached digest of the tree, if the directory is unchanged and the tree is still stored."""
        old = frame.old
        if old is None or old.folders != frame.folders:
            return None
        if frame.known is not None and frame.known != marshal.loads(old.known):
            return None
        return old.digest if self._trust_objects or self._sink.has(old.digest) else None

    # -- names ---------------------------------------------------------------------------------------------------------

    def _recall(self, frame: _Frame, old: Directory) -> None:
        """Take all entries of a directory from the cache, except its sub-directories."""
        names = count_sights(old.seen)
        self._entries += names
        frame.names += names
        frame.seen = old.seen
        frame.own = old.own
        frame.files, frame.size = old.own
        frame.pending = sorted(old.folders, reverse=True)

    def _scan(self, frame: _Frame) -> None:
        """Stat every name; queue directories; read files unless all are unchanged."""
        pending: list[str] = []
        listed: list[str] = []
        numbers: list[int] = []
        is_dir = stat.S_IFDIR
        with os.scandir(frame.fd) as names:
            for item in names:
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError as error:
                    if not isinstance(error, FileNotFoundError):  # deleted since listed; else retry next time
                        frame.key = (*frame.key[:2], 0)
                    continue
                mode = status.st_mode
                listed.append(item.name)
                if mode & 0o170000 == is_dir:
                    pending.append(item.name)
                    numbers += FOLDER
                else:
                    numbers += (status.st_ino, status.st_ctime_ns, status.st_mtime_ns, status.st_size, mode)
        old = frame.old
        seen = pack_sights(listed, numbers)
        is_within = self._entries + len(listed) <= self._limits.max_entries
        if old is not None and old.seen == seen and self._trust_objects and is_within:
            self._recall(frame, old)
            frame.pending = sorted(pending, reverse=True)  # a directory that could not be entered is in no tree
        else:
            self._entries += len(listed)
            frame.names += len(listed)
            frame.pending = pending
            self._look_closer(frame, unpack_sights(seen))
            pending.sort(reverse=True)

    def _look_closer(self, frame: _Frame, sights: list[Sight]) -> None:
        """Read the changed files of a directory."""
        old = frame.old
        before: dict[str, Sight] = {sight[0]: sight for sight in unpack_sights(old.seen)} if old is not None else {}
        encoded: dict[str, bytes] = marshal.loads(old.known) if old is not None else {}
        known = frame.known = {}
        seen: dict[str, Sight] = {sight[0]: sight for sight in sights if sight[1:] == FOLDER}
        files = sorted(sight for sight in sights if sight[1:] != FOLDER)
        room = self._limits.max_entries - (self._entries - len(files))
        for sight in files:  # sorted: the first of several hard links must not depend on the disk
            name = sight[0]
            if before.get(name) == sight and (self._trust_objects or self._still_kept(encoded[name])):
                known[name] = encoded[name]
                if sight[5] & 0o170000 == stat.S_IFREG:
                    frame.files += 1
                    frame.size += sight[4]
                seen[name] = sight
            elif len(known) < room:
                seen[name] = self._look(frame, known, name, encoded.get(name, b""))
            else:
                frame.gaps |= flags(gaps=True)
                known[name] = encode_entry(name, Entry(LEFT_OUT, stat.S_IFREG >> 12, target="many"))
                seen[name] = never(name)
                break
        frame.own = (frame.files, frame.size)
        # In the order of the disk, which is stable while nothing changes.
        listed = [name for name, *_ in sights if name in seen]
        frame.seen = pack_sights(listed, [number for name in listed for number in seen[name][1:]])

    def _still_kept(self, encoded: bytes) -> bool:
        (entry,) = decode_tree(encoded).values()
        if entry.kind != FILE:
            return True
        # The chunks of a large file would have to be looked up one by one: read it again.
        return entry.size <= CHUNK and self._sink.has(entry.digest) and (not entry.was or self._sink.has(entry.was))

    def _put_gap(self, frame: _Frame, name: str, error: Exception) -> None:
        """Record a directory that could not be entered: deleted, swapped, or over a limit."""
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            return  # a link now, so no longer a directory
        reason = "unreadable" if isinstance(error, OSError) else str(error)
        frame.key = (*frame.key[:2], 0)  # retry it next time
        frame.gaps |= flags(gaps=True)
        frame.folders[name] = encode_entry(name, Entry(LEFT_OUT, stat.S_IFDIR >> 12, target=reason))

    def _look(self, frame: _Frame, known: dict[str, bytes], name: str, old: bytes) -> Sight:
        """Read one name, and return its stat cache entry."""
        now = time.time_ns()
        self._has_writer = False
        try:
            entry, status = self._read(frame.fd, name, os.stat(name, dir_fd=frame.fd, follow_symlinks=False))
            if status.st_nlink > 1 and entry.kind == FILE:
                # Adding or removing a hard link changes the ctime that all of them share, so one walk reads all of
                # them.
                path = f"{frame.path}/{name}"
                first = self._inodes.setdefault((status.st_dev, status.st_ino), path)
                entry.twin = first if first != path else ""
        except _IsFolder:
            frame.pending.append(name)
            return never(name)
        except FileNotFoundError:
            return never(name)
        if self._find_was is not None and entry.kind in (FILE, WHITEOUT):
            entry.was = self._was(frame, name, old)
        known[name] = encode_entry(name, entry)
        if entry.kind == FILE:
            frame.files += 1
            frame.size += entry.size
        frame.gaps |= flags(torn=entry.torn, gaps=entry.kind == LEFT_OUT)
        settled = is_settled(status.st_ctime_ns, now)
        if self._live or self._has_writer or entry.kind == LEFT_OUT or entry.torn or not settled:
            return never(name)
        return (name, status.st_ino, status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_mode)

    def _was(self, frame: _Frame, name: str, old: bytes) -> bytes:
        if old:
            (before,) = decode_tree(old).values()
            if before.was and (self._trust_objects or self._sink.has(before.was)):
                return before.was
        assert self._find_was is not None
        return self._find_was(f"{frame.path}/{name}")

    def read_note(self, fd: int, name: str) -> Entry | None:
        """Read a single file of a directory; None if there is none."""
        try:
            return self._read(fd, name, os.stat(name, dir_fd=fd, follow_symlinks=False))[0]
        except (FileNotFoundError, _IsFolder):
            return None

    def _read(self, parent: int, name: str, status: os.stat_result) -> tuple[Entry, os.stat_result]:
        for _ in range(_TRIES):
            mode = status.st_mode
            kind = mode & 0o170000
            try:
                if kind == stat.S_IFREG:
                    return self._read_file(parent, name)
                if kind == stat.S_IFLNK:
                    target = os.readlink(name, dir_fd=parent)
                    return Entry(LINK, 0o777, status.st_mtime_ns, len(os.fsencode(target)), target=target), status
                if kind == stat.S_IFDIR:
                    raise _IsFolder
                if self._prefix and kind == stat.S_IFCHR and status.st_rdev == 0:
                    return Entry(WHITEOUT), status
                reason = _KINDS.get(kind, "device")
                return Entry(LEFT_OUT, kind >> 12, target=reason), status
            except PermissionError:
                return Entry(LEFT_OUT, kind >> 12, size=status.st_size, target="unreadable"), status
            except OSError:
                # Race: swapped between stat and open. Stat again.
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        return Entry(LEFT_OUT, kind >> 12, target="unreadable"), status

    # -- files ---------------------------------------------------------------------------------------------------------

    def _read_file(self, parent: int, name: str) -> tuple[Entry, os.stat_result]:
        fd = os.open(name, OPEN_FILE, dir_fd=parent)
        try:
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode):
                raise OSError("not a file any more")
            held = before.st_blocks * 512
            if min(held, before.st_size) > self._limits.max_file_bytes:
                return Entry(LEFT_OUT, stat.S_IFREG >> 12, size=before.st_size, target="large"), before
            self._has_writer |= _is_open_for_writing(fd)
            for _ in range(_TRIES):
                digest, size = self._read_content(fd, before.st_size)
                after = os.fstat(fd)
                torn = size != after.st_size or (before.st_mtime_ns, before.st_ctime_ns) != (
                    after.st_mtime_ns,
                    after.st_ctime_ns,
                )
                before = after
                if not torn:
                    break
            xattrs, marks = _read_xattrs(fd, self._prefix)
            if "metacopy" in marks:
                raise Redirected
        finally:
            os.close(fd)
        bits = flags(sparse=held < size, torn=torn)
        return Entry(FILE, after.st_mode & MODE_BITS, after.st_mtime_ns, size, digest, xattrs=xattrs, flags=bits), after

    def _read_content(self, fd: int, size: int) -> tuple[bytes, int]:
        if size <= CHUNK:
            data = read_at(fd, CHUNK + 1, 0)
            if len(data) <= CHUNK:
                return self._sink.put(data), len(data)
            size = os.fstat(fd).st_size
            if size <= CHUNK:  # grew and shrank while it was read
                data = data[:size]
                return self._sink.put(data), len(data)
        return self._read_pieces(fd, size), size

    def _read_pieces(self, fd: int, size: int) -> bytes:
        pieces: list[tuple[int, bytes]] = []
        at = 0
        while at < size:
            try:
                # Skip holes: an empty 8 TB file costs one call.
                number = os.lseek(fd, at, os.SEEK_DATA) // CHUNK
            except OSError:
                break
            at = number * CHUNK
            if at >= size:
                break
            wanted = min(CHUNK, size - at)
            data = read_at(fd, wanted, at)
            if len(data) < wanted:
                data += bytes(wanted - len(data))  # truncated while it was read: torn, and retried
            if data != _ZEROS[:wanted]:
                pieces.append((number, self._sink.put(data)))
            at += CHUNK
        return self._sink.put(encode_pieces(size, pieces))


def _is_open_for_writing(fd: int) -> bool:
    """Return whether a process has the file open for writing, or mapped: repeated writes to a mapped page keep ctime.

    The kernel refuses a read lease on such a file. Ours lasts for an instant; a process that opens the file meanwhile
    waits, and the lease-break signal is one that is ignored by default.
    """
    from signal import SIGURG

    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN  # else the file belongs to another user, or the file system has no leases
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def read_at(fd: int, wanted: int, at: int) -> bytes:
    """Read up to this many bytes at an offset, fewer only at the end of the file."""
    data = os.pread(fd, wanted, at)
    while data and len(data) < wanted:
        more = os.pread(fd, wanted - len(data), at + len(data))
        if not more:
            break
        data += more
    return data


def _read_xattrs(fd: int, prefix: str) -> tuple[Xattrs, dict[str, bytes]]:
    """Return the xattrs of the user namespace, and the overlay's own marks by their last name component."""
    try:
        names = os.listxattr(fd)
    except OSError:
        return (), {}
    if not names:
        return (), {}
    xattrs, marks = [], {}
    for name in sorted(names):
        try:
            if prefix and name.startswith(prefix):
                marks[name[len(prefix) :]] = os.getxattr(fd, name)
            elif name.startswith("user."):
                xattrs.append((os.fsencode(name), os.getxattr(fd, name)))
        except OSError:
            continue  # removed since it was listed
    return tuple(xattrs), marks


__all__ = ["NO_DIGEST", "OPEN_DIR", "OPEN_FILE", "Redirected", "Walk", "read_at"]
