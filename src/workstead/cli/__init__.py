"""The command line: parse, call one verb, print.

Commands are listed in a literal table, and a command's module is imported only when it is called: startup is most of
the run time of `aw create`. Results go to stdout, messages for people to stderr.
"""

from __future__ import annotations

import os
import sys

from workstead.cli.context import Door, parse
from workstead.errors import InvalidUsage, WorksteadError, from_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

# command -> (module, summary); the groups are in the order of `aw --help`
GROUPS: tuple[tuple[str, dict[str, tuple[str, str]]], ...] = (
    (
        "workspaces",
        {
            "status": ("workstead.cli.status", "show what every workspace does, and what to do next"),
            "create": ("workstead.cli.lifecycle", "make a workspace"),
            "list": ("workstead.cli.lifecycle", "list workspaces"),
            "show": ("workstead.cli.lifecycle", "show one workspace"),
            "path": ("workstead.cli.lifecycle", "print where a workspace stands"),
            "destroy": ("workstead.cli.lifecycle", "move workspaces to the trash"),
            "archive": ("workstead.cli.archive", "write a workspace into one file, or verify one"),
            "template": ("workstead.cli.template", "keep folders to begin with"),
            "open": ("workstead.cli.recent", "select a folder"),
            "recent": ("workstead.cli.recent", "list the folders that were selected"),
            "mail": ("workstead.cli.mail", "write to a workspace, and read what was written to it"),
        },
    ),
    (
        "runs",
        {
            "run": ("workstead.cli.run", "run a command in a workspace, confined"),
            "race": ("workstead.cli.race", "let several workspaces try the same, and rank them"),
            "runs": ("workstead.cli.run", "list runs"),
            "logs": ("workstead.cli.run", "print what a run printed"),
            "attach": ("workstead.cli.run", "join a run's terminal"),
            "stop": ("workstead.cli.run", "end a run"),
            "why": ("workstead.cli.run", "say what held a run and what it was denied"),
            "vm": ("workstead.cli.vm", "look after the machines of the sandbox vm"),
        },
    ),
    (
        "states",
        {
            "diff": ("workstead.cli.snapshot", "show what changed since the base"),
            "apply": ("workstead.cli.snapshot", "give changes back to the origin"),
            "snapshot": ("workstead.cli.snapshot", "keep the present state"),
            "snapshots": ("workstead.cli.snapshot", "list kept states"),
            "restore": ("workstead.cli.snapshot", "bring a kept state back"),
            "fork": ("workstead.cli.snapshot", "make copies of a workspace"),
        },
    ),
    (
        "files in a workspace",
        {
            "ls": ("workstead.cli.files", "list a directory"),
            "tree": ("workstead.cli.files", "show a directory and all below"),
            "cat": ("workstead.cli.files", "print a file"),
            "put": ("workstead.cli.files", "write a file from stdin or another file"),
            "mv": ("workstead.cli.files", "rename a file or directory"),
            "rm": ("workstead.cli.files", "remove files"),
            "mkdir": ("workstead.cli.files", "make a directory"),
            "stat": ("workstead.cli.files", "show what is at a path"),
            "find": ("workstead.cli.files", "search by name"),
            "grep": ("workstead.cli.files", "search by content"),
        },
    ),
    (
        "what agents may do",
        {
            "approvals": ("workstead.cli.approve", "list what agents ask for"),
            "approve": ("workstead.cli.approve", "say yes"),
            "deny": ("workstead.cli.approve", "say no"),
            "policy": ("workstead.cli.policy", "show, try or change what goes without asking"),
        },
    ),
    (
        "taking back",
        {
            "undo": ("workstead.cli.undo", "take back the last operation, or one by its id"),
            "ops": ("workstead.cli.undo", "list what was done"),
            "trash": ("workstead.cli.undo", "list, restore or empty the trash"),
            "sweep": ("workstead.cli.undo", "take what is past its time, and say why the rest stays"),
            "pin": ("workstead.cli.undo", "keep workspaces from every sweep"),
            "unpin": ("workstead.cli.undo", "let sweeps take workspaces again"),
        },
    ),
    (
        "what happened",
        {
            "watch": ("workstead.cli.watch", "show what changes in a workspace, and who did it"),
            "overlaps": ("workstead.cli.watch", "show which workspaces changed the same paths"),
            "events": ("workstead.cli.log", "read or follow the log"),
            "verify": ("workstead.cli.log", "prove the log's hash chain and views"),
            "repair": ("workstead.cli.log", "mend what a crash left behind"),
        },
    ),
    (
        "doors",
        {
            "serve": ("workstead.cli.serve", "answer HTTP requests"),
            "page": ("workstead.cli.serve", "print a link that opens the page"),
            "token": ("workstead.cli.serve", "make, list and revoke tokens for workspaces"),
            "mcp": ("workstead.cli.mcp", "serve a model's client over the Model Context Protocol"),
        },
    ),
    (
        "this machine",
        {
            "backup": ("workstead.cli.backup", "back up the whole home, verify a backup, or restore one"),
            "usage": ("workstead.cli.machine", "show what takes space"),
            "doctor": ("workstead.cli.machine", "show what this machine can do"),
            "config": ("workstead.cli.machine", "show the settings and where they come from"),
        },
    ),
)
COMMANDS: dict[str, tuple[str, str]] = {name: entry for _, group in GROUPS for name, entry in group.items()}


