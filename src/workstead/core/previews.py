"""Previews of requests for approval, as text for the person who decides: a diff, a list of names, a command.

A preview is whole if it shows everything that the request would change: no content is omitted as binary or too large,
nothing is truncated. `approve` grants a request whose preview is whole; for any other the caller has to confirm with
`unseen` that the person knows. That rule is implemented only there, and holds for every door.
"""

from __future__ import annotations

from stat import S_ISLNK, S_ISREG

from workstead.model.text import printable
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from workstead.model.approval import Request
    from workstead.snapshots.ignored import Ignoring
    from workstead.snapshots.trees import Tree
    from workstead.system.files.resolved_entry import Held

MAX_TEXT_BYTES = 8 << 20  # of each side: comparing more takes too long
MAX_LINES = 10_000  # more than a person reads, and still drawn by a browser
MAX_BYTES = 1 << 20
NOTHING = "nothing"
_MAX_COUNTED_BYTES = 64 << 20  # limit up to which truncated lines are still counted


class Preview(Value):
    """The stored part of a preview."""

    text: bytes
    whole: bool
    lines: int  # number of all lines, stored or not


class Unseen(bytes):
    """A placeholder in a preview for content that is not shown."""

    __slots__ = ()


def collect(pieces: Iterable[bytes]) -> Preview:
    """Collect the preview up to the size limits, and whether that is all of it."""
    kept = bytearray()
    whole = True
    size = lines = 0
    for piece in pieces:
        whole = whole and not isinstance(piece, Unseen)
        size += len(piece)
        lines += piece.count(b"\n")
        if size - len(piece) <= MAX_BYTES and lines - piece.count(b"\n") <= MAX_LINES:
            kept += piece
        if size > _MAX_COUNTED_BYTES:
            break
    if size <= MAX_BYTES and lines <= MAX_LINES:
        return Preview(text=bytes(kept), whole=whole, lines=lines)
    shown = kept[:MAX_BYTES].split(b"\n")[:MAX_LINES]
    more = "more than " if size > _MAX_COUNTED_BYTES else ""
    note = f"[cut here: {len(shown)} of {more}{lines} lines are shown]\n"
    return Preview(text=b"\n".join([*shown, note.encode()]), whole=False, lines=lines)


def of_file(
    request: Request, held: Held, to: Held | None, content: Callable[[], bytes | None] | None
) -> Iterator[bytes]:
    """Preview a change of one file or directory."""
    if request.operation == "move":
        yield f"move {printable(request.path)}\n  to {printable(request.to)}\n".encode()
        if to is not None and to.exists():
            yield b"what is there would be replaced:\n"
            yield from _going(request.to, to)
        return
    if request.operation == "read":
        yield f"read {printable(request.path)}, {request.size} bytes\n".encode()
        return
    if request.operation == "delete":
        yield from _going(request.path, held)
        return
    if content is None:
        yield f"make the directory {printable(request.path)}\n".encode()
        return
    yield from _difference(request.path, held, content(), f"{request.size} bytes, {request.digest_after}")


def of_states(
    old: Tree,
    new: Tree,
    *,
    under: str = "work",
    paths: Sequence[str] | None = None,
    ignoring: Ignoring | None = None,
) -> Iterator[bytes]:
    """Yield a patch between two states, and lines for binary content, directories and modes."""
    from workstead.snapshots.diff import find_pairs
    from workstead.snapshots.patch import describe

    pairs, in_git, _ = find_pairs(old, new, under=under, paths=paths, ignoring=ignoring)
    for pair in pairs:
        change, lines = describe(old, new, pair, text=True, binary=False, context=3)
        yield from map(Unseen, lines) if change.binary else lines
        name = printable(change.path)
        if change.binary:
            was, becomes = (
                f"{entry.size} bytes, {tree.digest(entry).hex()}" if entry is not None else NOTHING
                for tree, entry in ((old, pair.old), (new, pair.new))
            )
            yield _unseen(name, was, becomes)
        if not lines or (change.old_mode and change.new_mode and change.old_mode != change.new_mode):
            modes = f"{change.old_mode:04o} -> {change.new_mode:04o}"
            yield f"{change.status} {change.kind} {name}, mode {modes}\n".encode()
    if in_git and not under:  # apply leaves .git of an origin alone
        yield Unseen(f"{in_git} changes inside .git are not shown\n".encode())


def _going(path: str, held: Held) -> Iterator[bytes]:
    found = held.stat()
    if found is not None and S_ISREG(found.st_mode):
        yield from _difference(path, held, b"", NOTHING)
        return
    names = held.listing()
    target = f" -> {printable(held.target())}" if found is not None and S_ISLNK(found.st_mode) else ""
    yield f"delete {printable(path)}{target}\n".encode()
    for name, size in names:
        yield f"  {printable(name)}  {size}\n".encode()
    if names:
        yield f"{len(names)} names, {sum(size for _, size in names)} bytes in all\n".encode()


def _difference(path: str, held: Held, after: bytes | None, becomes: str) -> Iterator[bytes]:
    """Yield a unified diff of the present and the new content, or sizes and digests for binary content."""
    found = held.stat()
    before = held.content(MAX_TEXT_BYTES + 1) if found is not None else b""
    if before is None or after is None or any(len(each) > MAX_TEXT_BYTES or b"\0" in each for each in (before, after)):
        was = f"{found.st_size} bytes, {held.fingerprint()}" if found is not None else NOTHING
        yield _unseen(printable(path), was, becomes)
        return
    from workstead.snapshots.text_diff import hunks

    name = printable(path)
    yield f"--- {name if found is not None else '/dev/null'}\n".encode()
    yield f"+++ {name if becomes != NOTHING else '/dev/null'}\n".encode()
    yield from hunks(before, after)


def _unseen(name: str, was: str, becomes: str) -> Unseen:
    return Unseen(f"{name} is binary or too large to be shown: {was} -> {becomes}\n".encode())
