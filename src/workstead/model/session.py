"""One turn of a session."""

from __future__ import annotations

from workstead.model.value import Value


class Turn(Value):
    """What a frontend shows of one answer: the state after it."""

    hash: str
    label: str
    taken_at: float
    snapshot_id: str
