"""aw race."""

from __future__ import annotations

import os
import sys

from workstead.cli.context import Command, add_clone_options, style, table, take_clone_options
from workstead.errors import InvalidUsage, WorksteadError
from workstead.model.text import printable, quoted, word

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from workstead.cli.context import Door
    from workstead.model.race import Lane, Race

_ENDED = ("completed", "failed", "cancelled", "timed_out")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="ID | show [TASK]", help="the workspace that all begin from")
    parser.add_argument("--source", metavar="SPEC", help="what all begin from: a path, a URL, template:NAME, …")
    parser.add_argument("-n", "--count", type=int, default=2, metavar="N", help="how many (default: 2)")
    parser.add_argument("--check", metavar="COMMAND", help="a shell command that says which are good, as 'pytest -q'")
    parser.add_argument("--task", metavar="T", help="the workspaces are T/1 to T/N (default: a fresh name)")
    parser.add_argument("--at-once", type=int, metavar="K", help="how many at a time (default: one for each processor)")
    parser.add_argument("--apply-best", action="store_true", help="give the changes of the best back to the origin")
    parser.add_argument("--keep", choices=("all", "best"), default="all", help="best: the others go to the trash")
    add_clone_options(parser)
    parser.add_argument("--sandbox", default="auto", metavar="auto|bubblewrap|vm|none", help="what confines them")
    parser.add_argument("--network", metavar="none|host|HOST,…", help="what they may reach (default: nothing)")
    parser.add_argument("--timeout", type=float, metavar="S", help="end each after this many seconds")
    parser.add_argument(
        "--check-timeout", type=float, metavar="S", help="the same for the check (default: as the command)"
    )
    parser.add_argument("--agent", metavar="claude|codex|aider|CMD", help="start this agent with the prompt")
    parser.add_argument("--prompt", metavar="TEXT", help="what the agents are to do")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", help="one more variable; repeatable")
    parser.add_argument("--ro", action="append", default=[], metavar="PATH[:INSIDE]", help="show them this, read-only")
    parser.add_argument("--rw", action="append", default=[], metavar="PATH[:INSIDE]", help="let them change this")
    parser.add_argument("--tools", action="append", default=[], metavar="DIR", help="a directory of tools, as ~/.pyenv")
    parser.add_argument("--memory-mb", type=int, metavar="N", help="memory of all processes of one")
    parser.add_argument("--processes", type=int, metavar="N", help="how many processes one may have")
    parser.add_argument("--cpus", type=float, metavar="N", help="how many processors one may use")
    parser.description = (
        "let several workspaces of one origin try the same, and rank them: the check passed, then the command went "
        "well, then anything changed, then fewer changed lines, then less time. {n} in a command or prompt, and "
        "AW_RACE_NUMBER, say which one it is. The exit code is 0 if there is a winner, else that of the first one's "
        "check or command."
    )


def _race(door: Door, args: argparse.Namespace) -> int:
    if args.words[:1] == ["show"] and not args.command and not args.source:
        return _show(door, args.words[1:])
    if not args.command and not args.agent:
        raise InvalidUsage(
            "there is no command to run",
            hint="it stands after two dashes: aw race --source . -n 4 --check 'make test' -- COMMAND",
        )
    source = _source(args)
    take_clone_options(door, args)
    live = _Live(door)
    from workstead.cli.run import ending_on_signals

    try:
        with ending_on_signals():
            race = door.workspaces.race(
                source,
                args.command,
                count=args.count,
                check=args.check,
                task=args.task,
                at_once=args.at_once,
                check_timeout_seconds=args.check_timeout,
                keep=args.keep,
                apply_best=args.apply_best,
                progress=door.progress,
                watch=live.show,
                **_options(door, args),
            )
    except KeyboardInterrupt:
        live.clear()
        if live.race is not None:  # else nothing was started
            _say_stopped(door, door.workspaces.get_race(live.race.race_id))
        return 130
    except WorksteadError:
        live.clear()
        if live.race is not None and live.race.state == "ended" and not door.is_json:
            _report(door, live.race)  # only the apply failed, which is reported after this
        raise
    live.clear()
    _report(door, race)
    return _exit_code(race)


def _source(args: argparse.Namespace) -> str:
    if bool(args.words) == bool(args.source) or len(args.words) > 1:
        raise InvalidUsage("a race wants a workspace or --source", hint="one of the two: aw race --source . -- COMMAND")
    return str(args.source or f"fork:{args.words[0]}")


def _options(door: Door, args: argparse.Namespace) -> dict[str, Any]:
    from workstead.cli.run import options_of

    return {**options_of(door, args), "agent": args.agent}


def _exit_code(race: Race) -> int:
    if race.best is not None:
        return 0
    first = race.lanes[0]
    return first.check_code or first.exit_code or 125


def _say_stopped(door: Door, race: Race) -> None:
    _report(door, race)
    if not door.is_json:
        print(f"stopped; {len(race.lanes)} workspaces are kept with what they changed", file=sys.stderr)


