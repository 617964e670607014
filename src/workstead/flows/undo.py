"""Undo operations, and restore workspaces from the trash."""

from __future__ import annotations

import os
from contextlib import suppress

from workstead.core import lookup
from workstead.core.mend import mend_place
from workstead.core.mounting import attach, detach
from workstead.errors import CleanupFailed, Conflict, OperationNotFound, WorkspaceExists, WorksteadError, from_os
from workstead.model.event import WorkspaceRestored, WorkspaceRestoreFailed, WorkspaceRestoring
from workstead.model.names import format_id, parse_id
from workstead.model.operation import Operation
from workstead.model.workspace import Workspace
from workstead.system.files.durable import make_folders, sync_names
from workstead.verbs.destroy import destroy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.event import Event
    from workstead.snapshots.trees import Tree

CHANGES = ("restore", "apply", "change")  # operations that change the content of a workspace or its origin


def operations(home: Home) -> list[Operation]:
    """Return the operations, newest first; an agent sees those on its own workspace."""
    own = home.caller.agent_of
    found = (Operation(**record) for record in reversed(home.log.find_all("operation")))
    return [operation for operation in found if not own or operation.workspaces == [own]]


def undo(home: Home, operation_id: str | None = None) -> tuple[Operation, list[Workspace]]:
    """Undo an operation: the one named, or the newest that can be undone; an undo can be undone by its own id.

    Raises OperationNotFound, or Conflict when it was already undone, its files are gone, or an id is taken again;
    nothing is changed then. `left` of the operation lists paths that could not be restored.
    """
    operation = _choose(home, operation_id)
    if operation.kind in CHANGES or operation.changed:
        return _undo_change(home, operation)
    workspaces = _left_of(home, operation)
    for workspace in workspaces:
        lookup.check_here(home, workspace)
        if workspace.state not in ("purging", "purged") and workspace.operation_id != operation.operation_id:
            raise Conflict(
                f"workspace {workspace.id} is {workspace.state}: something else was done to it since",
                hint="aw ops lists what was done",
            )
    if operation.kind == "undo" and all(workspace.state in ("ready", "failed", "planned") for workspace in workspaces):
        done = destroy(
            home, [workspace.id for workspace in workspaces], force=True, reason="undo", undoes=operation.operation_id
        )
        return operation, done
    for workspace in workspaces:
        _check_restorable(home, workspace, workspace.id)
    new_operation = home.new_id()
    restored = [
        restore_from_trash(home, workspace, new_operation, undoes=operation.operation_id) for workspace in workspaces
    ]
    return operation, restored


def _undo_change(home: Home, operation: Operation) -> tuple[Operation, list[Workspace]]:
    """Undo a restore or an apply, from the details in its event."""
    workspace = lookup.by_uid(home, operation.uids[0])
    lookup.check_here(home, workspace)
    if workspace.state != "ready":
        raise Conflict(
            f"workspace {workspace.id} is {workspace.state}: what was done in it cannot be undone now",
            hint="aw trash restore brings it back first" if workspace.state == "destroyed" else "aw ops",
        )
    if operation.kind == "change":
        left = _bring_back(home, workspace, operation, operation.places)
        return operation.replace(left=left), [lookup.by_uid(home, workspace.uid)]
    event = _event_of(home, operation)
    data: dict[str, Any] = event.event_data
    if event.event_type == "snapshot_restored":
        operation = operation.replace(left=_bring_back(home, workspace, operation, data["paths"]))
    else:
        from workstead.verbs.apply import take_back

        operation = operation.replace(kept=take_back(home, workspace, operation.operation_id, data).kept)
    return operation, [lookup.by_uid(home, workspace.uid)]


def _bring_back(home: Home, workspace: Workspace, operation: Operation, paths: list[str]) -> list[str]:
    """Restore the previous state, of these paths or everywhere; return paths that could not be restored."""
    from workstead.verbs.restore import restore

    if not home.log.get("snapshot", operation.before):
        raise Conflict(
            f"the state before {operation.operation_id} is not kept any more",
            hint="it is kept for workspaces.trash_days; aw snapshots lists what there is",
        )
    paths = _with_what_was_above(home, workspace, operation.before, paths)
    _, done = restore(home, workspace.id, operation.before, paths, undoes=operation.operation_id)
    return sorted({*done.kept, *done.missing})


def _with_what_was_above(home: Home, workspace: Workspace, before: str, paths: list[str]) -> list[str]:
    """Return the paths, replaced by a parent where that has to be restored instead.

    A restore creates the parent directories of a path, in place of a file that was there before.
    """
    from workstead.core.snapshots import find_root
    from workstead.core.states import cache_path, open_store, place_of_state, stack_finder
    from workstead.snapshots.entries import DIR
    from workstead.snapshots.take import look, with_own_stack
    from workstead.snapshots.trees import Tree

    if not any(path.strip("/").count("/") > 1 for path in paths):
        return paths
    place, finder = place_of_state(home, workspace), stack_finder(home, workspace)
    root = find_root(home, workspace, before)
    with (
        open_store(home) as store,
        Tree(store, root, with_own_stack(place, finder)) as then,
        look(store, place, finder, cache_path=cache_path(home, workspace.uid)) as now,
    ):
        result = []
        for path in (each.strip("/") for each in paths):
            parts = path.split("/")
            for level in range(2, len(parts)):
                above = "/".join(parts[:level])
                entry = then.find(above)
                if entry is not None and entry.kind == DIR:
                    continue
                # Delete directories that did not exist before, unless they have other content by now.
                if entry is not None or _leads_only_to(now, parts, level):
                    path = above
                break
            result.append(path)
        return result


