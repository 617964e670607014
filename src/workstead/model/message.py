"""A message between workspaces of one task."""

from __future__ import annotations

from workstead.model.value import Value


class Message(Value):
    """A message to a workspace."""

    id: str
    sender: str  # an agent of the task, or "owner"
    sent_at: float  # seconds since the epoch, by the sender's clock
    size: int
    text: str  # truncated if long
