"""aw vm: the virtual machines of the sandbox `vm`."""

from __future__ import annotations

import time

from workstead.cli.context import Command, table
from workstead.errors import InvalidUsage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from workstead.cli.context import Door


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "mount", "unmount", "build"))
    parser.add_argument("id", nargs="?", metavar="ID", help="a workspace")
    parser.add_argument("--sandbox", default="vm", choices=("vm", "vm/kvm", "vm/tcg"), help="mount: in which machine")


def _run(door: Door, args: argparse.Namespace) -> None:
    if args.action == "build":
        version = door.workspaces.build_guest(progress=door.progress)
        door.print({"kernel": version}, f"machines start from Linux {version}")
        return
    if args.action == "list":
        found = door.workspaces.machines(args.id)
    elif args.id is None:
        raise InvalidUsage(f"vm {args.action} wants a workspace", hint=f"aw vm {args.action} ID")
    elif args.action == "mount":
        found = door.workspaces.mount(args.id, sandbox=args.sandbox, progress=door.progress)
    else:
        found = door.workspaces.unmount(args.id)
    rows = [
        (
            each.workspace_id,
            each.mode,
            f"{each.memory_mb} MB",
            each.cpus,
            each.public_mount,
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(each.started_at)),
            "busy" if each.busy else "idle",
        )
        for each in found
    ]
    headers = ("WORKSPACE", "MACHINE", "MEMORY", "CPUS", "MOUNTED AT", "STARTED (UTC)", "STATE")
    door.print(found, table(headers, rows) if rows else None)
    if args.action == "unmount" and not found:
        door.hint("there was no machine to end")


COMMANDS = {
    "vm": Command(
        arguments=_arguments,
        run=_run,
        examples="""\
  aw vm build                       build the guest now, and not with the first run
  aw run fix-login/a1 --sandbox vm -- make test
  aw vm list
  aw vm mount fix-login/a1          start its machine beforehand
  aw vm unmount fix-login/a1        end it before its time
""",
    ),
}
