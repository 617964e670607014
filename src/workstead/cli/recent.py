"""aw open, recent."""

from __future__ import annotations

import time

from workstead.cli.context import Command, table
from workstead.model.text import word

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from workstead.cli.context import Door


def _open_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER")


def _open(door: Door, args: argparse.Namespace) -> None:
    selected = door.workspaces.open_folder(args.folder)
    door.print(selected, selected.path)
    door.hint(f"aw run --source {word(selected.path)} -- COMMAND works on a copy of it")


def _no_arguments(_: argparse.ArgumentParser) -> None:
    pass


def _recent(door: Door, _: argparse.Namespace) -> None:
    found = door.workspaces.recent()
    rows = [(time.strftime("%Y-%m-%d %H:%M", time.gmtime(each.opened_at)), each.path) for each in found]
    door.print(found, table(("OPENED (UTC)", "FOLDER"), rows) if rows else None)


COMMANDS = {
    "open": Command(arguments=_open_arguments, run=_open, examples="  aw open ~/projects/shop\n"),
    "recent": Command(arguments=_no_arguments, run=_recent, examples="  aw recent\n"),
}
