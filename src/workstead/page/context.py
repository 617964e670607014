"""The site object that every page shares, and the URLs of pages."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from workstead.page.access import Access
from workstead.page.live_rows import Board

if TYPE_CHECKING:
    from workstead.local import Local
    from workstead.server.context import Front
    from workstead.settings import Settings


class Site:
    """The shared context of all parts of the page."""

    def __init__(self, front: Front, access: Access) -> None:
        self._front = front
        self.access = access
        self.board = Board(front.workspaces)

    @property
    def workspaces(self) -> Local:
        """Return the verbs under the current settings. The holder of the page's cookie is the owner."""
        return self._front.workspaces.acting_as("owner")

    @property
    def settings(self) -> Settings:
        """Return the current settings."""
        return self._front.settings


def workspace_url(workspace_id: str, **query: str) -> str:
    """Return the URL of a workspace; its id may contain any character."""
    task, _, agent = workspace_id.partition("/")
    tail = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items() if value)
    return f"/desk/{quote(task, safe='')}/{quote(agent, safe='')}" + (f"?{tail}" if tail else "")


def compare_url(task: str) -> str:
    """Return the URL at which the workspaces of a task are compared."""
    return f"/compare/{quote(task, safe='')}"
