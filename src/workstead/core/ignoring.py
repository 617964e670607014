"""Find the rules by which git ignores files of a workspace's repository."""

from __future__ import annotations

from contextlib import suppress

from workstead.errors import WorksteadError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home
    from workstead.model.workspace import Workspace
    from workstead.snapshots.ignored import Ignoring
    from workstead.snapshots.trees import Tree

_TIMEOUT_SECONDS = 20.0  # rules can be written so that they take for ever
_ALL_TRACKED = ("clone", "worktree")  # sources that show a commit and nothing else


def ignoring(home: Home, workspace: Workspace, base: Tree) -> Ignoring | None:
    """Return the rules of a workspace, or None if it did not begin as a git repository."""
    from workstead.snapshots.entries import DIR, FILE
    from workstead.snapshots.ignored import Ignoring
    from workstead.system.git.runner import Git

    entry = base.find("work/.git")
    if entry is None or entry.kind not in (DIR, FILE):
        return None
    origin = workspace.filled.get("origin")
    origin = origin if isinstance(origin, dict) else {}
    return Ignoring(
        Git(state=f"{home.path}/cache/git", config={}, timeout_seconds=_TIMEOUT_SECONDS),
        base,
        read_exclude=lambda: _read_exclude(origin, base),
        read_index=lambda: _read_index(origin, base),
        read_own_index=lambda: _read_own_index(origin),
    )


def _read_exclude(origin: dict[str, object], base: Tree) -> bytes:
    """Return `info/exclude` of the origin; of the workspace's base if it has no origin."""
    from workstead.system.files import foreign
    from workstead.system.git.repository import find_repository

    with suppress(WorksteadError, OSError):  # an origin that is gone, or is not to be trusted, has no rules
        if origin.get("kind") == "worktree":
            return foreign.read_small(str(origin["repository"]), "info/exclude") or b""
        if origin.get("kind") == "overlay":
            found = find_repository(str(origin["path"]))
            return (foreign.read_small(found.common, "info/exclude") or b"") if found else b""
        return _in_base(base, "work/.git/info/exclude", foreign.SMALL_BYTES) or b""
    return b""


def _read_index(origin: dict[str, object], base: Tree) -> bytes | None:
    """Return the index of the origin; of the workspace's base if it has no origin; None if every file is tracked.

    The base has the agent's index once changes were applied.
    """
    from workstead.snapshots.ignored import MAX_INDEX_BYTES
    from workstead.system.files import foreign
    from workstead.system.git.repository import find_repository

    if origin.get("kind") in _ALL_TRACKED:
        return None
    with suppress(WorksteadError, OSError):
        if origin.get("kind") == "overlay":
            found = find_repository(str(origin["path"]))
            return (foreign.read_small(found.git_dir, "index", MAX_INDEX_BYTES) or b"") if found else None
        return _in_base(base, "work/.git/index", MAX_INDEX_BYTES)
    return None


def _read_own_index(origin: dict[str, object]) -> bytes:
    """Return the index of an agent in a work tree of the origin's repository."""
    from workstead.snapshots.ignored import MAX_INDEX_BYTES
    from workstead.system.files import foreign

    with suppress(WorksteadError, OSError):
        if origin.get("kind") == "worktree":
            return foreign.read_small(str(origin["admin"]), "index", MAX_INDEX_BYTES) or b""
    return b""


def _in_base(base: Tree, path: str, max_bytes: int) -> bytes | None:
    from workstead.snapshots.entries import FILE

    entry = base.find(path)
    return base.read(entry) if entry is not None and entry.kind == FILE and entry.size <= max_bytes else None
