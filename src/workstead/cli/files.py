"""aw ls, tree, cat, put, mv, rm, mkdir, stat, find, grep: files of a workspace, by paths relative to it."""

from __future__ import annotations

import sys
import time

from workstead.cli.context import Command, size, style, table
from workstead.errors import InvalidUsage, from_os
from workstead.model.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from typing import Any

    from workstead.cli.context import Door

_CHUNK = 1 << 20


def _words(*names: str, optional: int = 0, many: bool = False) -> Callable[[argparse.ArgumentParser], None]:
    """Return a function that adds the arguments `ID NAME…`, where the id may be given with --id instead."""

    def arguments(parser: argparse.ArgumentParser) -> None:
        shown = ["ID", *names[: len(names) - optional], *(f"[{name}]" for name in names[len(names) - optional :])]
        parser.add_argument("words", nargs="*", metavar=" ".join(shown) + ("…" if many else ""))
        parser.add_argument("--id", metavar="ID", help="the workspace, if it is not the first word")
        parser.set_defaults(word_names=names, least=len(names) - optional, most=None if many else len(names))

    return arguments


def _split(args: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the workspace and the other words; check their number."""
    words: list[str] = list(args.words)
    if args.id is None and not words:
        raise InvalidUsage("no workspace was named", hint="give its id first: TASK/AGENT")
    workspace = args.id if args.id is not None else words.pop(0)
    if len(words) < args.least:
        raise InvalidUsage(
            f"{args.word_names[len(words)]} is missing", hint="a path relative to the workspace: work/a.py"
        )
    if args.most is not None and len(words) > args.most:
        raise InvalidUsage(f"{words[args.most]!r} is one word too many")
    return workspace, words


def _ls(door: Door, args: argparse.Namespace) -> None:
    workspace, words = _split(args)
    entries = door.workspaces.list_directory(workspace, *words)
    text = None
    if entries and not door.is_json:
        rows = [
            (
                entry.name + {"directory": "/", "link": f" -> {entry.target}"}.get(entry.kind, ""),
                entry.kind,
                size(entry.size) if entry.kind == "file" else "",
                time.strftime("%Y-%m-%d %H:%M", time.gmtime(entry.mtime)),
            )
            for entry in entries
        ]
        text = table(("NAME", "KIND", "SIZE", "CHANGED (UTC)"), rows)
    door.print(entries, text)


def _tree(door: Door, args: argparse.Namespace) -> None:
    workspace, words = _split(args)
    if door.is_json:  # in pieces: a tree may be nested deeper than any encoder supports
        for piece in door.workspaces.tree_json(workspace, *words):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.write(b"\n")
        return
    found = door.workspaces.tree(workspace, *words)
    for line in _branches(found.tree):
        print(line)
    left_out = {"links": found.links, "special files": found.special, "unreadable directories": found.unreadable}
    notes = [f"{count} {what} left out" for what, count in left_out.items() if count]
    print(style(", ".join([f"{found.directories} directories", f"{found.files} files", *notes]), "2"))


def _branches(tree: dict[str, Any]) -> Iterator[str]:
    """Return one line for each name, without recursion: the agent decides how deep the tree is."""
    stack = [iter(sorted(tree.items()))]
    while stack:
        for name, below in stack[-1]:
            is_directory = isinstance(below, dict)
            yield "  " * (len(stack) - 1) + printable(name) + ("/" if is_directory else "")
            if is_directory:
                stack.append(iter(sorted(below.items())))
                break
        else:
            stack.pop()


def _cat_arguments(parser: argparse.ArgumentParser) -> None:
    _words("PATH")(parser)
    parser.add_argument("--start", type=int, default=0, metavar="N", help="begin at this byte")
    parser.add_argument("--length", type=int, metavar="N", help="at most this many bytes")


def _cat(door: Door, args: argparse.Namespace) -> None:
    workspace, (path,) = _split(args)
    data = door.workspaces.read_file(workspace, path, start=args.start, length=args.length)
    if door.is_json:
        door.print({"path": path, "size": len(data), **_encoded(data)})
    elif sys.stdout.isatty():  # control characters written by an agent must not reach the user's terminal
        text = data.decode(errors="surrogateescape")
        print("\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n")), end="")
    else:
        sys.stdout.buffer.write(data)


def _encoded(data: bytes) -> dict[str, str]:
    try:
        return {"encoding": "utf-8", "content": data.decode()}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"encoding": "base64", "content": b64encode(data).decode()}


def _put_arguments(parser: argparse.ArgumentParser) -> None:
    _words("PATH", "FILE", optional=1)(parser)
    parser.add_argument("-p", "--parents", action="store_true", help="make missing directories")
    parser.add_argument("--append", action="store_true", help="add to the end")
    parser.add_argument("--new", action="store_true", help="only if nothing is there")
    _keep_argument(parser)


def _put(door: Door, args: argparse.Namespace) -> None:
    workspace, words = _split(args)
    source = words[1] if len(words) > 1 else "-"
    written = door.workspaces.write_file(
        workspace,
        words[0],
        _chunks(source),
        parents=args.parents,
        create_only=args.new,
        append=args.append,
        keep=args.keep and not args.append,  # an append overwrites nothing, so it needs no snapshot
    )
    door.print(written)


def _chunks(source: str) -> Iterator[bytes]:
    if source == "-":
        yield from iter(lambda: sys.stdin.buffer.read(_CHUNK), b"")
        return
    try:
        with open(source, "rb") as file:
            yield from iter(lambda: file.read(_CHUNK), b"")
    except OSError as error:
        raise from_os(error, f"file {source}") from None


def _mv_arguments(parser: argparse.ArgumentParser) -> None:
    _words("FROM", "TO")(parser)
    parser.add_argument("--replace", action="store_true", help="take the place of what is there")
    _keep_argument(parser)


def _mv(door: Door, args: argparse.Namespace) -> None:
    workspace, (path, to) = _split(args)
    door.print(door.workspaces.move_file(workspace, path, to, replace=args.replace, keep=args.keep))


def _rm_arguments(parser: argparse.ArgumentParser) -> None:
    _words("PATH", many=True)(parser)
    parser.add_argument("-r", "--recursive", action="store_true", help="directories with all that is in them")
    _keep_argument(parser)


def _keep_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-keep", dest="keep", action="store_false", help="with no way back by aw undo")


def _rm(door: Door, args: argparse.Namespace) -> None:
    workspace, paths = _split(args)
    delete = door.workspaces.delete_file
    door.print([delete(workspace, path, recursive=args.recursive, keep=args.keep) for path in paths])


def _mkdir_arguments(parser: argparse.ArgumentParser) -> None:
    _words("PATH", many=True)(parser)
    parser.add_argument("-p", "--parents", action="store_true", help="also those above; none need be missing")


def _mkdir(door: Door, args: argparse.Namespace) -> None:
    workspace, paths = _split(args)
    for path in paths:
        door.workspaces.make_directory(workspace, path, parents=args.parents)
    door.print({"made": paths})


def _stat(door: Door, args: argparse.Namespace) -> None:
    workspace, (path,) = _split(args)
    found = door.workspaces.stat_file(workspace, path)
    facts = {
        "kind": found.kind + (f" -> {found.target}" if found.target is not None else ""),
        "size": f"{found.size} ({size(found.allocated)} on disk)",
        "mode": f"{found.mode:04o}",
        "changed": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(found.mtime)) + " UTC",
    }
    door.print(found, "\n".join(f"{style(name.ljust(7), '2')}  {printable(value)}" for name, value in facts.items()))


def _find(door: Door, args: argparse.Namespace) -> None:
    workspace, words = _split(args)
    found = door.workspaces.search_names(workspace, *words)
    door.print(found, "\n".join(map(printable, found.paths)) or None)
    if found.truncated:
        door.hint("there are more: narrow the pattern, or give a directory")


def _grep_arguments(parser: argparse.ArgumentParser) -> None:
    _words("TEXT", "PATH", optional=1)(parser)
    parser.add_argument("-E", "--regex", action="store_true", help="TEXT is a regular expression")
    parser.add_argument("--names", default="*", metavar="GLOB", help="only in files with such a name")


def _grep(door: Door, args: argparse.Namespace) -> None:
    workspace, words = _split(args)
    found = door.workspaces.search_text(workspace, *words, regex=args.regex, names=args.names)
    lines = [f"{style(printable(m.path), '35')}:{m.line}: {printable(m.text)}" for m in found.matches]
    door.print(found, "\n".join(lines) or None)
    if found.truncated:
        door.hint("there are more: narrow the search")


COMMANDS = {
    "ls": Command(arguments=_words("PATH", optional=1), run=_ls, examples="  aw ls fix-login/a1 work\n"),
    "tree": Command(
        arguments=_words("PATH", optional=1),
        run=_tree,
        examples="  aw tree fix-login/a1\n  aw tree fix-login/a1 work --format json\n",
    ),
    "cat": Command(
        arguments=_cat_arguments,
        run=_cat,
        examples="  aw cat fix-login/a1 work/app.py\n  aw cat fix-login/a1 work/core --start 4096 --length 512\n",
    ),
    "put": Command(
        arguments=_put_arguments,
        run=_put,
        examples="  aw put fix-login/a1 work/notes.md notes.md\n  date | aw put fix-login/a1 output/log --append\n",
    ),
    "mv": Command(arguments=_mv_arguments, run=_mv, examples="  aw mv fix-login/a1 work/a.py work/b.py\n"),
    "rm": Command(arguments=_rm_arguments, run=_rm, examples="  aw rm fix-login/a1 work/build -r\n"),
    "mkdir": Command(arguments=_mkdir_arguments, run=_mkdir, examples="  aw mkdir fix-login/a1 work/new/deep -p\n"),
    "stat": Command(arguments=_words("PATH"), run=_stat, examples="  aw stat fix-login/a1 work/app.py\n"),
    "find": Command(
        arguments=_words("GLOB", "PATH", optional=1), run=_find, examples="  aw find fix-login/a1 '*.py' work\n"
    ),
    "grep": Command(arguments=_grep_arguments, run=_grep, examples="  aw grep fix-login/a1 TODO work --names '*.py'\n"),
}
