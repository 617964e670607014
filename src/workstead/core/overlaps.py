"""The conflict radar: find workspaces of one origin that changed the same paths, before both apply them.

A path counts when it differs, by content, from the base in both workspaces, and between them: forks that still have
their parent's changes are no conflict. `overlaps` compares all workspaces of an origin as they are now; after a run, a
snapshot or a watched change, `notice` does the same for one workspace and records new overlaps.
"""

from __future__ import annotations

from workstead.core import lookup
from workstead.errors import WorksteadError
from workstead.model.change import Overlap
from workstead.model.event import PathsOverlap
from workstead.model.watch import pair

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from workstead.core.home import Home
    from workstead.model.workspace import Workspace
    from workstead.snapshots.entries import Entry
    from workstead.snapshots.trees import Tree

    Changed = dict[str, object]  # path -> enough of the content to tell two versions apart

# The field that identifies the origin, for each kind of source that changes can be applied to.
_ORIGINS = {"overlay": "path", "worktree": "path", "clone": "url"}


def overlaps(home: Home, workspace_id: str | None = None) -> list[Overlap]:
    """Return the pairs of workspaces that changed the same paths, as they are now; of one workspace, or of all."""
    mine = lookup.get(home, workspace_id) if workspace_id is not None else None
    found: list[Overlap] = []
    for origin, group in _groups(home, mine).items():
        changed = {each.uid: _changed(home, each) for each in group}
        for number, one in enumerate(group):
            for other in group[number + 1 :]:
                if mine is None or mine.uid in (one.uid, other.uid):
                    found += _between(origin, one, other, changed[one.uid], changed[other.uid])
    if mine is None:
        return found
    return [each if each.uid == mine.uid else _turned(each) for each in found]


def notice(home: Home, uid: str, *, within: Sequence[str] | None = None) -> list[Overlap]:
    """Record the workspaces that have changed the same paths as this one, unless already recorded.

    `within` are public paths that changed just now: other paths are not compared. Never raises: the run or snapshot
    before it is complete without it.
    """
    try:
        workspace = lookup.by_uid(home, uid)
        if workspace.state != "ready":
            return []
        groups = _groups(home, workspace)
        if not groups:
            return []
        ((origin, group),) = groups.items()
        with home.hold(f"overlaps of {origin}"):
            return _notice(home, workspace, origin, group, _inside_work(home, workspace, within))
    except WorksteadError:
        return []


def _notice(
    home: Home, workspace: Workspace, origin: str, group: list[Workspace], within: list[str] | None
) -> list[Overlap]:
    if within == []:
        return []
    mine = _changed(home, workspace, within)
    told = []
    for other in group:
        if other.uid == workspace.uid or not mine:
            continue
        for overlap in _between(origin, workspace, other, mine, _changed(home, other, sorted(mine))):
            record = home.log.get("overlap", pair(workspace.uid, other.uid))
            if record and set(record["paths"]) >= set(overlap.paths):
                continue
            fact = PathsOverlap(
                **workspace.names(),
                other_id=other.id,
                other_uid=other.uid,
                origin=origin,
                paths=list(overlap.paths),
            )
            home.record(workspace.task_id, fact)
            told.append(overlap)
    return told


def _groups(home: Home, mine: Workspace | None) -> dict[str, list[Workspace]]:
    """Group the existing workspaces by origin, if it has several; with `mine`, only its own origin."""
    groups: dict[str, list[Workspace]] = {}
    wanted = _origin(mine) if mine else None
    if mine and not wanted:  # no workspace shares its origin, so the others need not be read
        return {}
    for workspace in lookup.list_all(home):
        origin = _origin(workspace)
        is_standing = workspace.state == "ready" and workspace.home == home.id and workspace.base
        if is_standing and origin and (mine is None or origin == wanted):
            groups.setdefault(origin, []).append(workspace)
    return {origin: group for origin, group in groups.items() if len(group) > 1}


def _origin(workspace: Workspace) -> str:
    origin = workspace.filled.get("origin")
    if not isinstance(origin, dict):
        return ""
    return str(origin.get(_ORIGINS.get(str(origin.get("kind")), "")) or "")


def _inside_work(home: Home, workspace: Workspace, public_paths: Sequence[str] | None) -> list[str] | None:
    if public_paths is None:
        return None
    start = f"{lookup.public_mount(home, workspace)}/work/"
    return sorted({path[len(start) :] for path in public_paths if path.startswith(start)})


def _changed(home: Home, workspace: Workspace, paths: Sequence[str] | None = None) -> Changed:
    """Return the paths in `work/` that differ from the base by content, with their present content."""
    from workstead.core.changes import state
    from workstead.core.ignoring import ignoring
    from workstead.core.snapshots import BASE, NOW
    from workstead.core.states import open_store
    from workstead.snapshots.diff import find_pairs
    from workstead.snapshots.entries import DIR

    with (
        open_store(home) as store,
        state(home, store, workspace, BASE) as old,
        state(home, store, workspace, NOW) as new,
    ):
        found: Changed = {}
        for each in find_pairs(old, new, paths=paths, ignoring=ignoring(home, workspace, old))[0]:
            if each.old_path != each.new_path:
                found[each.old_path] = None
            if each.new is None or each.new.kind != DIR:
                found[each.new_path] = _what(new, each.new)
        return found


def _what(tree: Tree, entry: Entry | None) -> object:
    from workstead.snapshots.entries import FILE

    if entry is None:
        return None
    return entry.kind, entry.mode, entry.target, tree.digest(entry) if entry.kind == FILE else b""


def _between(origin: str, one: Workspace, other: Workspace, mine: Changed, theirs: Changed) -> list[Overlap]:
    paths = tuple(sorted(path for path in mine.keys() & theirs.keys() if mine[path] != theirs[path]))
    if not paths:
        return []
    return [
        Overlap(workspace_id=one.id, other_id=other.id, origin=origin, paths=paths, uid=one.uid, other_uid=other.uid)
    ]


def _turned(overlap: Overlap) -> Overlap:
    return overlap.replace(
        workspace_id=overlap.other_id, other_id=overlap.workspace_id, uid=overlap.other_uid, other_uid=overlap.uid
    )
