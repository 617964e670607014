"""The machine and the home: disk usage, operations that can be undone, and capabilities."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from nicegui import ui

from workstead.page.layout import attempt, frame, lasting, say_undoable
from workstead.page.text import clock, count, size

if TYPE_CHECKING:
    from workstead.page.context import Site


def show(site: Site) -> None:
    """Show the page of the machine."""
    with frame(site, "/machine", wide=False):
        ui.label("Machine").classes("text-xl font-bold").props('role="heading" aria-level="1"')
        box = ui.column().classes("w-full gap-4 mt-3")
        with box:
            ui.label("Looking …").classes("dim")

    async def fill() -> None:
        used = await attempt(site.workspaces.usage)
        done = await attempt(site.workspaces.operations) or ()
        probes = await attempt(site.workspaces.doctor) or ()
        box.clear()
        with box:
            if used:
                with ui.column().classes("panel w-full gap-1"):
                    ui.label("Disk").classes("font-bold")
                    ui.label(
                        f"workspaces {size(used.workspaces_bytes)} of their own and {size(used.shared_bytes)} shared, "
                        f"kept states {size(used.snapshots_bytes)}, "
                        f"trash {size(used.trash_bytes)} ({count(used.trash, 'workspace')})"
                    )
                    ui.label(
                        f"caches {size(used.cache_bytes)}, archives {size(used.archives_bytes)}, "
                        f"output of runs {size(used.runs_bytes)}, areas of tasks {size(used.areas_bytes)}, "
                        f"log {size(used.log_bytes)}"
                    )
                    ui.label(f"{size(used.disk_free_bytes)} of {size(used.disk_total_bytes)} are free").classes("dim")
            with ui.column().classes("panel w-full gap-1"):
                ui.label("What was done").classes("font-bold")
                if not done:
                    ui.label("Nothing that could be taken back.").classes("dim")
                for each in list(done)[:50]:
                    with ui.row().classes("w-full items-center no-wrap"):
                        ui.label(clock(each.at)).classes("dim mono lg:w-36 shrink-0")
                        ui.label(f"{each.kind} {', '.join(each.workspaces)}").classes("grow break-all")
                        if not each.undone_by and each.kind != "purge":
                            act = lasting(functools.partial(take_back, each.operation_id))
                            ui.button("Undo", on_click=act).props("flat dense no-caps")
            with ui.column().classes("panel w-full gap-1"):
                ui.label("What works here").classes("font-bold")
                for probe in probes:
                    ui.label(f"{'✓' if probe.ok else '✗'} {probe.name}: {probe.found}")

    async def take_back(operation_id: str) -> None:
        undone = await attempt(site.workspaces.undo, operation_id)
        if undone is not None:
            say_undoable(site, "Taken back", undone[0].operation_id)
            await fill()

    ui.timer(0, fill, once=True)
