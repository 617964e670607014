"""Retention: keep the base, the latest and labelled snapshots; thin out others with age. A pure function."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from workstead.model.snapshot import Snapshot

_HOUR = 3600.0
_DAY = 24 * _HOUR


def thin(
    snapshots: Sequence[Snapshot],
    now: float,
    *,
    keep_all_seconds: float = _DAY,
    hourly_seconds: float = 7 * _DAY,
    daily_seconds: float = 90 * _DAY,
) -> tuple[Snapshot, ...]:
    """Return the snapshots of one workspace that may be deleted, oldest first.

    Everything younger than `keep_all_seconds` stays; then the last of each hour until `hourly_seconds`, and the last of
    each day until `daily_seconds`. A snapshot dated in the future (the clock was set back) counts as young.
    """
    ordered = sorted(snapshots, key=lambda each: each.taken_at)
    kept_slots: set[tuple[str, int]] = set()
    dropped = []
    for snapshot in reversed(ordered):
        age = now - snapshot.taken_at
        if snapshot is ordered[-1] or snapshot.cause == "base" or snapshot.label or age < keep_all_seconds:
            continue
        if age < daily_seconds:
            slot = (
                ("hour", int(snapshot.taken_at // _HOUR))
                if age < hourly_seconds
                else ("day", int(snapshot.taken_at // _DAY))
            )
            if slot not in kept_slots:
                kept_slots.add(slot)
                continue
        dropped.append(snapshot)
    return tuple(reversed(dropped))
