"""aw snapshot, snapshots, restore, diff, apply, fork."""

from __future__ import annotations

import sys
import time

from workstead.cli.context import Command, add_ids, ids_of, size, style, table
from workstead.errors import InvalidUsage
from workstead.model.change import and_ignored
from workstead.model.text import printable, word

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from workstead.cli.context import Door
    from workstead.model.change import Change, Diff
    from workstead.model.snapshot import Snapshot


def _snapshot_arguments(parser: argparse.ArgumentParser) -> None:
    add_ids(parser)
    parser.add_argument("-m", "--message", default="", metavar="LABEL", help="a name for it; labelled ones are kept")


def _snapshot(door: Door, args: argparse.Namespace) -> None:
    taken = door.workspaces.snapshot(ids_of(args)[0], label=args.message)
    door.print(taken, taken.id)
    if taken.label and len(_labelled(door, ids_of(args)[0], taken.label)) > 1:
        door.hint(f"other snapshots are called {printable(taken.label)!r} too: the name means this one from now on")
    for left_out in taken.left_out[:5]:
        door.hint(f"left out {printable(left_out.path)}: {left_out.kind}")


def _labelled(door: Door, workspace: str, name: str) -> list[str]:
    """Return the ids of the snapshots with a label, oldest first."""
    found = door.workspaces.snapshots(workspace)
    return [] if any(each.id == name for each in found) else [each.id for each in found if each.label == name]


def _snapshots(door: Door, args: argparse.Namespace) -> None:
    found = door.workspaces.snapshots(ids_of(args)[0])
    rows = [
        (
            each.id,
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(each.taken_at)),
            each.cause,
            "" if each.cause == "base" else each.files,
            "" if each.cause == "base" else size(each.size),
            _remarks(each),
            each.label,
        )
        for each in found
    ]
    headers = ("SNAPSHOT", "TAKEN (UTC)", "CAUSE", "FILES", "SIZE", "REMARKS", "LABEL")
    door.print(found, table(headers, rows) if rows else None)


def _remarks(snapshot: Snapshot) -> str:
    left_out, torn = len(snapshot.left_out), len(snapshot.torn)
    remarks = [
        "live" if snapshot.live else "",
        f"{left_out} left out" if left_out else "",
        f"{torn} torn" if torn else "",
    ]
    return ", ".join(filter(None, remarks))


def _words(parser: argparse.ArgumentParser, shown: str) -> None:
    parser.add_argument("words", nargs="*", metavar=shown)
    parser.add_argument("--id", metavar="ID", help="the workspace, if it is not the first word")


def _split(args: argparse.Namespace) -> tuple[str, list[str]]:
    words: list[str] = list(args.words)
    if args.id is None and not words:
        raise InvalidUsage("no workspace was named", hint="give its id first: TASK/AGENT")
    return (args.id, words) if args.id is not None else (words[0], words[1:])


def _restore_arguments(parser: argparse.ArgumentParser) -> None:
    _words(parser, "ID SNAPSHOT [PATH…]")


def _restore(door: Door, args: argparse.Namespace) -> None:
    workspace, words = _split(args)
    if not words:
        raise InvalidUsage(
            "no snapshot was named", hint=f"aw snapshots {word(workspace)} lists them; base is the first"
        )
    operation, done = door.workspaces.restore(workspace, words[0], words[1:])
    door.print({"operation_id": operation, **done.as_dict()})
    labelled = _labelled(door, workspace, words[0])
    if len(labelled) > 1:
        door.hint(f"{len(labelled)} snapshots are called {printable(words[0])!r}: the newest was taken, {labelled[-1]}")
    for path in done.kept:
        door.warn(f"{printable(path)} was left as it is: no snapshot holds it")
    door.hint(f"{done.written} written, {done.removed} removed; aw undo takes it back")


