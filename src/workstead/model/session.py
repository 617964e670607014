"""One turn of a session."""

from __future__ import annotations

from workstead.model.value import Value


class Turn(Value):
    """One answer of a session and the snapshot after it, as a frontend shows it."""

    hash: str
    label: str
    taken_at: float
    snapshot_id: str
