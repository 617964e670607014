"""Validate directory objects of an untrusted archive.

A tree object is decoded, encoded again and compared, as headers are: there is one spelling only. It may refer only to
objects before it, so that a complete object means a complete state, and its expanded size is known: a few bytes that
expand into millions of files are refused before the first file is created.
"""

from __future__ import annotations

import os
from struct import error as StructError  # noqa: N812 - it is the name of an error

from workstead.archives.headers import MAX_NAME
from workstead.errors import ArchiveTooLarge, InvalidArchive
from workstead.model.snapshot import EMPTY
from workstead.model.value import Value
from workstead.snapshots.entries import (
    CHUNK,
    DIR,
    FILE,
    LINK,
    MODE_BITS,
    Entry,
    decode_pieces,
    decode_tree,
    encode_entry,
    encode_pieces,
    encode_tree,
    flags,
)

_TOP = {"work": (DIR,), "output": (DIR,), "CLAUDE.md": (FILE, LINK), "AGENTS.md": (FILE, LINK)}
_NEVER = flags(opaque=True, torn=True, gaps=True)
_MAX_TARGET = 4095
_FEW = 10


class Caps(Value):
    """Size limits of an archive."""

    max_files: int = 5_000_000
    max_bytes: int = 100 << 30
    max_ratio: int = 1000
    max_depth: int = 3000


class Weight:
    """The expanded size of a directory."""

    __slots__ = ("depth", "entries", "is_top", "reach", "size")

    def __init__(self) -> None:
        self.depth = 1
        self.entries = 0
        self.size = 0
        self.reach = 0  # how many directories above this one a link in it leads to
        self.is_top = True  # whether it could be the top of a state: only `work`, `output` and the notes


class Known:
    """The objects read so far."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self.contents: dict[bytes, int] = {}  # digest -> length
        self.lists: dict[bytes, int] = {}  # digest -> size of the file
        self.trees: dict[bytes, Weight] = {}
        self.outside: list[tuple[str, str]] = []  # the first links that lead out: name and target

    def add_list(self, digest: bytes, data: bytes) -> None:
        """Add the chunk list of a large file."""
        size = int.from_bytes(data[:8], "big")
        if len(data) < 8 or (len(data) - 8) % 40 or size <= CHUNK or size > 1 << 62:
            raise InvalidArchive("a list of pieces in the archive is none")
        last = -1
        pieces = decode_pieces(data)
        for number, piece in pieces:
            length = min(CHUNK, size - number * CHUNK)
            if number <= last or length <= 0 or self.contents.get(piece) != length:
                raise InvalidArchive("a list of pieces in the archive does not fit the pieces")
            last = number
        if encode_pieces(size, pieces) != data:
            raise InvalidArchive("a list of pieces in the archive is none")
        self.lists[digest] = size

    def add_tree(self, digest: bytes, data: bytes) -> None:
        """Add a directory object."""
        try:
            entries = decode_tree(data)
            again = encode_tree({name: encode_entry(name, entry) for name, entry in entries.items()})
        except (StructError, ValueError, OverflowError) as error:
            raise InvalidArchive(f"a directory of a state in the archive is none: {error}") from None
        if again != data:
            raise InvalidArchive("a directory of a state in the archive is not written as it should be")
        weight = Weight()
        for name, entry in entries.items():
            raw = os.fsencode(name)
            if not 0 < len(raw) <= MAX_NAME or b"\0" in raw:
                raise InvalidArchive(f"a directory of a state in the archive holds the name {name[:100]!r}")
            self.weigh(weight, name, entry)
        self.add_weighed(digest, weight)

    def add_weighed(self, digest: bytes, weight: Weight) -> None:
        """Add a directory that was checked."""
        caps = self._caps
        if weight.depth > caps.max_depth:
            raise ArchiveTooLarge(f"a state in the archive is more than {caps.max_depth} directories deep")
        if weight.entries > caps.max_files or weight.size > caps.max_bytes:
            raise ArchiveTooLarge(
                f"a state in the archive unfolds to {weight.entries} files of {weight.size} bytes",
                hint="archives.max_files and archives.max_gb set the limits",
            )
        self.trees[digest] = weight

    def weigh(self, weight: Weight, name: str, entry: Entry, path: str = "") -> None:
        """Add an entry, whose path may be known, to a directory's size. Raise if the entry is invalid."""
        if entry.mode & ~MODE_BITS or entry.over or entry.was or entry.flags & _NEVER:
            raise InvalidArchive(f"{name!r} in a state of the archive is not plain")
        # Restore sets these attributes, and as root it could set ones that grant privileges.
        if any(not key.startswith(b"user.") or b"\0" in key for key, _ in entry.xattrs):
            raise InvalidArchive(f"{name!r} in a state of the archive has an attribute that is not the user's")
        if entry.kind == FILE:
            known = self.contents if entry.size <= CHUNK else self.lists
            if known.get(entry.digest) != entry.size:
                raise InvalidArchive(f"the content of {name!r} in a state of the archive is not in it")
            weight.size += entry.size
        elif entry.kind == DIR:
            below = self.trees.get(entry.digest)
            if below is None or below.size != entry.size:
                raise InvalidArchive(f"the directory {name!r} of a state of the archive is not in it")
            weight.depth = max(weight.depth, below.depth + 1)
            weight.entries += below.entries
            weight.size += below.size
            weight.reach = max(weight.reach, below.reach - 1)
        elif entry.kind == LINK:
            weight.reach = max(weight.reach, self._reach_of(name, entry.target, path))
        else:
            raise InvalidArchive(f"{name!r} in a state of the archive is neither file, directory nor link")
        weight.entries += 1
        weight.is_top = weight.is_top and entry.kind in _TOP.get(name, ())

    def _reach_of(self, name: str, target: str, path: str) -> int:
        """Return how many directories up a link leads; record a link that leads out, or may do so."""
        raw = os.fsencode(target)
        if not 0 < len(raw) <= _MAX_TARGET or b"\0" in raw:
            raise InvalidArchive(f"the link {name!r} in the archive leads to {target[:100]!r}")
        parts = [part for part in target.split("/") if part not in ("", ".")]
        up = 0
        while up < len(parts) and parts[up] == "..":
            up += 1
        # After a name, `..` is relative to the target of that name, which may be another link.
        if target.startswith("/") or ".." in parts[up:] or (path and up > path.count("/")):
            self._note_outside(path or name, target)
            return 0
        return up

    def _note_outside(self, name: str, target: str) -> None:
        """Record that a link leads out: the caller decides about the archive."""
        if len(self.outside) < _FEW:
            self.outside.append((name, target))

    def check_root(self, root: str) -> str:
        """Check that a root is a complete state, and return it."""
        if root == EMPTY:
            return root
        weight = self.trees.get(bytes.fromhex(root)) if len(root) == 64 and _is_hex(root) else None
        if weight is None:
            raise InvalidArchive(f"the state {root[:80]!r} is not in the archive")
        if not weight.is_top:
            raise InvalidArchive(f"the state {root} holds something beside work and output")
        if weight.reach > 0:
            self._note_outside("in an older state", "..")
        return root


def _is_hex(text: str) -> bool:
    return all(char in "0123456789abcdef" for char in text)
