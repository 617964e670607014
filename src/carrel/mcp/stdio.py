"""Serve one client over standard input and output: the client is the owner's, the calls are an agent's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import anyio
from mcp.server.stdio import stdio_server

from carrel.mcp.server import Context, make_server
from carrel.mcp.tool import Desk

if TYPE_CHECKING:
    from carrel.workspaces import Workspaces


def serve(owner: Workspaces, *, workspace_id: str | None, public_mount: str, folders: tuple[str, ...]) -> None:
    """Answer until the client closes our input."""
    desk = Desk(
        owner.acting_as("mcp", agent_of=workspace_id or ""),
        owner,
        workspace_id=workspace_id,
        public_mount=public_mount,
        folders=tuple(os.path.realpath(each) for each in folders),
        person_answers=True,
    )
    anyio.run(_serve, desk)


async def _serve(desk: Desk) -> None:
    asked_for_roots = False

    async def desk_of(context: Context) -> Desk:
        nonlocal asked_for_roots
        if desk.fixed is None and not asked_for_roots:
            asked_for_roots = True
            desk.folders += await _roots(context)
        return desk

    server = make_server(desk_of)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


async def _roots(context: Context) -> tuple[str, ...]:
    """The folders that the client works in, as far as it tells: workspaces may be made from them."""
    capabilities = context.session.client_capabilities
    if capabilities is None or capabilities.roots is None or not context.session.can_send_request:
        return ()
    answer: Any = await context.session.list_roots()
    parts = [urlsplit(str(root.uri)) for root in answer.roots]
    return tuple(os.path.realpath(unquote(each.path)) for each in parts if each.scheme == "file" and each.path != "/")
