"""aw backup."""

from __future__ import annotations

from workstead.cli.context import Command, size, table
from workstead.errors import InvalidUsage
from workstead.model.text import printable, word

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from workstead.cli.context import Door

_USAGE = "DIR | list DIR | verify DIR | restore DIR"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar=_USAGE, help="DIR or s3://BUCKET/PREFIX: where the backups are; alone: make one"
    )
    parser.add_argument("--to", metavar="HOME", help="restore: the new home (default: --home, else AW_HOME)")
    parser.add_argument(
        "--at", metavar="N", type=int, help="restore, verify: the backup of this number (default: newest)"
    )


def _run(door: Door, args: argparse.Namespace) -> None:
    words: list[str] = args.words
    verb = words[0] if len(words) == 2 and words[0] in _VERBS else ""
    if (
        (not verb and len(words) != 1)
        or (args.to and verb != "restore")
        or (args.at and verb not in ("restore", "verify"))
    ):
        raise InvalidUsage(f"one of {_USAGE} is wanted", hint="aw backup --help shows how")
    if verb:
        _VERBS[verb](door, words[1], args)
    else:
        _backup(door, words[0])


def _backup(door: Door, location: str) -> None:
    done = door.workspaces.backup(location, progress=door.bar("backing up"))
    door.progress("")
    door.print(done, f"{done.path} {done.number}")
    _warn(door, done.left_out, done.torn)
    door.hint(
        f"{done.files} files, {size(done.written_bytes)} of {size(done.bytes)} written; "
        f"aw backup restore {word(done.path)} --to HOME brings it back"
    )


def _warn(door: Door, left_out: list[str], torn: list[str]) -> None:
    for text in left_out[:20]:
        door.warn(f"not in the backup: {printable(text)}")
    for text in torn[:20]:
        door.warn(f"was written to while it was read, and may be a mixture: {printable(text)}")
    if len(left_out) > 20 or len(torn) > 20:
        door.warn("--format json shows all")


def _list(door: Door, location: str, _: argparse.Namespace) -> None:
    import workstead

    found = workstead.list_backups(location)
    rows = [(each.number, each.made_at, each.position, each.files, size(each.bytes), each.home_path) for each in found]
    door.print(found, table(("NUMBER", "MADE", "EVENTS", "FILES", "SIZE", "HOME"), rows) if rows else None)


def _verify(door: Door, location: str, args: argparse.Namespace) -> None:
    import workstead

    found = workstead.verify_backup(location, number=args.at)
    door.print(found, f"backup {found.number} of {found.made_at}: {found.files} files in {size(found.bytes)} are whole")
    _warn(door, found.left_out, found.torn)


def _restore(door: Door, location: str, args: argparse.Namespace) -> None:
    import workstead

    done = workstead.restore_backup(location, args.to or args.home, number=args.at, settings=door.settings)
    door.print(done, done.path)
    for text in done.findings:
        door.hint(printable(text))
    _warn(door, done.left_out, done.torn)
    door.hint(f"{done.files} files of {done.made_at}; use it with --home {word(done.path)}")


_VERBS = {"list": _list, "verify": _verify, "restore": _restore}
COMMANDS = {
    "backup": Command(
        arguments=_arguments,
        run=_run,
        examples="""\
  aw backup /mnt/backups
  aw backup s3://backups/aw
  aw backup list /mnt/backups
  aw backup verify /mnt/backups
  aw backup restore /mnt/backups --to /srv/aw
  aw backup restore /mnt/backups --at 3 --to /srv/aw
""",
    ),
}
