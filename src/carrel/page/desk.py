"""One desk: its files, what changed, what runs, what happened, and what one can do about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nicegui import ui

from carrel.errors import CarrelError
from carrel.page import actions, changes, files, runs, timeline, walls
from carrel.page.frame import frame

if TYPE_CHECKING:
    from carrel.page.site import Site

TABS = ("Files", "Changes", "Runs", "Timeline", "Walls")


def page(site: Site) -> Callable[..., Any]:
    """The page of a workspace, for the framework to call."""

    def show(task: str, agent: str, tab: str = "Changes") -> None:
        Desk(site, f"{task}/{agent}").show(tab if tab in TABS else "Changes")

    return show


class Desk:
    """One workspace in one tab of a browser."""

    def __init__(self, site: Site, workspace_id: str) -> None:
        self.site = site
        self.id = workspace_id
        self.verbs = site.workspaces
        self._renewers: list[Callable[[], Any]] = []
        self._waiting: dict[str, Callable[[], Any]] = {}
        self._mark: tuple[int, int] | None = None

    def on_change(self, renew: Callable[[], Any]) -> None:
        """Call this whenever something happened to the workspace."""
        self._renewers.append(renew)

    def on_open(self, name: str, begin: Callable[[], Any]) -> None:
        """Call this when a tab is first looked at: what it shows does not exist in the browser before."""
        self._waiting[name] = begin

    async def _opened(self, name: str) -> None:
        begin = self._waiting.pop(name, None)
        if begin is not None:
            await begin()

    def show(self, tab: str) -> None:
        with frame(self.site, "/"):
            try:
                workspace = self.verbs.get(self.id)
            except CarrelError as error:
                _absent(error)
                return
            with ui.row().classes("w-full items-center gap-3"):
                ui.label(self.id).classes("text-xl font-bold").props('role="heading" aria-level="1"')
                state = ui.badge("").props("outline")
                facts = ui.label("").classes("dim grow")
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
            changed = row["changed"] if row else None
            facts.set_text(f"from {workspace.source}" + (f" · {changed} changed" if changed else ""))

        tabs.on_value_change(lambda: self._opened(str(tabs.value)))
        ui.timer(0, lambda: self._opened(tab), once=True)
        self.on_change(head)
        head()
        ui.timer(0.5, self._tick)

    async def _tick(self) -> None:
        """Renew what is shown if anything happened to this workspace since."""
        row = self.site.board.row_of(self.id)
        mark = (row["version"] if row else -1, self.site.board.marks.get(self.id, 0))
        if mark == self._mark:
            return
        self._mark = mark
        for renew in self._renewers:
            result = renew()
            if hasattr(result, "__await__"):
                await result


def _absent(error: CarrelError) -> None:
    with ui.column().classes("panel mt-4"):
        ui.label(error.message).classes("text-lg font-bold")
        ui.label(error.hint or "It may have been destroyed: Undo on the Machine page brings it back.")
        ui.link("All desks", "/")
