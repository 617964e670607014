"""Finish or undo what a crash left half done, and look after the rest of the home.

`settle` runs whenever a home is opened: it looks only at steps that were begun and not ended, of which there are
usually none. A step whose lock is held has a living owner and is left alone.
"""

from __future__ import annotations

import os
from contextlib import suppress

from workstead.errors import DiskFull, EventsLost, PermissionDenied, WorkspaceBusy, WorksteadError
from workstead.model.event import (
    WorkspaceCleanup,
    WorkspaceCreateFailed,
    WorkspaceDestroyFailed,
    WorkspaceRestored,
    WorkspaceRestoreFailed,
)
from workstead.model.text import word
from workstead.model.value import Value
from workstead.model.workspace import Workspace
from workstead.system.stack import has_space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from workstead.home import Home


class Finding(Value):
    """Something that was not as it should be, and what was done about it."""

    what: str
    done: str


def settle(home: Home) -> list[Finding]:
    """Finish or undo every interrupted step of this home."""
    found: list[Finding] = []
    if home.is_copy:
        return found
    pending = home.log.find_pending()
    if pending and (loss := _loss(home)):  # the end of the step may be what was lost: undoing would delete a workspace
        return [loss]
    for kind, record in pending:
        finding = _KINDS[kind](home, record)
        if finding:
            found.append(finding)
    return found


def _settle_run(home: Home, record: dict[str, Any]) -> Finding | None:
    from workstead.verbs.run import settle as settle_run

    done = settle_run(home, record["run_id"]) if record["home"] == home.id else None
    return Finding(what=f"run {record['run_id']} was interrupted", done=done) if done else None


def _settle_watch(home: Home, record: dict[str, Any]) -> Finding | None:
    from workstead.verbs.watchers import settle as settle_watch

    done = settle_watch(home, record["uid"])
    return Finding(what=f"the watcher of {record['workspace_id']} died", done=done) if done else None


def _settle(home: Home, record: dict[str, Any]) -> Finding | None:
    if record["home"] != home.id or record["state"] == "purging":  # deleting goes on in `sweep`, in nobody's way
        return None
    try:
        with home.hold(record["workspace_id"], wait_seconds=0):
            current = home.log.get("workspace", record["uid"])
            if current is None or current["state"] != record["state"]:  # its owner was alive, and is done now
                return None
            workspace = Workspace(**current)
            what = f"{workspace.id} was interrupted while {workspace.state}"
            try:
                done = _SETTLERS[workspace.state](home, workspace)
            except (WorkspaceBusy, DiskFull, PermissionDenied):
                raise
            except WorksteadError as error:  # one that cannot be settled keeps nobody out of the others
                return Finding(what=what, done=f"nothing yet: {error}")
            return Finding(what=what, done=done)
    except WorkspaceBusy:
        return None


def _undo_creating(home: Home, workspace: Workspace) -> str:
    # Nobody was told of it, so nobody can miss it.
    clear_away(home, workspace.uid, home.staging_path(workspace.uid), workspace.path)
    fact = WorkspaceCreateFailed(
        **workspace.names(), workspace_path=workspace.path, code="interrupted", reason="the process that made it died"
    )
    home.record(workspace.task_id, fact)
    return "what had been built was cleared away"


def _settle_destroying(home: Home, workspace: Workspace) -> str:
    if os.path.lexists(workspace.path) and not os.path.lexists(workspace.trash_path):
        home.record(workspace.task_id, WorkspaceDestroyFailed(**workspace.names(), reason="interrupted"))
        _attach(home, workspace)
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
    _attach(home, workspace)
    fact = WorkspaceRestored(
        **workspace.names(),
        workspace_path=workspace.path,
        operation_id=workspace.operation_id,
        undoes=workspace.undoes,
    )
    home.record(workspace.task_id, fact)
    return "it is back"


