"""Separate the changes that the repository's own rules ignore: built files, caches, installed packages.

Two sets of rules, so that an agent cannot hide a change by editing them:

- A path that was there at the beginning is ignored only if the rules of the beginning ignore it and git did not track
  it then. The agent has written none of these.
- A new path is ignored if the rules that the workspace has now ignore it: an agent that adds a package directory also
  adds its rule. What is ignored is not applied, so a hidden new file reaches nobody.
"""

from __future__ import annotations

from workstead.errors import TimedOut, ToolFailed, ToolMissing
from workstead.snapshots.entries import DIR, FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workstead.snapshots.entries import Entry
    from workstead.snapshots.trees import Delta, Tree
    from workstead.system.git.runner import Git

_RULES_FILE = ".gitignore"
_MAX_RULES_BYTES = 1 << 20  # of one file
_MAX_RULES_FILES = 10_000
_MAX_INDEX_BYTES = 256 << 20


class Ignoring:
    """The rules of one workspace. Call it with changes to get the ignored ones.

    `base` is the state that the workspace began with, `exclude` the content of its `info/exclude`. With `all_tracked`,
    every file of base is known to be tracked. Without git, and with rules that git cannot evaluate in time, nothing is
    ignored: too much is shown, never too little.
    """

    def __init__(self, git: Git, base: Tree, *, exclude: bytes, all_tracked: bool, under: str = "work") -> None:
        self._git = git
        self._base = base
        self._exclude = exclude
        self._all_tracked = all_tracked
        self._under = under

    def __call__(self, old: Tree, new: Tree, changes: Sequence[tuple[str, Delta]]) -> set[str]:
        """Return the ignored ones of these changed paths; a directory that has only ignored changes is among them."""
        parents = _parents(path for path, _ in changes)
        # Whether git ignores an empty directory can only be asked with a name in it.
        names = {
            path: f"{path}/any" if is_directory(delta) else path
            for path, delta in changes
            if path not in parents or not is_directory(delta)
        }
        began: dict[str, str] = {}
        fresh: dict[str, str] = {}
        for path, delta in changes:
            if path in names:
                was = delta.old if old is self._base else self._base.find(f"{self._under}/{path}")
                (fresh if was is None else began)[names[path]] = path
        left = self._ignored_at_the_beginning(began) | self._ignored(fresh, new)
        kept = _parents(path for path in names if path not in left)
        for path, delta in changes:
            if path not in names and path not in kept and (delta.old is None or delta.new is None):
                left.add(path)
        return left

    def _ignored_at_the_beginning(self, names: dict[str, str]) -> set[str]:
        if self._all_tracked or not names:
            return set()
        from workstead.system.git.ignoring import tracked_in

        found = self._ignored(names, self._base)
        if not found:
            return found
        try:
            index = self._read(self._base, f"{self._under}/.git/index", _MAX_INDEX_BYTES)
            return found - tracked_in(self._git, index) if index else found
        except (TimedOut, ToolFailed, ToolMissing):
            return set()

    def _ignored(self, names: dict[str, str], tree: Tree) -> set[str]:
        """Return the paths whose names the rules in a state ignore."""
        if not names:
            return set()
        from workstead.system.git.ignoring import find_ignored

        rules: dict[str, bytes] = {}
        for folder in sorted(_parents(names)):
            if len(rules) < _MAX_RULES_FILES:
                path = "/".join(filter(None, (self._under, folder, _RULES_FILE)))
                content = self._read(tree, path, _MAX_RULES_BYTES)
                if content:
                    rules[folder] = content
        try:
            return {names[name] for name in find_ignored(self._git, rules, self._exclude, list(names))}
        except (TimedOut, ToolFailed, ToolMissing):
            return set()

    def _read(self, tree: Tree, path: str, max_bytes: int) -> bytes:
        entry: Entry | None = tree.find(path)
        return tree.read(entry) if entry is not None and entry.kind == FILE and entry.size <= max_bytes else b""


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths that are below no other one of them."""
    found = set(paths)
    return [path for path in found if not any(above in found for above in _above(path))]


def _above(path: str) -> Iterable[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _parents(paths: Iterable[str]) -> set[str]:
    """Return every directory above these paths; the top is ""."""
    found = {""}
    for path in paths:
        for above in _above(path):
            if above in found:
                break
            found.add(above)
    return found


def is_directory(delta: Delta) -> bool:
    """Return whether a change is that of a directory, not of anything in it."""
    entry = delta.new if delta.new is not None else delta.old
    return entry is not None and entry.kind == DIR
