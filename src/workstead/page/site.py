"""The page's application: shared objects, and the routes of all pages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from starlette.responses import PlainTextResponse
from starlette.routing import Match, Mount
from starlette.types import Scope

from workstead.page import links
from workstead.page.access import Access, Doorkeeper
from workstead.page.context import Site
from workstead.server.guard import is_for_programs

if TYPE_CHECKING:
    from workstead.server.app import App


def mount(app: App) -> Site:
    """Add the page to the server's application, behind its own authentication."""
    access = Access(lambda: app.front.workspaces.owner_token(), app.front.instance)
    app.has_page = True
    app.state.access = access
    app.include_router(links.router)
    # The framework would store browser data in the working directory; we use none of it.
    os.environ.setdefault("NICEGUI_STORAGE_PATH", os.path.join(os.devnull, "nicegui"))
    from nicegui import app as pages
    from nicegui import ui

    from workstead.page import compare, inbox, machine, overview, workspace

    site = Site(app.front, access)
    pages.on_startup(site.board.start)
    pages.on_shutdown(site.board.stop)
    options: dict[str, Any] = {"response_timeout": 20}
    ui.page("/", title="Workspaces · Workstead", **options)(lambda: overview.show(site))
    ui.page("/desk/{task}/{agent}", title="Workspace · Workstead", **options)(workspace.page(site))
    ui.page("/approvals", title="Approvals · Workstead", **options)(lambda: inbox.show(site))
    ui.page("/compare/{task}", title="Compare · Workstead", **options)(compare.page(site))
    ui.page("/machine", title="Machine · Workstead", **options)(lambda: machine.show(site))
    ui.run_with(
        app,
        title="Workstead",
        dark=None,
        show_welcome_message=False,
        favicon=_ICON,
        reconnect_timeout=30,
        message_history_length=200,  # for each tab; one that missed more messages reloads
        storage_secret=None,
    )
    # The framework builds and keeps a page for each unknown URL, some 67 kB each.
    pages.add_exception_handler(404, lambda *_: PlainTextResponse("There is nothing at this address.", 404))
    app.router.routes[-1] = _Pages("/", app=pages)  # replaces the framework's route, which answers for every path
    app.add_middleware(Doorkeeper, access=access)
    return site


class _Pages(Mount):
    """The page's paths: an unknown path of the API is left to the API."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.NONE, {}) if is_for_programs(scope["path"]) else super().matches(scope)


_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0f5f5c"/>'
    '<path d="M7 22V9h18v13M7 16h18M4 24h24" fill="none" stroke="#fff" stroke-width="2.4" stroke-linecap="round"/>'
    "</svg>"
)