def _diff_arguments(parser: argparse.ArgumentParser) -> None:
    _words(parser, "ID [PATH…]")
    parser.add_argument("--from", dest="from_", default="base", metavar="S", help="a snapshot (default: base)")
    parser.add_argument("--to", default="now", metavar="S", help="a snapshot (default: now)")
    parser.add_argument("--stat", action="store_true", help="only how much changed in each file")
    parser.add_argument("--name-only", action="store_true", help="only the names")
    parser.add_argument("--hunks", action="store_true", help="only the places, with the ids that aw apply --hunk takes")
    parser.add_argument("-U", "--context", type=int, default=3, metavar="N", help="lines around each change")
    parser.add_argument("--git-files", action="store_true", help="also changes inside .git")
    parser.add_argument("--ignored", action="store_true", help="also files that the repository's own rules ignore")


def _diff(door: Door, args: argparse.Namespace) -> None:
    workspace, paths = _split(args)
    options = {"from_": args.from_, "to": args.to, "paths": paths, "git_files": args.git_files}
    options |= {"ignored": args.ignored, "context": args.context}
    is_patch = not (door.is_json or args.name_only or args.hunks or args.stat)
    if is_patch:
        _write_patch(door.workspaces.patch(workspace, **options, binary=not sys.stdout.isatty()))
    found = door.workspaces.diff(workspace, **options, text=not (is_patch or args.name_only))
    if door.is_json:
        door.print(found)
    elif args.name_only:
        for change in found.changes:
            print(printable(change.path))
    elif args.hunks:
        print(_hunks_text(found.changes))
    elif args.stat:
        print(stat_text(found))
    if found.ignored and not args.stat:
        door.warn(f"{and_ignored(found.ignored, found.self_ignoring)}: --ignored shows them")
    if found.hidden and (sys.stderr.isatty() or not is_patch):
        door.hint(f"{found.hidden} changes inside .git are not shown")


def _write_patch(pieces: Iterator[bytes]) -> None:
    """Write the patch: coloured for a person; byte by byte for a program, so that `git apply` gets the exact
    content."""
    for piece in pieces:
        if sys.stdout.isatty():
            sys.stdout.write(_coloured(piece.decode("utf-8", "surrogateescape")))
        else:
            sys.stdout.buffer.write(piece)


def _hunks_text(changes: tuple[Change, ...]) -> str:
    lines = []
    for change in changes:
        name = printable(change.path)
        lines += [
            f"{name}:{hunk.id}  line {hunk.new_start}, {hunk.old_lines} to {hunk.new_lines} lines"
            for hunk in change.hunks
        ] or [f"{name}  as a whole"]
    return "\n".join(lines) or "nothing changed"


def stat_text(diff: Diff, most: int = 40) -> str:
    """Return the number of changed lines in each file, like `git diff --stat`."""
    changes = diff.changes
    ignored = [f" {and_ignored(diff.ignored, diff.self_ignoring)}"] if diff.ignored else []
    if not changes:
        return "\n".join(["nothing changed", *ignored])
    lines = []
    width = min(60, max(len(change.path) for change in changes))
    largest = max(change.added + change.removed for change in changes) or 1
    for change in changes[:most]:
        bar = _bar(change, largest)
        lines.append(f" {change.status} {printable(change.path).ljust(width)} | {bar}")
    if len(changes) > most:
        lines.append(f" … and {len(changes) - most} more")
    added, removed = sum(change.added for change in changes), sum(change.removed for change in changes)
    files = "1 file" if len(changes) == 1 else f"{len(changes)} files"
    lines.append(f" {files} changed, {added} line{'s' if added != 1 else ''} added, {removed} removed")
    return "\n".join([*lines, *ignored])


def _bar(change: Change, largest: int) -> str:
    if change.binary:
        return f"binary, {size(change.old_size)} -> {size(change.new_size)}"
    scale = min(1.0, 30 / largest)
    plus = "+" * max(int(change.added * scale), 1 if change.added else 0)
    minus = "-" * max(int(change.removed * scale), 1 if change.removed else 0)
    return f"{change.added + change.removed:>4} {style(plus, '32')}{style(minus, '31')}"


def _coloured(patch: str) -> str:
    colours = {"+": "32", "-": "31", "@": "36"}
    lines = []
    for line in patch.removesuffix("\n").split("\n"):
        code = "1" if line.startswith(("diff ", "+++", "---", "index ")) else colours.get(line[:1])
        text = "\t".join(map(printable, line.split("\t")))
        lines.append(style(text, code) if code else text)
    return "\n".join([*lines, ""])