def command() -> NoReturn:
    """Entry point of the `aw` program: run one command and exit at once.

    Shutting down the interpreter would take five milliseconds, most of them for a checkpoint of the event log that the
    next command does not need; the log is durable without it.
    """
    code = _run(Door(), sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; unlike the program, close the home."""
    door = Door()
    try:
        return _run(door, list(sys.argv[1:] if argv is None else argv))
    finally:
        door.let_go()


def _run(door: Door, arguments: list[str]) -> int:
    door.expect(arguments)
    try:
        code = _dispatch(door, arguments)
        sys.stdout.flush()
        return code
    except WorksteadError as error:
        door.fail(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (EPIPE): discard all output, also Python's own at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        ours = from_machine(error)
        if ours is not None:
            door.fail(ours)
            return ours.exit_code
        import traceback

        traceback.print_exc()
        print("aw: this is a bug in Workstead; the lines above say where", file=sys.stderr)
        return 1


def _dispatch(door: Door, arguments: list[str]) -> int:
    leading, arguments = _split_leading(arguments)
    if not arguments or arguments[0] == "help":
        if "--version" in leading:
            from workstead import __version__

            print(f"aw {__version__}")
            return 0
        if len(arguments) > 1:
            return _dispatch(door, [arguments[1], "--help"])
        if not arguments and not leading and _is_in_project():
            return _dispatch(door, ["status", "--here"])
        print(_overview())
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        raise _unknown(name)
    module_name, summary = COMMANDS[name]
    __import__(module_name)
    command = sys.modules[module_name].COMMANDS[name]
    parsed = parse(name, summary, command, leading + rest)
    if parsed is None:
        return 0
    door.take(parsed)
    return int(command.run(door, parsed) or 0)


def _is_in_project() -> bool:
    """Return whether a person at a terminal is in a repository: a bare `aw` shows its workspaces then."""
    if not sys.stdout.isatty():
        return False
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # it was deleted
        return False
    while folder != "/" and not os.path.lexists(f"{folder}/.git"):
        folder = os.path.dirname(folder)
    return folder != "/"


def _split_leading(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split off options before the command, which mean the same as after it."""
    leading: list[str] = []
    while arguments and arguments[0].startswith("-") and arguments[0] not in ("-h", "--help"):
        taken = 2 if arguments[0] in ("--home", "--format") else 1
        leading, arguments = leading + arguments[:taken], arguments[taken:]
    return (leading, []) if arguments and arguments[0] in ("-h", "--help") else (leading, arguments)


def _unknown(name: str) -> InvalidUsage:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1)
    return InvalidUsage(f"there is no command {name!r}", hint=f"aw {near[0]}?" if near else "aw --help lists them")


def _overview() -> str:
    lines = [
        "aw - every coding agent gets its own desk",
        "",
        "usage: aw COMMAND [--home DIR] [--format text|json] [-q] …",
    ]
    for title, group in GROUPS:
        lines += ["", f"{title}:"]
        lines += [f"  {name:<10} {summary}" for name, (_, summary) in group.items()]
    return "\n".join(
        [
            *lines,
            "",
            "aw COMMAND --help shows examples. What was destroyed, restored, applied or swept, aw undo takes back.",
        ]
    )