def _finish_reverting(home: Home, workspace: Workspace) -> str:
    from workstead.verbs.restore import finish

    finish(home, workspace)
    return "the state was brought back"


def _settle_applying(home: Home, workspace: Workspace) -> str:
    from workstead.verbs.apply import settle as settle_apply

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


def _attach(home: Home, workspace: Workspace) -> None:
    from workstead.verbs.destroy import attach

    attach(home, workspace)


def clear_away(home: Home, uid: str, staging: str, final: str) -> None:
    """Remove what was built for a workspace that never came to be: out of sight at once, then deleted."""
    from workstead.system.removal import remove_tree

    layers = f"{home.private}/layers/{uid}"
    is_ours = _is_of(final, uid)
    if has_space(layers):
        from workstead.system import space

        _unmount_below(final)
        space.detach(layers, final)
        with suppress(OSError):
            os.rmdir(final)  # where the space was to be seen: empty if it is ours
    # What stands in the workspace's place is ours only if it says so: a stranger's files are never touched.
    paths = [staging, layers, *([final] if is_ours else [])]
    for number, path in enumerate(paths):
        aside = f"{home.private}/staging/{uid}.{number}"
        if os.path.lexists(aside):  # somebody died at this very place
            remove_tree(aside)
        if os.path.lexists(path):
            _unmount_below(path)
            os.rename(path, aside)
            remove_tree(aside)


def _is_of(path: str, uid: str) -> bool:
    import json

    from workstead.system.metadata import read_document

    document = read_document(path, "run.json")
    return document is not None and json.loads(document).get("uid") == uid


def _unmount_below(path: str) -> None:
    """A half-made workspace may have its view mounted already."""
    work = f"{path}/work"
    try:
        if (os.path.isdir(work) and os.lstat(work).st_dev != os.lstat(path).st_dev) or os.path.ismount(work):
            from workstead.system.mounts import unmount

            unmount(work, lazily=True)  # somebody may be looking in: that must not keep the home from opening
    except FileNotFoundError:
        return


def _loss(home: Home) -> Finding | None:
    try:
        home.check_log()
    except EventsLost as lost:
        return Finding(what=lost.message, done=f"nothing: {lost.hint}")
    return None


def repair(home: Home, *, rebuild_views: bool = False, accept_log: bool = False) -> list[Finding]:
    """Settle interrupted steps, then compare the disk with the log and mend what can be mended without a loss.

    With `accept_log`, a log that lost events is taken for the whole one first; without, nothing is changed then.
    """
    home.check_place()
    findings = []
    if accept_log:
        findings.append(Finding(what="the log", done=f"accepted as it is, up to position {home.log.accept()}"))
    if rebuild_views:
        findings.append(Finding(what="views", done=f"{home.log.rebuild_views()} records made anew from the events"))
    if loss := _loss(home):
        return [*findings, loss, *_check_states(home), *_name_strangers(home)]
    findings += settle(home)
    findings += _finish_deleting(home)
    findings += _tidy_staging(home)
    findings += _tidy_templates(home)
    findings += _check_ready(home)
    findings += _check_states(home)
    findings += _name_strangers(home)
    return findings


def _tidy_staging(home: Home) -> list[Finding]:
    from workstead.system.removal import remove_tree

    staging = f"{home.private}/staging"
    findings = []
    for name in _names_in(staging):
        record = home.log.get("workspace", name.partition(".")[0])
        if record is None or record["state"] != "creating":  # its intent is written first, so nobody is building here
            remove_tree(f"{staging}/{name}")
            findings.append(Finding(what=f"left-over building site {name}", done="deleted"))
    for name in _names_in(home.path):
        if name.startswith("id."):  # of a process that died while it made this home
            os.unlink(f"{home.path}/{name}")
            findings.append(Finding(what=f"left-over file {name}", done="deleted"))
    return findings


def _finish_deleting(home: Home) -> list[Finding]:
    from workstead.verbs.sweep import finish_purging

    return [
        Finding(what=f"{workspace.id} was half deleted", done=str(problem) if problem else "the rest is gone too")
        for workspace, problem in finish_purging(home)
    ]


