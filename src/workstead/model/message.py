"""A message between workspaces of one task."""

from __future__ import annotations

from workstead.model.value import Value


class Message(Value):
    """What somebody wrote to a workspace."""

    id: str
    sender: str  # an agent of the task, or "owner"
    sent_at: float  # seconds since the epoch, by the clock of whoever wrote it
    size: int
    text: str  # the beginning, if it is long
