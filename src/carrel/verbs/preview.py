"""What a request would do, as text for whoever decides: a diff, a list of names, a command."""

from __future__ import annotations

from stat import S_ISREG

from carrel.model.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from carrel.model.approval import Request
    from carrel.system.entry import Held

MAX_TEXT_BYTES = 8 << 20  # of each side: comparing more takes too long
MAX_NAMES = 10_000


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
    yield from difference(request.path, held.content(MAX_TEXT_BYTES + 1) if held.exists() else b"", content())


def _going(path: str, held: Held) -> Iterator[bytes]:
    names = held.listing()
    found = held.stat()
    if found is not None and not names and S_ISREG(found.st_mode):
        yield from difference(path, held.content(MAX_TEXT_BYTES + 1), b"")
        return
    yield f"delete {printable(path)}\n".encode()
    for name, size in names[:MAX_NAMES]:
        yield f"  {printable(name)}  {size}\n".encode()
    if names:
        total = sum(size for _, size in names)
        yield f"{len(names)} names, {total} bytes in all\n".encode()


def difference(path: str, before: bytes | None, after: bytes | None) -> Iterable[bytes]:
    """A unified diff of two contents, or their sizes where they are no text."""
    if before is None or after is None:
        return [f"{printable(path)} cannot be read, so nothing is shown\n".encode()]
    if max(len(before), len(after)) > MAX_TEXT_BYTES or b"\0" in before[:8000] or b"\0" in after[:8000]:
        return [f"{printable(path)}: binary or large, {len(before)} -> {len(after)} bytes\n".encode()]
    from carrel.snapshots.lines import hunks

    head = f"--- {printable(path) if before else '/dev/null'}\n+++ {printable(path) if after else '/dev/null'}\n"
    return [head.encode(), *hunks(before, after)]
