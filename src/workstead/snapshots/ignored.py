"""Separate the changes that the repository's own rules ignore: built files, caches, installed packages.

The rules and the index that the workspace began with decide. The agent can write neither, so it hides no change by a
rule of its own; one exception is named to the reader: a new directory whose own `.gitignore` is `*`, as virtual
environments and caches have. A path that git tracks, at the beginning or now, is not ignored.
"""

from __future__ import annotations

from functools import cached_property

from workstead.errors import TimedOut, ToolFailed, ToolMissing
from workstead.snapshots.entries import DIR, FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from workstead.snapshots.trees import Delta, Tree
    from workstead.system.git.runner import Git

_RULES_FILE = ".gitignore"
_MAX_RULES_BYTES = 1 << 20  # of one file
_MAX_RULES_FILES = 10_000
MAX_INDEX_BYTES = 256 << 20


class Ignoring:
    """The rules of one workspace. Call it with changes to get the ignored ones.

    `base` is the state that the workspace began with. `read_exclude` returns the content of its `info/exclude`,
    `read_index` its index, or None if every file of base counts as tracked, `read_own_index` that of an agent whose
    index is not in its files. Without git, and with rules that git cannot evaluate in time, nothing is ignored: too
    much is shown, never too little.
    """

    def __init__(
        self,
        git: Git,
        base: Tree,
        *,
        read_exclude: Callable[[], bytes],
        read_index: Callable[[], bytes | None],
        read_own_index: Callable[[], bytes],
        under: str = "work",
    ) -> None:
        self._git = git
        self._base = base
        self._read_exclude = read_exclude
        self._read_index = read_index
        self._read_own_index = read_own_index
        self._under = under
        self.self_ignoring: set[str] = set()  # directories found by the calls so far

    def __call__(self, old: Tree, new: Tree, changes: Sequence[tuple[str, Delta]]) -> set[str]:
        """Return the ignored ones of these changed paths; a directory that has only ignored changes is among them."""
        parents = _parents(path for path, _ in changes)
        # Whether git ignores an empty directory can only be asked with a name in it.
        names = {
            path: f"{path}/any" if is_directory(delta) else path
            for path, delta in changes
            if path not in parents or not is_directory(delta)
        }
        left = self._by_rules(names) | self._by_themselves(names, old, new)
        left -= self._tracked_now(new) if left else set()
        kept = _parents(path for path in names if path not in left)
        for path, delta in changes:
            if path not in names and path not in kept and (delta.old is None or delta.new is None):
                left.add(path)
        return left

    def _by_rules(self, names: dict[str, str]) -> set[str]:
        """Return the paths that the rules of the beginning ignore and that git did not track then."""
        from workstead.system.git.ignoring import find_ignored

        rules: dict[str, bytes] = {}
        for folder in sorted(_parents(names.values())):
            if len(rules) < _MAX_RULES_FILES:
                content = self._read(self._base, folder, _RULES_FILE, _MAX_RULES_BYTES)
                if content:
                    rules[folder] = content
        try:
            asked = find_ignored(self._git, rules, self._read_exclude(), list(names.values()))
        except (TimedOut, ToolFailed, ToolMissing, OSError):
            return set()
        found = {path for path, name in names.items() if name in asked}
        if not found:
            return found
        tracked = self._tracked_then
        if tracked is None:
            return {path for path in found if self._base.find(f"{self._under}/{path}") is None}
        return found - tracked

    def _by_themselves(self, names: dict[str, str], old: Tree, new: Tree) -> set[str]:
        """Return the paths in new directories whose own rule is to ignore everything in them."""
        known: dict[str, bool] = {}

        def is_marked(folder: str) -> bool:
            if folder not in known:
                known[folder] = self._base.find(f"{self._under}/{folder}") is None and any(
                    _is_everything(self._read(tree, folder, _RULES_FILE, _MAX_RULES_BYTES)) for tree in (new, old)
                )
            return known[folder]

        found = set()
        for path, name in names.items():
            marked = [folder for folder in _above(name) if is_marked(folder)]
            if marked:
                self.self_ignoring.add(marked[-1])
                found.add(path)
        return found

    @cached_property
    def _tracked_then(self) -> set[str] | None:
        """The paths in the index of the beginning; None if it is not known: then every file of base counts."""
        from workstead.system.git.index import tracked_in

        index = self._read_index()
        try:
            return None if index is None else tracked_in(index) if index else set()
        except ValueError:
            return None

    def _tracked_now(self, new: Tree) -> set[str]:
        """Return the paths that the agent has added to its index, also by force."""
        from workstead.system.git.index import tracked_in

        index = self._read(new, ".git", "index", MAX_INDEX_BYTES) or self._read_own_index()
        try:
            return tracked_in(index) if index else set()
        except ValueError:
            return set()

    def _read(self, tree: Tree, folder: str, name: str, max_bytes: int) -> bytes:
        entry = tree.find("/".join(filter(None, (self._under, folder, name))))
        return tree.read(entry) if entry is not None and entry.kind == FILE and entry.size <= max_bytes else b""


def _is_everything(rules: bytes) -> bool:
    """Return whether the only rule is to ignore everything, as the tools write it that make such directories."""
    lines = [line.strip() for line in rules.splitlines()]
    return [line for line in lines if line and not line.startswith(b"#")] == [b"*"]


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
