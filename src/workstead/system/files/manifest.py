"""Digests of immutable trees: a layer, a prepared checkout, a template, the output of a run.

    HOME/digests/NAME     one sealed line: a JSON object {path: [kind, digest]} with everything in the tree

Recorded when the tree is first read completely (`aw verify --deep`, or the server in the background), and compared each
time after. File contents, link targets and names count; owners, modes, times and attributes do not: an apply marks
directories of a layer. A damaged record is written again from the tree as it is then.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress

from workstead.errors import WorksteadError, from_os
from workstead.model.digest import sha256
from workstead.system.files.root import Root
from workstead.system.files.sealed import seal, unseal
from workstead.system.files.walk import open_deep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Manifest = dict[str, list[str]]
    Pace = Callable[[int], None]  # called with the number of bytes read; may sleep, and may raise to stop

_BLOCK = 1 << 20


def check(record: str, tree: str, pace: Pace) -> list[str]:
    """Compare a tree with its record, or record it if there is none; return a description of each difference."""
    known, was_damaged = _load(record)
    found = _read(tree, pace)
    if known is None:
        _store(record, found)
        return [f"its digests in {record} were damaged, and are recorded anew"] if was_damaged else []
    problems = [_difference(path, known[path], found.get(path)) for path in sorted(known)]
    return [problem for problem in problems if problem] + [
        f"{path!r} was not there" for path in sorted(found.keys() - known.keys())
    ]


def prune(directory: str, names: set[str]) -> None:
    """Remove the records of trees that no longer exist."""
    with suppress(FileNotFoundError):
        for name in os.listdir(directory):
            if name not in names:
                with suppress(OSError):
                    os.unlink(f"{directory}/{name}")


def digest_of(path: str, pace: Pace) -> str:
    """Return the sha256 of one file."""
    return _digest(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), pace)


def _difference(path: str, known: list[str], found: list[str] | None) -> str:
    if found is None:
        return f"{path!r} is missing"
    return "" if found == known else f"{path!r} is not what it was"


def _read(tree: str, pace: Pace) -> Manifest:
    found: Manifest = {}
    try:
        with Root.open(tree) as root:
            todo = [""]
            while todo:
                folder = todo.pop()
                for name, kind, digest in _entries(root, folder, pace):
                    path = f"{folder}/{name}" if folder else name
                    found[path] = [kind, digest]
                    if kind == "directory":
                        todo.append(path)
    except OSError as error:
        raise from_os(error, tree) from error
    return found


def _entries(root: Root, folder: str, pace: Pace) -> Iterator[tuple[str, str, str]]:
    try:
        top = open_deep(root, root.fd, os.fsencode(folder)) if folder else root.open_folder(b".")
    except (PermissionError, WorksteadError):
        return  # access denied by its owner's mode: nothing to compare
    try:
        for name in os.listdir(top):
            yield name, *_entry(top, name, pace)
    finally:
        os.close(top)


def _entry(top: int, name: str, pace: Pace) -> tuple[str, str]:
    mode = os.stat(name, dir_fd=top, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        return "directory", ""
    if stat.S_ISLNK(mode):
        return "link", os.readlink(name, dir_fd=top)
    if not stat.S_ISREG(mode):
        return "other", ""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return "file", _digest(os.open(name, flags, dir_fd=top), pace)
    except PermissionError:
        return "file", "unreadable"
    except OSError as error:  # the disk cannot read it any more
        return "file", f"error {error.errno}"


def _digest(descriptor: int, pace: Pace) -> str:
    digest = sha256()
    try:
        while block := os.read(descriptor, _BLOCK):
            digest.update(block)
            pace(len(block))
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def _load(record: str) -> tuple[Manifest | None, bool]:
    try:
        with open(record, "rb") as file:
            text = unseal(file.read())
    except FileNotFoundError:
        return None, False
    return (None, True) if text is None else (json.loads(text), False)


def _store(record: str, found: Manifest) -> None:
    fresh = f"{record}.{os.urandom(4).hex()}"
    try:
        os.makedirs(os.path.dirname(record), 0o700, exist_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(seal(json.dumps(found, separators=(",", ":")).encode("ascii")))
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, record)
    except OSError:  # a full or read-only disk: the next verification records it
        with suppress(OSError):
            os.unlink(fresh)
