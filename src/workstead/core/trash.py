"""Look up workspaces in the trash."""

from __future__ import annotations

from workstead.core import lookup
from workstead.errors import OperationNotFound
from workstead.model.workspace import Workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home


def trashed(home: Home) -> list[Workspace]:
    """Return the workspaces in the trash, oldest first."""
    return [workspace for workspace in lookup.list_all(home, gone=True) if workspace.state == "destroyed"]


def find_trashed(home: Home, name: str) -> Workspace:
    """Return a workspace in the trash by its uid, or the last one that had this id."""
    everything = trashed(home)
    matches = [workspace for workspace in everything if workspace.uid == name]
    if not matches:
        matches = [workspace for workspace in everything if workspace.id == lookup.normal_id(name)]
    if not matches:
        raise OperationNotFound(f"{name} is not in the trash", hint="aw trash list shows what is")
    return matches[-1]
