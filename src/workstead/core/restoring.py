"""Finish a restore that a crash interrupted."""

from __future__ import annotations

from workstead.core.mounting import filled_in
from workstead.core.snapshots import find_root
from workstead.core.states import cache_path, open_store, place_of_state, stack_finder
from workstead.errors import WorksteadError
from workstead.model.event import SnapshotRestored, SnapshotRestoreFailed
from workstead.system.files.durable import sync_trees

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.snapshot import Restored
    from workstead.model.workspace import Workspace


def finish(home: Home, workspace: Workspace) -> Restored:
    """Execute a recorded restore, also one that another process began; the caller holds the workspace's lock.

    When it fails, as on a full disk, the previous state of the workspace is restored.
    """
    from workstead.snapshots.restore import restore as bring_back

    step: dict[str, Any] = dict(workspace.step)
    with open_store(home) as store:
        try:
            done = bring_back(
                store,
                step["root"],
                place_of_state(home, workspace),
                stack_finder(home, workspace),
                paths=step["paths"] or None,
                back_to=find_root(home, workspace, step["before"]),
                cache_path=cache_path(home, workspace.uid),
            )
        except WorksteadError as error:
            # Record the failure only if the rollback succeeded; otherwise the next recovery tries again.
            if not isinstance(error.__cause__, WorksteadError):
                failed = SnapshotRestoreFailed(
                    **workspace.names(), operation_id=step["operation_id"], reason=error.message
                )
                home.record(workspace.task_id, failed)
            raise
        _keep_borrowing(home, workspace)
        place = place_of_state(home, workspace)
        sync_trees(place.root, place.work or f"{place.root}/work")
        fact = SnapshotRestored(**step, written=done.written, removed=done.removed)
        home.record(workspace.task_id, fact)
    return done


def _keep_borrowing(home: Home, workspace: Workspace) -> None:
    """Let a snapshot from an archive read its git objects in the cache: it names paths of another machine."""
    origin: Any = workspace.filled.get("origin") or {}
    borrows = origin.get("borrows") or []
    if (
        origin.get("kind") == "archive"
        and borrows
        and str(borrows[0]).startswith(f"{home.path}/cache/mirrors/archived")
    ):
        from workstead.archives.borrowed import point_to

        place = place_of_state(home, workspace)
        point_to(place.work or f"{place.root}/work", str(borrows[0]), filled_in(home, workspace)[1].owner)
