"""Desks of one task side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nicegui import ui

from carrel.page.frame import frame

if TYPE_CHECKING:
    from carrel.page.site import Site


def page(site: Site) -> Callable[..., Any]:
    """The page, for the framework to call."""

    def show(task: str) -> None:
        with frame(site, "/"):
            ui.label(f"Compare {task}").classes("text-xl font-bold").props('role="heading" aria-level="1"')

    return show
