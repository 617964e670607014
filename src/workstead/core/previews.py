"""What a request would do, as text for whoever decides: a diff, a list of names, a command.

A preview is whole if it shows everything that the request would bring: no content left out because it is binary or too
large, nothing cut at the end. `approve` grants a request whose preview is whole; for any other it has to be told, by
`unseen`, that the person knows. That rule stands there alone, and holds for every door.
"""

from __future__ import annotations

from stat import S_ISLNK, S_ISREG

from workstead.model.text import printable
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from workstead.model.approval import Request
    from workstead.snapshots.trees import Tree
    from workstead.system.files.resolved_entry import Held

MAX_TEXT_BYTES = 8 << 20  # of each side: comparing more takes too long
MAX_LINES = 10_000  # what a page still draws, and more than a person reads
MAX_BYTES = 1 << 20
NOTHING = "nothing"
_MAX_COUNTED_BYTES = 64 << 20  # how far lines are counted that are not kept


class Preview(Value):
    """What is kept of a preview."""

    text: bytes
    whole: bool
    lines: int  # that there are, kept or not


class Unseen(bytes):
    """A piece of a preview in the place of content that it does not show."""

    __slots__ = ()


def collect(pieces: Iterable[bytes]) -> Preview:
    """As much of a preview as a person can be shown, and whether that is all of it."""
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
    """What a change to one file or directory would do."""
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


def of_states(old: Tree, new: Tree, *, under: str = "work", paths: Sequence[str] | None = None) -> Iterator[bytes]:
    """A patch from one state to another, with what a patch has no words for: binary content, directories, modes."""
    from workstead.snapshots.diff import find_pairs
    from workstead.snapshots.patch import describe

    pairs, in_git = find_pairs(old, new, under=under, paths=paths)
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
    if in_git and not under:  # what is given back to an origin leaves .git alone
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
    """A unified diff of what is there and what shall be, or sizes and digests where that is no text."""
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
