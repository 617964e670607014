"""aw status: the home screen."""

from __future__ import annotations

import os
import sys
import time

from workstead.cli.context import Command, fitted, style
from workstead.model.moment import seconds
from workstead.model.overview import ORDER, latest_in
from workstead.model.text import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from workstead.cli.context import Door
    from workstead.model.overview import Summary

_MOST = 20  # rows on a terminal; a pipe gets all
_WORDS = {"waiting": "waiting for an answer"}
_COLOURS = {"waiting": "33", "running": "36", "failed": "31", "stopped": "33", "changed": "32"}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--here", action="store_true", help="only the workspaces of this folder")
    parser.add_argument("--task-id", metavar="T", help="only the workspaces of this task")
    parser.add_argument("--all", action="store_true", help=f"also on a terminal more than {_MOST}")


def _status(door: Door, args: argparse.Namespace) -> None:
    found = list(door.workspaces.overview(args.task_id))
    shown = here(found) if args.here else found
    if door.is_json:
        door.print(shown)
        return
    if not shown:
        print("no workspaces of this folder yet" if found else "no workspaces yet")
        print("  begin   aw run --source . -- COMMAND")
        print("  help    aw --help")
        if found:
            print(f"  others  aw status shows all {len(found)}")
        return
    most = len(shown) if args.all or not sys.stdout.isatty() else _MOST
    print(_counted(shown))
    print()
    print(_table(shown[:most]))
    if len(shown) > most:
        print(style(f"… and {len(shown) - most} more: aw status --all", "2"))
    if len(shown) < len(found):
        print(style(f"{len(found) - len(shown)} of other folders: aw status", "2"))


def here(found: Sequence[Summary]) -> list[Summary]:
    """Return the workspaces of the working directory, or of a folder above it."""
    directory = os.getcwd()
    return [each for each in found if latest_in([each], directory)]


def _counted(shown: Sequence[Summary]) -> str:
    counts: dict[str, int] = {}
    for each in shown:
        counts[each.status] = counts.get(each.status, 0) + 1
    known = [status for status in ORDER if status in counts]
    parts = [f"{counts[status]} {_WORDS.get(status, status)}" for status in [*known, *(counts.keys() - {*ORDER})]]
    return ", ".join(parts)


def _table(shown: Sequence[Summary]) -> str:
    now = time.time()
    rows = [(each.workspace_id, each.status, age(now - seconds(each.since)), result(each), each.next) for each in shown]
    headers = ("WORKSPACE", "STATUS", "FOR", "LAST RUN", "NEXT")
    return fitted(headers, rows, flexible=(3, 0), colours={1: _COLOURS})


def result(summary: Summary) -> str:
    """Return the end of the last run and its command."""
    if summary.run_id is None:
        return ""
    ended = {"completed": "ok", "timed_out": "timeout"}.get(summary.run_state or "", summary.run_state or "")
    if summary.exit_code:
        ended = f"exit {summary.exit_code}"
    return f"{ended}: {quoted(summary.command)}"


def age(passed: float) -> str:
    """Format a duration for people, in its largest unit."""
    for limit, unit, length in ((60, "s", 1), (3600, "min", 60), (86400, "h", 3600)):
        if passed < limit:
            return f"{max(0, int(passed / length))} {unit}"
    return f"{int(passed / 86400)} d"


COMMANDS = {
    "status": Command(
        arguments=_arguments,
        run=_status,
        examples="  aw status\n  aw status --here\n  aw status --format json\n",
    ),
}
