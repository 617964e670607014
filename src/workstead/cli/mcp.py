"""aw mcp."""

from __future__ import annotations

import os
import sys

from workstead.cli.context import Command
from workstead.errors import ToolMissing
from workstead.installation import install_command
from workstead.model.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from workstead.cli.context import Door


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="?", metavar="ID", help="the workspace; without it the client manages many")
    parser.add_argument("--id", dest="id_option", metavar="ID", help="the same")
    parser.add_argument(
        "--folder",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder that the client may make workspaces from (else the current one, unless that is / or holds your "
        "home directory, and the client's roots)",
    )


def _mcp(door: Door, args: argparse.Namespace) -> None:
    try:
        from workstead.mcp.stdio import is_too_wide, serve
    except ModuleNotFoundError as error:
        raise ToolMissing(
            f"the MCP server needs {error.name}, which is not installed", hint=install_command("mcp")
        ) from None
    workspace_id = args.id_option or args.ids
    if workspace_id is not None:
        workspace_id = door.workspaces.get(workspace_id).id
    if not args.folder and workspace_id is None and is_too_wide(os.getcwd(), door.workspaces.places()[0]):
        print(
            f"aw: {printable(os.getcwd())} is no project: no workspace is made from it; see --folder",
            file=sys.stderr,
        )
    serve(
        door.workspaces,
        workspace_id=workspace_id,
        public_mount=door.settings.sandbox.public_mount,
        folders=args.folder,
        working_directory=os.getcwd(),
    )


COMMANDS = {
    "mcp": Command(
        arguments=_arguments,
        run=_mcp,
        examples="  aw mcp --id fix-login/a1           the files, commands and states of one workspace\n"
        "  aw mcp --folder ~/projects/shop    make, fork and destroy workspaces too\n"
        "  claude mcp add workspace -- aw mcp --id fix-login/a1\n",
    ),
}
