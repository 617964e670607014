"""What a sweep may take: a pure function from what is known about a thing to a verdict with its reason.

Nothing is taken that somebody uses, has pinned, or could miss: an active run, a lock, unapplied changes and results
that are nowhere else each keep a workspace, whatever its age and however full the disk is. What cannot be found out
counts as a reason to stay. The sweep asks here once before it looks closer, and once more while it holds the thing.
"""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


# States in which a workspace stands still; in all others somebody is at it, or died at it and `repair` goes first.
STILL = ("ready", "failed", "planned")


class Rules(Value):
    """What the owner wants to be taken."""

    retention_days: float | None = None  # of workspaces since their last use; None: age alone takes none
    trash_days: float = 7
    cache_days: float = 1 / 24  # a cache that was used since may be in use by somebody who has not said so yet
    archive_first: bool = False
    pressed: bool = False  # space is wanted: age is no reason to stay any more, everything else is
    clock_fault: str = ""  # why the clock cannot be trusted: then nothing is taken for its age


class Desk(Value):
    """What is known about a workspace that stands."""

    state: str
    idle_days: float  # since its last use
    is_here: bool = True  # of this home, not of another one that shares the log
    pinned: bool = False
    active_runs: int = 0
    is_held: bool = False  # somebody has its lock
    unapplied: bool | None = False  # holds work that its origin does not have; None: cannot be told
    results: bool | None = False  # has files in output/, which nothing else keeps


class Trashed(Value):
    """What is known about a workspace in the trash."""

    days: float  # since it was destroyed
    is_here: bool = True
    pinned: bool = False
    asked_for: bool = False  # the owner empties the trash by hand


class Cached(Value):
    """What is known about something that can be made again: a prepared checkout, a mirror."""

    idle_days: float
    used_by: int = 0  # workspaces, templates and states that stand on it or borrow from it


class Verdict(Value):
    """Whether it goes, and why or why not."""

    goes: bool
    why: str


def judge_desk(desk: Desk, rules: Rules) -> Verdict:
    """Whether a workspace may go to the trash."""
    kept = _kept(desk)
    if kept:
        return Verdict(goes=False, why=kept)
    idle = f"not used for {desk.idle_days:.1f} days"
    if not rules.pressed:
        if rules.retention_days is None:
            return Verdict(goes=False, why="workspaces.retention_days is not set")
        if rules.clock_fault:
            return Verdict(goes=False, why=rules.clock_fault)
        idle += f" of {rules.retention_days:g}"
        if desk.idle_days < rules.retention_days:
            return Verdict(goes=False, why=idle)
    if desk.unapplied is None or desk.results is None:
        return Verdict(goes=False, why="whether it holds unapplied changes cannot be told")
    if desk.unapplied:
        return Verdict(goes=False, why="holds unapplied changes")
    if desk.results and not rules.archive_first:
        return Verdict(goes=False, why="holds files in output/, and workspaces.archive_workspaces is off")
    return Verdict(goes=True, why=idle)


def _kept(desk: Desk) -> str:
    """What keeps a workspace whatever its age."""
    if not desk.is_here:
        return "belongs to another home"
    if desk.pinned:
        return "pinned"
    if desk.active_runs:
        return f"{desk.active_runs} active run{'s' * (desk.active_runs != 1)}"
    if desk.state not in STILL:
        return f"is {desk.state}"
    if desk.is_held:
        return "somebody is at work on it"
    return ""


def judge_trashed(trashed: Trashed, rules: Rules) -> Verdict:
    """Whether what is in the trash may be deleted for good: never before its time, whatever is wanted."""
    if not trashed.is_here:
        return Verdict(goes=False, why="belongs to another home")
    if trashed.asked_for:
        return Verdict(goes=True, why="asked for")
    if trashed.pinned:
        return Verdict(goes=False, why="pinned; aw trash empty takes it all the same")
    if rules.clock_fault:
        return Verdict(goes=False, why=rules.clock_fault)
    return Verdict(
        goes=trashed.days >= rules.trash_days,
        why=f"in the trash for {trashed.days:.1f} of {rules.trash_days:g} days",
    )


def judge_cached(cached: Cached, rules: Rules) -> Verdict:
    """Whether a cache may go, now that there are too many of them or space is wanted."""
    if cached.used_by:
        return Verdict(goes=False, why=f"in use by {cached.used_by}")
    if cached.idle_days < rules.cache_days:
        return Verdict(goes=False, why="was used a moment ago")
    if not rules.pressed:
        return Verdict(goes=False, why="the caches are not too large")
    return Verdict(goes=True, why=f"not used for {cached.idle_days:.1f} days")


def least_recent(items: Iterable[tuple[str, float, int]], wanted_bytes: int) -> list[str]:
    """Of (name, idle days, bytes), the names to take so that `wanted_bytes` come free: the longest unused first."""
    taken: list[str] = []
    for name, _, size in sorted(items, key=lambda item: (-item[1], item[0])):
        if wanted_bytes <= 0:
            break
        if size > 0:
            taken.append(name)
            wanted_bytes -= size
    return taken


class Candidate(Value):
    """Something that a sweep looked at, and what it decided."""

    workspace_id: str
    uid: str
    destroyed_at: str
    age_days: float  # since it was destroyed, used or taken
    goes: bool
    why: str
    kind: str = "trash"  # workspace (to the trash), trash (deleted), snapshot, objects, layers, cache, archive
    name: str = ""  # the id of a snapshot, the place of a cache
    bytes: int = 0  # what it frees, as far as that is known beforehand; a workspace frees it when the trash is emptied
