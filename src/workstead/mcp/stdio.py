"""MCP over standard input and output: the client is the owner's, the calls are an agent's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import anyio
from mcp.server.stdio import stdio_server

from workstead.mcp.server import Context, make_server
from workstead.mcp.tool import Access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workstead.local import Local


def is_too_wide(folder: str, home: str) -> bool:
    """Return whether a folder holds more than a project: the user's home directory, or the home with every workspace in
    it. Such a folder was not chosen deliberately: desktop programs start us there."""
    real = os.path.realpath(folder).rstrip("/") + "/"
    return any(f"{os.path.realpath(each)}/".startswith(real) for each in (os.path.expanduser("~"), home))


def serve(
    owner: Local, *, workspace_id: str | None, public_mount: str, folders: Sequence[str], working_directory: str
) -> None:
    """Serve until the client closes our input. Workspaces can be created from `folders` (default: the working
    directory) and from the client's roots."""
    home = owner.places()[0]
    chosen = folders or [each for each in (working_directory,) if not is_too_wide(each, home)]
    access = Access(
        owner.acting_as("mcp", agent_of=workspace_id or ""),
        owner,
        workspace_id=workspace_id,
        public_mount=public_mount,
        folders=tuple(os.path.realpath(each) for each in chosen),
        person_answers=True,
    )
    anyio.run(_serve, access, home)


async def _serve(access: Access, home: str) -> None:
    asked_for_roots = False

    async def access_of(context: Context) -> Access:
        nonlocal asked_for_roots
        if access.fixed is None and not asked_for_roots:
            asked_for_roots = True
            access.folders += tuple(each for each in await _roots(context) if not is_too_wide(each, home))
        return access

    server = make_server(access_of)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


async def _roots(context: Context) -> tuple[str, ...]:
    """Return the folders that the client reports as roots: workspaces may be created from them."""
    capabilities = context.session.client_capabilities
    if capabilities is None or capabilities.roots is None or not context.session.can_send_request:
        return ()
    answer: Any = await context.session.list_roots()
    parts = [urlsplit(str(root.uri)) for root in answer.roots]
    return tuple(os.path.realpath(unquote(each.path)) for each in parts if each.scheme == "file")
