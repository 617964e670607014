"""Directory entries, and their encoding as bytes with a digest.

A tree object is the sorted list of a directory's entries. A sub-directory is referenced by the digest of its own tree,
so two states share every equal directory, and a comparison skips it. Names are bytes on disk and surrogate-escaped text
in memory.

Over an overlay a tree holds the upper layer only. It then has two marks that no plain directory has: a whiteout hides
the name in the lower layers, and an opaque directory hides all of them. The top directory of a stack names the stack.
"""

from __future__ import annotations

import os
import sys
from _struct import Struct  # avoids importing the pure Python wrapper `struct`

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    class Folder(Protocol):
        """An open directory of a layer on the disk that reads files on demand."""

        @property
        def is_users(self) -> bool:
            """Whether the layer is the user's own folder, which may change at any time."""

        def open(self, name: str) -> int:
            """Return a descriptor of a regular file."""

        def digest(self, name: str) -> bytes:
            """Return the digest of a file."""

        def xattrs(self, name: str) -> Xattrs:
            """Return the extended attributes of an entry."""

        def ctime_ns(self, name: str) -> int:
            """Return the ctime of the inode."""


FILE = "f"
DIR = "d"
LINK = "l"
WHITEOUT = "w"
LEFT_OUT = "x"

# A set-id bit would be dangerous with the owner that restore sets on the file, so it is never stored.
MODE_BITS = 0o1777

_OPAQUE = 1  # dir: hides the lower layers
_SPARSE = 2  # file: had holes
_TORN = 4  # file: changed while it was read; dir: contains such a file
_GAPS = 8  # dir: contains an entry that was left out
_XATTRS = 16
_OVER = 32  # dir: lies on a stack of layers
_WAS = 64  # file, whiteout: digest of the lower layer's content when the change was first seen
_TWIN = 128  # file: hard link to a file seen before
_HAS_TAIL = _XATTRS | _OVER | _WAS | _TWIN
_FAR = 0x8000  # in the mode: mtime before 1678 or after 2262; the mtime field then holds the nanoseconds only

_HEAD = Struct("!cBHqQ32sH")  # kind, flags, mode, mtime, size, digest, length of the name
_SHORT = Struct("!H")
_LONG = Struct("!I")
_SECONDS = Struct("!q")
NO_DIGEST = bytes(32)
_TARGETED = (LINK.encode(), LEFT_OUT.encode())
_CODE = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())

Xattrs = tuple[tuple[bytes, bytes], ...]


class Entry:
    """One name in a directory. For a directory, `size` is the sum of the files below it.

    An entry from a layer on the disk has `disk` set; its digest and xattrs are read on demand.
    """

    __slots__ = (
        "digest",
        "disk",
        "flags",
        "kind",
        "mode",
        "mtime_ns",
        "over",
        "size",
        "target",
        "twin",
        "was",
        "xattrs",
    )

    def __init__(
        self,
        kind: str,
        mode: int = 0,
        mtime_ns: int = 0,
        size: int = 0,
        digest: bytes = NO_DIGEST,
        target: str = "",
        xattrs: Xattrs = (),
        flags: int = 0,
        over: str = "",
        was: bytes = b"",
        twin: str = "",
        disk: tuple[Folder, str] | None = None,
    ) -> None:
        self.kind = kind
        self.mode = mode
        self.mtime_ns = mtime_ns
        self.size = size
        self.digest = digest
        self.target = target  # of a link; for an entry that was left out, the reason
        self.xattrs = xattrs
        self.flags = flags
        self.over = over
        self.was = was
        self.twin = twin  # first path, such as `work/a`, of the same inode (hard link); empty on the first path itself
        self.disk = disk

    @property
    def unkept(self) -> bool:
        """Whether the entry exists but is in no snapshot: too large, too deep, too many, or no permission."""
        return self.kind == LEFT_OUT and self.target in ("large", "unreadable", "deep", "many")

    @property
    def opaque(self) -> bool:
        return bool(self.flags & _OPAQUE)

    @property
    def sparse(self) -> bool:
        return bool(self.flags & _SPARSE)

    @property
    def torn(self) -> bool:
        return bool(self.flags & _TORN)

    @property
    def gaps(self) -> bool:
        """Whether an entry below this directory was left out or is torn."""
        return bool(self.flags & (_GAPS | _TORN))

    def __repr__(self) -> str:
        return f"Entry({self.kind}, {self.mode:o}, {self.size}, {self.digest.hex()[:8]}, {self.target!r})"


def flags(*, opaque: bool = False, sparse: bool = False, torn: bool = False, gaps: bool = False) -> int:
    """Return the flag bits of an entry."""
    return (_OPAQUE * opaque) | (_SPARSE * sparse) | (_TORN * torn) | (_GAPS * gaps)


