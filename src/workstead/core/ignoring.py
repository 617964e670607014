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
        exclude=_read_exclude(origin, base),
        all_tracked=entry.kind != DIR or origin.get("kind") in _ALL_TRACKED,
    )


def _read_exclude(origin: dict[str, object], base: Tree) -> bytes:
    """Return `info/exclude` of the origin; of the workspace's first state if it has no origin."""
    from workstead.snapshots.entries import FILE
    from workstead.system.files import foreign
    from workstead.system.git.repository import find_repository

    with suppress(WorksteadError, OSError):  # an origin that is gone, or is not to be trusted, has no rules
        if origin.get("kind") == "worktree":
            return foreign.read_small(str(origin["repository"]), "info/exclude") or b""
        if origin.get("kind") == "overlay":
            found = find_repository(str(origin["path"]))
            return (foreign.read_small(found.common, "info/exclude") or b"") if found else b""
        entry = base.find("work/.git/info/exclude")
        if entry is not None and entry.kind == FILE and entry.size <= foreign.SMALL_BYTES:
            return base.read(entry)
    return b""
