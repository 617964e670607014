"""aw undo, ops, trash, sweep, pin, unpin."""

from __future__ import annotations

from workstead.cli.context import Command, add_ids, ids_of, parse_size, size, table
from workstead.errors import InvalidUsage
from workstead.model.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from workstead.cli.context import Door
    from workstead.model.operation import Operation
    from workstead.model.retention import Candidate


def _undo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("operation", nargs="?", metavar="OP", help="an operation of aw ops (default: the newest)")


def _undo(door: Door, args: argparse.Namespace) -> None:
    operation, workspaces = door.workspaces.undo(args.operation)
    door.print({"undone": operation.as_dict(), "workspaces": [workspace.as_dict() for workspace in workspaces]})
    door.hint(
        f"{operation.kind} {operation.operation_id} is undone; aw undo {workspaces[0].operation_id} takes that back"
    )
    for path in operation.left:
        door.warn(f"{printable(path)} could not be brought back, or was left as it is: no snapshot holds it")
    for path in operation.kept:
        door.hint(f"you saved this meanwhile: {printable(path)}")
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
            _some(operation.places),
        )
        for operation in operations
    ]
    headers = ("OPERATION", "WHEN (UTC)", "KIND", "STATE", "WORKSPACES", "PATHS")
    door.print(operations, table(headers, rows) if rows else None)


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
    parser.add_argument(
        "--free",
        metavar="SIZE",
        type=parse_size,
        help="as 500MB or 5GB: caches, then workspaces go, the longest unused first, until so much is free or in the "
        "trash; never what is pinned, at work, or holds unapplied changes",
    )


def _sweep(door: Door, args: argparse.Namespace) -> None:
    candidates = door.workspaces.sweep(dry_run=args.dry_run, free_bytes=args.free)
    rows = [
        (each.workspace_id or each.name, each.kind, _decided(each), size(each.bytes) if each.bytes else "", each.why)
        for each in candidates
        if each.kind in ("workspace", "trash", "cache", "archive") and (args.dry_run or args.free or each.goes)
    ]
    thinned: dict[str, int] = {}
    for each in candidates:
        if each.kind == "snapshot":
            thinned[each.workspace_id] = thinned.get(each.workspace_id, 0) + 1
    for workspace_id, count in thinned.items():
        rows.append((workspace_id, "snapshots", "deleted", "", f"{count}, thinned out with age"))
    rows += [("", each.kind, "deleted", size(each.bytes), each.why) for each in candidates if each.kind in _STATES]
    door.print(candidates, table(("WHAT", "KIND", "", "SIZE", "WHY"), rows) if rows else None)
    for line in _summary(candidates, args):
        door.hint(line)


_STATES = ("objects", "layers")


def _decided(candidate: Candidate) -> str:
    if not candidate.goes:
        return "stays"
    return "to the trash" if candidate.kind == "workspace" else "deleted"


def _summary(candidates: Sequence[Candidate], args: argparse.Namespace) -> Iterator[str]:
    """Return the freed space, the space that waits in the trash, and the space that was wanted but could not be
    freed."""
    would = "would " if args.dry_run else ""
    freed = sum(each.bytes for each in candidates if each.goes and each.kind != "workspace")
    trashed = sum(each.bytes for each in candidates if each.goes and each.kind == "workspace")
    if freed or args.dry_run:
        yield f"{size(freed)} {would}come free"
    if trashed:
        yield f"{size(trashed)} {would}go to the trash: aw undo brings it back, aw trash empty deletes it for good"
    if args.free and freed + trashed < args.free:
        yield f"{size(args.free - freed - trashed)} less than was wanted: the rest stays for the reasons above"


def _pin_arguments(parser: argparse.ArgumentParser) -> None:
    add_ids(parser, many=True)
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for the log")


def _pin(door: Door, args: argparse.Namespace) -> None:
    pinned = [door.workspaces.pin(id, reason=args.reason) for id in ids_of(args)]
    door.print(pinned)
    door.hint("no sweep takes it; aw unpin lets it go again")


def _unpin_arguments(parser: argparse.ArgumentParser) -> None:
    add_ids(parser, many=True)


def _unpin(door: Door, args: argparse.Namespace) -> None:
    door.print([door.workspaces.unpin(id) for id in ids_of(args)])


COMMANDS = {
    "undo": Command(arguments=_undo_arguments, run=_undo, examples="  aw undo\n  aw undo 06exh2v0m4g3s9dk\n"),
    "ops": Command(arguments=_no_arguments, run=_ops, examples="  aw ops\n"),
    "trash": Command(
        arguments=_trash_arguments,
        run=_trash,
        examples="  aw trash list\n  aw trash restore fix-login/a1 --as fix-login/old\n  aw trash empty\n",
    ),
    "sweep": Command(
        arguments=_sweep_arguments,
        run=_sweep,
        examples="  aw sweep --dry-run\n  aw sweep\n  aw sweep --free 5GB\n",
    ),
    "pin": Command(arguments=_pin_arguments, run=_pin, examples="  aw pin fix-login/a1 --reason 'for the release'\n"),
    "unpin": Command(arguments=_unpin_arguments, run=_unpin, examples="  aw unpin fix-login/a1\n"),
}
