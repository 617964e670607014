"""A question put to a person, and the table of what may become of it.

    open ─> granted ─> used
     │ │ └────┐ └────> expired | voided
     │ └> denied
     └──> expired | voided

An approval is good for exactly what was asked, once: the operation, the place, and the content before and after, by
their digests. What is wanted of all that is its key, and only one open or granted approval has it: who asks the same
joins, and who asks it of another content than that approval is about finds it void.
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
    """What an agent wants to do, as far as an approval depends on it."""

    operation: str
    place: str  # the path relative to the workspace, links resolved; "." is all of it
    path: str  # the same as agents know it
    to: str = ""  # where a move goes, or an apply
    digest_before: str = ""  # of what is there now; "" for nothing
    digest_after: str = ""  # of what shall be there; "" for nothing
    size: int = 0  # of what shall be there, or of what goes

    def key(self, uid: str) -> str:
        """What makes it the same wish, whatever is there by now."""
        parts = (uid, self.operation, self.place, self.to, self.digest_after)
        return sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]


class Approval(Value):
    """A request that a person decides, or has decided."""

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
    rule: str  # why it is asked
    key: str
    home: str
    actor_id: str  # who asks
    run_id: str  # in which run, if in any
    requested_at: str
    expires_at: float  # seconds since the epoch
    whole: bool = False  # whether the preview shows everything; if not, granting it takes `unseen`
    preview_lines: int = 0  # that there are, shown or not
    preview_digest: str = ""  # SHA-256 of what is shown
    decided_at: str | None = None
    decided_by: str = ""
    comment: str = ""

    @property
    def id(self) -> str:
        """The approval's id."""
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
    """The approval's record after one more event; WrongStatus if somebody was quicker."""
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
