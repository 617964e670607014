"""Decide requests of agents, one by one or all of a kind, and list them.

The first decision counts, and a second person is told who made it. A decision is recorded even if the requester no
longer waits: the next identical attempt finds it, until it expires.
"""

from __future__ import annotations

import time

from workstead.core import lookup
from workstead.core.approval_requests import expire, expire_all, get, is_whole, names, read_preview, void
from workstead.core.gate import is_agent, judged, refuse_agents
from workstead.core.policies import amend
from workstead.errors import (
    ApprovalDecided,
    ApprovalExpired,
    ApprovalUnseen,
    FileChanged,
    InvalidUsage,
    PolicyDenied,
    WorksteadError,
    WrongStatus,
)
from workstead.model import event as events
from workstead.model.approval import Approval
from workstead.model.policy import OPERATIONS, Rule, matches, with_rule
from workstead.model.workspace import LIVE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workstead.core.home import Home
    from workstead.model.value import Value
    from workstead.model.workspace import Workspace

_OF_FILES = ("read", "write", "overwrite", "delete", "move")


def approvals(home: Home, workspace_id: str | None = None, *, every: bool = False) -> list[Approval]:
    """Return the open requests, oldest first; `every` adds decided, used and expired ones."""
    if workspace_id is None and home.caller.agent_of:
        workspace_id = home.caller.agent_of
    task = None
    if workspace_id is not None:
        workspace_id = lookup.normal_id(workspace_id)
        lookup.check_reach(home, workspace_id)
        task = workspace_id.partition("/")[0]
    found = [Approval(**record) for record in home.log.find_all("approval", task=task, live_only=not every)]
    if workspace_id is not None:
        found = [each for each in found if each.workspace_id == workspace_id]
    overdue = expire_all(home, found)
    current = [get(home, each.id) if each.id in overdue else each for each in found]
    return [_as_seen(home, each) for each in current if every or each.state == "open"]


def get_approval(home: Home, approval_id: str) -> Approval:
    """Return one request, or raise ApprovalNotFound."""
    return _as_seen(home, get(home, approval_id))


def preview(home: Home, approval_id: str) -> str:
    """Return the preview of a request as text; it is stored for the retention of the trash.

    Raises PolicyDenied for an agent that may not read everything that the preview shows.
    """
    found = get(home, approval_id)
    if not _may_see(home, found):
        raise PolicyDenied(
            f"the preview of {found.id} shows what the policy does not let an agent read",
            hint="it is for the owner, who decides",
            details={"operation": "read"},
        )
    content = read_preview(home, found.id)
    return (
        f"the preview of {found.id} is not here any more\n"
        if content is None
        else content.decode(errors="backslashreplace")
    )


def _as_seen(home: Home, approval: Approval) -> Approval:
    """Return the approval without details that the caller may not see: even a digest reveals something of a file."""
    return approval if _may_see(home, approval) else approval.replace(digest_before="", digest_after="", size=0)


def _may_see(home: Home, approval: Approval) -> bool:
    """Return whether the caller may read, without approval, every file of the request."""
    if not is_agent(home):
        return True
    workspace = lookup.by_uid(home, approval.uid)
    may = judged(home, lambda gate: gate.readable(workspace))
    return may is None or (approval.place != "." and all(map(may, _places(home, workspace, approval))))


def _places(home: Home, workspace: Workspace, approval: Approval) -> list[str]:
    """Return the paths of a request about files, relative to the workspace."""
    if approval.operation != "move":
        return [approval.place]
    return [approval.place, approval.to.removeprefix(lookup.public_mount(home, workspace)).lstrip("/")]


def approve(home: Home, approval_ids: Sequence[str], *, comment: str = "", unseen: bool = False) -> list[Approval]:
    """Approve requests, each for exactly its content and for one use.

    Raises ApprovalUnseen if a preview is incomplete, unless `unseen` confirms that the person knows: then none is
    approved.
    """
    refuse_agents(home, "to approve")
    found = [_undecided(home, approval_id) for approval_id in approval_ids]
    for each in found:
        _refuse_unseen(home, each, unseen)
    return [_grant(home, each, comment) for each in found]


def deny(home: Home, approval_ids: Sequence[str], *, comment: str = "") -> list[Approval]:
    """Deny requests."""
    refuse_agents(home, "to deny")
    found = [_undecided(home, approval_id) for approval_id in approval_ids]
    return [_deny(home, each, comment) for each in found]


def approve_all(
    home: Home,
    *,
    workspace_id: str | None = None,
    run_id: str | None = None,
    operations: Sequence[str] = (),
    paths: Sequence[str] = (),
    also_later: bool = False,
    comment: str = "",
    unseen: bool = False,
) -> list[Approval]:
    """Approve every open request of a workspace or a run that has one of these operations, in these paths.

    `also_later` also allows later ones, by a rule of the policy with precedence over all others. Requests whose preview
    is incomplete stay open, unless `unseen` or such a rule covers them.
    """
    refuse_agents(home, "to approve")
    workspace = _where(home, workspace_id, run_id)
    if also_later:
        if workspace is None:
            raise InvalidUsage("what may be done later has to be said of one workspace or run", hint="--run or --id")
        rule = Rule(outcome="allow", operations=list(operations), paths=list(paths), run=run_id or "")
        amend(home, workspace, lambda now: with_rule(now, rule), comment or rule.text())
    found = _matching(home, workspace, run_id, operations, paths)
    shown = [each for each in found if unseen or also_later or is_whole(home, each)]
    return _each(home, shown, _grant, comment)


