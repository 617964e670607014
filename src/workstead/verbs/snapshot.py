"""Take and list snapshots of a workspace."""

from __future__ import annotations

from workstead.core import lookup
from workstead.core.building import materialise
from workstead.core.snapshots import keep, of_workspace
from workstead.core.states import refuse_unready
from workstead.model.snapshot import Snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home


def snapshot(home: Home, workspace_id: str, *, label: str = "") -> Snapshot:
    """Take a snapshot of the whole workspace; marked `live` if a run is active in it."""
    workspace = materialise(home, lookup.get(home, workspace_id))
    with home.hold(workspace.id):
        kept = keep(home, refuse_unready(lookup.by_uid(home, workspace.uid)), cause="manual", label=label)
    from workstead.core.overlaps import notice

    notice(home, workspace.uid)
    return kept


def snapshots(home: Home, workspace_id: str) -> list[Snapshot]:
    """Return the snapshots of a workspace, oldest first, beginning with its base."""
    return of_workspace(home, lookup.get(home, workspace_id))
