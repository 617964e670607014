"""aw archive."""

from __future__ import annotations

from workstead.cli.context import Command, size, table
from workstead.errors import InvalidUsage
from workstead.model.text import printable, word

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from workstead.cli.context import Door


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="ID | verify FILE", help="a workspace; nothing lists the archives")
    parser.add_argument("--id", metavar="ID", help="the same as ID")
    parser.add_argument(
        "-o", "--output", metavar="FILE|DIR|s3://BUCKET/KEY", help="where to (default: archives/ in the home)"
    )
    parser.add_argument("--force", action="store_true", help="replace an archive of that name")


def _run(door: Door, args: argparse.Namespace) -> None:
    words: list[str] = [*([args.id] if args.id else []), *args.words]
    if not words:
        _list(door)
    elif len(words) == 2 and words[0] == "verify":
        _verify(door, words[1])
    elif len(words) == 1:
        _archive(door, words[0], args)
    else:
        raise InvalidUsage("one workspace is wanted, or verify FILE", hint="aw archive --help shows how")


def _archive(door: Door, workspace_id: str, args: argparse.Namespace) -> None:
    bar = door.bar(f"archiving {workspace_id}")
    done = door.workspaces.archive(workspace_id, args.output, replace=args.force, progress=bar)
    door.progress("")
    door.print(done, done.path)
    held = f"{done.files} files and {done.states} states in {size(done.bytes)}"
    door.hint(f"{held}; aw create --source {word(f'archive:{done.path}')} brings it back")


def _verify(door: Door, location: str) -> None:
    found = door.workspaces.verify_archive(location, door.bar("verifying"))
    door.progress("")
    workspace, states = found.head["workspace"], found.summary["states"]
    assert isinstance(workspace, dict)
    assert isinstance(states, list)
    text = f"{workspace.get('workspace_id')}: {found.members} members, {len(states)} states and the history are whole"
    links = [f"leads out of the workspace: {name} -> {target}" for name, target in found.outside]
    door.print(found, "\n".join(printable(line) for line in (text, *links)))


def _list(door: Door) -> None:
    found = door.workspaces.archives()
    rows = [(each.workspace_id, each.archived_at[:19], size(each.bytes), each.path) for each in found]
    door.print(found, table(("WORKSPACE", "ARCHIVED", "SIZE", "PATH"), rows) if rows else None)


COMMANDS = {
    "archive": Command(
        arguments=_arguments,
        run=_run,
        examples="""\
  aw archive fix-login/a1
  aw archive fix-login/a1 -o s3://backups/workspaces/
  aw archive verify fix-login.a1.aw.tar.zst
  aw create --source archive:fix-login.a1.aw.tar.zst --id fix-login/again
""",
    ),
}
