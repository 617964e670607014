"""Flatten a state: merge it with its lower layers into directories whose digests are the same on every machine.

A stored state may lie on layers of this machine. Here it is walked as the agent sees it, and each directory is encoded
again. Directories that two states share are walked once: a directory is identified by its layers. Entries that a
snapshot left out (devices, sockets, files over the limit) are in no flat state; the record of the snapshot lists them.
"""

from __future__ import annotations

import os

from workstead.snapshots.entries import CHUNK, DIR, FILE, LINK, Entry, decode_pieces, encode_entry, flags
from workstead.snapshots.trees import DiskDir, StoredDir, is_bare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Protocol

    from workstead.snapshots.trees import Pile, Tree

    class Visitor(Protocol):
        """Callbacks of a walk: a directory before its content, in the order of names."""

        def folder(self, path: str, entry: Entry) -> None: ...
        def file(self, path: str, tree: Tree, entry: Entry) -> Entry:
            """Process a file, and return its entry in the flat state."""

        def link(self, path: str, entry: Entry) -> None: ...
        def tree(self, data: bytes) -> bytes:
            """Process a complete directory; return its digest."""


_MOST_RUNS = 4096


class _Frame:
    """A directory that is being walked."""

    __slots__ = ("encoded", "entry", "key", "name", "names", "path", "pile", "size")

    def __init__(self, path: str, name: str, entry: Entry, pile: Pile, key: object) -> None:
        self.path = path
        self.name = name
        self.entry = entry
        self.pile = pile
        self.key = key
        self.names: Iterator[str] = iter(sorted(pile.names(), key=os.fsencode))
        self.encoded: list[bytes] = []
        self.size = 0

    def add(self, name: str, entry: Entry) -> None:
        self.encoded.append(encode_entry(name, entry))
        self.size += entry.size if entry.kind != LINK else 0


class Flattener:
    """Walk states, and remember the directories seen."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[bytes, int]] = {}  # layers of a directory -> its digest and size
        self._bare: dict[str, Entry] = {}  # `work` and `output`, for a state without their metadata

    def walk(self, tree: Tree, visit: Visitor) -> bytes:
        """Walk a state with the visitor; return the digest of the flat state."""
        stack = [_Frame("", "", Entry(DIR), tree.top, None)]
        while True:
            frame = stack[-1]
            name = next(frame.names, None)
            if name is not None:
                below = self._step(tree, frame, name, visit)
                if below is not None:
                    stack.append(below)
                continue
            digest = visit.tree(b"".join(frame.encoded))
            if frame.key is not None:
                self._known[frame.key] = (digest, frame.size)
            stack.pop()
            if not stack:
                return digest
            stack[-1].add(frame.name, _folder(frame.entry, digest, frame.size))

    def _step(self, tree: Tree, frame: _Frame, name: str, visit: Visitor) -> _Frame | None:
        entry = frame.pile.find(name)
        if entry is None:
            return None
        path = f"{frame.path}/{name}" if frame.path else name
        if entry.kind == FILE:
            frame.add(name, visit.file(path, tree, entry))
        elif entry.kind == LINK:
            entry = Entry(LINK, 0o777, entry.mtime_ns, entry.size, target=entry.target)
            visit.link(path, entry)
            frame.add(name, entry)
        elif entry.kind == DIR:
            pile = tree.child(frame.pile, name)
            entry = self._seen(tree, frame, name, entry)
            visit.folder(path, entry)
            key = _key(pile)
            known = self._known.get(key)
            if known is None:
                return _Frame(path, name, entry, pile, key)
            frame.add(name, _folder(entry, *known))
        return None

    def _seen(self, tree: Tree, frame: _Frame, name: str, entry: Entry) -> Entry:
        if is_bare(entry) and not frame.path:
            return self._bare.get(name, entry)
        found = Entry(DIR, entry.mode, entry.mtime_ns, xattrs=tree.xattrs(entry))
        if not frame.path:
            self._bare.setdefault(name, found)
        return found


def _folder(entry: Entry, digest: bytes, size: int) -> Entry:
    return Entry(DIR, entry.mode, entry.mtime_ns, size, digest, xattrs=entry.xattrs)


def _key(pile: Pile) -> object:
    parts: list[Any] = []
    for layer in pile.layers:
        if isinstance(layer, StoredDir):
            parts.append(layer.digest)
        elif isinstance(layer, DiskDir):
            parts.append((layer.layer.path, layer.relative))
    return tuple(parts)


# -- large files -------------------------------------------------------------------------------------------------------


def runs_of(tree: Tree, entry: Entry) -> tuple[tuple[int, int], ...] | None:
    """Return first and last number of the data runs of a large file; None if it is mostly data."""
    last = (entry.size - 1) // CHUNK
    runs: list[tuple[int, int]] = []
    for number, end in _data(tree, entry):
        if runs and number <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(end, runs[-1][1]))
        else:
            runs.append((number, end))
    if 2 * sum(end - first + 1 for first, end in runs) > last:
        return None
    gap = 1
    while len(runs) > _MOST_RUNS:  # bound the size of the map: fill the narrowest holes
        gap *= 2
        runs = _without_gaps(runs, gap)
    return tuple(runs)


def _without_gaps(runs: list[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    wide = runs[:1]
    for first, end in runs[1:]:
        if first - wide[-1][1] <= gap:
            wide[-1] = (wide[-1][0], end)
        else:
            wide.append((first, end))
    return wide


def _data(tree: Tree, entry: Entry) -> Iterator[tuple[int, int]]:
    if entry.disk is None:
        for number, _ in decode_pieces(tree.objects.get(entry.digest)):
            yield number, number
        return
    where, name = entry.disk
    fd = where.open(name)
    try:
        at = 0
        while at < entry.size:
            try:
                start = os.lseek(fd, at, os.SEEK_DATA)
                at = os.lseek(fd, start, os.SEEK_HOLE)
            except OSError:  # only a hole is left
                return
            yield start // CHUNK, (min(at, entry.size) - 1) // CHUNK
    finally:
        os.close(fd)


def pieces_of(tree: Tree, entry: Entry, runs: tuple[tuple[int, int], ...] | None) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of the pieces in these runs, or of all; holes and truncated parts are zeros."""
    found = tree.pieces(entry)
    at, data = next(found, (entry.size, b""))
    for first, last in runs if runs is not None else ((0, (entry.size - 1) // CHUNK),):
        for number in range(first, last + 1):
            while at < number * CHUNK:
                at, data = next(found, (entry.size, b""))
            length = min(CHUNK, entry.size - number * CHUNK)
            yield number, (data if at == number * CHUNK else b"").ljust(length, b"\0")


def flat_file(tree: Tree, entry: Entry, size: int, digest: bytes, *, sparse: bool) -> Entry:
    """Return the entry of a file in a flat state."""
    return Entry(
        FILE,
        entry.mode,
        entry.mtime_ns,
        size,
        digest,
        xattrs=tree.xattrs(entry),
        flags=flags(sparse=sparse),
    )
