"""What a workspace has changed since its base, now, by content: cheap enough to be asked at any time."""

from __future__ import annotations

from carrel.snapshots.diff import diff, has_changes
from carrel.snapshots.take import LIMITS, look, with_own_stack
from carrel.snapshots.trees import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from carrel.model.change import Change
    from carrel.model.snapshot import Limits, Place
    from carrel.snapshots.objects import Store
    from carrel.snapshots.trees import FindStack


def status(
    store: Store,
    base: str,
    place: Place,
    find_stack: FindStack = lambda _: None,
    *,
    cache_path: str = "",
    limits: Limits = LIMITS,
) -> tuple[Change, ...]:
    """The paths in `work/` that differ from the base, without their text. Nothing is kept."""
    with (
        Tree(store, base, with_own_stack(place, find_stack)) as old,
        look(store, place, find_stack, cache_path=cache_path, limits=limits) as new,
    ):
        return diff(old, new, text=False).changes


def has_unapplied(
    store: Store,
    base: str,
    place: Place,
    find_stack: FindStack = lambda _: None,
    *,
    cache_path: str = "",
    limits: Limits = LIMITS,
) -> bool:
    """Whether `work/` holds anything that the base does not have, by content."""
    with (
        Tree(store, base, with_own_stack(place, find_stack)) as old,
        look(store, place, find_stack, cache_path=cache_path, limits=limits) as new,
    ):
        return has_changes(old, new)
