"""Exempt a workspace from sweeps, and end the exemption."""

from __future__ import annotations

from workstead.core import lookup
from workstead.core.gate import refuse_agents
from workstead.model.event import WorkspacePinned, WorkspaceUnpinned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home
    from workstead.model.value import Value
    from workstead.model.workspace import Workspace


def pin(home: Home, workspace_id: str, *, reason: str = "") -> Workspace:
    """Exempt the workspace from sweeps, whatever its age; idempotent."""
    return _set(home, workspace_id, pinned=True, reason=reason)


def unpin(home: Home, workspace_id: str) -> Workspace:
    """Let sweeps take the workspace again; its idle time starts now."""
    return _set(home, workspace_id, pinned=False)


def _set(home: Home, workspace_id: str, *, pinned: bool, reason: str = "") -> Workspace:
    refuse_agents(home, "to say what sweeps may take")
    found = lookup.check_here(home, lookup.get(home, workspace_id))
    with home.hold(found.id):  # a sweep checks the pin again under this lock
        workspace = lookup.get(home, found.id)
        if workspace.pinned == pinned:
            return workspace
        names = workspace.names()
        fact: Value = WorkspacePinned(**names, reason=reason) if pinned else WorkspaceUnpinned(**names)
        home.record(workspace.task_id, fact)
        return lookup.get(home, workspace.id)
