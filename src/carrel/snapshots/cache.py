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
"""

from __future__ import annotations

import marshal
import os
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    Sight = tuple[str, int, int, int, int, int]  # name, inode, ctime, mtime, size, mode
    # of a directory: device, inode and ctime; its xattrs and opaque mark; digest of its tree; number and size of the
    # files in it; what was seen (`pack_sights`); marshalled encoded entries of the files by name; those of directories
    Directory = tuple[tuple[int, int, int], bytes, bytes, int, int, bytes, bytes, dict[str, bytes]]
    Directories = dict[str, Directory]

TICK_NS = 20_000_000  # the coarse clock that stamps files ticks every 1 to 10 ms

# marshal loads 50,000 files in a few milliseconds. Its format belongs to the Python version, and damaged bytes may
# crash it: hence both are checked. The file lies in the home, where no agent writes.
_MAGIC = b"carrel-stat-4 %d " % marshal.version


def pack_sights(sights: list[Sight]) -> bytes:
    """What was seen in a directory, as bytes: a directory is compared at once, and unpacked only if it differs.

    Version 0 of marshal gives the same bytes for the same values; later ones depend on who else refers to them.
    """
    return marshal.dumps(sights, 0)


def never(name: str) -> Sight:
    """A sight that matches no file: what must be read again next time."""
    return (name, 0, 0, 0, 0, 0)


def load(path: str, key: str) -> tuple[int, Directories]:
    """The generation and the directories of the last snapshot; nothing if there is none that fits."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return 0, {}
    try:
        with os.fdopen(fd, "rb") as file:
            data = file.read()
    except OSError:
        return 0, {}
    start = len(_MAGIC) + 4
    body = memoryview(data)[start:]
    if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(body).to_bytes(4, "big") != data[start - 4 : start]:
        return 0, {}
    generation, stored_key, directories = marshal.loads(body)
    return (generation, directories) if stored_key == key else (0, {})


def save(path: str, key: str, generation: int, directories: Directories) -> None:
    """Remember for next time. Losing it costs time only, so nothing is synced and a full disk is no error."""
    data = marshal.dumps((generation, key, directories))
    temporary = f"{path}.{os.urandom(4).hex()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(_MAGIC + zlib.crc32(data).to_bytes(4, "big"))
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
