"""aw policy."""

from __future__ import annotations

import json

from workstead.cli.context import Command, table
from workstead.errors import InvalidConfig, InvalidUsage, from_os
from workstead.model.policy import OPERATIONS, PRESETS
from workstead.model.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from workstead.cli.context import Door
    from workstead.model.policy import Policy


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("show", "why", "presets", "set"))
    parser.add_argument("words", nargs="*", metavar="ID …", help="why: OPERATION [PATH]; set: a preset, JSON or @FILE")
    parser.add_argument("--id", metavar="ID", help="the workspace, if it is not the first word")
    parser.add_argument("--size", type=int, metavar="N", help="why: of a content of so many bytes")
    parser.add_argument("--reason", default="", metavar="TEXT", help="set: for the log")


def _run(door: Door, args: argparse.Namespace) -> None:
    if args.action == "presets":
        rows = [(operation, *(PRESETS[name][operation] for name in PRESETS)) for operation in OPERATIONS]
        door.print(PRESETS, table(("OPERATION", *(name.upper() for name in PRESETS)), rows))
        return
    words: list[str] = args.words
    workspace = args.id or (words.pop(0) if words else None)
    if workspace is None:
        raise InvalidUsage("no workspace was named", hint=f"aw policy {args.action} TASK/AGENT")
    _ACTIONS[args.action](door, args, workspace, words)


def _show(door: Door, args: argparse.Namespace, workspace: str, words: list[str]) -> None:
    _at_most(words, 0)
    found = door.workspaces.policy(workspace)
    door.print(found.stated(), _text(found))


def _text(found: Policy) -> str:
    rows = [(str(number), printable(rule.text())) for number, rule in enumerate(found.rules, 1)]
    parts = [table(("RULE", "THE FIRST THAT FITS DECIDES"), rows), ""] if rows else []
    name = f" ({found.preset})" if found.preset else ""
    parts.append(table(("OPERATION", f"OTHERWISE{name}"), list(found.defaults.items())))
    return "\n".join([*parts, f"a question is open for {found.approval_timeout_seconds:g} seconds"])


def _why(door: Door, args: argparse.Namespace, workspace: str, words: list[str]) -> None:
    if not words:
        raise InvalidUsage("no operation was named", hint=f"one of {', '.join(OPERATIONS)}")
    _at_most(words, 2)
    found = door.workspaces.judge(workspace, *words, size=args.size)
    door.print(found, f"{found.outcome}: {printable(found.rule)}")


def _set(door: Door, args: argparse.Namespace, workspace: str, words: list[str]) -> None:
    if not words:
        raise InvalidUsage("no policy was given", hint=f"one of {', '.join(PRESETS)}, JSON or @FILE")
    _at_most(words, 1)
    found = door.workspaces.change_policy(workspace, _given(words[0]), reason=args.reason)
    door.print(found.stated(), _text(found))


def _given(word: str) -> Any:
    text = word
    if word.startswith("@"):
        try:
            with open(word[1:], encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise from_os(error, f"file {word[1:]}") from None
    if not text.lstrip().startswith("{"):
        return text.strip()
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidConfig(f"the policy is not JSON: {error}") from None


def _at_most(words: list[str], most: int) -> None:
    if len(words) > most:
        raise InvalidUsage(f"{words[most]!r} is one word too many")


_ACTIONS = {"show": _show, "why": _why, "set": _set}

COMMANDS = {
    "policy": Command(
        arguments=_arguments,
        run=_run,
        examples="""\
  aw policy show fix-login/a1
  aw policy why fix-login/a1 delete work/a.py
  aw policy presets
  aw policy set fix-login/a1 trusting
  aw policy set fix-login/a1 '{"rules": [{"outcome": "deny", "paths": [".github/**"]}]}'
""",
    ),
}
