"""A backup repository: a directory or a prefix in a bucket, with the same three kinds of file.

    backup.json          type, format version, and the id of the home
    packs/SHA256         content: a header that lists digest and length of each piece, then the pieces; named by digest
    backups/NUMBER       one backup: a digest, then the compressed manifest

A file appears under its name only when it is complete and durable, and is never changed. A manifest is written last, so
a killed backup leaves packs without a manifest; the next backup reads their headers and uses them. Every file is read
back and compared with its digest after it was written.
"""

from __future__ import annotations

import json
import os
import zlib
from hashlib import sha256

from workstead.archives import places
from workstead.errors import (
    BackupDamaged,
    BackupNotFound,
    FileExists,
    FormatUnknown,
    InvalidUsage,
    NotFound,
    WorksteadError,
    from_os,
)
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FORMAT = 1
KIND = "workstead backup"
_MAGIC = b"workstead pack 1\n"
_PACK = 32 << 20  # size at which a pack is written


class Manifest(Value):
    """One backup: the list of files, and the packs with their content."""

    format: int
    number: int
    made_at: str
    home: str
    place: str  # path of the home
    position: int  # of the newest event
    head: str  # hash of the newest event
    boot: str
    began_ns: int  # files that changed after this are read again by the next backup
    is_root: bool
    log_size: int
    log: list[str | None]  # digests of its pieces, null for zeros
    trees: dict[str, list[Any]]  # name of a tree -> its entries, see trees.py
    packs: list[str]
    blobs: dict[str, list[int]]  # digest -> index of the pack, offset, length
    left_out: list[str]
    torn: list[str]
    files: int
    bytes: int


