"""Crash recovery: finish interrupted operations or roll them back."""

from __future__ import annotations

import os

from workstead.core.leftovers import clear_away
from workstead.errors import DiskFull, EventsLost, PermissionDenied, WorkspaceBusy, WorksteadError
from workstead.model.event import (
    WorkspaceCleanup,
    WorkspaceCreateFailed,
    WorkspaceDestroyFailed,
    WorkspaceRestored,
    WorkspaceRestoreFailed,
)
from workstead.model.health import Finding
from workstead.model.workspace import Workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from workstead.core.home import Home


def settle(home: Home) -> list[Finding]:
    """Finish or roll back every interrupted step of this home."""
    found: list[Finding] = []
    if home.is_copy:
        return found
    pending = home.log.find_pending()
    if pending and (
        loss := find_lost_events(home)
    ):  # the end of the step may be what was lost: undoing would delete a workspace
        return [loss]
    for kind, record in pending:
        finding = _KINDS[kind](home, record)
        if finding:
            found.append(finding)
    return found


def _settle_run(home: Home, record: dict[str, Any]) -> Finding | None:
    from workstead.core.runs import settle as settle_run

    done = settle_run(home, record["run_id"]) if record["home"] == home.id else None
    return Finding(what=f"run {record['run_id']} was interrupted", done=done) if done else None


def _settle_watch(home: Home, record: dict[str, Any]) -> Finding | None:
    from workstead.core.watchers import settle as settle_watch

    done = settle_watch(home, record["uid"])
    return Finding(what=f"the watcher of {record['workspace_id']} died", done=done) if done else None


def _settle(home: Home, record: dict[str, Any]) -> Finding | None:
    if record["home"] != home.id or record["state"] == "purging":  # `sweep` continues a purge, in the background
        return None
    try:
        with home.hold(record["workspace_id"], wait_seconds=0):
            current = home.log.get("workspace", record["uid"])
            if current is None or current["state"] != record["state"]:  # its process was alive, and is done now
                return None
            workspace = Workspace(**current)
            what = f"{workspace.id} was interrupted while {workspace.state}"
            try:
                done = _SETTLERS[workspace.state](home, workspace)
            except (WorkspaceBusy, DiskFull, PermissionDenied):
                raise
            except WorksteadError as error:  # one failed recovery must not block the others
                return Finding(what=what, done=f"nothing yet: {error}")
            return Finding(what=what, done=done)
    except WorkspaceBusy:
        return None


def _undo_creating(home: Home, workspace: Workspace) -> str:
    # Its creation was never reported to a caller, so it can be removed.
    clear_away(home, workspace.uid, home.staging_path(workspace.uid), workspace.path)
    if workspace.source.startswith("fork:"):
        _record_layers_of_parent(home, workspace)
    fact = WorkspaceCreateFailed(
        **workspace.names(), workspace_path=workspace.path, code="interrupted", reason="the process that made it died"
    )
    home.record(workspace.task_id, fact)
    return "what had been built was cleared away"


def _settle_destroying(home: Home, workspace: Workspace) -> str:
    if os.path.lexists(workspace.path) and not os.path.lexists(workspace.trash_path):
        home.record(workspace.task_id, WorkspaceDestroyFailed(**workspace.names(), reason="interrupted"))
        attach_again(home, workspace)
        return "it is as it was"
    fact = WorkspaceCleanup(
        **workspace.names(),
        workspace_path=workspace.path,
        trash_path=workspace.trash_path,
        cleanup_reason=workspace.reason,
        operation_id=workspace.operation_id,
        undoes=workspace.undoes,
    )
    home.record(workspace.task_id, fact)
    return "it is in the trash"


def _settle_restoring(home: Home, workspace: Workspace) -> str:
    if os.path.lexists(workspace.trash_path):
        home.record(workspace.task_id, WorkspaceRestoreFailed(**workspace.names(), reason="interrupted"))
        return "it is still in the trash"
    attach_again(home, workspace)
    fact = WorkspaceRestored(
        **workspace.names(),
        workspace_path=workspace.path,
        operation_id=workspace.operation_id,
        undoes=workspace.undoes,
    )
    home.record(workspace.task_id, fact)
    return "it is back"


def _finish_reverting(home: Home, workspace: Workspace) -> str:
    from workstead.core.restoring import finish

    finish(home, workspace)
    return "the state was brought back"


def _settle_applying(home: Home, workspace: Workspace) -> str:
    from workstead.core.applying import settle as settle_apply

    return settle_apply(home, workspace)


_KINDS: dict[str, Callable[[Home, dict[str, Any]], Finding | None]] = {
    "workspace": _settle,
    "run": _settle_run,
    "watch": _settle_watch,
}
_SETTLERS: dict[str, Callable[[Home, Workspace], str]] = {
    "creating": _undo_creating,
    "destroying": _settle_destroying,
    "restoring": _settle_restoring,
    "reverting": _finish_reverting,
    "applying": _settle_applying,
}


def attach_again(home: Home, workspace: Workspace) -> None:
    from workstead.core.mounting import attach

    attach(home, workspace)


def find_lost_events(home: Home) -> Finding | None:
    try:
        home.check_log()
    except EventsLost as lost:
        return Finding(what=lost.message, done=f"nothing: {lost.hint}")
    return None


def _record_layers_of_parent(home: Home, workspace: Workspace) -> None:
    from workstead.core import lookup
    from workstead.core.mounting import record_layers
    from workstead.model.source import parse

    parent = lookup.find(home, parse(workspace.source).location)
    if parent is not None and parent.state == "ready":
        record_layers(home, parent)
