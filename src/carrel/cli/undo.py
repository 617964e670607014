"""aw undo, ops, trash, sweep."""

from __future__ import annotations

from carrel.cli.door import Command, size, table
from carrel.errors import InvalidUsage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from carrel.cli.door import Door
    from carrel.model.operation import Operation


def _undo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("operation", nargs="?", metavar="OP", help="an operation of aw ops (default: the newest)")


def _undo(door: Door, args: argparse.Namespace) -> None:
    operation, workspaces = door.workspaces.undo(args.operation)
    door.print({"undone": operation.as_dict(), "workspaces": [workspace.as_dict() for workspace in workspaces]})
    door.hint(
        f"{operation.kind} {operation.operation_id} is undone; aw undo {workspaces[0].operation_id} takes that back"
    )
    for workspace in workspaces:
        door.hint(f"{workspace.id} is {workspace.state}: {workspace.path}")


def _no_arguments(_: argparse.ArgumentParser) -> None:
    pass


def _ops(door: Door, _: argparse.Namespace) -> None:
    operations = door.workspaces.operations()
    rows = [
        (
            operation.operation_id,
            operation.at[:19].replace("T", " "),
            operation.kind,
            _state(operation),
            _some(operation.workspaces),
        )
        for operation in operations
    ]
    door.print(operations, table(("OPERATION", "WHEN (UTC)", "KIND", "STATE", "WORKSPACES"), rows) if rows else None)


def _state(operation: Operation) -> str:
    if operation.undone_by:
        return f"undone by {operation.undone_by}"
    return f"undoes {operation.undoes}" if operation.undoes else ""


def _some(names: list[str], most: int = 4) -> str:
    return " ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _trash_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("list", "restore", "empty"), default="list")
    parser.add_argument("names", nargs="*", metavar="UID|ID", help="restore: which one; empty: which ones, else all")
    parser.add_argument("--as", dest="new_id", metavar="ID", help="restore it under another id, if its own is taken")


def _trash(door: Door, args: argparse.Namespace) -> None:
    if args.action == "restore":
        if len(args.names) != 1:
            raise InvalidUsage("trash restore wants one UID or ID", hint="aw trash list shows them")
        workspace = door.workspaces.restore_trashed(args.names[0], new_id=args.new_id)
        door.print(workspace, workspace.path)
    elif args.action == "empty":
        known = {workspace.uid for workspace in door.workspaces.trash()}
        unknown = set(args.names) - known
        if unknown:
            raise InvalidUsage(f"{min(unknown)} is not in the trash", hint="aw trash list shows the uids")
        gone = door.workspaces.sweep(everything=not args.names, uids=args.names)
        door.print(gone)
        door.hint(f"{len(gone)} workspaces deleted for good")
    else:
        workspaces = door.workspaces.trash()
        rows = [(w.uid, w.id, w.updated_at[:19].replace("T", " "), w.reason) for w in workspaces]
        door.print(workspaces, table(("UID", "WORKSPACE", "DESTROYED (UTC)", "REASON"), rows) if rows else None)


def _sweep_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what would go, and why the rest stays")


def _sweep(door: Door, args: argparse.Namespace) -> None:
    candidates = door.workspaces.sweep(dry_run=args.dry_run)
    rows = [
        (c.uid, c.workspace_id, "goes" if c.goes else "stays", size(c.bytes) if c.bytes else "", c.why)
        for c in candidates
        if c.kind == "workspace"
    ]
    thinned: dict[tuple[str, str], int] = {}
    for each in candidates:
        if each.kind == "snapshot":
            thinned[each.uid, each.workspace_id] = thinned.get((each.uid, each.workspace_id), 0) + 1
    for (uid, workspace_id), count in thinned.items():
        rows.append((uid, workspace_id, "goes", "", f"{count} snapshot{'s' * (count != 1)}, thinned out with age"))
    rows += [("", "", "goes", size(c.bytes), c.why) for c in candidates if c.kind in ("objects", "layers")]
    door.print(candidates, table(("UID", "WORKSPACE", "", "SIZE", "WHY"), rows) if rows else None)
    if args.dry_run:
        door.hint(f"aw sweep frees {size(sum(c.bytes for c in candidates if c.goes))}")


COMMANDS = {
    "undo": Command(arguments=_undo_arguments, run=_undo, examples="  aw undo\n  aw undo 06exh2v0m4g3s9dk\n"),
    "ops": Command(arguments=_no_arguments, run=_ops, examples="  aw ops\n"),
    "trash": Command(
        arguments=_trash_arguments,
        run=_trash,
        examples="  aw trash list\n  aw trash restore fix-login/a1 --as fix-login/old\n  aw trash empty\n",
    ),
    "sweep": Command(arguments=_sweep_arguments, run=_sweep, examples="  aw sweep --dry-run\n  aw sweep\n"),
}
