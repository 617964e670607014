"""aw template."""

from __future__ import annotations

from workstead.cli.context import Command, table
from workstead.errors import InvalidUsage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from workstead.cli.context import Door


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("add", "list", "remove"), default="list")
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="add: what to keep under the name")
    parser.add_argument("--from", dest="workspace", metavar="ID", help="add: keep the files of this workspace")


def _run(door: Door, args: argparse.Namespace) -> None:
    if args.action == "list":
        templates = door.workspaces.templates()
        rows = [(t.name, "shared" if t.shared else "copied: put there by hand", t.path) for t in templates]
        text = table(("TEMPLATE", "FILES ARE", "PATH"), rows) if templates else None
        door.print(templates, text)
        return
    if not args.name:
        raise InvalidUsage(f"template {args.action} wants a NAME", hint="aw template list shows them")
    if args.action == "remove":
        door.workspaces.remove_template(args.name)
        door.print({"removed": args.name})
        return
    if bool(args.folder) == bool(args.workspace):
        raise InvalidUsage("template add wants a FOLDER, or --from ID", hint="one of the two")
    template = door.workspaces.add_template(args.name, folder=args.folder, workspace=args.workspace)
    door.print(template, template.path)


COMMANDS = {
    "template": Command(
        arguments=_arguments,
        run=_run,
        examples="""\
  aw template add python-service ./skeleton
  aw template add warmed-up --from fix-login/a1
  aw create --template python-service
""",
    ),
}
