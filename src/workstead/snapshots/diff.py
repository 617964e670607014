"""Diff two states: as values, and as a patch for `git apply` and `patch -p1`.

The agent's files cannot influence the result: no attributes, no git configuration. Changes inside `.git` directories
are counted, not shown: they are git's internal data and are never applied to the origin. Changes that the repository's
own rules ignore are counted, and shown on request: see `ignored`.
"""

from __future__ import annotations

import os

from workstead.model.change import Diff
from workstead.snapshots.entries import DIR, FILE
from workstead.snapshots.ignored import is_directory
from workstead.snapshots.patch import describe, write
from workstead.snapshots.renames import Pair, find_renames
from workstead.snapshots.trees import compare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from workstead.snapshots.ignored import Ignoring
    from workstead.snapshots.trees import Delta, Tree

_FIRST = 64  # so many changes are asked about before the rest is compared
MAX_PATCH = 64 << 20  # limit of a patch held in memory; `write_patch` has no limit


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
    ignoring: Ignoring | None = None,
) -> Diff:
    """Return all changes from one state to another, sorted by path; with `text`, also the patch and the line counts.

    `under` is the directory to compare, and paths are relative to it; "" compares everything. `binary` writes binary
    changes in a form that can be applied, instead of only marking them. A patch of more than `max_bytes` ends before
    the first file that does not fit and is marked as truncated. `may` filters by path; changes that `ignoring` finds
    are only counted.
    """
    pairs, hidden, ignored = find_pairs(
        old, new, under=under, paths=paths, git_files=git_files, may=may, ignoring=ignoring
    )
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
    marked = sorted(ignoring.self_ignoring) if ignoring is not None else []
    return Diff(
        changes=tuple(changes),
        patch=patch,
        hidden=hidden,
        ignored=ignored,
        self_ignoring=tuple(path for path in marked if may is None or may(path)),
        truncated=truncated,
    )


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
    ignoring: Ignoring | None = None,
) -> Iterator[bytes]:
    """Yield the patch as bytes, in pieces of whole lines, without a size limit."""
    pairs, _, _ = find_pairs(old, new, under=under, paths=paths, git_files=git_files, may=may, ignoring=ignoring)
    for pair in pairs:
        yield from write(old, new, pair, binary=binary, context=context)


def has_changes(old: Tree, new: Tree, *, under: str = "work", ignoring: Ignoring | None = None) -> bool:
    """Return whether content, type or mode of any path differs, except in `.git` and where it is ignored.

    Stop at the first difference, or after the first few if there are rules to ask about.
    """
    found: list[tuple[str, Delta]] = []
    files: list[tuple[str, Delta]] = []  # all but directories that were added or removed: these may be ignored as empty
    for delta in compare(old, new, [under]):
        path = _inside(delta.path, under)
        if not path or is_in_git(path):
            continue
        found.append((path, delta))
        kinds = {entry.kind for entry in (delta.old, delta.new) if entry is not None}
        if kinds != {DIR} or (delta.old is not None and delta.new is not None):
            if ignoring is None:
                return True
            files.append((path, delta))
            if len(files) == _FIRST and len(ignoring(old, new, files)) < _FIRST:
                return True
    return len(found) > (len(ignoring(old, new, found)) if ignoring is not None and found else 0)


def find_pairs(
    old: Tree,
    new: Tree,
    *,
    under: str = "work",
    paths: Sequence[str] | None = None,
    git_files: bool = False,
    may: Callable[[str], bool] | None = None,
    ignoring: Ignoring | None = None,
) -> tuple[list[Pair], int, int]:
    """Return the changes with renames detected, sorted by path, and how many were omitted: inside `.git`, and ignored.

    A path that `may` rejects is dropped before rename detection, so that neither its name nor its content leaks.
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
    # An unreadable directory was not deleted: all that is known is that it exists.
    unread = {path for path, delta in deltas if any(each and each.unkept for each in (delta.old, delta.new))}
    if unread:
        deltas = [(path, delta) for path, delta in deltas if not is_below(path, unread)]
    ignored = 0
    if ignoring is not None and deltas:
        left = ignoring(old, new, [(path, delta) for path, delta in deltas if not is_in_git(path)])
        ignored = sum(path in left and not is_directory(delta) and (may is None or may(path)) for path, delta in deltas)
        deltas = [(path, delta) for path, delta in deltas if path not in left]
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
    return pairs, hidden, ignored


def _inside(path: str, under: str) -> str:
    return path[len(under) + 1 :] if under else path


def is_below(path: str, places: Container[str]) -> bool:
    """Return whether a path is below one of these directories."""
    while path:
        path = path.rpartition("/")[0]
        if path in places:
            return True
    return False


def is_in_git(path: str) -> bool:
    """Return whether a path has a component `.git`, in any spelling that a file system treats as equal."""
    lower = path.lower()
    if lower.isascii() and "git" not in lower:
        return False
    return any(is_git_name(name) for name in lower.split("/"))


def is_git_name(name: str) -> bool:
    """Return whether git treats a name as `.git`, also on file systems that fold case or have short names."""
    folded = "".join(char for char in name.lower().rstrip(". ") if ord(char) not in _IGNORED)
    return folded in (".git", "git~1") or folded.startswith(".git:")


# Characters that HFS+ ignores in names, from git's utf8.c.
_IGNORED = frozenset((*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF))


def _is_shown_by_its_content(path: str, delta: Delta, parents: set[str]) -> bool:
    """Return whether an added or removed directory is shown by its files; an empty one is listed itself."""
    one_sided = delta.old is None or delta.new is None
    entry = delta.new if delta.new is not None else delta.old
    return one_sided and entry is not None and entry.kind == DIR and path in parents
