"""aw approvals, approve, deny."""

from __future__ import annotations

import sys
import time

from workstead.cli.context import Command, style, table, to_json
from workstead.errors import InvalidUsage
from workstead.model.approval import EVENTS
from workstead.model.moment import seconds
from workstead.model.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from workstead.cli.context import Door
    from workstead.model.approval import Approval
    from workstead.model.event import Event


def _approvals_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="[ID] | show A…", help="only of this workspace; or what A would do")
    parser.add_argument("--id", metavar="ID", help="only of this workspace")
    parser.add_argument("--all", action="store_true", help="also what was decided")
    parser.add_argument("--follow", "-f", action="store_true", help="go on with what is asked and decided from now on")


def _approvals(door: Door, args: argparse.Namespace) -> None:
    words: list[str] = args.words
    if words[:1] == ["show"] and len(words) > 1:
        _show(door, words[1:])
        return
    if len(words) > 1 or (words and args.id):
        raise InvalidUsage("one workspace is wanted, and several words were given", hint="aw approvals show A…")
    workspace = args.id or (words[0] if words else None)
    if args.follow:
        _follow(door, workspace, every=args.all)
        return
    found = door.workspaces.approvals(workspace, all=args.all)
    door.print(found, _table(door, found) if found else None)
    if not found:
        door.hint("nothing is asked")


def _follow(door: Door, workspace: str | None, *, every: bool) -> None:
    """Print the open requests, then follow later events without a gap between the two."""
    told: set[object] = set()
    wanted = workspace and door.workspaces.get(workspace).id

    def tell_present() -> bool:
        """Print the open requests; `follow` calls this once its start position is fixed, and repeatedly after that."""
        if None not in told:
            told.add(None)
            for each in door.workspaces.approvals(workspace, all=every):
                told.add(each.id)
                _tell(door, each.as_dict(), _WORDS.get(each.state, each.state))
        return False

    for event in door.workspaces.follow(types=sorted(EVENTS), until=tell_present):
        data = event.event_data
        if wanted in (None, data["workspace_id"]) and (
            event.event_type != "approval_requested" or data["approval_id"] not in told
        ):
            _happened(door, event)


def _table(door: Door, found: Sequence[Approval]) -> str:
    now = time.time()
    rows = [
        (
            each.id,
            each.workspace_id,
            each.operation,
            each.path + (f" -> {each.to}" if each.to and each.to != "none" else ""),
            _changed(door.workspaces.preview(each.id)) + ("" if each.whole else " not shown whole"),
            each.actor_id,
            f"{each.expires_at - now:.0f} s left" if each.state == "open" else each.state,
            each.comment,
        )
        for each in found
    ]
    return table(("APPROVAL", "WORKSPACE", "OPERATION", "PATH", "LINES", "BY", "STATE", "COMMENT"), rows)


def _changed(preview: str) -> str:
    """Return the number of lines that a diff adds and removes."""
    lines = preview.split("\n")
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return f"+{added} -{removed}" if added or removed else ""


def _show(door: Door, ids: Sequence[str]) -> None:
    for approval_id in ids:
        found = door.workspaces.get_approval(approval_id)
        preview = door.workspaces.preview(approval_id)
        if door.is_json:
            print(to_json({**found.as_dict(), "preview": preview}))
            continue
        asked = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds(found.requested_at)))
        by = f" by {found.decided_by}" if found.decided_by else ""
        facts = {
            found.id: f"{found.state}{by}" + (f": {found.comment}" if found.comment else ""),
            "asks": f"{found.actor_id}, {asked} UTC" + (f", in {found.run_id}" if found.run_id else ""),
            "to": f"{found.operation} {found.path}" + (f" -> {found.to}" if found.to else ""),
            "in": found.workspace_id,
            "because": found.rule,
            "before": found.digest_before or "nothing",
            "after": found.digest_after or "nothing",
            "shows": "everything" if found.whole else f"not everything: aw approve {found.id} --unseen approves it",
        }
        width = max(map(len, facts))
        print("\n".join(f"{style(name.ljust(width), '2')}  {printable(text)}" for name, text in facts.items()))
        print(_coloured(preview), flush=True)


def _coloured(preview: str) -> str:
    colours = {"+": "32", "-": "31", "@": "36"}
    lines = []
    for line in preview.removesuffix("\n").split("\n"):
        text = "\t".join(map(printable, line.split("\t")))
        lines.append(style(text, colours[line[0]]) if line[:1] in colours else text)
    return "\n".join(lines)


