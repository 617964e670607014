"""The application: all routes behind the guard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI

from workstead import __version__
from workstead.server import (
    routes_files,
    routes_log,
    routes_machine,
    routes_policy,
    routes_runs,
    routes_states,
    routes_together,
    routes_workspaces,
)
from workstead.server.context import Front
from workstead.server.errors import error_schemas, handle_errors
from workstead.server.guard import THREADS, Guard
from workstead.server.metrics import Metrics
from workstead.server.streams import Hub, Tails
from workstead.server.webhooks import Webhooks

if TYPE_CHECKING:
    from workstead.local import Local
    from workstead.settings import Settings

ROUTERS = (
    routes_workspaces.router,
    routes_files.router,
    routes_runs.router,
    routes_states.router,
    routes_policy.router,
    routes_together.router,
    routes_log.router,
    routes_machine.router,
)
_TAGS = [
    {"name": "workspaces", "description": "Make, list, look, destroy."},
    {"name": "files", "description": "Files of a workspace, as its agent sees them."},
    {"name": "runs", "description": "Commands in a workspace."},
    {"name": "states", "description": "Snapshots, diff, apply, fork."},
    {"name": "approvals", "description": "What agents may do, and what they ask for."},
    {"name": "together", "description": "Several workspaces beside each other, and what changes in one."},
    {"name": "events", "description": "What happened."},
    {"name": "machine", "description": "The home and the machine it is on."},
]


class App(FastAPI):
    """FastAPI behind our guard: middleware that is added later never comes before it."""

    front: Front
    has_page = False  # whether the page was added, which uses web sockets

    def build_middleware_stack(self) -> Any:
        return Guard(super().build_middleware_stack(), self.front)

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            document = super().openapi()
            document["components"]["schemas"].update(error_schemas())
            show_examples(document)
            schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
            schemes["token"] = {"type": "http", "scheme": "bearer"}
            document["security"] = [{"token": []}]
            document["paths"]["/healthz"]["get"]["security"] = []
        return self.openapi_schema or {}


def show_examples(document: dict[str, Any]) -> None:
    """Add an example to every JSON body in the OpenAPI document, built from the examples of its keys."""
    schemas = document["components"]["schemas"]
    for methods in document["paths"].values():
        for operation in methods.values():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            shape = body.get("schema", {})
            for choice in shape.get("anyOf", [shape]):
                if "$ref" in choice:
                    body["example"] = _example(schemas, schemas[choice["$ref"].rpartition("/")[2]])


def _example(schemas: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    needed = schema.get("required", [])
    shown = {}
    for name, each in schema.get("properties", {}).items():
        if each.get("examples"):
            shown[name] = each["examples"][0]
        elif name in needed and "$ref" in each.get("items", {}):
            shown[name] = [_example(schemas, schemas[each["items"]["$ref"].rpartition("/")[2]])]
        elif name in needed:
            shown[name] = each.get("enum", ["text"])[0]
    return shown


def make_app(workspaces: Local, settings: Settings, hosts: frozenset[str]) -> App:
    """Return the application for a home; `hosts` are the accepted values of the Host header.

    Everything added to it (the page, MCP) is behind the same guard: see `guard.API` for the paths that need a token.
    """
    front = Front(workspaces, settings, hosts)

    @asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = THREADS
        front.start()
        try:
            yield
        finally:
            front.stop()
            await asyncio.to_thread(front.join)

    app = App(
        title="Workstead",
        version=__version__,
        summary="Isolated workspaces for coding agents.",
        openapi_tags=_TAGS,
        docs_url=None,  # they load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
        lifespan=living,
    )
    app.front = app.state.front = front
    front.hub, front.tails = Hub(front), Tails(front)
    front.webhooks, front.metrics = Webhooks(front), Metrics(front, front.hub)
    handle_errors(app)
    for router in ROUTERS:  # added without include_router, which would rebuild every route for each application
        app.router.routes.extend(router.routes)
    return app


def hosts_of(host: str, port: int, names: list[str]) -> frozenset[str]:
    """Return the accepted values of the Host header."""
    own = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host}
    every = {f"{name}:{port}" for name in own} | (own if port == 80 else set())
    return frozenset(name.lower() for name in (*every, *names))
