"""Open two states of a workspace and compare them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

from workstead.core import lookup
from workstead.core.building import materialise
from workstead.core.gate import judged
from workstead.core.ignoring import ignoring
from workstead.core.snapshots import BASE, NOW, find_root
from workstead.core.states import cache_path, open_store, place_of_state, stack_finder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.change import Change, Diff
    from workstead.model.workspace import Workspace
    from workstead.snapshots.objects import Store
    from workstead.snapshots.trees import Tree


def diff(
    home: Home,
    workspace_id: str,
    *,
    from_: str = BASE,
    to: str = NOW,
    paths: Sequence[str] = (),
    text: bool = True,
    git_files: bool = False,
    ignored: bool = False,
    context: int = 3,
) -> Diff:
    """Return the changes in `work/` between two states, each `base`, `now` or a snapshot; `text` adds a patch.

    Files that the repository's own rules ignore are only counted, unless `ignored` requests them.
    """
    from workstead.snapshots.diff import diff as compare

    with two_states(home, workspace_id, from_, to, ignored=ignored) as (old, new, filters):
        wanted = list(paths) or None
        return compare(old, new, paths=wanted, text=text, git_files=git_files, context=context, **filters)


@contextmanager
def two_states(
    home: Home, workspace_id: str, from_: str, to: str, *, ignored: bool
) -> Iterator[tuple[Tree, Tree, dict[str, Any]]]:
    """Open both states, with the filters of a comparison: paths that the caller may read, and ignored ones.

    An agent sees no other path, also below a directory.
    """
    workspace = materialise(home, lookup.get(home, workspace_id))
    may = judged(home, lambda gate: gate.readable(workspace))
    with open_store(home) as store, ExitStack() as open_trees:
        # Contents are needed even without text: renames are detected by content.
        old = open_trees.enter_context(state(home, store, workspace, from_))
        new = open_trees.enter_context(state(home, store, workspace, to))
        filters: dict[str, Any] = {"may": None if may is None else lambda path: may(f"work/{path}")}
        if not ignored:
            base = old if from_ == BASE else open_trees.enter_context(state(home, store, workspace, BASE))
            filters["ignoring"] = ignoring(home, workspace, base)
        yield old, new, filters


@contextmanager
def state(home: Home, store: Store, workspace: Workspace, name: str) -> Iterator[Tree]:
    """Open a state by its name."""
    from workstead.snapshots.take import look, with_own_stack
    from workstead.snapshots.trees import Tree

    place = place_of_state(home, workspace)
    finder = stack_finder(home, workspace)
    if name == NOW:
        with look(store, place, finder, cache_path=cache_path(home, workspace.uid), contents=True) as tree:
            yield tree
        return
    root = find_root(home, workspace, name)
    with Tree(store, root, with_own_stack(place, finder)) as tree:
        yield tree


def status(home: Home, workspace_id: str) -> tuple[Change, ...]:
    """Return the paths in `work/` that differ from the base, without text; empty for a workspace without files yet."""
    workspace = lookup.get(home, workspace_id)
    if not workspace.base or workspace.state != "ready":
        return ()
    return diff(home, workspace_id, text=False).changes


def has_unapplied(home: Home, workspace: Workspace) -> bool:
    """Return whether the workspace has changes that its origin does not have, by content, apart from ignored files."""
    from workstead.snapshots.diff import has_changes
    from workstead.snapshots.take import look

    if not workspace.base or workspace.state != "ready":
        return False
    with open_store(home) as store, state(home, store, workspace, BASE) as base:
        place, finder = place_of_state(home, workspace), stack_finder(home, workspace)
        with look(store, place, finder, cache_path=cache_path(home, workspace.uid)) as now:
            return has_changes(base, now, ignoring=ignoring(home, workspace, base))
