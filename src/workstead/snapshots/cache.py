"""What the last snapshot saw of every file, so that the next one reads only what changed.

A file counts as unchanged when inode, ctime, mtime, size and mode are those of last time. An agent can set mtime, not
ctime. Two things would still fool it, and both are kept out:

- A file changed within the clock tick in which it was read ("racily clean") looks the same afterwards. What is younger
  than a tick when it is read is not remembered.
- A process that holds a shared writable mapping changes a page that is dirty already without touching ctime. While an
  agent may be running nothing new is remembered; what was remembered in quiet is safe, because a mapping made since
  then has to fault, and the fault moves ctime.

The cache says "this content is in the store". It belongs to one generation of the store: after objects were dropped,
each one is asked for.

The file is a row of blocks, each with its length and checksum. The first holds everything, later ones what was new, so
that remembering costs what changed; when they have grown to half of the first, and to much, it is written anew. A block
that is not whole ends the row: what stands before it was true then, and whoever changed since has another ctime.
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
    Directories = dict[str, "Directory"]  # by path, as `work/src`

_TICK_NS = 20_000_000  # the coarse clock that stamps files ticks every 1 to 10 ms
_SECOND_NS = 1_000_000_000

# marshal loads 50,000 files in a few milliseconds. Its format belongs to the Python version, and damaged bytes may
# crash it: hence both are checked. The file lies in the home, where no agent writes.
_MAGIC = b"carrel-stat-5 %s %d\n" % (sys.byteorder.encode(), marshal.version)
_MUCH = 128 << 10  # bytes of later blocks that are worth writing a small file anew
_FRAME = 8 + 4  # length and checksum of a block
_NUMBERS = 5
_MASK = (1 << 64) - 1


class Directory:
    """What the last walk found in a directory."""

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
        self.digest = digest  # of its tree
        self.own = own  # number and size of the files in it
        self.total = total  # number and size of the files in it and below, and number of names
        self.seen = seen  # see `pack_sights`
        self.known = known  # the encoded entries of its files by name, marshalled
        self.folders = folders  # those of its directories

    def as_tuple(self) -> tuple[object, ...]:
        """What the constructor takes."""
        return self.key, self.head, self.digest, self.own, self.total, self.seen, self.known, self.folders


def is_settled(ctime_ns: int, now_ns: int) -> bool:
    """Whether whoever changes what has this ctime after this moment gives it another.

    Some file systems keep whole seconds, or every second one; there it takes that much longer to be sure."""
    return ctime_ns < now_ns - (_TICK_NS if ctime_ns % _SECOND_NS else 2 * _SECOND_NS + _TICK_NS)


# -- what was seen in a directory --------------------------------------------------------------------------------------


def pack_sights(names: list[str], numbers: list[int]) -> bytes:
    """Everything that a directory lists, as bytes: it is compared at once, and unpacked only if it differs.

    The number of names, five numbers for each, then the names, each with a 0; unchanged.c reads it too. A directory has
    its kind alone: whether it changed is asked there. Numbers beyond 64 bits lose what is beyond.
    """
    try:
        packed = array("q", numbers)
    except OverflowError:
        packed = array("Q", [number & _MASK for number in numbers])
    return len(names).to_bytes(8, sys.byteorder) + packed.tobytes() + os.fsencode("\0".join([*names, ""]))


def unpack_sights(seen: bytes) -> list[Sight]:
    """What `pack_sights` packed."""
    end = 8 + count_sights(seen) * _NUMBERS * 8
    numbers = iter(array("q", seen[8:end]))
    names = os.fsdecode(seen[end:]).split("\0")[:-1]
    return list(zip(names, *([numbers] * _NUMBERS), strict=True))


def count_sights(seen: bytes) -> int:
    """How many names a directory lists."""
    return int.from_bytes(seen[:8], sys.byteorder)


def never(name: str) -> Sight:
    """A sight that matches no file: what must be read again next time."""
    return (name, 0, 0, 0, 0, 0)


FOLDER = (0, 0, 0, 0, stat.S_IFDIR)  # the numbers of a directory


# -- on the disk -------------------------------------------------------------------------------------------------------


class Memory:
    """What a cache remembers, and how much of its file is used for it."""

    __slots__ = ("directories", "first", "generation", "size")

    def __init__(self, generation: int, directories: Directories, size: int = 0, first: int = 0) -> None:
        self.generation = generation
        self.directories = directories
        self.size = size  # up to where the file is whole, if that is its end
        self.first = first  # where its first block ends


def load(path: str, key: str) -> Memory:
    """What was remembered; nothing if there is nothing that fits."""
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
    """The whole blocks of a file, and where each ends."""
    at = len(_MAGIC)
    view = memoryview(data)
    while at + _FRAME <= len(data):
        end = at + _FRAME + int.from_bytes(data[at : at + 8], "big")
        block = view[at + _FRAME : end]
        # A power cut may leave zeros where bytes were appended, and zero is the checksum of nothing.
        if not block or end > len(data) or zlib.crc32(block).to_bytes(4, "big") != data[at + 8 : at + _FRAME]:
            return
        yield block, end
        at = end


def save(
    path: str, key: str, generation: int, memory: Memory, changed: Directories, gone: Collection[str] = ()
) -> None:
    """Remember for next time. Losing it costs time only, so nothing is synced and a full disk is no error."""
    block = _block(key, generation, changed, gone)
    if memory.size and memory.size - memory.first + len(block) <= max(memory.first // 2, _MUCH):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            with os.fdopen(fd, "wb") as file:
                file.seek(memory.size)
                file.write(block)
                return
        except OSError:
            pass  # as if there had been none
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
    """Remove a cache; the next snapshot reads everything."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