_WORDS = {"open": "asked", "requested": "asked"}


def _happened(door: Door, event: Event) -> None:
    what = event.event_type.removeprefix("approval_")
    if door.is_json:
        print(to_json(event), flush=True)
        return
    data = dict(event.event_data)
    if event.event_type != "approval_requested":
        data = {**door.workspaces.get_approval(str(data["approval_id"])).as_dict(), **data}
    _tell(door, {**data, "actor_id": event.actor_id}, _WORDS.get(what, what))


def _tell(door: Door, data: dict[str, object], what: str) -> None:
    if door.is_json:
        print(to_json(data), flush=True)
        return
    said = f"  {data['comment']}" if data.get("comment") else ""
    line = f"{data['approval_id']}  {what:<8} {data['workspace_id']}  {data['operation']} {data['path']}"
    print(f"{printable(line)}  {printable(str(data['actor_id']))}{printable(said)}", flush=True)


def _decision_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="A", help="what aw approvals lists")
    parser.add_argument("-m", "--message", default="", metavar="COMMENT", help="why; the agent is told")
    parser.add_argument("--id", metavar="ID", help="all that is asked in this workspace")
    parser.add_argument("--run", metavar="RUN", help="all that is asked from this run")
    parser.add_argument("--operation", action="append", default=[], metavar="O", help="of these, only this; repeatable")
    parser.add_argument("--path", action="append", default=[], metavar="P", help="of these, only here: build/**")


def _approve_arguments(parser: argparse.ArgumentParser) -> None:
    _decision_arguments(parser)
    parser.add_argument("--also-later", action="store_true", help="and what follows of that kind, without asking")
    parser.add_argument("--unseen", action="store_true", help="also what is binary or too large to be shown whole")


def _approve(door: Door, args: argparse.Namespace) -> None:
    if _is_batch(args):
        found = door.workspaces.approve_all(
            args.id,
            run=args.run,
            operations=args.operation,
            paths=args.path,
            also_later=args.also_later,
            comment=args.message,
            unseen=args.unseen,
        )
        left = [each.id for each in door.workspaces.approvals(args.id) if not each.whole]
        if left and not args.unseen:
            said = f"not shown whole, and still open: {' '.join(left[:20])}; aw approve A --unseen approves them"
            print(said, file=sys.stderr)  # also for a script: it must learn that not all requests were approved
    else:
        found = door.workspaces.approve(*args.ids, comment=args.message, unseen=args.unseen)
    door.print(found)
    door.hint(f"approved {_count(found)}" + ("; aw policy show tells what goes without asking" * args.also_later))


def _deny(door: Door, args: argparse.Namespace) -> None:
    if _is_batch(args):
        found = door.workspaces.deny_all(
            args.id, run=args.run, operations=args.operation, paths=args.path, comment=args.message
        )
    else:
        found = door.workspaces.deny(*args.ids, comment=args.message)
    door.print(found)
    door.hint(f"denied {_count(found)}")


def _is_batch(args: argparse.Namespace) -> bool:
    kinds = bool(args.id or args.run or args.operation or args.path or getattr(args, "also_later", False))
    if args.ids and kinds:
        raise InvalidUsage("approvals and a kind of them were named", hint="give one or the other")
    if not args.ids and not kinds:
        raise InvalidUsage("no approval was named", hint="aw approvals lists what is asked")
    return kinds


def _count(found: Sequence[Approval]) -> str:
    return "1 request" if len(found) == 1 else f"{len(found)} requests"


COMMANDS = {
    "approvals": Command(
        arguments=_approvals_arguments,
        run=_approvals,
        examples="  aw approvals\n  aw approvals show ask-cr2sn4hsd9er9ks6\n  aw approvals --follow\n",
    ),
    "approve": Command(
        arguments=_approve_arguments,
        run=_approve,
        examples="""\
  aw approve ask-cr2sn4hsd9er9ks6 -m 'looks right'
  aw approve --run run-cr2sn4hz5at9w6y9 --operation delete --path 'build/**'
  aw approve --id fix-login/a1 --operation overwrite --path 'src/**' --also-later
""",
    ),
    "deny": Command(
        arguments=_decision_arguments,
        run=_deny,
        examples="  aw deny ask-cr2sn4hsd9er9ks6 -m 'keep the old tests'\n  aw deny --id fix-login/a1\n",
    ),
}
