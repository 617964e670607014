"""The page of one workspace: files, changes, runs, history and actions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nicegui import ui

from workstead.errors import WorksteadError
from workstead.page import actions, changes, files, runs, timeline, walls
from workstead.page.context import compare_url
from workstead.page.layout import frame
from workstead.page.view import WorkspaceView

if TYPE_CHECKING:
    from workstead.page.context import Site

TABS = ("Files", "Changes", "Runs", "Timeline", "Walls")


def page(site: Site) -> Callable[..., Any]:
    """Return the page function of a workspace for the framework."""

    def show(task: str, agent: str, tab: str = "Changes", run: str = "") -> None:
        WorkspacePage(site, f"{task}/{agent}", first_run=run).show(tab if tab in TABS else "Changes")

    return show


class WorkspacePage(WorkspaceView):
    """The page of one workspace."""

    _rested = 0.0
    _mark: tuple[int, int] | None = None

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
                others = ui.link("Compare", compare_url(workspace.task_id)).tooltip(
                    "with the other workspaces of its task"
                )
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

        tabs.on_value_change(lambda: self.opened(str(tabs.value)))
        ui.timer(0, lambda: self.opened(tab), once=True)
        head()
        ui.timer(0.5, lambda: self._tick(head))

    async def _tick(self, head: Callable[[], None]) -> None:
        """Refresh the page if the workspace had an event since."""
        row = self.site.board.row_of(self.id)
        mark = (row["version"] if row else -1, self.site.board.marks.get(self.id, 0))
        began = time.monotonic()
        if mark == self._mark or began < self._rested:
            return
        self._mark = mark
        self.outdated = set(TABS)
        head()
        await self.renew()
        ended = time.monotonic()
        self._rested = ended + 3 * (ended - began)  # so that a large and busy workspace does not keep the machine busy


def _absent(error: WorksteadError) -> None:
    with ui.column().classes("panel mt-4"):
        ui.label(error.message).classes("text-lg font-bold")
        ui.label(error.hint or "It may have been destroyed: Undo on the Machine page brings it back.")
        ui.link("All workspaces", "/")