def _apply_arguments(parser: argparse.ArgumentParser) -> None:
    _words(parser, "ID [PATH…]")
    parser.add_argument("--to", metavar="folder|branch:NAME|patch:FILE", help="where to (default: the origin's folder)")
    parser.add_argument(
        "--hunk",
        action="append",
        default=[],
        metavar="PATH:ID[,ID…]",
        help="only these places of a file: aw diff --hunks",
    )
    parser.add_argument("-m", "--message", metavar="TEXT", help="the commit message, with branch:NAME")
    parser.add_argument("--conflicts", action="store_true", help="write both versions with markers where sides clash")
    parser.add_argument("--ignored", action="store_true", help="also files that the repository's own rules ignore")


def _apply(door: Door, args: argparse.Namespace) -> None:
    workspace, paths = _split(args)
    hunks: dict[str, list[str]] = {}
    for chosen in args.hunk:
        path, colon, ids = chosen.rpartition(":")
        if not colon or not path or not ids:
            raise InvalidUsage(f"{chosen!r} names no hunk", hint="PATH:ID, as aw diff --hunks lists them")
        hunks.setdefault(path, []).extend(ids.split(","))
    done = door.workspaces.apply(
        workspace,
        paths,
        hunks=hunks,
        to=args.to,
        message=args.message,
        mark_conflicts=args.conflicts,
        ignored=args.ignored,
    )
    lines = [
        *(f"wrote {printable(path)}" for path in done.written),
        *(f"deleted {printable(path)}" for path in done.deleted),
        *(f"conflict in {printable(path)}" for path in done.conflicts),
        *(f"not given back: {printable(path)}" for path in done.refused),
        *([f"commit {done.commit}"] if done.commit else []),
        *(f"you saved this meanwhile: {printable(path)}" for path in done.kept),
    ]
    door.print(done, "\n".join(lines) or None)
    if done.ignored:
        door.warn(f"{and_ignored(done.ignored)}, not given back: --ignored takes them")
    if not done.operation_id:
        door.hint("there is nothing to apply")
        return
    door.hint(f"applied to {printable(done.target)}; aw undo takes it back")


def _fork_arguments(parser: argparse.ArgumentParser) -> None:
    add_ids(parser)
    parser.add_argument("--as", dest="new_id", metavar="ID", help="the id of the fork")
    parser.add_argument("-n", type=int, default=1, metavar="N", help="how many")
    parser.add_argument("--at", metavar="SNAPSHOT", help="from this state instead of the present one")


def _fork(door: Door, args: argparse.Namespace) -> None:
    if args.n < 1:
        raise InvalidUsage(f"{args.n} forks cannot be made", hint="-n 1 or more")
    forks = door.workspaces.fork(ids_of(args)[0], new_id=args.new_id, count=args.n, snapshot=args.at)
    door.print(forks, "\n".join(each.id for each in forks))


COMMANDS = {
    "snapshot": Command(
        arguments=_snapshot_arguments, run=_snapshot, examples="  aw snapshot fix-login/a1 -m 'tests pass'\n"
    ),
    "snapshots": Command(arguments=add_ids, run=_snapshots, examples="  aw snapshots fix-login/a1\n"),
    "restore": Command(
        arguments=_restore_arguments,
        run=_restore,
        examples="  aw restore fix-login/a1 base\n  aw restore fix-login/a1 'tests pass' work/src\n  aw undo\n",
    ),
    "diff": Command(
        arguments=_diff_arguments,
        run=_diff,
        examples="  aw diff fix-login/a1\n  aw diff fix-login/a1 --stat --from 'tests pass'\n",
    ),
    "apply": Command(
        arguments=_apply_arguments,
        run=_apply,
        examples="  aw apply fix-login/a1\n  aw apply fix-login/a1 src/login.py --to branch:fix-login\n"
        "  aw diff fix-login/a1 --hunks\n  aw apply fix-login/a1 --hunk src/login.py:5a0c1d22e9f4\n",
    ),
    "fork": Command(
        arguments=_fork_arguments, run=_fork, examples="  aw fork fix-login/a1 -n 4\n  aw fork a1 --as b1 --at base\n"
    ),
}
