"""One workspace in one browser tab: the object that its panels share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workstead.page.story import Story

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from workstead.page.context import Site


class WorkspaceView:
    """One workspace in one tab of a browser."""

    def __init__(self, site: Site, workspace_id: str, *, first_run: str = "") -> None:
        self.site = site
        self.first_run = first_run  # the run whose output is shown first; default: the last one
        self.id = workspace_id
        self.verbs = site.workspaces
        self.story = Story(workspace_id, self.verbs, site.board)
        self._renewers: dict[str, Callable[[], Awaitable[None]]] = {}
        self._waiting: dict[str, Callable[[], Awaitable[None]]] = {}
        self.tab = ""  # the selected panel
        self.outdated: set[str] = set()  # panels that miss recent events

    def on_open(
        self, tab: str, begin: Callable[[], Awaitable[None]], renew: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Register a panel's handlers: for its first opening, and for later events of the workspace."""
        self._waiting[tab] = begin
        self._renewers[tab] = renew or begin

    async def opened(self, tab: str) -> None:
        self.tab = tab
        begin = self._waiting.pop(tab, None)
        if begin is not None:
            self.outdated.discard(tab)
            await begin()
        elif tab in self.outdated:
            await self.renew()

    async def renew(self) -> None:
        """Refresh the selected panel; the others are refreshed when they are selected."""
        self.outdated.discard(self.tab)
        if self.tab and self.tab not in self._waiting:
            await self._renewers[self.tab]()
