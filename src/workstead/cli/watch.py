"""aw watch, overlaps."""

from __future__ import annotations

import sys
import time

from workstead.cli.context import Command, add_ids, ids_of, style, table, to_json
from workstead.errors import InvalidUsage
from workstead.model.text import printable, word

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from workstead.cli.context import Door
    from workstead.model.change import FileChange


def _watch_arguments(parser: argparse.ArgumentParser) -> None:
    import argparse

    add_ids(parser, optional=True)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--start", action="store_true", help="write changes to the log from now on, in the background")
    what.add_argument("--stop", action="store_true", help="end that again")
    what.add_argument("--list", action="store_true", help="list what is watched in the background")
    what.add_argument("--record", action="store_true", help=argparse.SUPPRESS)  # the background process of --start
    parser.add_argument("--timeout", type=float, metavar="S", help="end when nothing changed for so many seconds")


def _watch(door: Door, args: argparse.Namespace) -> None:
    if args.list:
        _list(door)
        return
    workspace = _one(args)
    if args.record:
        door.workspaces.record_changes(workspace)
    elif args.start:
        found = door.workspaces.start_watching(workspace)
        door.print(found)
        door.hint(
            f"aw events --follow --type file_changed shows what it sees; aw watch --stop {word(workspace)} ends it"
        )
    elif args.stop:
        stopped = door.workspaces.stop_watching(workspace)
        door.print(stopped)
        if stopped is None:
            door.hint(f"nothing watched {workspace} in the background")
    else:
        _show(door, workspace, args.timeout)


def _one(args: argparse.Namespace) -> str:
    ids = ids_of(args)
    if not ids:
        raise InvalidUsage("no workspace was named", hint="give its id: TASK/AGENT")
    return ids[0]


def _show(door: Door, workspace: str, timeout_seconds: float | None) -> None:
    def note(text: str) -> None:
        print(f"aw: {printable(text)}", file=sys.stderr, flush=True)

    def tell(change: FileChange) -> None:
        print(to_json(change) if door.is_json else _line(change), flush=True)

    with door.workspaces.watch(workspace, timeout_seconds=timeout_seconds, note=note) as changes:
        try:
            if changes.is_reading:
                door.hint(f"going through {printable(workspace)} first; until that is done a deletion may not be seen")
            while changes.is_reading and not changes.is_over:
                for change in changes.batch(0):
                    tell(change)
            door.hint(f"watching {printable(workspace)}; Ctrl-C ends it")
            for change in changes:
                tell(change)
        except KeyboardInterrupt:
            return
    if timeout_seconds is None:
        door.hint(f"{printable(workspace)} is gone")


_COLOURS = {"added": "32", "changed": "33", "deleted": "31", "renamed": "36"}


def _line(change: FileChange) -> str:
    now = time.time()
    when = f"{time.strftime('%H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d}"
    path = printable(change.path) + ("/" if change.entry == "directory" else "")
    if change.from_path:
        path = f"{printable(change.from_path)} -> {path}"
    who = f"{change.by} {printable(change.who)}".strip() + ("" if change.certain else "?")
    return f"{style(when, '2')}  {style(change.kind.ljust(7), _COLOURS[change.kind])}  {path}  {style(who, '2')}"


def _list(door: Door) -> None:
    found = door.workspaces.watching()
    rows = [(each.workspace_id, each.state, each.mechanism, each.since[:19].replace("T", " ")) for each in found]
    door.print(found, table(("WORKSPACE", "STATE", "BY", "SINCE (UTC)"), rows) if rows else None)


def _overlaps_arguments(parser: argparse.ArgumentParser) -> None:
    add_ids(parser, optional=True)


def _overlaps(door: Door, args: argparse.Namespace) -> None:
    ids = ids_of(args)
    found = door.workspaces.overlaps(ids[0] if ids else None)
    rows = [(each.workspace_id, each.other_id, path) for each in found for path in each.paths]
    door.print(found, table(("WORKSPACE", "OTHER", "PATH"), rows) if rows else None)
    if not found:
        door.hint("no two workspaces of one origin changed the same path")


COMMANDS = {
    "watch": Command(
        arguments=_watch_arguments,
        run=_watch,
        examples="""\
  aw watch fix-login/a1
  aw watch fix-login/a1 --format json
  aw watch --start fix-login/a1
  aw events --follow --type file_changed
  aw watch --list
  aw watch --stop fix-login/a1
""",
    ),
    "overlaps": Command(
        arguments=_overlaps_arguments, run=_overlaps, examples="  aw overlaps\n  aw overlaps fix-login/a1\n"
    ),
}