def _show(door: Door, words: Sequence[str]) -> int:
    if not words:
        races = door.workspaces.races()
        rows = [
            (race.task_id, race.state, len(race.lanes), _moment(race.started_at), quoted(race.command)[:60])
            for race in races
        ]
        door.print(list(races), table(("TASK", "STATE", "N", "STARTED (UTC)", "COMMAND"), rows) if rows else None)
        return 0
    _report(door, door.workspaces.get_race(words[0]))
    return 0


def _moment(text: str) -> str:
    return text[:19].replace("T", " ")


# -- printing ----------------------------------------------------------------------------------------------------------


def _report(door: Door, race: Race) -> None:
    if door.is_json:
        door.print({**race.as_dict(), "best": race.best.workspace_id if race.best else None})
        return
    print(table(_HEADERS, [_row(lane) for lane in race.lanes]))
    if race.shared:
        print(style(f"\nchanged by several: {_list([each.path for each in race.shared])}", "2"))
    for lane in race.lanes:
        if lane.reason not in ("", f"exit code {lane.exit_code}") and lane.state != "cancelled":
            print(style(f"{printable(lane.workspace_id)}: {printable(lane.reason)}", "2"))
    if not door.is_quiet:
        _say_what_next(race)


def _say_what_next(race: Race) -> None:
    first = race.best or race.lanes[0]
    name, task = word(first.workspace_id), word(race.task_id)
    lines = ["" if race.best or race.state != "ended" else "none is good enough to be called the best"]
    if race.applied:
        lines.append(f"  applied    {name}; aw undo {race.applied} takes it back")
    elif first.files:
        lines += [f"  look       aw diff {name}", f"  keep       aw apply {name}"]
    if first.check_id:
        lines.append(f"  the check  aw logs {first.check_id}")
    if race.destroyed:
        lines.append(f"  thrown away {len(race.destroyed)}; aw trash lists them")
    lines.append(f"  throw away aw destroy --task-id {task} --force")
    print("\n".join(lines), file=sys.stderr)


def _list(paths: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(printable(path) for path in paths[:most])
    return f"{shown} and {len(paths) - most} more" if len(paths) > most else shown


_HEADERS = ("RANK", "WORKSPACE", "RESULT", "SECONDS", "CHECK", "CHANGED", "IN COMMON")


def _row(lane: Lane) -> tuple[object, ...]:
    files = "1 file" if lane.files == 1 else f"{lane.files} files"
    changed = f"{files} +{lane.added} -{lane.removed}" if lane.files else "nothing"
    return (
        lane.rank or "",
        lane.workspace_id,
        _result(lane.state, lane.exit_code),
        f"{lane.seconds:.1f}" if lane.state in _ENDED else "",
        _check(lane),
        changed if lane.state in _ENDED else "",
        f"{lane.shared_paths} of {len(lane.paths)}" if lane.shared_paths else "",
    )


def _result(state: str, code: int | None) -> str:
    words = {"completed": "ok", "failed": f"exit {code}", "timed_out": "timed out", "cancelled": "stopped"}
    return words.get(state, state)


def _check(lane: Lane) -> str:
    if not lane.check_state:
        return ""
    if lane.passed:
        return f"passed {lane.check_seconds:.1f} s"
    return _result(lane.check_state, lane.check_code)


class _Live:
    """A live table, on a terminal only."""

    def __init__(self, door: Door) -> None:
        self.wanted = sys.stderr.isatty() and not door.is_quiet
        self.door = door
        self.lines = 0
        self.race: Race | None = None

    def show(self, race: Race) -> None:
        self.race = race
        if not self.wanted:
            return
        if not self.lines:
            self.door.progress("")
        width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        text = table(_HEADERS[1:], [_row(lane)[1:] for lane in race.lanes]).split("\n")
        self.clear()
        for line in text:
            plain = line.replace("\033[2m", "").replace("\033[0m", "")
            print(line if len(plain) < width else plain[: width - 1], file=sys.stderr)  # one line each, to count them
        sys.stderr.flush()
        self.lines = len(text)

    def clear(self) -> None:
        """Erase the table."""
        if self.lines:
            print(f"\033[{self.lines}A\033[J", end="", file=sys.stderr, flush=True)
            self.lines = 0


COMMANDS = {
    "race": Command(
        arguments=_arguments,
        run=_race,
        takes_command=True,
        examples="""\
  aw race --source . -n 4 --check 'pytest -q' --agent claude --prompt 'fix the login bug'
  aw race --source . -n 3 --check 'make test' -- sh -c 'patch -p1 < /fixes/{n}.diff' --ro /fixes
  aw race fix-login/a1 -n 4 --at-once 2 --timeout 600 --apply-best --keep best -- ./attempt --seed {n}
  aw race show
  aw race show brave-otter
""",
    ),
}