def encode_entry(name: str, entry: Entry) -> bytes:
    """Encode one entry."""
    raw = os.fsencode(name)
    bits = entry.flags & (_OPAQUE | _SPARSE | _TORN | _GAPS)
    tail = b""
    if entry.kind in (LINK, LEFT_OUT):
        target = os.fsencode(entry.target)
        tail = _SHORT.pack(len(target)) + target
    if entry.xattrs:
        bits |= _XATTRS
        parts = [_SHORT.pack(len(entry.xattrs))]
        for key, value in entry.xattrs:
            parts += (_SHORT.pack(len(key)), key, _LONG.pack(len(value)), value)
        tail += b"".join(parts)
    if entry.over:
        bits |= _OVER
        over = entry.over.encode()
        tail += _SHORT.pack(len(over)) + over
    if entry.was:
        bits |= _WAS
        tail += entry.was
    if entry.twin:
        bits |= _TWIN
        twin = os.fsencode(entry.twin)
        tail += _LONG.pack(len(twin)) + twin
    mode, mtime_ns = entry.mode, entry.mtime_ns
    if not -(1 << 63) <= mtime_ns < 1 << 63:
        seconds, mtime_ns = divmod(mtime_ns, 1_000_000_000)
        mode |= _FAR
        tail += _SECONDS.pack(seconds)
    head = _HEAD.pack(entry.kind.encode(), bits, mode, mtime_ns, entry.size, entry.digest, len(raw))
    return head + raw + tail


def encode_tree(entries: Mapping[str, bytes]) -> bytes:
    """Encode a directory, from the encoded entries by name."""
    return b"".join([entries[name] for name in sorted(entries, key=os.fsencode)])


def decode_tree(data: bytes) -> dict[str, Entry]:
    """Decode the entries of a directory, by name."""
    entries: dict[str, Entry] = {}
    at, end = 0, len(data)
    while at < end:
        kind, bits, mode, mtime_ns, size, digest, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size + length
        name = _decode_name(data, at - length, at)
        entry = entries[name] = Entry(kind.decode(), mode, mtime_ns, size, digest, flags=bits)
        if bits & _HAS_TAIL or mode & _FAR or kind in _TARGETED:
            at = _decode_tail(entry, data, at)
    return entries


def split_tree(data: bytes) -> dict[str, bytes]:
    """Split a directory into its entries by name, still encoded: equal ones need no decoding."""
    entries: dict[str, bytes] = {}
    at, end = 0, len(data)
    while at < end:
        start = at
        kind, bits, mode, _, _, _, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size + length
        name = _decode_name(data, at - length, at)
        if bits & _HAS_TAIL or mode & _FAR or kind in _TARGETED:
            at = _decode_tail(Entry(kind.decode(), mode, flags=bits), data, at)
        entries[name] = data[start:at]
    return entries


def _decode_name(data: bytes, start: int, end: int) -> str:
    name = str(data[start:end], *_CODE)  # os.fsdecode does the same with ten more steps
    if "/" in name or name in (".", ".."):
        raise ValueError(f"a tree holds the name {name!r}")
    return name


def _decode_tail(entry: Entry, data: bytes, at: int) -> int:
    """Decode the fields after the name, and return the offset of their end."""
    if entry.kind in (LINK, LEFT_OUT):
        (length,) = _SHORT.unpack_from(data, at)
        entry.target = os.fsdecode(data[at + 2 : at + 2 + length])
        at += 2 + length
    if entry.flags & _XATTRS:
        (count,) = _SHORT.unpack_from(data, at)
        at += 2
        xattrs = []
        for _ in range(count):
            (length,) = _SHORT.unpack_from(data, at)
            key = data[at + 2 : at + 2 + length]
            at += 2 + length
            (length,) = _LONG.unpack_from(data, at)
            xattrs.append((key, data[at + 4 : at + 4 + length]))
            at += 4 + length
        entry.xattrs = tuple(xattrs)
    if entry.flags & _OVER:
        (length,) = _SHORT.unpack_from(data, at)
        entry.over = data[at + 2 : at + 2 + length].decode()
        at += 2 + length
    if entry.flags & _WAS:
        entry.was = data[at : at + 32]
        at += 32
    if entry.flags & _TWIN:
        (length,) = _LONG.unpack_from(data, at)
        entry.twin = os.fsdecode(data[at + 4 : at + 4 + length])
        at += 4 + length
    if entry.mode & _FAR:
        (seconds,) = _SECONDS.unpack_from(data, at)
        entry.mode ^= _FAR
        entry.mtime_ns += seconds * 1_000_000_000
        at += 8
    return at


# -- large files -------------------------------------------------------------------------------------------------------

# A larger file is stored as a list of chunks, so that a log that grew, or a database that changed in one place, costs
# only its changed chunks. The digest of such a file is the digest of its list, which depends on the content alone.
CHUNK = 1 << 20
_PIECE = Struct("!Q32s")


def encode_pieces(size: int, pieces: list[tuple[int, bytes]]) -> bytes:
    """Encode the chunk list of a large file: number and digest of every chunk that is not all zeros."""
    return size.to_bytes(8, "big") + b"".join([_PIECE.pack(number, digest) for number, digest in pieces])


def decode_pieces(data: bytes) -> list[tuple[int, bytes]]:
    """Decode a chunk list: number and digest of every chunk that is not all zeros."""
    return [(number, digest) for number, digest in _PIECE.iter_unpack(data[8:])]
