"""Crash recovery and consistency check of a home: finish or roll back interrupted steps, compare the disk with the log.

`settle` runs whenever a home is opened: it looks only at steps without a recorded end, of which there are usually none.
A step whose lock is held has a living process and is left alone.
"""

from __future__ import annotations

import os
from contextlib import suppress

from workstead.core.leftovers import find_strangers, names_in
from workstead.core.recovery import _SETTLERS, attach_again, find_lost_events, settle
from workstead.errors import WorkspaceBusy, WorksteadError
from workstead.model.health import Finding
from workstead.model.text import word
from workstead.model.workspace import Workspace
from workstead.system.overlay import mounter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.event import Event


def settle_moves(home: Home, workspace: Workspace) -> str:
    """Complete a destroy or its undo from the location of the directory, even if the log lacks more; return it."""
    return _SETTLERS[workspace.state](home, workspace)


def repair(home: Home, *, rebuild_views: bool = False, accept_log: bool = False) -> list[Finding]:
    """Recover interrupted steps, then compare the disk with the log and repair differences that lose no data.

    `accept_log` first accepts a log that lost events as complete; without it, nothing is changed in such a home.
    """
    home.check_place()
    findings = []
    if accept_log:
        findings.append(Finding(what="the log", done=f"accepted as it is, up to position {home.log.accept()}"))
    if rebuild_views:
        findings.append(Finding(what="views", done=f"{home.log.rebuild_views()} records made anew from the events"))
    if loss := find_lost_events(home):
        return [*findings, loss, *_check_states(home), *_name_strangers(home)]
    findings += settle(home)
    findings += _finish_deleting(home)
    findings += _mend_records(home)
    findings += _check_ready(home)  # also searches staging directories, so it runs before they are removed
    findings += _check_trashed(home)
    findings += _tidy_staging(home)
    findings += _tidy_templates(home)
    findings += _mend_stacks(home)
    findings += _check_states(home)
    findings += _name_strangers(home)
    return findings


def _tidy_staging(home: Home) -> list[Finding]:
    from workstead.system.files.remove import remove_tree

    staging = f"{home.private}/staging"
    findings = []
    for name in names_in(staging):
        uid, _, number = name.partition(".")
        record = home.log.get("workspace", uid)
        if record is not None and not number and _may_need(record, f"{staging}/{name}"):
            findings.append(Finding(what=f"{record['workspace_id']} has files in {staging}/{name}", done="nothing"))
        elif record is None or record["state"] != "creating":  # the intent is recorded first: no process builds here
            remove_tree(f"{staging}/{name}")
            findings.append(Finding(what=f"left-over building site {name}", done="deleted"))
    for name in names_in(home.path):
        if name.startswith("id."):  # of a process that died while it created this home
            os.unlink(f"{home.path}/{name}")
            findings.append(Finding(what=f"left-over file {name}", done="deleted"))
    return findings


def _may_need(record: dict[str, Any], place: str) -> bool:
    """Return whether a staging directory may hold the only files of a workspace that was reported to a caller."""
    where = {"ready": record["path"], "destroyed": record["trash_path"]}.get(record["state"])
    return where is not None and not os.path.isdir(where) and os.path.isdir(f"{place}/.aw")


def _finish_deleting(home: Home) -> list[Finding]:
    from workstead.flows.sweep import finish_purging

    return [
        Finding(what=f"{workspace.id} was half deleted", done=str(problem) if problem else "the rest is gone too")
        for workspace, problem in finish_purging(home)
    ]


def _mend_records(home: Home) -> list[Finding]:
    """Rewrite the record beside the log of each workspace whose record differs from the log."""
    from workstead.core.inspection import EXPECTED, UNFINISHED, compare_records
    from workstead.system.files import records

    if home.settings.store.url:
        return []
    wrong = compare_records(home)
    if wrong:
        kept: dict[str, list[Event]] = {uid: [] for uid in wrong}
        for event in home.log.read(types=sorted(records.KEPT)):
            kept.get(str(event.event_data["uid"]), []).append(event)
        for uid, events in kept.items():
            records.replace(home.path, uid, events)
    # A record that is missing, behind or cut off is expected after an upgrade or a power cut, so it is not reported.
    return [
        Finding(what=f"the record of {uid} {problem}", done="written anew from the log")
        for uid, problem in wrong.items()
        if problem not in (*EXPECTED, UNFINISHED)
    ]


