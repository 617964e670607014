"""Read an untrusted archive in one pass and verify everything.

The order of members is fixed, and within the present state they are in the order of a walk: a directory, then its
entries, names ascending. So a duplicate name, a file below a link, or a file without its directory is detected without
remembering names. Each directory is encoded from its members as the walk leaves it; the digest of the top one must be
that of the state in the manifest.

The content is passed to a `Receiver` piece by piece, which must keep all of it separate until `read` returns, because
nothing is proven before.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256

from workstead.archives import headers
from workstead.archives.headers import FILE, FOLDER, LINK, Member
from workstead.archives.history import MAX_LINE, History
from workstead.archives.trees import Known, Weight
from workstead.archives.write import FORMAT, PACK, VERSION, manifest_line
from workstead.errors import ArchiveDamaged, ArchiveTooLarge, InvalidArchive, ToolMissing
from workstead.installation import install_command
from workstead.model.archive import Contents
from workstead.snapshots.entries import CHUNK, DIR, Entry, encode_entry, encode_pieces, flags
from workstead.snapshots.entries import FILE as FILE_ENTRY
from workstead.snapshots.entries import LINK as LINK_ENTRY
from workstead.snapshots.packs import zstd_of_this_python

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Protocol

    from workstead.archives.trees import Caps

    class Receiver(Protocol):
        """A sink for content that has passed the checks so far."""

        def line(self, line: bytes) -> None:
            """Receive a line of the history."""

        def folder(self, path: str) -> None: ...
        def folder_done(self, path: str, entry: Entry) -> None: ...
        def link(self, path: str, entry: Entry) -> None: ...
        def file(self, path: str, entry: Entry, data: bytes) -> None: ...
        def begin(self, path: str) -> None:
            """Begin a large file; its pieces follow."""

        def piece(self, at: int, data: bytes) -> None: ...
        def end(self, path: str, entry: Entry) -> None: ...
        def object(self, data: bytes) -> None:
            """Receive an object of a snapshot."""

        def pack(self, data: bytes) -> None:
            """Receive bytes of the pack of borrowed objects."""


_MAX_DOCUMENT = 16 << 20
_MAX_TREE = 256 << 20  # fits a directory of millions of names
_FREE_BYTES = 64 << 20  # size below which the compression ratio is not checked
_OUT = 1 << 20
_WINDOW_LOG = 27
_DOCUMENTS = ("context.json", "run.json", "task_spec.json", "workspace_config.json")
_KINDS = ("contents", "lists", "trees")
_ZEROS = bytes(CHUNK)


class Unpacking:
    """Decompress a tar and count its bytes."""

    def __init__(self, chunks: Iterable[bytes], caps: Caps) -> None:
        zstd = zstd_of_this_python()
        if zstd is None:
            raise ToolMissing("this Python has no zstd", hint=install_command())
        self._error = zstd.ZstdError
        self._decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
        self._chunks = iter(chunks)
        self._caps = caps
        self._buffer = b""
        self._at = 0
        self._digest = sha256()
        self.taken = 0
        self.given = 0

    def read(self, size: int) -> bytes:
        """Return exactly this many bytes."""
        if size > self._caps.max_bytes:  # check the size in a header before allocating
            raise self._too_large()
        data = self._buffer[self._at : self._at + size]
        self._at += len(data)
        if len(data) == size:
            return data
        parts, missing = [data], size - len(data)
        while missing:
            self._buffer, self._at = self._more(), 0
            data = self._buffer[:missing]
            self._at = len(data)
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def _more(self) -> bytes:
        while True:
            if self._decompressor.eof:
                raise ArchiveDamaged("the archive is cut off", hint="copy it again from where it came from")
            chunk = self._next() if self._decompressor.needs_input else b""
            try:
                data: bytes = self._decompressor.decompress(chunk, _OUT)
            except self._error as error:
                what = "is not compressed with zstd" if not self.given else f"is damaged: {error}"
                raise ArchiveDamaged(f"the archive {what}", hint="aw archive writes .aw.tar.zst files") from None
            if data:
                self.given += len(data)
                self._check_size()
                return data

    def _next(self) -> bytes:
        for chunk in self._chunks:
            self._digest.update(chunk)
            self.taken += len(chunk)
            if chunk:
                return chunk
        raise ArchiveDamaged("the archive is cut off", hint="copy it again from where it came from")

    def _check_size(self) -> None:
        if self.given > self._caps.max_bytes:
            raise self._too_large()
        if self.given > _FREE_BYTES and self.given > self.taken * self._caps.max_ratio:
            raise ArchiveTooLarge(
                f"{self.taken} bytes of the archive have become {self.given}",
                hint="archives.max_ratio sets how much may come out of one byte",
            )

    def _too_large(self) -> ArchiveTooLarge:
        return ArchiveTooLarge(
            f"the archive holds more than {self._caps.max_bytes} bytes", hint="archives.max_gb sets the limit"
        )

    def finish(self) -> str:
        """Check that nothing follows; return the digest of the file."""
        if self._at < len(self._buffer):
            raise InvalidArchive("something follows the end of the archive")
        while not self._decompressor.eof:
            chunk = self._next() if self._decompressor.needs_input else b""
            try:
                if self._decompressor.decompress(chunk, _OUT):
                    raise InvalidArchive("something follows the end of the archive")
            except self._error as error:
                raise ArchiveDamaged(f"the archive is damaged: {error}") from None
        if self._decompressor.unused_data or any(self._chunks):
            raise InvalidArchive("something follows the end of the archive")
        return self._digest.hexdigest()


class _Folder:
    """A directory of the present state that is being built."""

    __slots__ = ("encoded", "last", "member", "path", "size", "weight")

    def __init__(self, path: str, member: Member | None) -> None:
        self.path = path
        self.member = member
        self.last = b""
        self.encoded: list[bytes] = []
        self.size = 0
        self.weight = Weight()


class Reader:
    """One pass over one archive."""

    def __init__(
        self,
        chunks: Iterable[bytes],
        caps: Caps,
        receiver: Receiver,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._in = Unpacking(chunks, caps)
        self._caps = caps
        self._to = receiver
        self._progress = progress
        self._known = Known(caps)
        self._stack = [_Folder("", None)]
        self._history = History()
        self._seal = sha256()
        self._sealed_bytes = 0
        self._members = 0

    def read(self) -> Contents:
        """Read everything; raise InvalidArchive, ArchiveDamaged, ArchiveTooLarge or a path error."""
        head = _object(self._document(self._expect("archive.json")), "archive.json")
        if head.get("format") != FORMAT or head.get("version") not in (1, VERSION):
            raise _unknown_format(head)
        self._events(self._expect("events.jsonl"))
        pack = ""
        member = self._metadata(self._next())
        if member.name == PACK:
            pack = self._pack(_plain(member))
            member = self._next()
        while member.name.partition("/")[0] in ("work", "output", "CLAUDE.md", "AGENTS.md"):
            self._present(member)
            member = self._next()
        now = self._leave_all()
        while member.name.startswith("objects/"):
            self._stored(member)
            member = self._next()
        summary = self._manifest(member, now)
        if headers.read_member(self._in.read) is not None:
            raise InvalidArchive("something follows the manifest of the archive")
        digest = self._in.finish()
        return Contents(
            head=head,
            summary=summary,
            digest=digest,
            bytes=self._in.taken,
            full_bytes=self._in.given,
            members=self._members,
            outside=self._known.outside,
            pack=pack,
        )

    # -- members -------------------------------------------------------------------------------------------------------

    def _next(self) -> Member:
        member = headers.read_member(self._in.read)
        if member is None:
            raise InvalidArchive("the archive has no manifest")
        self._members += 1
        if self._members > self._caps.max_files:
            raise ArchiveTooLarge(
                f"the archive has more than {self._caps.max_files} members", hint="archives.max_files sets the limit"
            )
        self._progress(self._in.taken)
        return member

    def _expect(self, name: str) -> Member:
        member = self._next()
        if member.name != name:
            raise InvalidArchive(f"{member.name!r} stands where {name} belongs", hint="aw archive makes archives")
        return _plain(member)

    def _pad(self, member: Member) -> None:
        if self._in.read(-member.size % headers.BLOCK).strip(b"\0"):
            raise InvalidArchive(f"something is hidden behind {member.name!r}")

    def _note(self, member: Member, digest: str) -> None:
        line = manifest_line(member, digest)
        self._seal.update(line)
        self._sealed_bytes += len(line)

    def _document(self, member: Member, most: int = _MAX_DOCUMENT) -> bytes:
        if member.size > most:
            raise ArchiveTooLarge(f"{member.name!r} has {member.size} bytes", hint="it never is that large")
        data = self._in.read(member.size)
        self._pad(member)
        self._note(member, sha256(data).hexdigest())
        return data

    def _events(self, member: Member) -> None:
        digest, left, rest = sha256(), member.size, b""
        while left:
            data = self._in.read(min(left, _OUT))
            left -= len(data)
            digest.update(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._history.read(line)
                self._to.line(line + b"\n")
            if len(rest) > MAX_LINE:
                raise InvalidArchive("a line of the history is endless")
        if rest:
            raise ArchiveDamaged("the history is cut off")
        self._pad(member)
        self._note(member, digest.hexdigest())

    def _metadata(self, member: Member) -> Member:
        """Read `.aw/` and its documents, if they exist; return the member after them."""
        if member.name != ".aw":
            return member
        if member.kind != FOLDER:
            raise InvalidArchive(".aw in the archive is no directory")
        self._note(member, "")
        last, member = "", self._next()
        while member.name.startswith(".aw/"):
            if member.name[4:] not in _DOCUMENTS or member.name <= last:
                raise InvalidArchive(f"{member.name!r} is not a document of a workspace")
            last = member.name
            _object(self._document(_plain(member)), member.name)
            member = self._next()
        return member

    def _pack(self, member: Member) -> str:
        """Read the borrowed objects; return their digest. git verifies their content."""
        if not member.size:
            raise ArchiveDamaged("the git objects in the archive are none")
        digest, left = sha256(), member.size
        while left:
            data = self._in.read(min(left, _OUT))
            left -= len(data)
            digest.update(data)
            self._to.pack(data)
            self._progress(self._in.taken)
        self._pad(member)
        self._note(member, digest.hexdigest())
        return digest.hexdigest()

    # -- the present state ---------------------------------------------------------------------------------------------

    def _present(self, member: Member) -> None:
        above, _, name = member.name.rpartition("/")
        while self._stack[-1].path != above:
            if len(self._stack) == 1:
                raise InvalidArchive(f"{member.name!r} does not come after its directory")
            self._leave()
        folder = self._stack[-1]
        raw = os.fsencode(name)
        if raw <= folder.last:
            raise InvalidArchive(f"{member.name!r} is there twice, or not where it belongs")
        folder.last = raw
        if member.kind == FOLDER:
            if len(self._stack) > self._caps.max_depth:
                raise ArchiveTooLarge(f"the archive is more than {self._caps.max_depth} directories deep")
            _without_size(member)
            self._note(member, "")
            self._to.folder(member.name)
            self._stack.append(_Folder(member.name, member))
            return
        if member.kind == LINK:
            _without_size(member)
            self._link(folder, name, member)
        elif member.full_size is not None or member.size > CHUNK:
            self._add(folder, name, self._large_file(member), member.name)
        else:
            self._small_file(folder, name, member)

    def _add(self, folder: _Folder, name: str, entry: Entry, path: str) -> None:
        self._known.weigh(folder.weight, name, entry, path)
        folder.encoded.append(encode_entry(name, entry))
        folder.size += entry.size if entry.kind != LINK_ENTRY else 0

    def _leave(self) -> bytes:
        """Complete the directory on top of the stack."""
        folder = self._stack.pop()
        data = b"".join(folder.encoded)
        digest = sha256(data).digest()
        self._known.add_weighed(digest, folder.weight)
        self._to.object(data)
        if folder.member is not None:
            member = folder.member
            entry = Entry(DIR, member.mode, member.mtime_ns, folder.size, digest, xattrs=member.xattrs)
            self._add(self._stack[-1], os.path.basename(folder.path), entry, folder.path)
            self._to.folder_done(folder.path, entry)
        return digest

    def _leave_all(self) -> str:
        while len(self._stack) > 1:
            self._leave()
        return self._leave().hex()

    def _link(self, folder: _Folder, name: str, member: Member) -> None:
        target = member.target
        self._note(member, "")
        entry = Entry(LINK_ENTRY, 0o777, member.mtime_ns, len(os.fsencode(target)), target=target)
        self._add(folder, name, entry, member.name)
        self._to.link(member.name, entry)

    def _small_file(self, folder: _Folder, name: str, member: Member) -> None:
        data = self._in.read(member.size)
        self._pad(member)
        digest = sha256(data).digest()
        self._note(member, digest.hex())
        self._known.contents[digest] = len(data)
        entry = Entry(FILE_ENTRY, member.mode, member.mtime_ns, len(data), digest, xattrs=member.xattrs)
        self._add(folder, name, entry, member.name)
        self._to.object(data)
        self._to.file(member.name, entry, data)

    def _large_file(self, member: Member) -> Entry:
        size = member.size if member.full_size is None else member.full_size
        runs = member.runs if member.full_size is not None else ((0, (size - 1) // CHUNK),)
        _check_runs(member, size, runs)
        self._to.begin(member.name)
        whole = sha256()
        pieces = []
        for first, last in runs:
            for number in range(first, last + 1):
                data = self._in.read(min(CHUNK, size - number * CHUNK))
                whole.update(data)
                if data != _ZEROS[: len(data)]:
                    digest = sha256(data).digest()
                    pieces.append((number, digest))
                    self._known.contents[digest] = len(data)
                    self._to.object(data)
                    self._to.piece(number * CHUNK, data)
        self._pad(member)
        self._note(member, whole.hexdigest())
        listed = encode_pieces(size, pieces)
        digest = sha256(listed).digest()
        self._known.add_list(digest, listed)
        self._to.object(listed)
        entry = Entry(
            FILE_ENTRY,
            member.mode,
            member.mtime_ns,
            size,
            digest,
            xattrs=member.xattrs,
            flags=flags(sparse=member.full_size is not None),
        )
        self._to.end(member.name, entry)
        return entry

    # -- other states --------------------------------------------------------------------------------------------------

    def _stored(self, member: Member) -> None:
        _plain(member)
        _, _, rest = member.name.partition("/")
        kind, _, name = rest.partition("/")
        if kind not in _KINDS:
            raise InvalidArchive(f"{member.name!r} is no object of a state")
        data = self._document(member, CHUNK if kind == "contents" else _MAX_TREE)
        digest = sha256(data).digest()
        if digest.hex() != name:
            raise ArchiveDamaged(f"{member.name!r} does not hold what its name says")
        known: dict[bytes, Any] = getattr(self._known, kind)
        if digest in known:
            raise InvalidArchive(f"{member.name!r} is there twice")
        if kind == "contents":
            self._known.contents[digest] = len(data)
        elif kind == "lists":
            self._known.add_list(digest, data)
        else:
            self._known.add_tree(digest, data)
        self._to.object(data)

    def _manifest(self, member: Member, now: str) -> dict[str, Any]:
        if member.name != "manifest.jsonl":
            raise InvalidArchive(f"{member.name!r} stands where the manifest belongs")
        _plain(member)
        if not self._sealed_bytes <= member.size <= self._sealed_bytes + _MAX_DOCUMENT:
            raise ArchiveDamaged("the manifest does not fit what the archive holds")
        seal, left = sha256(), self._sealed_bytes
        while left:
            data = self._in.read(min(left, _OUT))
            seal.update(data)
            left -= len(data)
        if seal.digest() != self._seal.digest():
            raise ArchiveDamaged(
                "the digests in the manifest are not those of what the archive holds",
                hint="copy it again from where it came from",
            )
        summary = _object(self._in.read(member.size - self._sealed_bytes), "the end of the manifest")
        self._pad(member)
        if summary.get("sealed") != self._seal.hexdigest():
            raise ArchiveDamaged("the manifest is not sealed")
        if summary.get("now") != now:
            raise ArchiveDamaged("the files of the archive are not the state that its manifest names")
        self._history.check(summary.get("chain"))
        for root in _roots(summary):
            self._known.check_root(root)
        return summary


def _roots(summary: dict[str, Any]) -> list[str]:
    states = summary.get("states")
    found = [summary.get("now"), summary.get("base")]
    for state in states if isinstance(states, list) else [None]:
        found.append(state.get("root") if isinstance(state, dict) else None)
    if not all(isinstance(root, str) for root in found):
        raise InvalidArchive("the manifest names no states")
    return [str(root) for root in found]


def _plain(member: Member) -> Member:
    """Return the member if it is a plain file of ours without other metadata."""
    if member != Member(kind=FILE, name=member.name, size=member.size):
        raise InvalidArchive(f"{member.name!r} is no plain file")
    return member


def _without_size(member: Member) -> None:
    if member.size or member.full_size is not None or (member.target and member.kind == FOLDER):
        raise InvalidArchive(f"{member.name!r} has a content that it cannot have")
    if member.kind == LINK and (member.mode != 0o777 or member.xattrs):
        raise InvalidArchive(f"the link {member.name!r} has a mode or attributes")


def _check_runs(member: Member, size: int, runs: tuple[tuple[int, int], ...]) -> None:
    end, total = -1, 0
    for first, last in runs:
        if first <= end or last < first or last * CHUNK >= size:
            raise InvalidArchive(f"the runs of {member.name!r} make no sense")
        end = last
        total += min((last + 1) * CHUNK, size) - first * CHUNK
    if total != member.size or size <= CHUNK or size > 1 << 62:
        raise InvalidArchive(f"the runs of {member.name!r} do not fit its size")


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidArchive(f"{what} is not JSON") from None
    if not isinstance(found, dict):
        raise InvalidArchive(f"{what} is no JSON object")
    return found


class Nowhere:
    """A receiver that discards everything: for `aw archive verify`."""

    def line(self, line: bytes) -> None: ...
    def folder(self, path: str) -> None: ...
    def folder_done(self, path: str, entry: Entry) -> None: ...
    def link(self, path: str, entry: Entry) -> None: ...
    def file(self, path: str, entry: Entry, data: bytes) -> None: ...
    def begin(self, path: str) -> None: ...
    def piece(self, at: int, data: bytes) -> None: ...
    def end(self, path: str, entry: Entry) -> None: ...
    def object(self, data: bytes) -> None: ...
    def pack(self, data: bytes) -> None: ...


def _unknown_format(head: Mapping[str, object]) -> InvalidArchive:
    kind, version = head.get("format"), head.get("version")
    if kind == FORMAT and isinstance(version, int) and version > VERSION:
        return InvalidArchive(
            f"this archive has format version {version}, and this Workstead knows versions up to {VERSION}",
            hint="a newer Workstead wrote it: upgrade this one",
        )
    return InvalidArchive(
        f"this is {str(kind)[:40]!r} of version {str(version)[:10]}",
        hint=f"this Workstead reads versions 1 to {VERSION}",
    )
