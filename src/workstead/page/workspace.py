"""One desk: its files, what changed, what runs, what happened, and what one can do about it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from nicegui import ui

from workstead.errors import WorksteadError
from workstead.page import actions, changes, files, runs, timeline, walls
from workstead.page.context import compare_url
from workstead.page.layout import frame
from workstead.page.story import Story

if TYPE_CHECKING:
    from workstead.page.context import Site

TABS = ("Files", "Changes", "Runs", "Timeline", "Walls")


def page(site: Site) -> Callable[..., Any]:
    """The page of a workspace, for the framework to call."""

    def show(task: str, agent: str, tab: str = "Changes", run: str = "") -> None:
        Desk(site, f"{task}/{agent}", first_run=run).show(tab if tab in TABS else "Changes")

    return show


class Desk:
    """One workspace in one tab of a browser."""

    def __init__(self, site: Site, workspace_id: str, *, first_run: str = "") -> None:
        self.site = site
        self.first_run = first_run  # whose output is shown first, if not the last one's
        self.id = workspace_id
        self.verbs = site.workspaces
        self.story = Story(workspace_id, self.verbs, site.board)
        self._renewers: dict[str, Callable[[], Awaitable[None]]] = {}
        self._waiting: dict[str, Callable[[], Awaitable[None]]] = {}
        self.tab = ""  # the one that is looked at
        self._old: set[str] = set()  # tabs that show less than what happened
        self._rested = 0.0
        self._mark: tuple[int, int] | None = None

    def on_open(
        self, tab: str, begin: Callable[[], Awaitable[None]], renew: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """What a tab does when it is first looked at, and afterwards when something has happened to the workspace."""
        self._waiting[tab] = begin
        self._renewers[tab] = renew or begin

    async def _opened(self, tab: str) -> None:
        self.tab = tab
        begin = self._waiting.pop(tab, None)
        if begin is not None:
            self._old.discard(tab)
            await begin()
        elif tab in self._old:
            await self._renew()

    async def _renew(self) -> None:
        """Renew the tab that is looked at; the others wait until they are."""
        self._old.discard(self.tab)
        if self.tab and self.tab not in self._waiting:
            await self._renewers[self.tab]()

    def show(self, tab: str) -> None:
        with frame(self.site, "/"):
            try:
                workspace = self.verbs.get(self.id)
            except WorksteadError as error:
                _absent(error)
                return
            with ui.row().classes("w-full items-center gap-3"):
                ui.label(self.id).classes("text-xl font-bold").props('role="heading" aria-level="1"')
                state = ui.badge("").props("outline")
                facts = ui.label("").classes("dim break-all")
                others = ui.link("Compare", compare_url(workspace.task_id)).tooltip("with the other desks of its task")
            actions.bar(self)
            with ui.tabs().props("no-caps dense align=left").classes("w-full") as tabs:
                for name in TABS:
                    ui.tab(name)
            with ui.tab_panels(tabs, value=tab, animated=False).classes("w-full"):
                for name, part in zip(TABS, (files, changes, runs, timeline, walls), strict=True):
                    with ui.tab_panel(name).classes("px-0"):
                        part.show(self)

        def head() -> None:
            row = self.site.board.row_of(self.id)
            state.set_text(row["state"] if row else "gone")
            others.set_visibility(bool(row and row["several"]))
            changed = row["changed"] if row else None
            facts.set_text(f"from {workspace.source}" + (f" · {changed} changed" if changed else ""))

        tabs.on_value_change(lambda: self._opened(str(tabs.value)))
        ui.timer(0, lambda: self._opened(tab), once=True)
        head()
        ui.timer(0.5, lambda: self._tick(head))

    async def _tick(self, head: Callable[[], None]) -> None:
        """Renew what is shown if anything happened to this workspace since."""
        row = self.site.board.row_of(self.id)
        mark = (row["version"] if row else -1, self.site.board.marks.get(self.id, 0))
        began = time.monotonic()
        if mark == self._mark or began < self._rested:
            return
        self._mark = mark
        self._old = set(TABS)
        head()
        await self._renew()
        ended = time.monotonic()
        self._rested = ended + 3 * (ended - began)  # a large desk that is busy does not keep the machine busy


def _absent(error: WorksteadError) -> None:
    with ui.column().classes("panel mt-4"):
        ui.label(error.message).classes("text-lg font-bold")
        ui.label(error.hint or "It may have been destroyed: Undo on the Machine page brings it back.")
        ui.link("All desks", "/")
