"""Download files of any size, and whole directories, in pieces.

Everything sent was opened beneath the workspace's root before the first byte is returned, so no concurrent change by an
agent can redirect it. A file that grows while it is read is truncated; one that shrinks ends early, or is padded with
zeros in a tar file.
"""

from __future__ import annotations

from workstead.core.file_access import judging_read, locate, readable_below
from workstead.core.gate import judged
from workstead.errors import WorksteadError
from workstead.model import file
from workstead.model.event import FileRead
from workstead.system.files import operations
from workstead.system.files.reading import MAX_DIGEST_BYTES, digest_of, find_mark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Self

    from workstead.core.gate import Gate
    from workstead.core.home import Home
    from workstead.system.files.root import Root

MAX_DEPTH = 3_000
_ZEROS = bytes(65536)


class Download:
    """An open file: its size, its digest or tag, and its bytes in pieces."""

    def __init__(self, home: Home, names: dict[str, Any], task: str, reader: operations.Reader) -> None:
        self._home, self._names, self._task, self._reader = home, names, task, reader
        self.size = reader.size
        # None for a larger file: a sparse terabyte costs its author nothing, and hashing it an hour.
        self.digest = digest_of(reader.fd, reader.size) if reader.size <= MAX_DIGEST_BYTES else None
        # A value for `if_digest`: the inode and times identify a version of a large file.
        self.tag = self.digest or find_mark(reader.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; idempotent."""
        self._reader.close()

    def pieces(self, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Yield the bytes, or a range of them, after the read is recorded."""
        reader = self._reader
        reader.start = start
        reader.length = max(0, min(self.size - start, self.size if length is None else length))
        fact = FileRead(**self._names, size=reader.length, digest=self.digest or "", start=start)
        self._home.record(self._task, fact, durable=False)
        return iter(reader)


def open_file(home: Home, workspace_id: str, path: str) -> Download:
    """Open a file of any size for reading in pieces; the caller closes it."""

    def act(gate: Gate) -> Download:
        with locate(home, workspace_id, path) as spot:
            reader = operations.open_reader(spot.root, spot.path, ready=judging_read(home, gate, spot))
            try:
                return Download(home, spot.names(), spot.workspace.task_id, reader)
            except BaseException:
                reader.close()
                raise

    return judged(home, act)


def tar_files(home: Home, workspace_id: str, path: str = ".") -> Iterator[bytes]:
    """Yield a directory as a tar file in pieces: files, directories and links, owned by nobody.

    Pipes, devices and unreadable files are left out, for an agent also files that need an approval.
    """
    with locate(home, workspace_id, path) as spot:
        may = judged(home, lambda gate: readable_below(gate, spot))
        fact = FileRead(**spot.names(), size=0, digest="")
        entries = list(operations.scan(spot.root, spot.path))  # raises at once for an invalid path
        home.record(spot.workspace.task_id, fact, durable=False)
        yield from _tar(spot.root, spot.path, entries, may)
    yield bytes(1024)


def _tar(root: Root, top: str, entries: list[file.Entry], may: Callable[[str], bool] | None) -> Iterator[bytes]:
    prefix = "" if top.strip("/") in ("", ".") else f"{top.rstrip('/')}/"
    waiting = [(entry, "") for entry in sorted(entries, key=lambda entry: entry.name, reverse=True)]
    while waiting:
        entry, folder = waiting.pop()
        name = f"{folder}{entry.name}"
        try:
            if entry.kind == "directory":
                below = list(operations.scan(root, f"{prefix}{name}")) if name.count("/") < MAX_DEPTH else []
                yield _header(name, entry, kind=b"5")
                below.sort(key=lambda each: each.name, reverse=True)
                waiting += [(each, f"{name}/") for each in below]
            elif entry.kind == "link":
                yield _header(name, entry, kind=b"2", target=entry.target or "")
            elif entry.kind == "file" and (may is None or may(name)):
                yield from _file(root, f"{prefix}{name}", name, entry)
        except WorksteadError:
            continue  # gone, or another kind by now


def _file(root: Root, path: str, name: str, entry: file.Entry) -> Iterator[bytes]:
    mode = operations.stat(root, path).mode
    with operations.open_reader(root, path) as reader:
        yield _header(name, entry, kind=b"0", size=reader.size, mode=0o755 if mode & 0o100 else 0o644)
        sent = 0
        for piece in reader:
            sent += len(piece)
            yield piece
        missing = reader.size - sent + -reader.size % 512
        while missing > 0:
            yield _ZEROS[:missing]
            missing -= len(_ZEROS)


def _header(name: str, entry: file.Entry, *, kind: bytes, size: int = 0, mode: int = 0o755, target: str = "") -> bytes:
    from tarfile import PAX_FORMAT, TarInfo

    info = TarInfo(name)
    info.type, info.size, info.mode, info.linkname = kind, size, mode, target
    info.mtime = max(0, int(entry.mtime))
    return info.tobuf(PAX_FORMAT, "utf-8", "surrogateescape")
