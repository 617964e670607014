"""Ask a person for an approval, wait for the answer, and use it once.

    approval_requested → approval_granted | approval_denied | approval_expired → approval_used

The request is an event. Its effect is shown by a preview, stored beside the log with permissions for the owner only,
because events hold no content. A repeated request joins the open one. The answer is read from the log, so any process
can record it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from workstead.core import lookup
from workstead.errors import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalNotFound,
    ApprovalRequired,
    TooManyApprovals,
    WrongStatus,
)
from workstead.model import event as events
from workstead.model.approval import DECISIONS, LIVE, Approval
from workstead.model.digest import sha256
from workstead.model.text import printable
from workstead.store.log import LabelTaken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from workstead.core.home import Home
    from workstead.core.previews import Preview
    from workstead.model.approval import Request
    from workstead.model.value import Value
    from workstead.model.workspace import Workspace

DAY, HOUR = 86400.0, 3600.0
MAX_OPEN = 1000  # open requests and unused grants of one workspace
MAX_OPEN_BYTES = 64 << 20  # total size of their previews
MAX_PER_HOUR = 2000  # requests of one workspace
MAX_NAMED = 300  # characters of a path or command in an error message


def get(home: Home, approval_id: str) -> Approval:
    """Return the approval of this id or raise ApprovalNotFound; an agent finds only those of its own workspace."""
    record = home.log.get("approval", approval_id) if approval_id.isascii() else None
    if record is None or home.caller.agent_of not in (None, "", record["workspace_id"]):
        raise ApprovalNotFound(f"there is no approval {approval_id}", hint="aw approvals lists them")
    return Approval(**record)


def find_live(home: Home, workspace: Workspace, request: Request) -> Approval | None:
    """Return the open request, or the unused grant, for exactly this request; None if there is none.

    An approval of the same operation for content that has changed since becomes void.
    """
    record = home.log.find_live("approval", request.key(workspace.uid))
    if record is None or expire(home, Approval(**record)):
        return None
    if record["digest_before"] != request.digest_before:
        void(home, record["approval_id"], "the content changed meanwhile")
        return None
    return Approval(**record)


def spend(approval: Approval) -> Value:
    """Return the event that uses up a grant. It can be recorded once: a second attempt gets WrongStatus."""
    return events.ApprovalUsed(**names(approval))


def names(approval: Approval) -> dict[str, Any]:
    """Return the fields that every event about the approval has."""
    _, _, agent = approval.workspace_id.partition("/")
    return {
        "workspace_id": approval.workspace_id,
        "agent_id": agent,
        "uid": approval.uid,
        "approval_id": approval.approval_id,
    }


def ask(home: Home, workspace: Workspace, request: Request, rule: str, preview: Preview | None) -> Approval | None:
    """Return the open approval for this request, or create one with this preview.

    Return None if there is no open one and no preview to create one with.
    """
    while True:
        found = find_live(home, workspace, request)
        if found is not None or preview is None:
            return found
        check_room(home, workspace)
        approval_id = f"ask-{home.new_id()}"
        fact = events.ApprovalRequested(
            **workspace.names(),
            **request.as_dict(),
            approval_id=approval_id,
            rule=rule,
            key=request.key(workspace.uid),
            home=home.id,
            run_id=home.caller.run_id,
            expires_at=time.time() + lookup.policy_of(workspace).approval_timeout_seconds,
            whole=preview.whole,
            preview_lines=preview.lines,
            preview_digest=sha256(preview.text).hexdigest(),
        )
        # Before the event, so that the preview exists when the request is seen.
        keep_preview(home, approval_id, preview.text)
        try:
            home.log.append(workspace.task_id, [fact], home.caller)
        except BaseException as error:
            drop_preview(home, approval_id)
            if not isinstance(error, LabelTaken):  # LabelTaken: another process made the same request at the same time
                raise
        else:
            # Other processes see the event before it is on the disk: it may be void by now, and must not be asked again
            # unchanged.
            return get(home, approval_id)


def check_room(home: Home, workspace: Workspace) -> None:
    """Raise TooManyApprovals if one more request would exceed the limits of the workspace."""
    live = home.log.find_all("approval", task=workspace.task_id, live_only=True)
    own = [each["approval_id"] for each in live if each["uid"] == workspace.uid]
    if len(own) >= MAX_OPEN:
        over = expire_all(home, [Approval(**each) for each in live if each["uid"] == workspace.uid])
        own = [each for each in own if each not in over]
    size = sum(_preview_bytes(home, each) for each in own)
    if len(own) >= MAX_OPEN or size >= MAX_OPEN_BYTES:
        raise TooManyApprovals(
            f"{len(own)} requests of {workspace.id} wait for an answer already",
            hint="wait until some are decided: aw approvals lists them",
            details={"open": len(own), "max_open": MAX_OPEN, "bytes": size, "max_bytes": MAX_OPEN_BYTES},
        )
    asked = _count_asked(home, workspace.uid)
    if asked > MAX_PER_HOUR:
        raise TooManyApprovals(
            f"{workspace.id} has asked for {MAX_PER_HOUR} approvals within an hour",
            hint="ask for less at a time, or let the owner allow it by a rule of the policy",
            details={"asked": asked, "max_per_hour": MAX_PER_HOUR},
        )


def _count_asked(home: Home, uid: str) -> int:
    """Return how many requests a workspace has made within the last hour, including this one."""
    path, now = f"{home.path}/quota/{uid}.asked", time.time()
    try:
        with open(path) as file:
            since, count = map(float, file.read().split())
    except (FileNotFoundError, ValueError):
        since, count = now, 0
    if not 0 <= now - since < HOUR:
        since, count = now, 0
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(f"{since} {count + 1}")
    return int(count) + 1


def wait(home: Home, approval: Approval, seconds: float) -> None:
    """Wait until the approval is granted, or void and to be requested again.

    Raises ApprovalDenied, ApprovalExpired, or ApprovalRequired on timeout.
    """
    end = time.time() + seconds
    seen = home.log.last_position()
    while True:
        approval = get(home, approval.id)
        if approval.state in ("denied", "expired"):
            raise _refusal(approval)
        if approval.state != "open":
            return
        if not expire(home, approval):
            if time.time() >= end:
                raise _required(approval)
            seen = _follow(home, approval, seen, min(end, approval.expires_at))


def _follow(home: Home, approval: Approval, after: int, until: float) -> int:
    """Wait until the approval may have changed, or until the timeout; return the log position that was read up to."""
    for event in home.log.follow(
        after=after, stream=approval.task_id, types=DECISIONS, until=lambda: time.time() >= until
    ):
        after = event.position
        if event.event_data["approval_id"] == approval.id:
            break
    return after


def _required(approval: Approval) -> ApprovalRequired:
    return ApprovalRequired(
        f"somebody has to approve it first: {_named(approval)}",
        hint=f"aw approvals show {approval.id}, then aw approve {approval.id}; after that try the same again",
        details={"approval_id": approval.id, "expires_at": approval.expires_at},
    )


def _named(approval: Approval) -> str:
    """Describe the request for an error message, shortened: the preview has the whole command."""
    path = printable(approval.path)
    return f"{approval.operation} {path[:MAX_NAMED]}{'…' if len(path) > MAX_NAMED else ''}"


def _refusal(approval: Approval) -> Exception:
    details = {"approval_id": approval.id, "comment": approval.comment}
    what = _named(approval)
    said = f": {approval.comment}" if approval.comment else ""
    if approval.state == "denied":
        hint = "find another way, or ask the owner what would be right"
        return ApprovalDenied(f"{approval.decided_by} did not approve {what}{said}", hint=hint, details=details)
    return ApprovalExpired(f"nobody approved {what} in time", hint="ask again", details=details)


def expire(home: Home, approval: Approval) -> bool:
    """Record that a request or a grant has expired, if it has; return True if the approval is no longer valid."""
    if time.time() < approval.expires_at:
        return False
    end(home, approval, events.ApprovalExpired(**names(approval)))
    return True


def expire_all(home: Home, found: Iterable[Approval]) -> set[str]:
    """Record the expiry of all expired approvals, in one write for each task; return their ids."""
    now = time.time()
    overdue = [each for each in found if each.state in LIVE and now >= each.expires_at]
    for task in {each.task_id for each in overdue}:
        those = [each for each in overdue if each.task_id == task]
        try:
            home.record(task, *(events.ApprovalExpired(**names(each)) for each in those))
        except WrongStatus:  # another process changed one of them at the same time
            for each in those:
                expire(home, each)
        else:
            for each in those:
                drop_preview(home, each.id)
    return {each.id for each in overdue}


def void(home: Home, approval_id: str, reason: str) -> None:
    """Record that an approval is void because its target no longer exists or has changed."""
    approval = get(home, approval_id)
    end(home, approval, events.ApprovalVoided(**names(approval), reason=reason))


def end(home: Home, approval: Approval, fact: Value) -> None:
    """Record an end without a decision, unless another process has already recorded an end.

    The preview is deleted: an agent can make any number of requests.
    """
    try:
        home.record(approval.task_id, fact)
    except WrongStatus:
        return
    drop_preview(home, approval.id)


# -- previews ----------------------------------------------------------------------------------------------------------


def previews_path(home: Home) -> str:
    """Return the directory of the previews."""
    return f"{home.path}/approvals"


def _preview_bytes(home: Home, approval_id: str) -> int:
    try:
        return os.stat(f"{previews_path(home)}/{approval_id}").st_size
    except FileNotFoundError:
        return 0


def keep_preview(home: Home, approval_id: str, preview: bytes) -> None:
    """Write the preview of a request, for the person who decides."""
    with suppress(FileExistsError):
        os.mkdir(previews_path(home), 0o700)
    path = f"{previews_path(home)}/{approval_id}"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(preview)


def read_preview(home: Home, approval_id: str) -> bytes | None:
    """Return the preview of a request; None if it was deleted or never stored here."""
    try:
        with open(f"{previews_path(home)}/{approval_id}", "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def is_whole(home: Home, approval: Approval) -> bool:
    """Return whether the stored preview shows everything that the request would do."""
    kept = read_preview(home, approval.id) if approval.whole else None
    return kept is not None and sha256(kept).hexdigest() == approval.preview_digest


def drop_preview(home: Home, approval_id: str) -> None:
    """Delete the preview of a request."""
    try:
        os.unlink(f"{previews_path(home)}/{approval_id}")
    except FileNotFoundError:
        return


def drop_old_previews(home: Home) -> None:
    """Delete previews of purged workspaces, and of requests decided longer ago than the retention of the trash."""
    limit = time.time() - home.settings.workspaces.trash_days * DAY
    try:
        found = os.listdir(previews_path(home))
    except FileNotFoundError:
        return
    for name in found:
        record = home.log.get("approval", name)
        workspace = home.log.get("workspace", record["uid"]) if record else None
        gone = workspace is not None and workspace["state"] in ("purging", "purged")
        with suppress(FileNotFoundError):
            old = os.stat(f"{previews_path(home)}/{name}").st_mtime < limit
            if gone or (old and (record is None or record["state"] not in LIVE)):
                drop_preview(home, name)
