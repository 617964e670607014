"""Write an archive in one pass: description, history, files, objects of other states, and the manifest.

    archive.json        workspace, home, and how the archive was made
    events.jsonl        its history (see history.py)
    .aw/…               its metadata documents
    git/borrowed.pack   the objects that its repository borrows, if it does (see borrowed.py)
    AGENTS.md CLAUDE.md output/… work/…      the present state, as any tar unpacks it
    objects/contents/…  objects/lists/…  objects/trees/…     objects of other states that the present one lacks
    manifest.jsonl      a line for each member above, with its digest; then a summary line

A member comes after the members that it refers to, so that a reader can check at once that they are complete.
"""

from __future__ import annotations

import json
from hashlib import sha256

from workstead.archives import headers
from workstead.archives.flatten import Flattener, flat_file, pieces_of, runs_of
from workstead.archives.headers import FILE, FOLDER, LINK, Member
from workstead.snapshots.entries import CHUNK, Entry, encode_pieces
from workstead.snapshots.packs import zstd_of_this_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import IO, Any

    from workstead.snapshots.trees import Tree

FORMAT = "carrel archive"
VERSION = 2  # version 1 has no borrowed objects
PACK = "git/borrowed.pack"
_ZEROS = bytes(CHUNK)
_BLOCK = 1 << 20
_LEVEL = 3


