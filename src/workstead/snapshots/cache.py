"""The stat cache: metadata of every file at the last snapshot, so that the next snapshot reads only changed files.

A file counts as unchanged when inode, ctime, mtime, size and mode are equal. An agent can set mtime, not ctime. Two
race conditions would still defeat this, and both are excluded:

- A file changed within the clock tick in which it was read ("racily clean") looks the same afterwards. A file younger
  than a tick when it is read is not cached.
- A process with a shared writable mapping changes a dirty page without touching ctime. While an agent may be running,
  nothing new is cached; older entries are safe, because a mapping made since then has to fault, and the fault changes
  ctime.

An entry also says "this content is in the object store". It belongs to one generation of the store: after objects were
dropped, the existence of each object is checked again.

The file is a sequence of blocks, each with its length and checksum. The first block holds everything, later ones the
changes, so that saving costs what changed. When the later blocks exceed half of the first, and `_MUCH` bytes, the file
is rewritten. An incomplete block ends the sequence: the blocks before it were true when written, and any file changed
since has another ctime.
"""

from __future__ import annotations

import marshal
import os
import stat
import sys
import zlib
from array import array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    Sight = tuple[str, int, int, int, int, int]  # name, inode, ctime, mtime, size, mode
    Directories = dict[str, "Directory"]  # keyed by path, such as `work/src`

_TICK_NS = 20_000_000  # the coarse clock of file timestamps ticks every 1 to 10 ms
_SECOND_NS = 1_000_000_000

# marshal loads 50,000 files in a few milliseconds. Its format depends on the Python version, and damaged bytes may
# crash it: hence version and checksum are verified. The file is in the home, where no agent can write.
_MAGIC = b"carrel-stat-5 %s %d\n" % (sys.byteorder.encode(), marshal.version)
_MUCH = 128 << 10  # minimum size of the later blocks before the file is rewritten
_FRAME = 8 + 4  # length and checksum of a block
_NUMBERS = 5
_MASK = (1 << 64) - 1


class Directory:
    """The cached listing of one directory."""

    __slots__ = ("digest", "folders", "head", "key", "known", "own", "seen", "total")

    def __init__(
        self,
        key: tuple[int, int, int],
        head: bytes,
        digest: bytes,
        own: tuple[int, int],
        total: tuple[int, int, int],
        seen: bytes,
        known: bytes,
        folders: dict[str, bytes],
    ) -> None:
        self.key = key  # device, inode and ctime; a ctime of 0 matches nothing
        self.head = head  # its xattrs and opaque mark
        self.digest = digest  # of its tree object
        self.own = own  # number and size of the files in it
        self.total = total  # number and size of the files in it and below, and number of names
        self.seen = seen  # see `pack_sights`
        self.known = known  # the encoded entries of its files by name, marshalled
        self.folders = folders  # the encoded entries of its sub-directories by name

    def as_tuple(self) -> tuple[object, ...]:
        """Return the constructor arguments."""
        return self.key, self.head, self.digest, self.own, self.total, self.seen, self.known, self.folders


def is_settled(ctime_ns: int, now_ns: int) -> bool:
    """Return whether any change after `now_ns` is certain to produce another ctime.

    Some file systems have timestamps of one or two seconds; there it takes that much longer to be sure.
    """
    return ctime_ns < now_ns - (_TICK_NS if ctime_ns % _SECOND_NS else 2 * _SECOND_NS + _TICK_NS)


# -- the listing of a directory ----------------------------------------------------------------------------------------


def pack_sights(names: list[str], numbers: list[int]) -> bytes:
    """Pack the listing of a directory into bytes: compared as a whole, unpacked only if it differs.

    The format is the number of names, five numbers for each, then the names, each terminated by a 0; unchanged.c reads
    it too. A directory entry has only its type: changes inside it are detected there. Numbers are truncated to 64 bits.
    """
    try:
        packed = array("q", numbers)
    except OverflowError:
        packed = array("Q", [number & _MASK for number in numbers])
    return len(names).to_bytes(8, sys.byteorder) + packed.tobytes() + os.fsencode("\0".join([*names, ""]))


