"""aw mail."""

from __future__ import annotations

import sys
import time

from workstead.cli.context import Command, table
from workstead.errors import InvalidUsage
from workstead.model.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from workstead.cli.context import Door


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("send", "list", "read"))
    parser.add_argument("id", metavar="ID", help="whose mailbox")
    parser.add_argument("words", nargs="*", metavar="TEXT|MESSAGE", help="send: the text, or - for stdin; read: which")
    parser.add_argument("--from", dest="sender", metavar="ID", help="send: in the name of this workspace")


def _run(door: Door, args: argparse.Namespace) -> None:
    if args.action == "send":
        if not args.words:
            raise InvalidUsage("mail send wants a text", hint="aw mail send ID TEXT, or - for stdin")
        text = sys.stdin.read() if args.words == ["-"] else " ".join(args.words)
        message = door.workspaces.send_message(args.id, text, sender=args.sender)
        door.print(message, message.id)
        return
    found = door.workspaces.messages(args.id)
    if args.action == "list":
        rows = [
            (each.id, each.sender, time.strftime("%Y-%m-%d %H:%M", time.gmtime(each.sent_at)), _first_line(each.text))
            for each in found
        ]
        door.print(found, table(("MESSAGE", "FROM", "SENT (UTC)", "TEXT"), rows) if rows else None)
        return
    if args.words:
        found = [door.workspaces.get_message(args.id, word) for word in args.words]
    texts = ("\n".join(map(printable, each.text.splitlines())) for each in found)
    door.print(found, "\n".join(texts) if found else None)


def _first_line(text: str) -> str:
    line = text.partition("\n")[0]
    return printable(line if len(line) <= 60 else f"{line[:59]}…")


COMMANDS = {
    "mail": Command(
        arguments=_arguments,
        run=_run,
        examples="""\
  aw mail send fix-login/a1 'the tests want Python 3.12'
  aw mail send fix-login/a2 'login.py is mine' --from fix-login/a1
  aw mail list fix-login/a1
  aw mail read fix-login/a1
""",
    ),
}
