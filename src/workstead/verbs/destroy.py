"""Move workspaces to the trash.

    refuse if busy → workspace_destroying → rename into the trash → workspace_cleanup

One rename, whatever the size; `sweep` deletes the files much later, in the background. `undo` restores them.
"""

from __future__ import annotations

import os
from contextlib import suppress

from workstead.core import lookup
from workstead.core.gate import judged
from workstead.core.mounting import detach
from workstead.errors import (
    CleanupFailed,
    DiskFull,
    FolderNotFound,
    PartReplaced,
    PermissionDenied,
    StoreFull,
    UnappliedChanges,
    WorkspaceBusy,
    WorkspaceNotFound,
)
from workstead.model.approval import Request
from workstead.model.event import WorkspaceCleanup, WorkspaceDestroyFailed, WorkspaceDestroying
from workstead.model.text import printable, word
from workstead.system.files.durable import sync_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from workstead.core.gate import Gate
    from workstead.core.home import Home
    from workstead.model.workspace import Workspace

WITH_ORIGIN = ("overlay", "clone", "worktree")  # sources that changes can be applied to


def destroy(
    home: Home,
    workspace_ids: Sequence[str],
    *,
    force: bool = False,
    reason: str = "requested",
    undoes: str = "",
    check: Callable[[Workspace], None] = lambda _: None,
) -> list[Workspace]:
    """Move workspaces to the trash, as one operation that one `undo` reverts.

    An id that was already destroyed is no error; one that never existed raises WorkspaceNotFound, and then none is
    touched. `check` is called with each workspace under its lock, and may raise.
    """
    found = [lookup.find_last(home, workspace_id) for workspace_id in workspace_ids]
    for workspace_id, workspace in zip(workspace_ids, found, strict=True):
        if workspace is None and not lookup.was_destroyed(home, workspace_id):
            raise WorkspaceNotFound.of(lookup.normal_id(workspace_id))
    operation_id = home.new_id()

    def act(gate: Gate) -> list[Workspace]:
        there = [workspace for workspace in found if workspace]
        for workspace in there if gate.judges else ():
            _permit(home, gate, workspace)
        return [_destroy(home, workspace, operation_id, force, reason, undoes, check) for workspace in there]

    return judged(home, act)


def _permit(home: Home, gate: Gate, workspace: Workspace) -> None:
    """Apply the policy to an agent that destroys a workspace, as it is now."""
    if lookup.find(home, workspace.id) is None:  # already destroyed
        return
    decision = gate.decide(workspace, "destroy")
    root = ""
    if workspace.state == "ready":
        from workstead.core.snapshots import keep

        with home.hold(workspace.id):
            root = keep(home, workspace, cause="before_destroy", once=True).root
    request = Request(
        operation="destroy", place=".", path=lookup.public_mount(home, workspace), to=workspace.id, digest_before=root
    )
    verdict = gate.whole(workspace, request, decision, lambda: _preview(home, workspace))
    if verdict.facts:
        home.record(workspace.task_id, *verdict.facts)


def _preview(home: Home, workspace: Workspace) -> Iterator[bytes]:
    from workstead.core.changes import status

    yield f"move {printable(workspace.id)} to the trash; what was changed in it:\n".encode()
    # For the owner, who decides: an agent's view would lack files that it may not read.
    for change in status(home.acting_as(home.caller.replace(agent_of=None)), workspace.id):
        yield f"  {change.status} {printable(change.path)}\n".encode()


def destroy_task(home: Home, task: str, *, force: bool = False, reason: str = "requested") -> list[Workspace]:
    """Move every workspace of a task to the trash; raises WorkspaceNotFound if the task never had one."""
    every = lookup.list_all(home, task=task, gone=True)
    if not every:
        raise WorkspaceNotFound(f"task {task} has no workspaces", hint="aw list --all shows every workspace")
    live = [workspace.id for workspace in lookup.list_all(home, task=task)]
    return destroy(home, live, force=force, reason=reason)