def _tidy_templates(home: Home) -> list[Finding]:
    from workstead.system.removal import remove_tree
    from workstead.verbs.template import lock_of

    findings = []
    for name in _names_in(f"{home.path}/templates"):
        if name.startswith((".new-", ".old-")):
            try:
                with home.hold(lock_of(name[5:]), wait_seconds=0):
                    remove_tree(f"{home.path}/templates/{name}")
            except WorkspaceBusy:
                continue
            findings.append(Finding(what=f"left-over template {name}", done="deleted"))
    return findings


def _check_ready(home: Home) -> list[Finding]:
    from workstead.verbs.mend import bring_back, mend_metadata
    from workstead.verbs.state import mend_parts

    findings = []
    for record in home.log.find_all("workspace", live_only=True):
        if record["state"] != "ready" or record["home"] != home.id:
            continue
        try:
            with home.hold(record["workspace_id"], wait_seconds=0):
                workspace = Workspace(**(home.log.get("workspace", record["uid"]) or record))
                if workspace.state != "ready":
                    continue
                if not os.path.isdir(workspace.path):
                    what = f"the directory of {workspace.id} was gone: {workspace.path}"
                    findings.append(Finding(what=what, done=bring_back(home, workspace)))
                    continue
                remake = f"made anew; aw restore {word(workspace.id)} SNAPSHOT fills it"
                try:
                    parts = mend_parts(home, workspace)
                    findings += [Finding(what=f"{workspace.id}: {what}", done=remake) for what in parts]
                    _attach(home, workspace)
                except (WorksteadError, OSError) as error:
                    findings.append(Finding(what=f"{workspace.id} cannot be mounted: {error}", done="nothing"))
                done = mend_metadata(home, workspace)
                if done:
                    findings.append(Finding(what=f"the metadata of {workspace.id} was changed", done=done))
        except WorkspaceBusy:
            continue
    return findings


def _check_states(home: Home) -> list[Finding]:
    """Kept states of which something is missing, found without reading every byte: they are named, never touched."""
    from workstead.errors import StoreDamaged
    from workstead.snapshots.collect import reachable
    from workstead.verbs.snapshot import of_workspace
    from workstead.verbs.state import open_store

    if not os.path.isdir(f"{home.path}/snapshots/packs"):
        return []
    findings = []
    whole: set[str] = set()
    with open_store(home) as store, store.hold():
        for record in home.log.find_all("workspace"):
            workspace = Workspace(**record)
            if workspace.home != home.id or workspace.state in ("creating", "aborted", "purging", "purged"):
                continue
            for snapshot in of_workspace(home, workspace):
                if snapshot.root in whole:
                    continue
                try:
                    missing = sum(not store.has(digest) for digest in reachable(store, [snapshot.root]))
                    damage = f"{missing} of its contents are missing" if missing else ""
                except StoreDamaged as error:
                    damage = error.message
                if damage:
                    findings.append(Finding(what=f"snapshot {snapshot.id} of {workspace.id}: {damage}", done="nothing"))
                else:
                    whole.add(snapshot.root)
    return findings


def _name_strangers(home: Home) -> list[Finding]:
    return [
        Finding(what=f"{path} is not a workspace that the log knows", done="nothing: move it away")
        for path in find_strangers(home)
    ]


def find_strangers(home: Home) -> list[str]:
    """Directories that look like workspaces and are in no log: they are named, never touched."""
    known = {record["path"] for record in home.log.find_all("workspace", live_only=True)}
    found = []
    for task in _names_in(home.workspaces_path):
        if task == ".carrel":
            continue
        for agent in _names_in(f"{home.workspaces_path}/{task}"):
            path = f"{home.workspaces_path}/{task}/{agent}"
            if path not in known:
                found.append(path)
    return found


def _names_in(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