def deny_all(
    home: Home,
    *,
    workspace_id: str | None = None,
    run_id: str | None = None,
    operations: Sequence[str] = (),
    paths: Sequence[str] = (),
    comment: str = "",
) -> list[Approval]:
    """Deny every open request of a workspace or a run that has one of these operations, in these paths."""
    refuse_agents(home, "to deny")
    workspace = _where(home, workspace_id, run_id)
    return _each(home, _matching(home, workspace, run_id, operations, paths), _deny, comment)


def _where(home: Home, workspace_id: str | None, run_id: str | None) -> Workspace | None:
    if run_id is not None:
        from workstead.core.runs import get as get_run

        return lookup.by_uid(home, get_run(home, run_id).uid)
    return lookup.get(home, workspace_id) if workspace_id is not None else None


def _matching(
    home: Home, workspace: Workspace | None, run_id: str | None, operations: Sequence[str], paths: Sequence[str]
) -> list[Approval]:
    for operation in operations:
        if operation not in OPERATIONS:
            raise InvalidUsage(f"there is no operation {operation!r}", hint=f"one of {', '.join(OPERATIONS)}")
    return [
        each
        for each in approvals(home, workspace.id if workspace is not None else None)
        if (run_id is None or each.run_id == run_id)
        and (not operations or each.operation in operations)
        and (not paths or any(matches(pattern, each.place) for pattern in paths))
    ]


def _each(
    home: Home, found: list[Approval], decide: Callable[[Home, Approval, str], Approval], comment: str
) -> list[Approval]:
    done = []
    for each in found:
        try:
            done.append(decide(home, each, comment))
        except (ApprovalDecided, ApprovalExpired, FileChanged):
            continue  # another process was first, or the target is gone
    return done


def _undecided(home: Home, approval_id: str) -> Approval:
    found = get(home, approval_id)
    if found.state == "open" and expire(home, found):
        found = get(home, approval_id)
    if found.state != "open":
        raise _decided(found)
    return found


def _refuse_unseen(home: Home, approval: Approval, unseen: bool) -> None:
    if not unseen and not is_whole(home, approval):
        raise ApprovalUnseen(
            f"the preview of {approval.id} does not show everything that would be approved",
            hint=f"look with aw approvals show {approval.id}, then aw approve {approval.id} --unseen",
            details={
                "approval_id": approval.id,
                "preview_lines": approval.preview_lines,
                "size": approval.size,
                "digest_after": approval.digest_after,
            },
        )


def _decided(found: Approval) -> WorksteadError:
    if found.state == "expired" and not found.decided_by:
        return ApprovalExpired(f"the time to decide {found.id} is over", hint="it can be asked again")
    by = f", decided by {found.decided_by}" if found.decided_by else ""
    said = f": {found.comment}" if found.comment else ""
    return ApprovalDecided(
        f"{found.id} is {found.state} already{by}{said}",
        hint="aw approvals --all lists what was decided",
        details={"state": found.state, "decided_by": found.decided_by, "comment": found.comment},
    )


def _grant(home: Home, approval: Approval, comment: str) -> Approval:
    workspace = lookup.by_uid(home, approval.uid)
    if workspace.state not in LIVE:
        void(home, approval.id, f"the workspace is {workspace.state}")
        raise _decided(get(home, approval.id))
    if _is_stale(home, workspace, approval):
        void(home, approval.id, "the content changed before it was decided")
        raise FileChanged(
            f"{approval.path} is not what it was when {approval.id} was asked: nothing was approved",
            hint="the agent asks again, for what is there now",
            details={"approval_id": approval.id},
        )
    lasts = lookup.policy_of(workspace).approval_timeout_seconds
    return _record(
        home, events.ApprovalGranted(**names(approval), comment=comment, expires_at=time.time() + lasts), approval
    )


def _deny(home: Home, approval: Approval, comment: str) -> Approval:
    return _record(home, events.ApprovalDenied(**names(approval), comment=comment), approval)


def _record(home: Home, fact: Value, approval: Approval) -> Approval:
    try:
        home.record(approval.task_id, fact)
    except WrongStatus:
        raise _decided(get(home, approval.id)) from None
    return get(home, approval.id)


def _is_stale(home: Home, workspace: Workspace, approval: Approval) -> bool:
    """Return whether the files of a request have changed; one of another home is checked at use."""
    of_one = approval.operation in _OF_FILES and approval.place != "."
    if not of_one or workspace.home != home.id or workspace.state != "ready":
        return False
    from workstead.core.file_access import fingerprint

    try:
        places = _places(home, workspace, approval)
        now = ":".join(filter(None, (fingerprint(home, workspace.id, place) for place in places)))
    except (WorksteadError, OSError):
        return True
    return now != approval.digest_before
