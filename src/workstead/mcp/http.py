"""MCP over HTTP, at /mcp of the server: the caller is authenticated by its token at every request.

A token for one workspace belongs to an agent: it has access to that workspace, and no question is sent to a person
through it, because the client might be the agent itself. The owner's token has access to all workspaces, and its client
belongs to the owner.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.routing import Route

from workstead.mcp.server import Context, make_server
from workstead.mcp.tool import Access
from workstead.server.context import bearer_of, front_of, verbs_of

if TYPE_CHECKING:
    from workstead.server.app import App

PATH = "/mcp"
_MOST_DESKS = 1000


def mount(app: App) -> None:
    """Add /mcp to the server's application."""
    accesses: OrderedDict[tuple[str, str], Access] = (
        OrderedDict()
    )  # one for each session and the workspace it named last

    async def access_of(context: Context) -> Access:
        request: Any = context.request
        bearer = bearer_of(request)
        session = request.headers.get("mcp-session-id") or ""
        access = _access(request)
        known = accesses.get((session, bearer.actor_id))
        if known is not None:
            access.last = known.last
        accesses[session, bearer.actor_id] = access
        accesses.move_to_end((session, bearer.actor_id))
        while len(accesses) > _MOST_DESKS:
            accesses.popitem(last=False)
        return access

    manager = StreamableHTTPSessionManager(make_server(access_of))
    app.router.routes.append(Route(PATH, StreamableHTTPASGIApp(manager), methods=["GET", "POST", "DELETE"]))
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def living(running: Any) -> AsyncIterator[Any]:
        async with inner(running) as state, manager.run():
            yield state

    app.router.lifespan_context = living


def _access(request: Any) -> Access:
    bearer, front = bearer_of(request), front_of(request)
    verbs = verbs_of(request)
    is_owner = bearer.workspace_id is None
    return Access(
        front.workspaces.acting_as(bearer.actor_id, agent_of="") if is_owner else verbs,
        front.workspaces,
        workspace_id=bearer.workspace_id,
        public_mount=front.settings.sandbox.public_mount,
        person_answers=is_owner,
    )
