"""Look at the folder that a workspace was made from. Looking leaves no event."""

from __future__ import annotations

from workstead.core import lookup
from workstead.core.mounting import filled_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home


def origin_changes(home: Home, workspace_id: str, *, limit: int = 100) -> list[str]:
    """Paths in the folder of an overlay that changed since it was made, by `apply` or by somebody else.

    Nothing for a workspace of another kind: what it shows does not depend on where it came from any more. Raises
    FolderNotFound if the folder is gone.
    """
    workspace = lookup.get(home, workspace_id)
    if not workspace.filled:
        return []
    filled, _ = filled_in(home, workspace)
    if filled.origin.get("kind") != "overlay":
        return []
    from workstead.sources.overlay import changed_since

    return changed_since(filled, limit)
