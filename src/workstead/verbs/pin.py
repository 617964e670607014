"""Keep a workspace from every sweep, and let it go again."""

from __future__ import annotations

from workstead.model.event import WorkspacePinned, WorkspaceUnpinned
from workstead.verbs import show
from workstead.verbs.permit import refuse_agents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.home import Home
    from workstead.model.value import Value
    from workstead.model.workspace import Workspace


def pin(home: Home, workspace_id: str, *, reason: str = "") -> Workspace:
    """No sweep takes the workspace from now on, whatever its age; a pinned one is left as it is."""
    return _set(home, workspace_id, pinned=True, reason=reason)


def unpin(home: Home, workspace_id: str) -> Workspace:
    """Let sweeps take the workspace again, when it has been unused for its time from now on."""
    return _set(home, workspace_id, pinned=False)


def _set(home: Home, workspace_id: str, *, pinned: bool, reason: str = "") -> Workspace:
    refuse_agents(home, "to say what sweeps may take")
    found = show.check_here(home, show.get(home, workspace_id))
    with home.hold(found.id):  # a sweep looks once more while it holds the workspace
        workspace = show.get(home, found.id)
        if workspace.pinned == pinned:
            return workspace
        names = workspace.names()
        fact: Value = WorkspacePinned(**names, reason=reason) if pinned else WorkspaceUnpinned(**names)
        home.record(workspace.task_id, fact)
        return show.get(home, workspace.id)
