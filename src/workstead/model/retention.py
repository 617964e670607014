"""Retention rules: a pure function from the facts about a workspace, trash entry or cache to a verdict with its reason.

Nothing in use, pinned or irreplaceable is deleted: an active run, a lock, unapplied changes and results that exist
nowhere else each keep a workspace, whatever its age and however full the disk is. An unknown fact counts as a reason to
keep. The sweep calls these functions once before a closer check, and once more while it holds the lock.
"""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


# States without a step in progress; in all others a process is at work, or died and `repair` has to run first.
STILL = ("ready", "failed", "planned")


class Rules(Value):
    """The owner's retention settings."""

    retention_days: float | None = None  # of workspaces since their last use; None: never deleted for their age alone
    trash_days: float = 7
    cache_days: float = 1 / 24  # a cache used more recently may be in use by a process that has not recorded it yet
    archive_first: bool = False
    pressed: bool = False  # space is needed: age no longer protects, every other reason does
    clock_fault: str = ""  # why the clock cannot be trusted: then nothing is deleted for its age


class Live(Value):
    """The facts about a live workspace."""

    state: str
    idle_days: float  # since its last use
    is_here: bool = True  # of this home, not of another home that shares the log
    pinned: bool = False
    active_runs: int = 0
    is_held: bool = False  # another process holds its lock
    unapplied: bool | None = False  # has changes that its origin does not have; None: unknown
    results: bool | None = False  # has files in output/, which exist nowhere else


class Trashed(Value):
    """The facts about a workspace in the trash."""

    days: float  # since it was destroyed
    is_here: bool = True
    pinned: bool = False
    asked_for: bool = False  # the owner empties the trash manually


class Cached(Value):
    """The facts about something that can be recreated: a prepared checkout, a mirror."""

    idle_days: float
    used_by: int = 0  # number of workspaces, templates and snapshots that depend on it


class Verdict(Value):
    """Whether to delete it, and the reason."""

    goes: bool
    why: str


def judge_live(facts: Live, rules: Rules) -> Verdict:
    """Decide whether a workspace may be moved to the trash."""
    kept = _kept(facts)
    if kept:
        return Verdict(goes=False, why=kept)
    idle = f"not used for {facts.idle_days:.1f} days"
    if not rules.pressed:
        if rules.retention_days is None:
            return Verdict(goes=False, why="workspaces.retention_days is not set")
        if rules.clock_fault:
            return Verdict(goes=False, why=rules.clock_fault)
        idle += f" of {rules.retention_days:g}"
        if facts.idle_days < rules.retention_days:
            return Verdict(goes=False, why=idle)
    if facts.unapplied is None or facts.results is None:
        return Verdict(goes=False, why="whether it holds unapplied changes cannot be told")
    if facts.unapplied:
        return Verdict(goes=False, why="holds unapplied changes")
    if facts.results and not rules.archive_first:
        return Verdict(goes=False, why="holds files in output/, and workspaces.archive_workspaces is off")
    return Verdict(goes=True, why=idle)


def _kept(facts: Live) -> str:
    """Return the reason that keeps a workspace whatever its age, or ""."""
    if not facts.is_here:
        return "belongs to another home"
    if facts.pinned:
        return "pinned"
    if facts.active_runs:
        return f"{facts.active_runs} active run{'s' * (facts.active_runs != 1)}"
    if facts.state not in STILL:
        return f"is {facts.state}"
    if facts.is_held:
        return "somebody is at work on it"
    return ""


def judge_trashed(trashed: Trashed, rules: Rules) -> Verdict:
    """Decide whether a trash entry may be deleted permanently: never before its time."""
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
    """Decide whether a cache may be deleted, given that there are too many of them or space is needed."""
    if cached.used_by:
        return Verdict(goes=False, why=f"in use by {cached.used_by}")
    if cached.idle_days < rules.cache_days:
        return Verdict(goes=False, why="was used a moment ago")
    if not rules.pressed:
        return Verdict(goes=False, why="the caches are not too large")
    return Verdict(goes=True, why=f"not used for {cached.idle_days:.1f} days")


def least_recent(items: Iterable[tuple[str, float, int]], wanted_bytes: int) -> list[str]:
    """Return the names to delete, from (name, idle days, bytes), so that `wanted_bytes` are freed: longest unused
    first."""
    taken: list[str] = []
    for name, _, size in sorted(items, key=lambda item: (-item[1], item[0])):
        if wanted_bytes <= 0:
            break
        if size > 0:
            taken.append(name)
            wanted_bytes -= size
    return taken


class Candidate(Value):
    """An item that a sweep examined, and the verdict."""

    workspace_id: str
    uid: str
    destroyed_at: str
    age_days: float  # since it was destroyed, used or taken
    goes: bool
    why: str
    kind: str = "trash"  # workspace (to the trash), trash (deleted), snapshot, objects, layers, cache, archive
    name: str = ""  # the id of a snapshot, the path of a cache
    bytes: int = 0  # estimate of the space it frees; a workspace frees it when the trash is emptied
