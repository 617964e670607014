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
    """A caller's path, resolved: the workspace, an open directory, and the path relative to it."""

    def __init__(self, workspace: Workspace, root: Root, path: str, above: str = "") -> None:
        self.workspace = workspace
        self.root = root
        self.path = path
        self._above = above  # path of the root relative to the workspace

    def place(self, held: Held) -> str:
        """Return the resolved path of an entry, relative to the workspace."""
        return "/".join(filter(None, (self._above, held.path))) or "."

    def place_of(self, path: str) -> str:
        """Return the resolved path of something that exists, relative to the workspace."""
        fd = self.root.open_path(self.root.check(path))
        try:
            return self.place(OpenFile(self.root, fd))
        finally:
            os.close(fd)

    def names(self) -> dict[str, Any]:
        """Return the common fields of every event about a file."""
        return {**self.workspace.names(), "path": self.root.public(self.path)}