class Repository:
    """The backups of one home at a location."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/") if not location.startswith("s3://") else "s3://" + location[5:].strip("/")

    @property
    def is_remote(self) -> bool:
        return places.is_remote(self.location)

    # -- files -----------------------------------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        """Return a whole file; raise NotFound if there is none."""
        with places.reading(f"{self.location}/{name}") as (_, chunks):
            return b"".join(chunks)

    def write(self, name: str, data: bytes) -> None:
        """Write a new file, and read it back."""
        with places.writing(f"{self.location}/{name}", replace=False) as target:
            target.write(data)
        if not self.is_remote:
            _forget_cached(f"{self.location}/{name}")
        if self.read(name) != data:
            raise BackupDamaged.of(f"{self.location}/{name}", "it is not what was written a moment ago")

    def names(self, folder: str) -> dict[str, int]:
        """Return the files in a folder with their sizes."""
        if self.is_remote:
            from workstead.archives.buckets import listing

            return listing(f"{self.location}/{folder}")
        found = {}
        try:
            with os.scandir(f"{self.location}/{folder}") as entries:
                for entry in entries:
                    if not entry.name.startswith("."):
                        found[entry.name] = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise from_os(error, self.location) from error
        return found

    # -- identity ------------------------------------------------------------------------------------------------------

    def check(self) -> str:
        """Return the id of the home of these backups; raise BackupNotFound if there are none."""
        try:
            text = self.read("backup.json")
        except NotFound:
            raise BackupNotFound(f"there is no backup at {self.location}", hint="aw backup DIR makes one") from None
        try:
            found = json.loads(text)
            kind, version, home = found["kind"], found["format"], str(found["home"])
        except (ValueError, KeyError, TypeError):
            raise BackupDamaged.of(f"{self.location}/backup.json", "it makes no sense") from None
        if kind != KIND or not isinstance(version, int):
            raise BackupDamaged.of(f"{self.location}/backup.json", "it makes no sense")
        if version > FORMAT:
            raise FormatUnknown.of(f"the backup {self.location}", version, FORMAT)
        return home

    def make(self, home_id: str) -> None:
        """Initialize backups of a home here, or continue existing ones; refuse any other directory."""
        try:
            found = self.check()
        except BackupNotFound:
            if not self.is_remote and os.path.isdir(self.location) and os.listdir(self.location):
                raise InvalidUsage(
                    f"{self.location} is not empty and holds no backup", hint="choose a new or empty directory"
                ) from None
            text = json.dumps({"kind": KIND, "format": FORMAT, "home": home_id})
            try:
                self.write("backup.json", text.encode())
            except FileExists:  # written by another process meanwhile
                found = self.check()
            else:
                found = home_id
        if found != home_id:
            raise InvalidUsage(
                f"{self.location} holds backups of another home", hint="choose another directory for this one"
            )

    # -- manifests -------------------------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Return the numbers of the complete backups, oldest first."""
        return sorted(int(name) for name in self.names("backups") if name.isdigit())

    def load(self, number: int | None = None) -> Manifest:
        """Load one backup, by default the newest."""
        numbers = self.numbers()
        if not numbers or (number is not None and number not in numbers):
            what = "no complete backup" if number is None else f"no backup {number}"
            raise BackupNotFound(
                f"there is {what} at {self.location}",
                hint=f"there are {', '.join(map(str, numbers[-20:]))}" if numbers else "aw backup DIR makes one",
            )
        number = numbers[-1] if number is None else number
        name = f"{self.location}/backups/{number}"
        digest, _, packed = self.read(f"backups/{number}").partition(b"\n")
        if sha256(packed).hexdigest().encode() != digest:
            raise BackupDamaged.of(name, "its digest does not match")
        try:
            found = json.loads(zlib.decompress(packed))
            if found["format"] > FORMAT:
                raise FormatUnknown.of(f"the backup {name}", found["format"], FORMAT)
            return Manifest(**found)
        except (zlib.error, ValueError, KeyError, TypeError) as error:
            raise BackupDamaged.of(name, "it makes no sense") from error

    def save(self, manifest: Manifest) -> Manifest:
        """Write the manifest under the next free number; from then on the backup is complete."""
        number = max(self.numbers(), default=0)
        while True:
            number += 1
            manifest = manifest.replace(number=number)
            packed = zlib.compress(json.dumps(manifest.as_dict(), separators=(",", ":")).encode(), 3)
            data = sha256(packed).hexdigest().encode() + b"\n" + packed
            try:
                self.write(f"backups/{number}", data)
            except FileExists:  # race: another backup took the number
                continue
            return manifest

    # -- content ---------------------------------------------------------------------------------------------------

    def read_pack(self, name: str) -> tuple[bytes, dict[str, tuple[int, int]]]:
        """Return a pack, and offset and length of its pieces; raise BackupDamaged, naming it, if a byte differs."""
        where = f"{self.location}/packs/{name}"
        try:
            data = self.read(f"packs/{name}")
        except NotFound:
            raise BackupDamaged.of(where, "it is missing") from None
        if sha256(data).hexdigest() != name:
            raise BackupDamaged.of(where, "its digest does not match")
        return data, _pieces(data, where)

    def verify(self, manifest: Manifest) -> int:
        """Read every pack of a backup and check that each piece exists; return the number of bytes read."""
        wanted: dict[int, list[tuple[str, int, int]]] = {}
        for digest, (pack, offset, length) in manifest.blobs.items():
            wanted.setdefault(pack, []).append((digest, offset, length))
        total = 0
        for pack, pieces in sorted(wanted.items()):
            data, held = self.read_pack(manifest.packs[pack])
            total += len(data)
            for digest, offset, length in pieces:
                if held.get(digest) != (offset, length):
                    raise BackupDamaged.of(f"{self.location}/packs/{manifest.packs[pack]}", "a piece is missing")
        return total