def _destroy(
    home: Home,
    workspace: Workspace,
    operation_id: str,
    force: bool,
    reason: str,
    undoes: str,
    check: Callable[[Workspace], None],
) -> Workspace:
    lookup.check_here(home, workspace)
    _end_runs(home, workspace, force=force)
    with home.hold(workspace.id):
        current = lookup.find(home, workspace.id)
        if current is None:  # already destroyed, by us or by another process
            return lookup.find_last(home, workspace.id) or workspace
        check(current)
        _refuse_losses(home, current, force=force)
        trash_path = f"{home.private}/trash/{current.uid}"
        names = current.names()
        step = {
            "workspace_path": current.path,
            "trash_path": trash_path,
            "cleanup_reason": reason,
            "operation_id": operation_id,
            "undoes": undoes,
        }
        home.record(current.task_id, WorkspaceDestroying(**names, **step))
        try:
            _stop_machines(home, current)
            detach(home, current)
            _move_to_trash(home, current, trash_path)
        except OSError as error:
            home.record(current.task_id, WorkspaceDestroyFailed(**names, reason=str(error)))
            kind = PermissionDenied if isinstance(error, PermissionError) else CleanupFailed
            raise kind(
                f"workspace {current.id} could not be moved to the trash: {error.strerror or error}",
                hint="it is as it was; see what uses it, then try again",
            ) from error
        home.record(current.task_id, WorkspaceCleanup(**names, **step))
        return lookup.by_uid(home, current.uid)


def _refuse_losses(home: Home, workspace: Workspace, *, force: bool) -> None:
    """Refuse while a run is active, or while the workspace has changes that its origin does not have.

    With `force` it is destroyed all the same, after a last snapshot; so is a workspace without an origin to apply to.
    """
    _end_runs(home, workspace, force=False)
    origin = workspace.filled.get("origin")
    if not isinstance(origin, dict) or origin.get("kind") not in WITH_ORIGIN or not os.path.isdir(workspace.path):
        return
    from workstead.core.changes import has_unapplied

    try:
        if not has_unapplied(home, workspace):
            return
    except (FolderNotFound, PartReplaced):
        if not force:
            raise
        return  # without its folder no snapshot is possible; its own layer goes to the trash with the rest
    if not force:
        raise UnappliedChanges(
            f"workspace {workspace.id} holds changes that were not applied",
            hint=f"aw diff {word(workspace.id)}, aw apply {word(workspace.id)}, or --force: aw undo brings it back",
        )
    from workstead.core.snapshots import keep

    # The files go to the trash complete: a full disk can be freed without a snapshot.
    with suppress(DiskFull, StoreFull):
        keep(home, workspace, cause="before_destroy")


def _end_runs(home: Home, workspace: Workspace, *, force: bool) -> None:
    """Refuse while a run is active in the workspace, or stop it with `force`."""
    active = lookup.active_runs(home, workspace)
    if not active:
        return
    if any(record.get("box") for record in active):
        from workstead.core.stopping import make_way

        make_way(home, workspace)
        active = lookup.active_runs(home, workspace)
    from workstead.core.runs import settle
    from workstead.core.stopping import stop

    for record in active:
        if settle(home, record["run_id"]):
            continue
        if not force:
            raise WorkspaceBusy(
                f"workspace {workspace.id} is busy with {record['run_id']}",
                hint=f"aw stop {record['run_id']}, or --force",
            )
        stop(home, record["run_id"])


def _stop_machines(home: Home, workspace: Workspace) -> None:
    """Stop an idle virtual machine, which holds the workspace's mounts."""
    if os.path.isdir(f"{home.path}/machines"):
        from workstead.core.machines import forget

        forget(home, workspace)


def _move_to_trash(home: Home, workspace: Workspace, trash_path: str) -> None:
    try:
        os.rename(workspace.path, trash_path)
        sync_names(os.path.dirname(trash_path), os.path.dirname(workspace.path))
    except FileNotFoundError:
        if not os.path.isdir(os.path.dirname(trash_path)):
            home.make_private()
            _move_to_trash(home, workspace, trash_path)

        # Otherwise the directory was deleted by hand, or was only planned: there is nothing to move.
