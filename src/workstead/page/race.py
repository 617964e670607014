"""Start a race: several new workspaces of one source try the same task, and a check ranks them."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from nicegui import ui

from workstead.model.text import printable
from workstead.page.context import compare_url
from workstead.page.layout import attempt, question, say

if TYPE_CHECKING:
    from workstead.model.race import Race
    from workstead.page.context import Site
    from workstead.page.view import WorkspaceView


async def ask(view: WorkspaceView) -> None:
    """Ask for the task, start the race, and open its comparison."""
    workspace = await attempt(view.verbs.get, view.id)
    if workspace is None:
        return
    with question("Race") as dialog:
        ui.label(
            f"New workspaces of {printable(workspace.source)} try the same command at the same time. "
            f"{view.id} is not touched, and nothing is applied."
        ).classes("dim")
        number = ui.number("How many", value=3, min=1, max=50, precision=0).classes("w-full")
        command = ui.input("Command; {n} is the number of the workspace", placeholder="./attempt --seed {n}")
        check = ui.input("Check that ranks them (optional)", placeholder="make test")
        for field in (command, check):
            field.classes("w-full mono")
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps")
            ui.button("Start", on_click=lambda: dialog.submit(True)).props("no-caps unelevated")
    agreed = await dialog
    dialog.delete()
    if not agreed:
        return
    if not (command.value or "").strip():
        say("Type a command first.", bad=True)
        return
    options = {"count": int(number.value or 1), "check": (check.value or "").strip() or None}
    started = await attempt(_start, view.site, workspace.source, ["sh", "-c", command.value], options)
    if started is not None:
        ui.navigate.to(compare_url(started.task_id))


def _start(site: Site, source: str, command: list[str], options: dict[str, Any]) -> Race:
    """Start the race and return it as soon as it has begun: it continues in a thread of its own."""
    told: SimpleQueue[Race | Exception] = SimpleQueue()

    def go() -> None:
        try:
            site.workspaces.race(source, command, watch=told.put, **options)
        except Exception as error:
            told.put(error)

    threading.Thread(target=go, name="race", daemon=True).start()
    first = told.get()
    if isinstance(first, Exception):
        raise first
    return first
