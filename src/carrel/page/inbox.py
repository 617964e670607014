"""What agents ask for: the exact change, and yes or no."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import ui

from carrel.page.frame import frame

if TYPE_CHECKING:
    from carrel.page.site import Site


def show(site: Site) -> None:
    """The inbox."""
    with frame(site, "/approvals", wide=False):
        ui.label("Approvals").classes("text-xl font-bold").props('role="heading" aria-level="1"')
