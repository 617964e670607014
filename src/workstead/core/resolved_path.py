"""A path in a workspace, resolved to an open directory and a name."""

from __future__ import annotations

import os

from workstead.system.files.resolved_entry import Held, OpenFile
from workstead.system.files.root import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.model.workspace import Workspace


class Spot:
    """A path of a caller, located: the workspace, the open directory to go on from, and the path from there."""

    def __init__(self, workspace: Workspace, root: Root, path: str, above: str = "") -> None:
        self.workspace = workspace
        self.root = root
        self.path = path
        self._above = above  # where the root is in the workspace

    def place(self, held: Held) -> str:
        """Where an entry really is, from the top of the workspace."""
        return "/".join(filter(None, (self._above, held.path))) or "."

    def place_of(self, path: str) -> str:
        """Where something that exists really is, from the top of the workspace."""
        fd = self.root.open_path(self.root.check(path))
        try:
            return self.place(OpenFile(self.root, fd))
        finally:
            os.close(fd)

    def names(self) -> dict[str, Any]:
        """What every fact about a file begins with."""
        return {**self.workspace.names(), "path": self.root.public(self.path)}
