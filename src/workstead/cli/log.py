"""aw events, verify, repair."""

from __future__ import annotations

import sys
import time

from workstead.cli.context import Command, size, to_json
from workstead.errors import HomeDamaged, InvalidUsage
from workstead.model.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from typing import Any

    from workstead.cli.context import Door
    from workstead.model.event import Event
    from workstead.model.health import Finding


def _events_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--follow", "-f", action="store_true", help="go on with what happens from now on")
    parser.add_argument("--task-id", metavar="T", help="only events of this task")
    parser.add_argument("--type", action="append", default=[], metavar="T", help="only events of this type; repeatable")
    parser.add_argument("--after", type=int, metavar="N", help="only events after this position")
    parser.add_argument("--limit", type=int, metavar="N", help="at most this many")
    parser.add_argument("--history", metavar="ID", help="what an archive brought: before the workspace came here")


def _events(door: Door, args: argparse.Namespace) -> None:
    after = args.after or 0
    if args.history:
        found = _history(door, args)
    elif args.follow:
        found = door.workspaces.follow(after=after, task=args.task_id, types=args.type)
    else:
        found = door.workspaces.events(after=after, task=args.task_id, types=args.type, limit=args.limit)
    for number, event in enumerate(found, 1):
        print(to_json(event) if door.is_json else _line(event), flush=args.follow)
        if args.limit is not None and number >= args.limit:
            return


def _history(door: Door, args: argparse.Namespace) -> Iterator[Event]:
    if args.follow or args.task_id or args.after is not None:
        raise InvalidUsage("--history does not go with --follow, --after or --task-id", hint="--type and --limit do")
    for event in door.workspaces.history(args.history):
        if not args.type or event.event_type in args.type:
            yield event


def _line(event: Event) -> str:
    data = {key: value for key, value in event.event_data.items() if value not in ("", {}, [], None)}
    about = data.pop("workspace_id", event.stream)
    rest = " ".join(f"{key}={value if isinstance(value, str) else to_json(value)}" for key, value in data.items())
    return printable(
        f"{event.position:>6}  {event.recorded_at[:23]}Z  {event.event_type:<24} {about}  {event.actor_id}  {rest}"
    )


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--deep",
        action="store_true",
        help="read every snapshot, layer, prepared checkout, template, archive and output of a run too",
    )


def _verify(door: Door, args: argparse.Namespace) -> None:
    try:
        found = door.workspaces.verify(
            lambda done, total: door.progress(f"verified {done:,} of {total:,} events"),
            deep=args.deep,
            reading=_reading(door),
        )
    except HomeDamaged as damaged:
        door.progress("")
        if not door.is_json:
            _print_damage(damaged)
            damaged.message = f"{len(_damage_of(damaged))} things are damaged; everything else is whole"
        raise
    door.progress("")
    summary = {"events": found.events, "streams": found.streams, "records": found.records, "ok": True}
    door.print(summary, f"{found.events} events in {found.streams} streams and {found.records} records: all whole")


def _reading(door: Door) -> Callable[[str, int], None]:
    """Return a callback that shows the file being read, after the first second."""
    started = shown = time.monotonic()
    total = 0

    def show(name: str, count: int) -> None:
        nonlocal shown, total
        total += count
        now = time.monotonic()
        if now - started > 1 and now - shown > 0.1:
            shown = now
            door.progress(f"read {size(total)}: {name}")

    return show


def _damage_of(damaged: HomeDamaged) -> list[dict[str, Any]]:
    found: Any = damaged.details["damage"]
    return list(found)


def _print_damage(damaged: HomeDamaged) -> None:
    for each in _damage_of(damaged):
        print(printable(each["what"]))
        print(printable(f"  affects: {', '.join(each['affects']) or 'no workspace'}"))
        print(printable(f"  remedy: {each['remedy']}"))
    damaged.hint = ""


def _repair_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rebuild-views", action="store_true", help="make the views anew from the events")
    parser.add_argument(
        "--rebuild-log",
        action="store_true",
        help="make a lost or damaged log anew from what is whole in it and what lies beside it",
    )
    parser.add_argument(
        "--accept-log",
        action="store_true",
        help="take a log that lost events as it is; a sweep may then delete what it does not know",
    )
    parser.add_argument(
        "--adopt", action="store_true", help="use a home that was moved, copied or restored at its present place"
    )


def _repair(door: Door, args: argparse.Namespace) -> None:
    findings: list[Finding] = []
    if args.rebuild_log:
        import workstead

        findings += workstead.rebuild_log(args.home, settings=door.settings)  # the damaged log cannot be opened
    findings += door.workspaces.repair(rebuild_views=args.rebuild_views, accept_log=args.accept_log, adopt=args.adopt)
    door.print(findings, "\n".join(f"{printable(f.what)}: {printable(f.done)}" for f in findings) or None)
    if not findings:
        door.hint("nothing to mend")
    sys.stdout.flush()


COMMANDS = {
    "events": Command(
        arguments=_events_arguments,
        run=_events,
        examples="  aw events --task-id fix-login\n  aw events --follow --type workspace_created --format json\n"
        "  aw events --history fix-login/a1\n",
    ),
    "verify": Command(arguments=_verify_arguments, run=_verify, examples="  aw verify\n  aw verify --deep\n"),
    "repair": Command(
        arguments=_repair_arguments,
        run=_repair,
        examples="  aw repair\n  aw repair --rebuild-views\n  aw repair --rebuild-log\n  aw repair --accept-log\n"
        "  aw repair --adopt --home /srv/restored\n",
    ),
}