class Writer:
    """Write one archive to `write`; `spool` is an empty file for the manifest, which is written last."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        spool: IO[bytes],
        *,
        threads: int = 2,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        zstd = zstd_of_this_python()
        options = zstd.CompressionParameter
        self._compressor = zstd.ZstdCompressor(
            options={options.compression_level: _LEVEL, options.checksum_flag: 1, options.nb_workers: threads}
        )
        self._write = write
        self._spool = spool
        self._progress = progress
        self._buffer = bytearray()
        self._flat = Flattener()
        self._contents: set[bytes] = set()
        self._lists: set[bytes] = set()
        self._trees: set[bytes] = set()
        self._seal = sha256()
        self.files = 0
        self.bytes = 0  # before compression

    # -- members -------------------------------------------------------------------------------------------------------

    def add_bytes(self, name: str, data: bytes) -> None:
        """Add a file of ours."""
        self._begin(Member(kind=FILE, name=name, size=len(data)))
        self._put(data)
        self._end(Member(kind=FILE, name=name, size=len(data)), sha256(data).hexdigest())

    def add_stream(self, name: str, size: int, chunks: Iterable[bytes]) -> None:
        """Add a file of ours that may be large; the chunks must have `size` bytes in total."""
        member = Member(kind=FILE, name=name, size=size)
        self._begin(member)
        digest = sha256()
        for chunk in chunks:
            digest.update(chunk)
            self._put(chunk)
            size -= len(chunk)
        assert size == 0, name
        self._end(member, digest.hexdigest())

    def add_folder(self, name: str) -> None:
        """Add a directory of ours."""
        member = Member(kind=FOLDER, name=name, mode=0o755)
        self._begin(member)
        self._end(member, "")

    def add_present(self, tree: Tree) -> str:
        """Add the files of a state as members; return the root of the flat state."""
        root = self._flat.walk(tree, _Present(self))
        return root.hex()

    def add_state(self, tree: Tree) -> str:
        """Add the new objects of another state; return its flat root."""
        return self._flat.walk(tree, _Objects(self)).hex()

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the manifest and the end."""
        self._spool.write(json.dumps({**summary, "sealed": self._seal.hexdigest()}).encode() + b"\n")
        size = self._spool.tell()
        self._spool.seek(0)
        self._begin(Member(kind=FILE, name="manifest.jsonl", size=size))
        while chunk := self._spool.read(_BLOCK):
            self._put(chunk)
        self._put(headers.padding(size) + headers.END)
        self._flush()
        self._write(self._compressor.flush())

    def _begin(self, member: Member) -> None:
        self._put(headers.encode(member))

    def _end(self, member: Member, digest: str) -> None:
        self._put(headers.padding(member.size))
        line = manifest_line(member, digest)
        self._seal.update(line)
        self._spool.write(line)

    def _put(self, data: bytes) -> None:
        self._buffer += data
        self.bytes += len(data)
        if len(self._buffer) >= _BLOCK:
            self._flush()

    def _flush(self) -> None:
        packed = self._compressor.compress(self._buffer)
        self._buffer = bytearray()
        if packed:
            self._write(packed)
        if self._progress is not None:
            self._progress(self.bytes)

    # -- content of a state --------------------------------------------------------------------------------------------

    def file(self, path: str, tree: Tree, entry: Entry) -> Entry:
        """Add a file of the present state."""
        self.files += 1
        if entry.size > CHUNK:
            return self._large_file(path, tree, entry)
        data = tree.read(entry)
        digest = sha256(data).digest()
        flat = flat_file(tree, entry, len(data), digest, sparse=False)
        member = Member(
            kind=FILE, name=path, mode=flat.mode, mtime_ns=flat.mtime_ns, size=len(data), xattrs=flat.xattrs
        )
        self._begin(member)
        self._put(data)
        self._end(member, digest.hex())
        self._contents.add(digest)
        return flat

    def _large_file(self, path: str, tree: Tree, entry: Entry) -> Entry:
        runs = runs_of(tree, entry)
        size = entry.size if runs is None else sum(_length(entry.size, run) for run in runs)
        member = Member(
            kind=FILE,
            name=path,
            mode=entry.mode,
            mtime_ns=entry.mtime_ns,
            size=size,
            xattrs=tree.xattrs(entry),
            full_size=None if runs is None else entry.size,
            runs=runs or (),
        )
        self._begin(member)
        whole = sha256()
        pieces = []
        for number, data in pieces_of(tree, entry, runs):
            whole.update(data)
            self._put(data)
            if data != _ZEROS[: len(data)]:
                digest = sha256(data).digest()
                pieces.append((number, digest))
                self._contents.add(digest)
        self._end(member, whole.hexdigest())
        listed = sha256(encode_pieces(entry.size, pieces)).digest()
        self._lists.add(listed)
        return flat_file(tree, entry, entry.size, listed, sparse=runs is not None)

    def object_file(self, tree: Tree, entry: Entry) -> Entry:
        """Add the content of a file of another state, unless it is in the archive already."""
        if entry.size > CHUNK:
            return self._object_list(tree, entry)
        digest = entry.digest
        if entry.disk is not None or digest not in self._contents:
            data = tree.read(entry)
            digest = self._object("contents", sha256(data).digest(), data, self._contents)
        return flat_file(tree, entry, entry.size, digest, sparse=False)

    def _object_list(self, tree: Tree, entry: Entry) -> Entry:
        runs = runs_of(tree, entry)
        digest = entry.digest
        if entry.disk is not None or digest not in self._lists:
            pieces = []
            for number, data in pieces_of(tree, entry, runs):
                if data != _ZEROS[: len(data)]:
                    piece = self._object("contents", sha256(data).digest(), data, self._contents)
                    pieces.append((number, piece))
            listed = encode_pieces(entry.size, pieces)
            digest = self._object("lists", sha256(listed).digest(), listed, self._lists)
        return flat_file(tree, entry, entry.size, digest, sparse=runs is not None)

    def object_tree(self, data: bytes) -> bytes:
        """Add a directory of another state."""
        return self._object("trees", sha256(data).digest(), data, self._trees)

    def present_tree(self, data: bytes) -> bytes:
        """Return the digest of a directory of the present state: a reader rebuilds it from the members."""
        digest = sha256(data).digest()
        self._trees.add(digest)
        return digest

    def _object(self, kind: str, digest: bytes, data: bytes, known: set[bytes]) -> bytes:
        if digest not in known:
            known.add(digest)
            self.add_bytes(f"objects/{kind}/{digest.hex()}", data)
        return digest

    def folder(self, path: str, entry: Entry) -> None:
        """Add a directory of the present state."""
        member = Member(kind=FOLDER, name=path, mode=entry.mode, mtime_ns=entry.mtime_ns, xattrs=entry.xattrs)
        self._begin(member)
        self._end(member, "")

    def link(self, path: str, entry: Entry) -> None:
        """Add a symbolic link of the present state."""
        self.files += 1
        member = Member(kind=LINK, name=path, mode=0o777, mtime_ns=entry.mtime_ns, target=entry.target)
        self._begin(member)
        self._end(member, "")


class _Present:
    """Write the content of a state as members."""

    def __init__(self, writer: Writer) -> None:
        self.folder = writer.folder
        self.file = writer.file
        self.link = writer.link
        self.tree = writer.present_tree


class _Objects:
    """Write the content of a state as objects."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.tree = writer.object_tree

    def folder(self, path: str, entry: Entry) -> None:
        """Do nothing: its tree is written when it is complete."""

    def link(self, path: str, entry: Entry) -> None:
        """Do nothing: the link is in the tree."""

    def file(self, path: str, tree: Tree, entry: Entry) -> Entry:
        return self._writer.object_file(tree, entry)


def manifest_line(member: Member, digest: str) -> bytes:
    """Return the manifest line of a member; names that are not UTF-8 have escaped surrogates."""
    said: list[object] = [member.kind, member.name, f"{member.mode:04o}", member.mtime_ns]
    said += [member.target] if member.kind == LINK else [member.size, digest] if member.kind == FILE else []
    if member.xattrs:
        said.append([[key.hex(), value.hex()] for key, value in member.xattrs])
    return json.dumps(said).encode() + b"\n"


def _length(size: int, run: tuple[int, int]) -> int:
    return min((run[1] + 1) * CHUNK, size) - run[0] * CHUNK
