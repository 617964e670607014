"""What changed between two states: as values, and as a patch that `git apply` and `patch -p1` take.

Nothing of the agent's has a say: no attributes, no ignore files, no settings. Changes inside `.git` directories are
counted, not shown: they are git's own bookkeeping, and are never given back to the origin.
"""

from __future__ import annotations

import os

from workstead.model.change import Diff
from workstead.snapshots.entries import DIR, FILE
from workstead.snapshots.patch import describe, write
from workstead.snapshots.renames import Pair, find_renames
from workstead.snapshots.trees import compare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from workstead.snapshots.trees import Delta, Tree

MAX_PATCH = 64 << 20  # bytes of a patch that is held in memory as a whole; `write_patch` has no limit


def diff(
    old: Tree,
    new: Tree,
    *,
    under: str = "work",
    paths: Sequence[str] | None = None,
    text: bool = True,
    git_files: bool = False,
    binary: bool = False,
    context: int = 3,
    max_bytes: int = MAX_PATCH,
    may: Callable[[str], bool] | None = None,
) -> Diff:
    """All changes from one state to another, sorted by path; with `text`, also the patch and the counts of lines.

    `under` names the part that is compared, and paths are relative to it; "" compares everything. `binary` writes
    binary changes so that they can be applied, instead of only marking them. A patch of more than `max_bytes` ends
    before the first file that does not fit and is marked as truncated. With `may`, only the paths that it takes.
    """
    pairs, hidden = find_pairs(old, new, under=under, paths=paths, git_files=git_files, may=may)
    changes = []
    parts: list[bytes] = []
    room, truncated = max_bytes, False
    for pair in pairs:
        change, lines = describe(old, new, pair, text=text, binary=binary, context=context)
        changes.append(change)
        size = sum(map(len, lines))
        truncated |= size > room
        if not truncated:
            parts += lines
            room -= size
    patch = b"".join(parts).decode("utf-8", "surrogateescape")
    return Diff(changes=tuple(changes), patch=patch, hidden=hidden, truncated=truncated)


def write_patch(
    old: Tree,
    new: Tree,
    *,
    under: str = "work",
    paths: Sequence[str] | None = None,
    git_files: bool = False,
    binary: bool = True,
    context: int = 3,
    may: Callable[[str], bool] | None = None,
) -> Iterator[bytes]:
    """The patch as bytes, in pieces of whole lines, complete whatever its size."""
    for pair in find_pairs(old, new, under=under, paths=paths, git_files=git_files, may=may)[0]:
        yield from write(old, new, pair, binary=binary, context=context)


def has_changes(old: Tree, new: Tree, *, under: str = "work") -> bool:
    """Whether anything differs by content, kind or mode, `.git` aside. Stops at the first."""
    folders: dict[str, str] = {}
    for delta in compare(old, new, [under]):
        path = _inside(delta.path, under)
        if not path or is_in_git(path):
            continue
        kinds = {entry.kind for entry in (delta.old, delta.new) if entry is not None}
        if kinds != {DIR} or (delta.old is not None and delta.new is not None):
            return True
        folders[path] = path
    # Only directories came or went: it counts unless all that is in them is git's.
    return bool(folders)


def find_pairs(
    old: Tree,
    new: Tree,
    *,
    under: str = "work",
    paths: Sequence[str] | None = None,
    git_files: bool = False,
    may: Callable[[str], bool] | None = None,
) -> tuple[list[Pair], int]:
    """The changes with renames found, sorted by path, and how many inside `.git` were set aside.

    A path that `may` refuses is left out before renames are found: neither its name nor its content shows.
    """
    wanted = [f"{under}/{path}".strip("/") for path in paths] if paths is not None else [under]
    hidden = 0
    deltas: list[tuple[str, Delta]] = []
    for delta in compare(old, new, wanted):
        path = _inside(delta.path, under)
        if not path:
            continue
        if not git_files and is_in_git(path):
            hidden += 1
            continue
        deltas.append((path, delta))
    # What could not be read was not deleted: all that is known is that it is there.
    unread = {path for path, delta in deltas if any(each and each.unkept for each in (delta.old, delta.new))}
    if unread:
        deltas = [(path, delta) for path, delta in deltas if not is_below(path, unread)]
    parents = {path.rpartition("/")[0] for path, _ in deltas}
    pairs, removed, added = [], [], []
    for path, delta in deltas:
        if _is_shown_by_its_content(path, delta, parents) or (may is not None and not may(path)):
            continue
        pair = Pair(path, delta.old, path, delta.new)
        if delta.new is None and delta.old is not None and delta.old.kind == FILE:
            removed.append(pair)
        elif delta.old is None and delta.new is not None and delta.new.kind == FILE:
            added.append(pair)
        else:
            pairs.append(pair)
    pairs += find_renames(old, new, removed, added)
    pairs.sort(key=lambda pair: os.fsencode(pair.new_path))
    return pairs, hidden


def _inside(path: str, under: str) -> str:
    return path[len(under) + 1 :] if under else path


def is_below(path: str, places: Container[str]) -> bool:
    """Whether a path is below one of these places."""
    while path:
        path = path.rpartition("/")[0]
        if path in places:
            return True
    return False


def is_in_git(path: str) -> bool:
    """Whether a path has a component `.git`, in any spelling that some file system takes for it."""
    lower = path.lower()
    if lower.isascii() and "git" not in lower:
        return False
    return any(is_git_name(name) for name in lower.split("/"))


def is_git_name(name: str) -> bool:
    """Whether a name is `.git` to git, also on file systems that fold case or have short names."""
    folded = "".join(char for char in name.lower().rstrip(". ") if ord(char) not in _IGNORED)
    return folded in (".git", "git~1") or folded.startswith(".git:")


# What HFS+ leaves out of names, from git's utf8.c.
_IGNORED = frozenset((*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF))


def _is_shown_by_its_content(path: str, delta: Delta, parents: set[str]) -> bool:
    """A directory that came or went matters by what is in it; an empty one matters itself."""
    one_sided = delta.old is None or delta.new is None
    entry = delta.new if delta.new is not None else delta.old
    return one_sided and entry is not None and entry.kind == DIR and path in parents
