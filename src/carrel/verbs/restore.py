"""Bring a kept state back.

    snapshot of the present → snapshot_restoring → only what differs is written → snapshot_restored

Restoring is the same however often it is begun, so one that was interrupted is simply finished by whoever comes next.
`aw undo` goes back to the snapshot that was taken of the present.
"""

from __future__ import annotations

from carrel.errors import WorkspaceBusy
from carrel.model.event import SnapshotRestored, SnapshotRestoring
from carrel.verbs import show
from carrel.verbs.create import materialise
from carrel.verbs.keep import make_way
from carrel.verbs.snapshot import find_root, is_live, keep
from carrel.verbs.state import cache_path, open_store, place_of_state, stack_finder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from carrel.home import Home
    from carrel.model.workspace import Workspace
    from carrel.snapshots.restore import Restored


def restore(
    home: Home, workspace_id: str, snapshot: str, paths: Sequence[str] = (), *, undoes: str = ""
) -> tuple[str, Restored]:
    """Make the workspace, or some paths in it, what it was; gives the operation that `undo` takes back.

    Raises SnapshotNotFound, or WorkspaceBusy while a run is active: a command that works does not expect its files to
    change under it.
    """
    workspace = materialise(home, show.get(home, workspace_id))
    root = find_root(home, workspace, snapshot)
    make_way(home, workspace)
    with home.hold(workspace.id):
        if is_live(home, workspace):
            raise WorkspaceBusy(f"a run is active in {workspace.id}", hint=f"aw runs {workspace.id}, then aw stop RUN")
        before = keep(home, workspace, cause="before_restore")
        step: dict[str, Any] = {
            "workspace_id": workspace.id,
            "agent_id": workspace.agent_id,
            "uid": workspace.uid,
            "snapshot": snapshot,
            "root": root,
            "before": before.id,
            "paths": list(paths),
            "operation_id": home.new_id(),
            "undoes": undoes,
        }
        home.record(workspace.task_id, SnapshotRestoring(**step))
        return step["operation_id"], finish(home, show.by_uid(home, workspace.uid))


def finish(home: Home, workspace: Workspace) -> Restored:
    """Do what an announced restore is about, also one that somebody else began; the caller holds the workspace."""
    from carrel.snapshots.restore import restore as bring_back

    step: dict[str, Any] = dict(workspace.step)
    with open_store(home) as store:
        done = bring_back(
            store,
            step["root"],
            place_of_state(home, workspace),
            stack_finder(home),
            paths=step["paths"] or None,
            cache_path=cache_path(home, workspace),
        )
    fact = SnapshotRestored(**step, written=done.written, removed=done.removed)
    home.record(workspace.task_id, fact)
    return done
