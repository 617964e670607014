"""aw create, list, show, path, destroy."""

from __future__ import annotations

import json
import sys

from workstead.cli.context import Command, add_clone_options, add_ids, fitted, ids_of, style, table, take_clone_options
from workstead.cli.summary import hint_notes
from workstead.errors import InvalidConfig, InvalidUsage, from_os
from workstead.model.text import printable, quoted, word

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from workstead.cli.context import Door
    from workstead.model.overview import Summary
    from workstead.model.run import Run
    from workstead.model.workspace import Workspace


def _create_arguments(parser: argparse.ArgumentParser) -> None:
    add_ids(parser, optional=True)
    parser.add_argument("--source", metavar="SPEC", help="where the files come from (default: empty)")
    parser.add_argument("--template", metavar="NAME", help="the same as --source template:NAME")
    add_clone_options(parser)
    parser.add_argument("--config", metavar="JSON|@FILE", help="max_size_mb, git_config, claude_md, … as JSON")
    parser.add_argument("--max-size-mb", type=int, metavar="N", help="how large it may grow")
    parser.add_argument("--claude-md", metavar="FILE", help="put this file into the workspace as CLAUDE.md")
    parser.add_argument("--agents-md", metavar="FILE", help="put this file into the workspace as AGENTS.md")
    parser.add_argument("--prompt", metavar="TEXT", help="what the agent is to do; kept in .aw/run.json")
    parser.add_argument("--lazy", action="store_true", help="only take the id; files are made at first use")
    parser.add_argument(
        "--batch", action="store_true", help="read one JSON object per line from stdin and make them all"
    )


def _create(door: Door, args: argparse.Namespace) -> int | None:
    take_clone_options(door, args)
    if args.batch:
        return _create_batch(door)
    if args.source and args.template:
        raise InvalidUsage("--source and --template were both given", hint="--template X is --source template:X")
    config = _config(args.config)
    for key, value in (
        ("max_size_mb", args.max_size_mb),
        ("claude_md", _text(args.claude_md)),
        ("agents_md", _text(args.agents_md)),
        ("prompt", args.prompt),
    ):
        if value is not None:
            config[key] = value
    ids = ids_of(args)
    source = args.source or (f"template:{args.template}" if args.template else "empty")
    workspace = door.workspaces.create(
        source, id=ids[0] if ids else None, config=config, lazy=args.lazy, progress=door.progress
    )
    door.progress("")
    door.print(workspace, workspace.path)
    hint_notes(door, workspace)
    return None


def _create_batch(door: Door) -> int:
    """Create a workspace for each input line; continue after a failure and return the exit code of the first one."""
    from workstead.errors import WorksteadError

    exit_code = 0
    for number, line in enumerate(sys.stdin.buffer, 1):
        if not line.strip():
            continue
        try:
            wanted = _batch_line(line, f"line {number}")
            workspace = door.workspaces.create(
                wanted.get("source", "empty"),
                id=wanted.get("id"),
                config=wanted.get("config"),
                lazy=wanted.get("lazy", False),
            )
        except WorksteadError as error:
            door.fail(error)
            exit_code = exit_code or error.exit_code
        else:
            door.print(workspace, workspace.path)
    return exit_code


def _batch_line(line: bytes, what: str) -> dict[str, Any]:
    wanted = _parse(line.decode(errors="surrogateescape"), what)
    for key, value in wanted.items():
        kind = _BATCH.get(key)
        if kind is None:
            raise InvalidConfig(f"unknown key {key!r} in {what}", hint=", ".join(_BATCH), details={"key": key})
        if not isinstance(value, kind):
            raise InvalidConfig(
                f"{key} in {what} is not {_KINDS[kind]}", hint='as in {"id": "t/a"}', details={"key": key}
            )
    return wanted


_BATCH: dict[str, type] = {"id": str, "source": str, "config": dict, "lazy": bool}
_KINDS: dict[type, str] = {str: "text", dict: "an object", bool: "true or false"}


def _config(given: str | None, what: str = "--config") -> dict[str, Any]:
    if given is None:
        return {}
    return _parse((_text(given[1:]) or "") if given.startswith("@") else given, what)


