"""Shared context of all commands: common options, the opened home, and output."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from itertools import pairwise

from workstead.errors import InvalidUsage, WorksteadError
from workstead.model.text import printable
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, NoReturn

    from workstead.local import Local
    from workstead.settings import Settings


# Our texts are English; loading translations for argparse's own would cost every command a millisecond.
argparse._ = str  # type: ignore[attr-defined]


class Command(Value):
    """One command: its arguments, the function that runs it, and examples for its help."""

    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Door, argparse.Namespace], int | None]
    examples: str = ""
    takes_command: bool = False  # words after `--` are a command line, in `args.command`


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidUsage(f"{self.prog.removeprefix('aw ')}: {message}", hint=f"{self.prog} --help shows how")


def _formatter(prog: str) -> argparse.HelpFormatter:
    # An explicit width avoids the query of the terminal's, which would import shutil for every command.
    return argparse.RawDescriptionHelpFormatter(prog, width=min(100, int(os.environ.get("COLUMNS") or 100)))


def parse(name: str, summary: str, command: Command, arguments: list[str]) -> argparse.Namespace | None:
    """Parse a command's arguments; return None if only its help was printed."""
    parser = _Parser(
        prog=f"aw {name}",
        description=summary,
        epilog=command.examples and f"examples:\n{command.examples.rstrip()}",
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    command.arguments(parser)
    common = parser.add_argument_group("common")
    common.add_argument("--home", metavar="DIR", help="where everything is kept (else AW_HOME)")
    common.add_argument("--format", choices=("text", "json"), default="text", help="json: one document on stdout")
    common.add_argument("-q", "--quiet", action="store_true", help="no progress, no hints")
    common.add_argument("--actor", metavar="NAME", help=argparse.SUPPRESS)
    common.add_argument("--correlation-id", metavar="ID", help=argparse.SUPPRESS)
    common.add_argument("--causation-id", metavar="ID", help=argparse.SUPPRESS)
    own: list[str] = []
    if command.takes_command and "--" in arguments:
        split = arguments.index("--")
        arguments, own = arguments[:split], arguments[split + 1 :]
    try:
        parsed, rest = parser.parse_known_args(arguments)
        if rest and ("words" not in parsed or any(word.startswith("-") for word in rest)):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        if rest:  # positional arguments may stand on both sides of an option
            parsed.words += rest
        if command.takes_command:
            parsed.command = own
        return parsed
    except SystemExit as stop:  # only --help ends here
        if stop.code:
            raise
        return None


class Door:
    """The context of one invocation of `aw`."""

    def __init__(self) -> None:
        self._args: argparse.Namespace | None = None
        self._expects_json = False
        self._workspaces: Local | None = None
        self._settings: Settings | None = None
        self.flags: dict[str, object] = {}
        self.starts_run = False  # set before the home is opened

    def expect(self, arguments: Sequence[str]) -> None:
        """Detect `--json` before parsing, so that parse errors are printed as JSON too."""
        self._expects_json = "--format=json" in arguments or ("--format", "json") in pairwise(arguments)

    def let_go(self) -> None:
        """Close the home, if it was opened, without cleanup."""
        if self._workspaces is not None:
            self._workspaces.let_go()

    def take(self, args: argparse.Namespace) -> None:
        """Store the common options."""
        self._args = args

    @property
    def is_json(self) -> bool:
        return self._expects_json if self._args is None else self._args.format == "json"

    @property
    def is_quiet(self) -> bool:
        return self._args is not None and bool(self._args.quiet)

    @property
    def settings(self) -> Settings:
        """Return the effective settings."""
        if self._settings is None:
            from workstead.settings import load_settings

            self._settings = load_settings(os.environ, os.getcwd(), self.flags)
        return self._settings

    @property
    def workspaces(self) -> Local:
        """Return the verbs on the chosen home."""
        if self._workspaces is None:
            import workstead

            environ, args = os.environ, self._args
            self._workspaces = workstead.open(
                args.home if args else None,
                settings=self.settings,
                actor_id=(args and args.actor) or environ.get("AW_ACTOR") or "owner",
                correlation_id=(args and args.correlation_id) or environ.get("AW_CORRELATION_ID") or "",
                causation_id=(args and args.causation_id) or environ.get("AW_CAUSATION_ID") or "",
                starts_run=self.starts_run,
            )
        return self._workspaces

    # -- printing ------------------------------------------------------------------------------------------------------

    def print(self, value: object, text: str | None = None) -> None:
        """Print a result: the value as JSON, or the text for people; without a text, print nothing."""
        if self.is_json:
            print(to_json(value))
        elif text is not None:
            print(text)

    def hint(self, text: str) -> None:
        """Print a hint, only to a person at a terminal."""
        if not self.is_json and not self.is_quiet and sys.stderr.isatty():
            print(printable(text), file=sys.stderr)

    def warn(self, text: str) -> None:
        """Print a warning to stderr about something that was not done, also for a program; with JSON, the document
        contains it."""
        if not self.is_json:
            print(f"aw: {text}", file=sys.stderr)

    def progress(self, text: str) -> None:
        """Show the step in progress, on one line of a terminal that the next one replaces."""
        if not self.is_quiet and sys.stderr.isatty():
            print(f"\r\033[K{printable(text)}", end="" if text else "\r", file=sys.stderr, flush=True)

    def bar(self, what: str) -> Callable[[int, int], None]:
        """Return a progress callback for a long step; it prints nothing in the first second."""
        started = shown = time.monotonic()

        def show(done: int, total: int) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - started > 1 and now - shown > 0.1:
                shown = now
                part = min(done / max(total, 1), 1.0)
                full = int(part * 30)
                self.progress(f"{what} [{'#' * full}{'.' * (30 - full)}] {part:4.0%} of {size(total)}")

        return show

    def fail(self, error: WorksteadError) -> None:
        """Print an error in the common format of all doors."""
        sys.stdout.flush()
        if self.is_json:
            print(to_json(error.as_dict()), flush=True)
        print(f"aw: {printable(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"hint: {printable(error.hint)}", file=sys.stderr)


def to_json(value: object) -> str:
    """Return one JSON document on one line; text that is not Unicode is escaped, so that any reader accepts it."""
    return json.dumps(_plain(value), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Value):
        return value.as_dict()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an aligned table; headers are dim on a terminal, plain everywhere else."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(headers), *cells]) for column in range(len(headers))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    head = "  ".join(header.ljust(width) for header, width in zip(headers, widths, strict=True)).rstrip()
    return "\n".join([style(head, "2"), *lines])


def fitted(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    flexible: Sequence[int] = (),
    colours: Mapping[int, Mapping[str, str]] | None = None,
) -> str:
    """Return a table that fits the terminal: flexible columns are cut, the first one first; elsewhere nothing is.

    `colours` has, for a column, the style of each of its words.
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(headers), *cells]) for column in range(len(headers))]
    over = sum(widths) + 2 * (len(widths) - 1) - (_terminal_columns() or sys.maxsize)
    for column in flexible:
        if over > 0:
            cut = min(over, widths[column] - min(widths[column], _NARROW))
            widths[column] -= cut
            over -= cut
    lines = []
    for number, row in enumerate([list(headers), *cells]):
        parts = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            padded = (cell if len(cell) <= width else f"{cell[: width - 1]}…").ljust(width)
            code = (colours or {}).get(column, {}).get(cell) if number else None
            parts.append(style(padded, code) if code else padded)
        line = "  ".join(parts).rstrip()
        lines.append(line if number else style(line, "2"))
    return "\n".join(lines)


_NARROW = 12  # a cut column keeps so much


def _terminal_columns() -> int | None:
    """Return the width of the terminal, or None if stdout is none."""
    if not sys.stdout.isatty():
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def style(text: str, code: str) -> str:
    """Return the text with a colour or weight, if stdout is a terminal that supports it."""
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb":
        return f"\033[{code}m{text}\033[0m"
    return text


def size(count: float) -> str:
    """Format a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Parse `500MB`, `5 GiB` or a number of bytes; every unit is a power of 1024, as in our output."""
    bare = text.strip().upper().removesuffix("B").removesuffix("I")
    number, unit = (bare[:-1], bare[-1]) if bare[-1:] in _UNITS and bare[-1:] else (bare, "")
    try:
        found = int(float(number) * _UNITS[unit])
    except (ValueError, OverflowError):
        found = 0
    if found <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 500MB or 5GB")
    return found


def add_ids(parser: argparse.ArgumentParser, *, many: bool = False, optional: bool = False) -> None:
    """Add the ids, given as positional arguments or with --id."""
    parser.add_argument("ids", nargs="*", metavar="ID", help="a workspace: TASK/AGENT, or TASK for TASK/main")
    parser.add_argument("--id", action="append", dest="id_options", default=[], metavar="ID", help=argparse.SUPPRESS)
    parser.set_defaults(many_ids=many, optional_ids=optional)


def ids_of(args: argparse.Namespace) -> list[str]:
    """Return the ids that were given, in either form."""
    found: list[str] = [*args.id_options, *args.ids]
    if not found and not args.optional_ids:
        raise InvalidUsage("no workspace was named", hint="give its id: TASK/AGENT")
    if len(found) > 1 and not args.many_ids:
        raise InvalidUsage(f"one workspace is wanted, and {len(found)} were named", hint="run the command for each")
    return found


def add_clone_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for submodules and LFS files, which a clone leaves out by default."""
    parser.add_argument("--submodules", action="store_true", help="clone: fetch submodules too")
    parser.add_argument("--lfs", action="store_true", help="clone: fetch the large files of Git LFS too")


def take_clone_options(door: Door, args: argparse.Namespace) -> None:
    """Turn the clone options into settings of this command; call before the home is opened."""
    for name in ("submodules", "lfs"):
        if getattr(args, name):
            door.flags[f"git.{name}"] = True