def _forget_cached(path: str) -> None:
    """Drop the file from the page cache, so that the next read comes from the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _pieces(data: bytes, where: str) -> dict[str, tuple[int, int]]:
    at = len(_MAGIC) + 8
    try:
        if not data.startswith(_MAGIC):
            raise ValueError
        size = int(data[len(_MAGIC) : at], 16)
        found, offset = {}, at + size
        for digest, length in json.loads(data[at : at + size]):
            found[digest] = (offset, length)
            offset += length
        if offset != len(data):
            raise ValueError
    except (ValueError, TypeError):
        raise BackupDamaged.of(where, "it makes no sense") from None
    return found


class PackWriter:
    """Store pieces of content, deduplicated across backups: a piece in any pack here is not written again."""

    def __init__(self, repository: Repository, last: Manifest | None) -> None:
        self._repository = repository
        self._packs: list[str] = []
        self._index: dict[str, int] = {}
        self.blobs: dict[str, list[int]] = {}
        self._known: dict[str, tuple[str, int, int]] = {}  # digest -> pack, offset, length
        self._buffer: dict[str, bytes] = {}
        self._buffered = 0
        self.written_bytes = 0
        present = repository.names("packs")
        used = set()
        if last is not None:
            ends = [0] * len(last.packs)
            for pack, offset, length in last.blobs.values():
                ends[pack] = max(ends[pack], offset + length)
            for digest, (pack, offset, length) in last.blobs.items():
                name = last.packs[pack]
                used.add(name)
                if present.get(name, 0) >= ends[pack]:
                    self._known[digest] = (name, offset, length)
        for name in present.keys() - used:
            self._take_over(name)

    def _take_over(self, name: str) -> None:
        """Reuse the pieces of an older or interrupted backup."""
        try:
            _, pieces = self._repository.read_pack(name)
        except WorksteadError:  # damaged: do not use it
            return
        for digest, (offset, length) in pieces.items():
            self._known.setdefault(digest, (name, offset, length))

    def add(self, data: bytes) -> str:
        """Store a piece; return its digest."""
        digest = sha256(data).hexdigest()
        if not self.has(digest) and digest not in self._buffer:
            self._buffer[digest] = data
            self._buffered += len(data)
            if self._buffered >= _PACK:
                self.flush()
        return digest

    def has(self, digest: str) -> bool:
        """Return whether a piece is stored already; then this backup refers to it."""
        if digest in self.blobs:
            return True
        known = self._known.get(digest)
        if known is None:
            return False
        name, offset, length = known
        self.blobs[digest] = [self._number_of(name), offset, length]
        return True

    def _number_of(self, name: str) -> int:
        if name not in self._index:
            self._index[name] = len(self._packs)
            self._packs.append(name)
        return self._index[name]

    def flush(self) -> None:
        """Write the buffered pieces as one pack."""
        if not self._buffer:
            return
        listed = json.dumps([[digest, len(data)] for digest, data in self._buffer.items()]).encode()
        pack = b"".join([_MAGIC, b"%08x" % len(listed), listed, *self._buffer.values()])
        name = sha256(pack).hexdigest()
        try:
            self._repository.write(f"packs/{name}", pack)
        except FileExists:  # written by another backup with the same content; damaged, if it was not reused
            self._repository.read_pack(name)
        self.written_bytes += len(pack)
        offset = len(_MAGIC) + 8 + len(listed)
        for digest, data in self._buffer.items():
            self.blobs[digest] = [self._number_of(name), offset, len(data)]
            offset += len(data)
        self._buffer.clear()
        self._buffered = 0

    @property
    def packs(self) -> list[str]:
        return self._packs


class PackReader:
    """Read pieces of a backup; cache a few packs, because neighbouring pieces are in one pack."""

    def __init__(self, repository: Repository, manifest: Manifest) -> None:
        self._repository = repository
        self._manifest = manifest
        self._open: dict[int, bytes] = {}

    def get(self, digest: str) -> bytes:
        """Return the bytes of a piece, verified by digest."""
        pack, offset, length = self._manifest.blobs[digest]
        if pack not in self._open:
            if len(self._open) >= 4:
                self._open.pop(next(iter(self._open)))
            self._open[pack], _ = self._repository.read_pack(self._manifest.packs[pack])
        data = self._open[pack][offset : offset + length]
        if sha256(data).hexdigest() != digest:
            name = self._manifest.packs[pack]
            raise BackupDamaged.of(f"{self._repository.location}/packs/{name}", f"the piece {digest} is damaged")
        return data
