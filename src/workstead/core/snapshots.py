"""Take snapshots for other verbs, and look snapshots up."""

from __future__ import annotations

from workstead.core import lookup
from workstead.core.states import cache_path, open_store, place_of_state, stack_finder
from workstead.errors import SnapshotNotFound
from workstead.model.event import SnapshotTaken
from workstead.model.moment import seconds
from workstead.model.snapshot import LeftOut, Snapshot
from workstead.model.text import word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.workspace import Workspace

BASE = "base"
NOW = "now"


def keep(
    home: Home, workspace: Workspace, *, cause: str, label: str = "", live: bool | None = None, once: bool = False
) -> Snapshot:
    """Take a snapshot; the caller holds the workspace's lock.

    `live` says whether files may be changing, if the caller knows. With `once` the last snapshot is returned if nothing
    has changed since.
    """
    from workstead.snapshots.take import take

    current = lookup.by_uid(home, workspace.uid)  # an apply during a run may have changed the layers below its states
    if current.state == "destroyed":
        current = current.replace(path=current.trash_path)
    place = place_of_state(home, current)
    with open_store(home) as store, store.hold():
        taken = take(
            store,
            place,
            stack_finder(home, current),
            cache_path=cache_path(home, workspace.uid),
            previous=current.last_root,
            live=is_live(home, workspace) if live is None else live,
        )
        kept = home.log.get("snapshot", current.last_snapshot) if once and taken.root == current.last_root else None
        if kept is not None:
            return _snapshot(kept)
        fact = SnapshotTaken(
            workspace_id=workspace.id,
            agent_id=workspace.agent_id,
            uid=workspace.uid,
            snapshot_id=f"snap-{home.new_id()}",
            root=taken.root,
            cause=cause,
            label=label,
            live=taken.live,
            files=taken.files,
            size=taken.size,
            left_out=[each.as_dict() for each in taken.left_out[:100]],
            torn=list(taken.torn[:100]),
        )
        (event,) = home.record(workspace.task_id, fact)
    return _snapshot({**event.event_data, "taken_at": event.recorded_at})


def is_live(home: Home, workspace: Workspace) -> bool:
    """Whether a run is active in the workspace."""
    return bool(lookup.active_runs(home, workspace))


def of_workspace(home: Home, workspace: Workspace) -> list[Snapshot]:
    """Return the snapshots of a workspace in any status."""
    kept = [_snapshot(record) for record in home.log.find_all("snapshot", label=workspace.uid)]
    if not workspace.base:
        return kept
    base = Snapshot(id=BASE, root=workspace.base, taken_at=seconds(workspace.created_at), cause="base")
    return [base, *kept]


def find_root(home: Home, workspace: Workspace, name: str) -> str:
    """Return the state for a name, see `find`. The base needs no lookup of snapshots."""
    return workspace.base if name == BASE and workspace.base else find(home, workspace, name).root


def find(home: Home, workspace: Workspace, name: str) -> Snapshot:
    """Return the snapshot for a name: `base`, an id or the beginning of one, or a label.

    An id has precedence over a label, and of several snapshots with one label the newest is returned. The beginning of
    an id must be unique, and at least 8 characters long, `snap-` included or not.
    """
    kept = of_workspace(home, workspace)
    found = [each for each in kept if name == each.id] or [each for each in kept if name and name == each.label]
    if not found and len(name) >= 8:
        found = [each for each in kept if each.id.startswith((name, f"snap-{name}"))]
        if len(found) > 1:
            raise SnapshotNotFound(
                f"{len(found)} snapshots of {workspace.id} begin with {name}",
                hint="give more of the id: " + ", ".join(each.id for each in found[:3]),
            )
    if not found:
        raise SnapshotNotFound(
            f"workspace {workspace.id} has no snapshot {name}", hint=f"aw snapshots {word(workspace.id)} lists them"
        )
    return found[-1]


def _snapshot(record: dict[str, Any]) -> Snapshot:
    return Snapshot(
        id=record["snapshot_id"],
        taken_at=seconds(record["taken_at"]),
        left_out=tuple(LeftOut(**each) for each in record["left_out"]),
        torn=tuple(record["torn"]),
        **{key: record[key] for key in ("root", "cause", "label", "live", "files", "size")},
    )