def _mend_stacks(home: Home) -> list[Finding]:
    """Rewrite damaged stack files from the log, where it knows the layers."""
    from workstead.core.mounting import filled_in
    from workstead.system.overlay.stack import damaged_stacks, stack_of, write_stack

    found = []
    for path in damaged_stacks(home.private):
        record = home.log.get("workspace", os.path.basename(path))
        if record is None or record["home"] != home.id or not record["filled"]:
            continue
        workspace = Workspace(**record)
        filled, place = filled_in(home, workspace)
        what = f"the stack of {workspace.id} was damaged"
        if filled.mechanism in mounter.MOUNTED:
            with suppress(WorkspaceBusy), home.hold(workspace.id, wait_seconds=0):
                write_stack(path, stack_of(filled, place), sync=True)
                found.append(Finding(what=what, done="written anew from the log"))
        else:
            found.append(Finding(what=what, done="nothing: the log does not say which layers it has"))
    return found


def _tidy_templates(home: Home) -> list[Finding]:
    from workstead.system.files.remove import remove_tree
    from workstead.verbs.template import lock_of

    findings = []
    for name in names_in(f"{home.path}/templates"):
        if name.startswith((".new-", ".old-")):
            try:
                with home.hold(lock_of(name[5:]), wait_seconds=0):
                    remove_tree(f"{home.path}/templates/{name}")
            except WorkspaceBusy:
                continue
            findings.append(Finding(what=f"left-over template {name}", done="deleted"))
    return findings


def _check_ready(home: Home) -> list[Finding]:
    from workstead.core.mend import bring_back, mend_metadata
    from workstead.core.mounting import record_layers
    from workstead.core.states import mend_parts

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
                    record_layers(home, workspace)
                    workspace = Workspace(**(home.log.get("workspace", record["uid"]) or record))
                    parts = mend_parts(home, workspace)
                    findings += [Finding(what=f"{workspace.id}: {what}", done=remake) for what in parts]
                    attach_again(home, workspace)
                except (WorksteadError, OSError) as error:
                    findings.append(Finding(what=f"{workspace.id} cannot be mounted: {error}", done="nothing"))
                done = mend_metadata(home, workspace)
                if done:
                    findings.append(Finding(what=f"the metadata of {workspace.id} was changed", done=done))
        except WorkspaceBusy:
            continue
    return findings


def _check_trashed(home: Home) -> list[Finding]:
    """Find the files of destroyed workspaces that are not in the trash, where undo and sweep look for them."""
    from workstead.core.mend import find_trashed_files

    findings = []
    for record in home.log.find_all("workspace"):
        workspace = Workspace(**record)
        if workspace.state != "destroyed" or workspace.home != home.id or workspace.settled == "planned":
            continue
        if os.path.isdir(workspace.trash_path):
            continue
        try:
            with home.hold(workspace.id, wait_seconds=0):
                current = home.log.get("workspace", workspace.uid)
                done = find_trashed_files(home, workspace) if current == record else ""
        except WorkspaceBusy:
            continue
        except (WorksteadError, OSError) as error:
            done = f"nothing: {error}"
        if done:
            findings.append(Finding(what=f"the files of {workspace.id} were not in the trash", done=done))
    return findings


def _check_states(home: Home) -> list[Finding]:
    """Report incomplete snapshots, found without reading every byte; they are never changed."""
    from workstead.core.snapshots import of_workspace
    from workstead.core.states import open_store
    from workstead.errors import StoreDamaged
    from workstead.snapshots.gc import reachable

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