def _parse(text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{what} is not JSON: {error}", hint="as in '{\"max_size_mb\": 500}', or @FILE") from None
    if not isinstance(found, dict):
        raise InvalidConfig(f"{what} is not a JSON object", hint="as in '{\"max_size_mb\": 500}'")
    return found


def _text(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise (
            from_os(error, path)
            if not isinstance(error, FileNotFoundError)
            else InvalidConfig(f"file {path} does not exist", hint="give the path of a readable file")
        ) from None
    except ValueError:
        raise InvalidConfig(f"file {path} is not UTF-8 text", hint="save it as UTF-8") from None


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task-id", metavar="T", help="only the workspaces of this task")
    parser.add_argument("--all", action="store_true", help="also those that were destroyed")
    parser.add_argument("--wide", action="store_true", help="on a terminal: also paths, and nothing is cut")
    parser.add_argument(
        "--changes", action="store_true", help="count what was not applied (by itself for few workspaces on a terminal)"
    )


FEW = 20  # up to this number, the changes of every workspace are counted by default


def _list(door: Door, args: argparse.Namespace) -> None:
    workspaces = door.workspaces.list(args.task_id, all=args.all)
    if not workspaces and not door.is_json:
        door.hint("no workspaces yet: aw create makes one")
        return
    looked_into = args.changes or (sys.stdout.isatty() and len(workspaces) <= FEW and not door.is_json)
    changed = [_count_changes(door, each) for each in workspaces] if looked_into else []
    if door.is_json:
        found = [workspace.as_dict() for workspace in workspaces]
        door.print(
            [{**each, "changed": count} for each, count in zip(found, changed, strict=True)] if changed else found
        )
        return
    known = {each.uid: each for each in door.workspaces.overview(args.task_id)}
    rows = [
        [w.id, _state(w, known.get(w.uid)), w.source, w.created_at[:16].replace("T", " "), w.path] for w in workspaces
    ]
    headers = ["WORKSPACE", "STATE", "SOURCE", "CREATED (UTC)", "PATH"]
    is_wide = args.wide or not sys.stdout.isatty()  # a program gets everything
    if not is_wide:
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    if looked_into:
        headers.insert(2, "CHANGES")
        for row, count in zip(rows, changed, strict=True):
            row.insert(2, "?" if count is None else str(count or ""))
    print(table(headers, rows) if is_wide else fitted(headers, rows, flexible=(len(headers) - 2, 0)))


def _state(workspace: Workspace, summary: Summary | None) -> str:
    """Return how the last run ended; without a run, the state of the workspace itself."""
    shown = workspace.state
    if summary and summary.status != "changed":
        shown = summary.status
    elif summary and summary.run_id:
        shown = "done"
    if shown == "failed" and summary and summary.exit_code:
        shown = f"failed, exit {summary.exit_code}"
    return f"{shown}{', pinned' * workspace.pinned}"


def _count_changes(door: Door, workspace: Workspace) -> int | None:
    """Return the number of changed paths that were not applied; None if it cannot be determined."""
    from workstead.errors import WorksteadError

    if workspace.state != "ready":
        return 0
    try:
        return len(door.workspaces.status(workspace.id))
    except WorksteadError:
        return None


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    add_ids(parser)
    parser.add_argument("--origin", action="store_true", help="also what changed in the folder it was made from")


def _show(door: Door, args: argparse.Namespace) -> None:
    workspace = door.workspaces.get(ids_of(args)[0])
    origin = door.workspaces.origin_changes(workspace.id) if args.origin else []
    runs = door.workspaces.runs(workspace.id)
    last = runs[-1] if runs else None
    changed = _count_changes(door, workspace)
    if door.is_json:
        more = {"origin_changes": origin} if args.origin else {}
        door.print({**workspace.as_dict(), "last_run": last.as_dict() if last else None, "changed": changed, **more})
    else:
        print("\n".join([details(workspace, changed), *(_last_run(last) if last else []), *_origin(args, origin)]))


def _origin(args: argparse.Namespace, changes: Sequence[str]) -> list[str]:
    if not args.origin:
        return []
    shown = [printable(path) for path in changes] or ["nothing changed there since"]
    return [f"{style(('origin' if path is shown[0] else '').ljust(9), '2')}  {path}" for path in shown]


def _last_run(run: Run) -> list[str]:
    """Return lines about the last run and its sandbox."""
    from workstead.cli.summary import walls_of

    ended = "" if run.exit_code is None else f", exit code {run.exit_code}"
    lines = [("last run", f"{run.id}: {run.state}{ended}"), ("", quoted(run.command)[:100])]
    lines += [("", f"{name}: {held}") for name, held in walls_of(run.enforcement)]
    return [f"{style(name.ljust(9), '2')}  {printable(text)}" for name, text in lines]


def details(workspace: Workspace, changed: int | None = 0) -> str:
    """Return the details of a workspace, one per line."""
    mechanism = workspace.filled.get("mechanism")
    facts: list[tuple[str, object]] = [
        ("workspace", workspace.id),
        ("state", workspace.state),
        ("path", workspace.path),
        ("source", workspace.source),
        ("made by", mechanism or "-"),
        ("created", workspace.created_at),
        ("changed", workspace.updated_at),
        ("uid", workspace.uid),
        ("changes", _not_applied(workspace, changed)),
    ]
    if workspace.policy:
        facts.append(("policy", _policy_in_short(workspace.policy)))
    if workspace.pinned:
        facts.append(("pinned", "no sweep takes it"))
    if workspace.reason:
        facts.append(("reason", workspace.reason))
    facts += [(f"config {key}", _short(value)) for key, value in workspace.config.items()]
    notes = workspace.filled.get("notes")
    facts += [("note", note) for note in (notes if isinstance(notes, list) else [])]
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{style(name.ljust(width), '2')}  {printable(str(value))}" for name, value in facts)


def _policy_in_short(policy: dict[str, object]) -> str:
    rules = policy.get("rules")
    count = len(rules) if isinstance(rules, list) else 0
    return f"{policy.get('preset') or 'its own'}, {count} rule{'' if count == 1 else 's'}; aw policy show tells more"


def _not_applied(workspace: Workspace, changed: int | None) -> str:
    if changed is None:
        return "cannot be found out: aw diff says why"
    return f"{changed} not applied: aw diff {word(workspace.id)}" if changed else "none that are not applied"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}…"


def _path(door: Door, args: argparse.Namespace) -> None:
    path = door.workspaces.path(ids_of(args)[0])
    door.print({"path": path}, path)


def _destroy_arguments(parser: argparse.ArgumentParser) -> None:
    add_ids(parser, many=True, optional=True)
    parser.add_argument("--task-id", metavar="T", help="every workspace of this task")
    parser.add_argument("--force", action="store_true", help="also when it is busy or holds unapplied changes")
    parser.add_argument("--reason", default="requested", metavar="TEXT", help="why; kept in the log")


def _destroy(door: Door, args: argparse.Namespace) -> None:
    ids = ids_of(args)
    if bool(ids) == (args.task_id is not None):
        raise InvalidUsage("destroy wants ids, or --task-id", hint="one of the two")
    options = {"force": args.force, "reason": args.reason}
    if args.task_id is not None:
        gone = door.workspaces.destroy_task(args.task_id, **options)
    else:
        gone = door.workspaces.destroy(*ids, **options)
    door.print(gone)
    count = f"{len(gone)} workspaces are" if len(gone) != 1 else f"{gone[0].id} is"
    door.hint(f"{count} in the trash; aw undo brings {'them' if len(gone) != 1 else 'it'} back")


COMMANDS = {
    "create": Command(
        arguments=_create_arguments,
        run=_create,
        examples="""\
  aw create --id fix-login/a1
  aw create --id fix-login/a2 --config '{"max_size_mb": 500, "git_config": {"user_name": "Fix Bot"}}'
  aw create --template python-service
  printf '{"id": "t/%d"}\\n' 1 2 3 | aw create --batch
""",
    ),
    "list": Command(
        arguments=_list_arguments,
        run=_list,
        examples="  aw list\n  aw list --changes\n  aw list --task-id fix-login --format json\n  aw list --all\n"
        "  aw list --wide\n",
    ),
    "show": Command(
        arguments=_show_arguments, run=_show, examples="  aw show fix-login/a1\n  aw show fix-login/a1 --origin\n"
    ),
    "path": Command(arguments=add_ids, run=_path, examples='  cd "$(aw path fix-login/a1)/work"\n'),
    "destroy": Command(
        arguments=_destroy_arguments,
        run=_destroy,
        examples="  aw destroy fix-login/a1\n  aw destroy --task-id fix-login --reason merged\n  aw undo\n",
    ),
}
