"""Look at the folder of an overlay workspace. Reading records no event."""

from __future__ import annotations

from workstead.core import lookup
from workstead.core.mounting import filled_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home


def origin_changes(home: Home, workspace_id: str, *, limit: int = 100) -> list[str]:
    """Return the paths in the folder of an overlay that changed since its creation, by `apply` or by others.

    Empty for other kinds of workspaces, which do not depend on their origin any more. Raises FolderNotFound if the
    folder is gone.
    """
    workspace = lookup.get(home, workspace_id)
    if not workspace.filled:
        return []
    filled, _ = filled_in(home, workspace)
    if filled.origin.get("kind") != "overlay":
        return []
    from workstead.sources.overlay import changed_since

    return changed_since(filled, limit)
