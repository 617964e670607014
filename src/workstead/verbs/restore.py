"""Restore a snapshot.

    snapshot of the present → snapshot_restoring → only differences are written → snapshot_restored

Restoring is idempotent, so crash recovery simply finishes an interrupted one. `aw undo` restores the snapshot that was
taken before.
"""

from __future__ import annotations

from workstead.core import lookup
from workstead.core.building import materialise
from workstead.core.gate import judged
from workstead.core.restoring import finish
from workstead.core.snapshots import find_root, is_live, keep
from workstead.core.states import mend_parts, open_store, place_of_state, refuse_unready, stack_finder
from workstead.core.stopping import make_way
from workstead.errors import Conflict, FileNotFound, NotKept, WorkspaceBusy
from workstead.model.approval import Request
from workstead.model.digest import sha256
from workstead.model.event import SnapshotRestoring
from workstead.model.policy import strictest
from workstead.model.text import word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from workstead.core.gate import Gate
    from workstead.core.home import Home
    from workstead.model.snapshot import Restored
    from workstead.model.workspace import Workspace


def restore(
    home: Home, workspace_id: str, snapshot: str, paths: Sequence[str] = (), *, undoes: str = ""
) -> tuple[str, Restored]:
    """Restore the workspace, or some paths in it, to a snapshot; return the operation that `undo` reverts.

    Raises SnapshotNotFound, or WorkspaceBusy while a run is active: a command does not expect its files to change.
    """
    workspace = materialise(home, lookup.get(home, workspace_id))
    find_root(home, workspace, snapshot)  # raise for an unknown snapshot before anything is stopped or stored
    make_way(home, workspace)
    return judged(home, lambda gate: _restore(home, gate, workspace, snapshot, paths, undoes))


def _restore(
    home: Home, gate: Gate, workspace: Workspace, snapshot: str, paths: Sequence[str], undoes: str
) -> tuple[str, Restored]:
    with home.hold(workspace.id):
        workspace = refuse_unready(lookup.by_uid(home, workspace.uid))
        if is_live(home, workspace):
            raise WorkspaceBusy(
                f"a run is active in {workspace.id}", hint=f"aw runs {word(workspace.id)}, then aw stop RUN"
            )
        _refuse_undone(home, undoes)
        root = find_root(home, workspace, snapshot)
        mend_parts(home, workspace)
        before = keep(home, workspace, cause="before_restore", once=gate.judges)
        _refuse_unknown(home, workspace, (root, before.root), paths)
        if gate.judges:
            _permit(home, gate, workspace, snapshot, (before.root, root), paths)
        step: dict[str, Any] = {
            "workspace_id": workspace.id,
            "agent_id": workspace.agent_id,
            "uid": workspace.uid,
            "snapshot": snapshot,
            "root": root,
            "before": before.id,
            "paths": list(paths),
            "operation_id": home.new_id(),
            "undoes": undoes,
        }
        with open_store(home) as store:
            store.make_reserve()
        home.record(workspace.task_id, SnapshotRestoring(**step))
        return step["operation_id"], finish(home, lookup.by_uid(home, workspace.uid))


def _permit(
    home: Home, gate: Gate, workspace: Workspace, snapshot: str, roots: tuple[str, str], paths: Sequence[str]
) -> None:
    """Apply the policy to a restore, by the paths that it would write, overwrite and delete."""
    from workstead.core.previews import of_states
    from workstead.snapshots.take import with_own_stack
    from workstead.snapshots.trees import Tree, compare

    finder = with_own_stack(place_of_state(home, workspace), stack_finder(home, workspace))
    with open_store(home) as store, Tree(store, roots[0], finder) as now, Tree(store, roots[1], finder) as then:
        changes: dict[str, list[str]] = {}
        for delta in compare(now, then, paths or None):
            operation = "write" if delta.old is None else "delete" if delta.new is None else "overwrite"
            changes.setdefault(operation, []).append(delta.path)
        if not changes:
            return
        decision = strictest(gate.decide(workspace, operation, found) for operation, found in changes.items())
        request = Request(
            operation="overwrite",
            place=".",
            path=lookup.public_mount(home, workspace),
            to=", ".join((snapshot, *paths)),
            digest_before=roots[0],
            digest_after=sha256("\0".join((roots[1], *paths)).encode(errors="surrogateescape")).hexdigest(),
        )
        verdict = gate.whole(workspace, request, decision, lambda: of_states(now, then, under="", paths=paths or None))
        if verdict.facts:
            home.record(workspace.task_id, *verdict.facts)


def _refuse_undone(home: Home, undoes: str) -> None:
    record = home.log.get("operation", undoes) if undoes else None
    if record is not None and record["undone_by"]:  # another process was first
        raise Conflict(f"operation {undoes} was undone already", hint="aw ops lists what was done")


def _refuse_unknown(home: Home, workspace: Workspace, roots: tuple[str, str], paths: Sequence[str]) -> None:
    """Refuse a path that is in neither state: it was mistyped, and silence would look like success.

    Also refuse one that would replace content which the snapshot just taken does not have.
    """
    if not paths:
        return
    from workstead.snapshots.take import with_own_stack
    from workstead.snapshots.trees import Tree

    finder = with_own_stack(place_of_state(home, workspace), stack_finder(home, workspace))
    with open_store(home) as store, Tree(store, roots[0], finder) as then, Tree(store, roots[1], finder) as now:
        for path in (each.strip("/") for each in paths):
            if path and then.find(path) is None and now.find(path) is None:
                raise FileNotFound(
                    f"{path} is not in that state of {workspace.id}, nor in the present one",
                    hint="paths start with work/ or output/",
                )
            for unkept, entry in now.unkept(path):
                if f"{path}/".startswith(f"{unkept}/"):  # entries below the path stay, and the result says so
                    raise NotKept.of(
                        unkept, entry.target, hint="to restore over it would lose it: move it away or open it first"
                    )