def _leads_only_to(tree: Tree, parts: list[str], level: int) -> bool:
    return all(tree.folder("/".join(parts[:above])).names() <= {parts[above]} for above in range(level, len(parts)))


def _event_of(home: Home, operation: Operation) -> Event:
    # In the stream of the operation: a workspace may have come back from the trash in another task since.
    task, _ = parse_id(operation.workspaces[0])
    return next(
        event
        for event in home.log.read(stream=task, types=("snapshot_restored", "changes_applied"))
        if event.event_data["operation_id"] == operation.operation_id
    )


def _can_undo_change(home: Home, operation: Operation) -> bool:
    workspace = lookup.by_uid(home, operation.uids[0])
    if workspace.state != "ready" or workspace.home != home.id:
        return False
    if operation.kind == "apply":
        from workstead.verbs.apply import is_known

        return is_known(home, operation.operation_id)
    return home.log.get("snapshot", operation.before) is not None


def _left_of(home: Home, operation: Operation) -> list[Workspace]:
    """Return the workspaces of an operation that were not restored yet."""
    left = [uid for uid in operation.uids if uid not in operation.undone_uids]
    return [Workspace(**record) for uid in left if (record := home.log.get("workspace", uid))]


def _choose(home: Home, operation_id: str | None) -> Operation:
    if operation_id is None:
        for candidate in operations(home):
            if candidate.kind not in ("destroy", *CHANGES) or candidate.undone_by:
                continue
            # Purged workspaces cannot be restored, and must not block undoing older operations.
            if candidate.kind != "destroy":
                if _can_undo_change(home, candidate):
                    return candidate
                continue
            # Files of another home that shares the log are not here.
            left = _left_of(home, candidate)
            if left and all(each.state == "destroyed" and each.home == home.id for each in left):
                return candidate
        raise OperationNotFound("there is nothing to undo", hint="aw ops lists what was done")
    record = home.log.get("operation", operation_id) if operation_id.isascii() else None
    if record is None:
        raise OperationNotFound(f"there is no operation {operation_id}", hint="aw ops lists what was done")
    operation = Operation(**record)
    if operation.undone_by:
        raise Conflict(
            f"operation {operation_id} was undone already, by {operation.undone_by}",
            hint=f"aw undo {operation.undone_by} takes that back",
        )
    if operation.kind == "purge":
        raise Conflict(f"operation {operation_id} deleted files for good", hint="aw archive keeps what matters")
    return operation


def restore_from_trash(
    home: Home, workspace: Workspace, operation_id: str, *, undoes: str = "", new_id: tuple[str, str] | None = None
) -> Workspace:
    """Restore one workspace from the trash, to its own id or to a new one."""
    task, agent = new_id or (workspace.task_id, workspace.agent_id)
    workspace_id = format_id(task, agent)
    path = workspace.path if new_id is None else home.workspace_path(task, agent)
    with home.hold(workspace_id):
        _check_restorable(home, workspace, workspace_id)
        names = {"workspace_id": workspace_id, "agent_id": agent, "uid": workspace.uid}
        step = {"workspace_path": path, "operation_id": operation_id, "undoes": undoes}
        home.record(task, WorkspaceRestoring(**names, **step, trash_path=workspace.trash_path))
        try:
            if workspace.settled != "planned":
                # A process that archived it in the trash may have died and left mounts.
                detach(home, workspace.replace(path=workspace.trash_path))
                make_folders(os.path.dirname(path))
                os.rename(workspace.trash_path, path)
                sync_names(os.path.dirname(path), os.path.dirname(workspace.trash_path))
                attach(home, workspace.replace(path=path))
        except (OSError, WorksteadError) as error:
            _back_to_trash(home, workspace, path)
            # Record that it is in the trash only if it is: otherwise `settle` ends this step later.
            if os.path.lexists(workspace.trash_path):
                home.record(task, WorkspaceRestoreFailed(**names, reason=str(error)))
            if isinstance(error, WorksteadError):
                raise
            raise from_os(error, f"workspace {workspace_id} could not be brought back") from error
        home.record(task, WorkspaceRestored(**names, **step))
        if workspace.settled != "planned":
            mend_place(home, lookup.by_uid(home, workspace.uid))
    return lookup.get(home, workspace_id)


def _back_to_trash(home: Home, workspace: Workspace, path: str) -> None:
    """Move the files back to the trash: a mount may fail after they were moved (no space, no inode)."""
    with suppress(OSError, WorksteadError):
        if not os.path.lexists(workspace.trash_path):
            detach(home, workspace.replace(path=path))
            os.rename(path, workspace.trash_path)


def _check_restorable(home: Home, workspace: Workspace, workspace_id: str) -> None:
    lookup.check_here(home, workspace)
    if workspace.state != "destroyed":
        gone = workspace.state in ("purging", "purged")
        raise Conflict(
            f"workspace {workspace.id} is {workspace.state}",
            hint="its files were deleted for good" if gone else "it is not in the trash",
        )
    if lookup.find(home, workspace_id):
        raise WorkspaceExists(
            f"workspace {workspace_id} exists again",
            hint=f"aw trash restore {workspace.uid} --as NEW/ID brings the old one back beside it",
        )
    if workspace.settled != "planned" and not os.path.isdir(workspace.trash_path):
        raise CleanupFailed(
            f"the files of {workspace.id} are not in the trash any more", hint=f"they were at {workspace.trash_path}"
        )