def unpack_sights(seen: bytes) -> list[Sight]:
    """Unpack the result of `pack_sights`."""
    end = 8 + count_sights(seen) * _NUMBERS * 8
    numbers = iter(array("q", seen[8:end]))
    names = os.fsdecode(seen[end:]).split("\0")[:-1]
    return list(zip(names, *([numbers] * _NUMBERS), strict=True))


def count_sights(seen: bytes) -> int:
    """Return the number of names in a packed listing."""
    return int.from_bytes(seen[:8], sys.byteorder)


def never(name: str) -> Sight:
    """Return a cache entry that matches no file, so that the file is read again next time."""
    return (name, 0, 0, 0, 0, 0)


FOLDER = (0, 0, 0, 0, stat.S_IFDIR)  # the numbers of a directory entry


# -- on the disk -------------------------------------------------------------------------------------------------------


class Memory:
    """The content of a cache file, and how much of the file is valid."""

    __slots__ = ("directories", "first", "generation", "size")

    def __init__(self, generation: int, directories: Directories, size: int = 0, first: int = 0) -> None:
        self.generation = generation
        self.directories = directories
        self.size = size  # length of the valid part of the file
        self.first = first  # end of its first block


def load(path: str, key: str) -> Memory:
    """Load a cache file; return an empty one if it is missing, damaged or has another key."""
    nothing = Memory(0, {})
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return nothing
    try:
        with os.fdopen(fd, "rb") as file:
            data = file.read()
    except OSError:
        return nothing
    if not data.startswith(_MAGIC):
        return nothing
    generation, packed = 0, {}
    first = end = 0
    for block, end in _blocks(data):
        stored_key, generation, changed, gone = marshal.loads(block)
        if stored_key != key:
            return nothing
        packed.update(changed)
        for each in gone:
            packed.pop(each, None)
        first = first or end
    directories = {each: Directory(*fields) for each, fields in packed.items()}
    return Memory(generation, directories, end if end == len(data) else 0, first)


def _blocks(data: bytes) -> Iterator[tuple[memoryview, int]]:
    """Yield the intact blocks of a file, and the offset at which each ends."""
    at = len(_MAGIC)
    view = memoryview(data)
    while at + _FRAME <= len(data):
        end = at + _FRAME + int.from_bytes(data[at : at + 8], "big")
        block = view[at + _FRAME : end]
        # A power cut may leave zeros where bytes were appended, and the checksum of no bytes is zero.
        if not block or end > len(data) or zlib.crc32(block).to_bytes(4, "big") != data[at + 8 : at + _FRAME]:
            return
        yield block, end
        at = end


def save(
    path: str, key: str, generation: int, memory: Memory, changed: Directories, gone: Collection[str] = ()
) -> None:
    """Save the cache. Losing it costs only time, so nothing is synced and a full disk is not an error."""
    block = _block(key, generation, changed, gone)
    if memory.size and memory.size - memory.first + len(block) <= max(memory.first // 2, _MUCH):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            with os.fdopen(fd, "wb") as file:
                file.seek(memory.size)
                file.write(block)
                return
        except OSError:
            pass  # as if there had been no cache
    directories = {each: found for each, found in memory.directories.items() if each not in gone}
    _write_anew(path, _MAGIC + _block(key, generation, {**directories, **changed}, ()))


def _block(key: str, generation: int, changed: Directories, gone: Collection[str]) -> bytes:
    packed = {each: found.as_tuple() for each, found in changed.items()}
    data = marshal.dumps((key, generation, packed, list(gone)))
    return len(data).to_bytes(8, "big") + zlib.crc32(data).to_bytes(4, "big") + data


def _write_anew(path: str, data: bytes) -> None:
    temporary = f"{path}.{os.urandom(4).hex()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.rename(temporary, path)
    except OSError:
        forget(temporary)


def forget(path: str) -> None:
    """Delete a cache; the next snapshot reads everything."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
