"""An approval: a question put to a person, and the table of its state transitions.

    open ─> granted ─> used
     │ │ └────┐ └────> expired | voided
     │ └> denied
     └──> expired | voided

An approval permits exactly one execution of the request: the operation, the path, and the content before and after, by
their digests. The key identifies the request without the content before, and only one open or granted approval has a
given key: an identical request joins that approval, and the same request over changed content voids it.
"""

from __future__ import annotations

from workstead.errors import WrongStatus
from workstead.model.digest import sha256
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Request(Value):
    """The part of an agent's operation that an approval depends on."""

    operation: str
    place: str  # path relative to the workspace, links resolved; "." is the whole workspace
    path: str  # the same path as the agent sees it
    to: str = ""  # destination of a move or apply
    digest_before: str = ""  # of the present content; "" if there is none
    digest_after: str = ""  # of the new content; "" if there is none
    size: int = 0  # bytes of the new content, or of the deleted content

    def key(self, uid: str) -> str:
        """Return the digest that identifies this request, independent of the present content."""
        parts = (uid, self.operation, self.place, self.to, self.digest_after)
        return sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]


class Approval(Value):
    """A request that a person has to decide, or has decided."""

    approval_id: str
    workspace_id: str
    task_id: str
    uid: str  # of the workspace
    state: str  # open granted denied expired voided used
    operation: str
    path: str
    place: str
    to: str
    digest_before: str
    digest_after: str
    size: int
    rule: str  # the policy rule that asks
    key: str
    home: str
    actor_id: str  # the actor that asks
    run_id: str  # the run that asks, or ""
    requested_at: str
    expires_at: float  # seconds since the epoch
    whole: bool = False  # whether the preview is complete; if not, granting needs `unseen`
    preview_lines: int = 0  # total number, shown or not
    preview_digest: str = ""  # SHA-256 of the shown preview
    decided_at: str | None = None
    decided_by: str = ""
    comment: str = ""

    @property
    def id(self) -> str:
        """Return the approval's id."""
        return self.approval_id


TABLE: dict[tuple[str, str], str] = {
    ("", "approval_requested"): "open",
    ("open", "approval_granted"): "granted",
    ("open", "approval_denied"): "denied",
    ("open", "approval_expired"): "expired",
    ("open", "approval_voided"): "voided",
    ("granted", "approval_used"): "used",
    ("granted", "approval_expired"): "expired",
    ("granted", "approval_voided"): "voided",
}
EVENTS = frozenset(event for _, event in TABLE)
LIVE = frozenset({"open", "granted"})
DECISIONS = ("approval_granted", "approval_denied", "approval_expired", "approval_voided")


def fold(
    record: dict[str, Any] | None, event_type: str, data: Mapping[str, Any], stream: str, actor: str, at: str
) -> dict[str, Any]:
    """Return the approval's record after one more event; raise WrongStatus if another process decided first."""
    state = TABLE.get((record["state"] if record else "", event_type))
    if state is None:
        now = record["state"] if record else "absent"
        raise WrongStatus(
            f"approval {data.get('approval_id')} is {now}: {event_type} cannot happen now",
            details={"state": now, "event_type": event_type},
        )
    if record is None:
        asked = {key: data[key] for key in _FROM_REQUEST if key in data}
        return {**Approval.__defaults__, **asked, "task_id": stream, "actor_id": actor, "requested_at": at,
                "state": state}  # fmt: skip
    new = {**record, "state": state}
    if event_type in ("approval_granted", "approval_denied"):
        new.update(decided_at=at, decided_by=actor, comment=data["comment"])
    if event_type == "approval_granted":
        new["expires_at"] = data["expires_at"]
    return new


_FROM_REQUEST = (
    "approval_id",
    "workspace_id",
    "uid",
    "operation",
    "path",
    "place",
    "to",
    "digest_before",
    "digest_after",
    "size",
    "rule",
    "key",
    "home",
    "run_id",
    "expires_at",
    "whole",
    "preview_lines",
    "preview_digest",
)
