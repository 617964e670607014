"""Put a question to a person, wait for the answer, and use it once.

    approval_requested → approval_granted | approval_denied | approval_expired → approval_used

The question is an event; what it would do is shown by a preview that lies beside the log, closed to others, because
events hold no content. Who asks the same again joins the question that is open. An answer is followed in the log, so
that it does not matter which process gives it.
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
MAX_OPEN = 1000  # questions of one workspace that wait for an answer, or whose grant nobody has used
MAX_OPEN_BYTES = 64 << 20  # of their previews
MAX_PER_HOUR = 2000  # questions that one workspace puts
MAX_NAMED = 300  # letters of a path or command in an error


def get(home: Home, approval_id: str) -> Approval:
    """The approval of this id, or ApprovalNotFound; an agent finds those of its own workspace."""
    record = home.log.get("approval", approval_id) if approval_id.isascii() else None
    if record is None or home.caller.agent_of not in (None, "", record["workspace_id"]):
        raise ApprovalNotFound(f"there is no approval {approval_id}", hint="aw approvals lists them")
    return Approval(**record)


def find_live(home: Home, workspace: Workspace, request: Request) -> Approval | None:
    """The question for exactly this request that is open, or whose grant nobody has used yet.

    One for the same wish that is about another content than is there now is void from here on."""
    record = home.log.find_live("approval", request.key(workspace.uid))
    if record is None or expire(home, Approval(**record)):
        return None
    if record["digest_before"] != request.digest_before:
        void(home, record["approval_id"], "the content changed meanwhile")
        return None
    return Approval(**record)


def spend(approval: Approval) -> Value:
    """The fact that uses a grant up. It cannot be recorded twice, so of two who try one gets WrongStatus."""
    return events.ApprovalUsed(**names(approval))


def names(approval: Approval) -> dict[str, Any]:
    """What every event about the approval names."""
    _, _, agent = approval.workspace_id.partition("/")
    return {
        "workspace_id": approval.workspace_id,
        "agent_id": agent,
        "uid": approval.uid,
        "approval_id": approval.approval_id,
    }


def ask(home: Home, workspace: Workspace, request: Request, rule: str, preview: Preview | None) -> Approval | None:
    """The open question for this request: the one that somebody has put already, or else a new one with this preview;
    None if there is no preview for it."""
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
        keep_preview(home, approval_id, preview.text)  # first, so that whoever hears of the question can look at it
        try:
            home.log.append(workspace.task_id, [fact], home.caller)
        except BaseException as error:
            drop_preview(home, approval_id)
            if not isinstance(error, LabelTaken):  # else the same was asked this instant
                raise
        else:
            # Others see it before the disk has it: it may be void by now, and must not be asked again as it was.
            return get(home, approval_id)


def check_room(home: Home, workspace: Workspace) -> None:
    """Raise TooManyApprovals where one more question is more than a person, or the home, can take."""
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
    """How many questions a workspace has put within an hour, this one included."""
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
    """Return when it is granted, or void and to be asked anew. Raises ApprovalDenied, ApprovalExpired, or
    ApprovalRequired when the time is over."""
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
    """Return when something may have become of it, or when the time is over; gives how far the log was read."""
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
    """What is asked, for a sentence: a command may be as long as a book, and stands whole in the preview."""
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
    """Write down that the time of a question or a grant is over, if it is; True if it is not good any more."""
    if time.time() < approval.expires_at:
        return False
    end(home, approval, events.ApprovalExpired(**names(approval)))
    return True


def expire_all(home: Home, found: Iterable[Approval]) -> set[str]:
    """Write down for all of these whose time is over that it is, together for each task; gives their ids."""
    now = time.time()
    overdue = [each for each in found if each.state in LIVE and now >= each.expires_at]
    for task in {each.task_id for each in overdue}:
        those = [each for each in overdue if each.task_id == task]
        try:
            home.record(task, *(events.ApprovalExpired(**names(each)) for each in those))
        except WrongStatus:  # something became of one of them this instant
            for each in those:
                expire(home, each)
        else:
            for each in those:
                drop_preview(home, each.id)
    return {each.id for each in overdue}


def void(home: Home, approval_id: str, reason: str) -> None:
    """Write down that an approval is for something that is not there any more."""
    approval = get(home, approval_id)
    end(home, approval, events.ApprovalVoided(**names(approval), reason=reason))


def end(home: Home, approval: Approval, fact: Value) -> None:
    """Write down that nobody decided, unless somebody was quicker to write down another end.

    What was asked in vain is not shown any more: an agent may ask as often as it wants to."""
    try:
        home.record(approval.task_id, fact)
    except WrongStatus:
        return
    drop_preview(home, approval.id)


# -- previews ----------------------------------------------------------------------------------------------------------


def previews_path(home: Home) -> str:
    """Where the previews are."""
    return f"{home.path}/approvals"


def _preview_bytes(home: Home, approval_id: str) -> int:
    try:
        return os.stat(f"{previews_path(home)}/{approval_id}").st_size
    except FileNotFoundError:
        return 0


def keep_preview(home: Home, approval_id: str, preview: bytes) -> None:
    """Write down what a request would do, for whoever decides."""
    with suppress(FileExistsError):
        os.mkdir(previews_path(home), 0o700)
    path = f"{previews_path(home)}/{approval_id}"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(preview)


def read_preview(home: Home, approval_id: str) -> bytes | None:
    """What a request would do; None when that is not kept any more, or was never here."""
    try:
        with open(f"{previews_path(home)}/{approval_id}", "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def is_whole(home: Home, approval: Approval) -> bool:
    """Whether the preview that somebody can look at now shows everything that the request would do."""
    kept = read_preview(home, approval.id) if approval.whole else None
    return kept is not None and sha256(kept).hexdigest() == approval.preview_digest


def drop_preview(home: Home, approval_id: str) -> None:
    """Forget what a request would have done."""
    try:
        os.unlink(f"{previews_path(home)}/{approval_id}")
    except FileNotFoundError:
        return


def drop_old_previews(home: Home) -> None:
    """Forget what was asked in workspaces that are gone for good, and what was decided longer ago than trash stays."""
    limit = time.time() - home.settings.workspaces.trash_days * DAY
    try:
        found = os.listdir(previews_path(home))
    except FileNotFoundError:
        return
    for name in found:
        record = home.log.get("approval", name)
        desk = home.log.get("workspace", record["uid"]) if record else None
        gone = desk is not None and desk["state"] in ("purging", "purged")
        with suppress(FileNotFoundError):
            old = os.stat(f"{previews_path(home)}/{name}").st_mtime < limit
            if gone or (old and (record is None or record["state"] not in LIVE)):
                drop_preview(home, name)
