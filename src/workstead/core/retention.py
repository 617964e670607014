"""Retention of snapshots: which ones to delete, and which objects and layers with them.

The base, the last, labelled snapshots and those that a recent operation needs for undo stay; the others thin out with
age. A workspace in the trash keeps all its snapshots. An object is deleted when no remaining snapshot needs it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from workstead.core.applying import JOB_SUFFIXES, jobs_path, kept_roots
from workstead.core.idle import LogTime
from workstead.core.snapshots import of_workspace
from workstead.core.states import cache_path, find_stack, open_store, stacks_path
from workstead.errors import WorkspaceBusy
from workstead.model.event import SnapshotDropped
from workstead.model.moment import seconds
from workstead.model.operation import Operation
from workstead.model.value import Value
from workstead.model.workspace import Workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.snapshot import Snapshot
    from workstead.snapshots.objects import Store

DAY = 86400.0
GONE = ("purging", "purged", "aborted")


class Leaving(Value):
    """What a sweep deletes besides the trash: snapshots, and data that only deleted snapshots and operations needed."""

    snapshots: tuple[tuple[Workspace, Snapshot], ...] = ()
    operations: frozenset[str] = frozenset()  # old applies, whose job records are deleted
    uids: frozenset[str] = frozenset()  # workspaces that are or will be purged


class Freed(Value):
    """The space that was freed, or would be."""

    objects: int = 0
    objects_bytes: int = 0
    layers: tuple[str, ...] = ()
    layers_bytes: int = 0


def find_leaving(home: Home, uids: Iterable[str] = (), now: float | None = None, *, thin: bool = True) -> Leaving:
    """Return what may be deleted now; `uids` are workspaces about to be purged.

    Without `thin`, only data that is deleted with these.
    """
    now = time.time() if now is None else now
    every = [Workspace(**record) for record in home.log.find_all("workspace") if record["home"] == home.id]
    gone = frozenset(uids) | {workspace.uid for workspace in every if workspace.state in GONE}
    leaving: list[tuple[Workspace, Snapshot]] = []
    young = _young_operations(home, now)
    log_time = LogTime(home)

    def is_old(snapshot: Snapshot) -> bool:
        days = log_time.days_since("snapshot_taken", "snapshot_id", snapshot.id)
        return days >= home.settings.snapshots.keep_all_days

    needed = {operation.before for operation in young.values()}
    # Iterate over snapshots, not over purged workspaces: hardly any purged workspace has snapshots left.
    kept_of_gone = {record["uid"] for record in home.log.find_all("snapshot")} & gone
    for workspace in every:
        if workspace.uid in kept_of_gone:
            leaving += [(workspace, each) for each in of_workspace(home, workspace) if each.cause != "base"]
        elif workspace.state == "ready" and thin:
            old_ones = [each for each in _thin(home, workspace, now) if each.id not in needed]
            leaving += [(workspace, each) for each in old_ones if is_old(each)]
    old = frozenset(_old_jobs(home, young, now)) if thin else frozenset()
    return Leaving(snapshots=tuple(leaving), operations=old, uids=gone)


def _thin(home: Home, workspace: Workspace, now: float) -> Iterable[Snapshot]:
    from workstead.snapshots.retain import thin

    settings = home.settings.snapshots
    return thin(
        of_workspace(home, workspace),
        now,
        keep_all_seconds=settings.keep_all_days * DAY,
        hourly_seconds=settings.keep_hourly_days * DAY,
        daily_seconds=settings.keep_daily_days * DAY,
    )


def _young_operations(home: Home, now: float) -> dict[str, Operation]:
    """Return the operations that can still be undone; a sweep must keep the snapshots that they need."""
    limit = now - home.settings.workspaces.trash_days * DAY
    found = [Operation(**record) for record in home.log.find_all("operation")]
    return {operation.operation_id: operation for operation in found if seconds(operation.at) > limit}


def _old_jobs(home: Home, young: dict[str, Operation], now: float) -> list[str]:
    """Return the operations with a job record whose retention is over."""
    limit = now - home.settings.workspaces.trash_days * DAY
    found = []
    with suppress(FileNotFoundError):
        for name in os.listdir(jobs_path(home)):
            operation_id = name.partition(".")[0]
            if operation_id not in young:
                # An operation unknown to the log may be in progress: judge it by the age of its file.
                known = home.log.get("operation", operation_id) is not None
                with suppress(FileNotFoundError):
                    if known or os.stat(f"{jobs_path(home)}/{name}").st_mtime < limit - DAY:
                        found.append(operation_id)
    return found


def drop(home: Home, leaving: Leaving) -> None:
    """Delete these snapshots and operations. Those of a locked workspace stay until the next sweep."""
    by_workspace: dict[str, tuple[Workspace, list[Snapshot]]] = {}
    for workspace, snapshot in leaving.snapshots:
        by_workspace.setdefault(workspace.uid, (workspace, []))[1].append(snapshot)
    for workspace, snapshots in by_workspace.values():
        with suppress(WorkspaceBusy), home.hold(workspace.id, wait_seconds=0):
            record = home.log.get("workspace", workspace.uid)
            if record is None or record["state"] not in ("ready", *GONE):
                continue
            facts = [SnapshotDropped(**workspace.names(), snapshot_id=each.id) for each in snapshots]
            home.record(workspace.task_id, *facts)
    for operation_id in leaving.operations:
        for suffix in JOB_SUFFIXES:
            with suppress(FileNotFoundError):
                os.unlink(f"{jobs_path(home)}/{operation_id}{suffix}")
    with suppress(FileNotFoundError):
        for uid in leaving.uids.intersection(os.listdir(os.path.dirname(cache_path(home, "")))):
            with suppress(FileNotFoundError):
                os.unlink(cache_path(home, uid))


class _BeingMade(Exception):
    """A workspace is being created: its base is not known yet."""


def live_roots(home: Home, leaving: Leaving) -> set[str]:
    """Return every state that has to stay readable."""
    roots = set(kept_roots(home, but_not=leaving.operations))
    covers: dict[str, list[str]] = {}
    for record in home.log.find_all("workspace"):
        if record["home"] != home.id or record["state"] in GONE or record["uid"] in leaving.uids:
            continue
        if record["state"] == "creating":
            raise _BeingMade(record["uid"])
        covers[record["uid"]] = record.get("covers", [])
        step = record["step"]
        roots.update(filter(None, (record["base"], record["last_root"], step.get("root"), step.get("next_base"))))
    dropped = {snapshot.id for _, snapshot in leaving.snapshots}
    oldest = {uid: len(found) for uid, found in covers.items()}
    for record in home.log.find_all("snapshot"):
        uid = record["uid"]
        if uid in covers and record["snapshot_id"] not in dropped:
            roots.add(record["root"])
            oldest[uid] = min(oldest[uid], record.get("applied", 0))
    for uid, found in covers.items():
        roots.update(found[oldest[uid] :])  # a state is read through all later applies
    return roots


def collect(home: Home, leaving: Leaving, *, dry_run: bool = False) -> Freed:
    """Delete every object and shared layer that no state needs. Raises StoreDamaged, and then deletes nothing."""
    # Deleted snapshots are no longer in the log; those of locked workspaces are, and stay.
    now = leaving if dry_run else Leaving()
    try:
        # Without any snapshot there may still be shared layers, of forks.
        if not os.path.isdir(f"{home.path}/snapshots"):
            live_roots(home, now)
            return _sweep_layers(home, set(), dry_run=dry_run)
        with open_store(home) as store:
            return _collect(home, store, now, dry_run=dry_run)
    except _BeingMade:
        return Freed()  # until the next sweep


def _collect(home: Home, store: Store, leaving: Leaving, *, dry_run: bool) -> Freed:
    from workstead.snapshots.gc import collect as collect_objects
    from workstead.snapshots.gc import stack_keys

    done = collect_objects(store, lambda: live_roots(home, leaving), dry_run=dry_run)
    with store.hold():  # a snapshot taken now uses a stack of its workspace, which that workspace keeps in use
        keys = stack_keys(store, live_roots(home, leaving))
        stacks = [find_stack(home, key) for key in keys]
        kept = {layer for stack in stacks if stack for layer in stack.layers}
        # A damaged record may have named any layer.
        freed = Freed() if None in stacks else _sweep_layers(home, kept, dry_run=dry_run)
        if not dry_run:
            _forget_stacks(home, keys)
    return freed.replace(objects=done.objects, objects_bytes=done.freed_bytes)


def _sweep_layers(home: Home, kept: set[str], *, dry_run: bool) -> Freed:
    """Delete the shared layers that no workspace uses and that are not in `kept`, the layers of states."""
    from workstead.system.files.measure import measure
    from workstead.system.overlay.stack import sweep

    # A stack file may be lost, so the layers that the log names for the workspace are kept as well.
    records = [record for record in home.log.find_all("workspace") if record["state"] not in GONE]
    if any(_lost_stack(home, record) for record in records):
        return Freed()  # the lost file may have named layers that the record does not
    kept = kept.union(*(record["filled"].get("layers", ()) for record in records))
    waste = sweep(home.private, keep=kept, remove=False)
    size = sum(measure(path).bytes for path in waste)
    if not dry_run:
        sweep(home.private, keep=kept)
    return Freed(layers=tuple(waste), layers_bytes=size)


def _lost_stack(home: Home, record: dict[str, Any]) -> bool:
    """Return whether a workspace on layers has no stack file, although it has files of its own."""
    from workstead.system.overlay.mounter import MOUNTED

    layers = f"{home.private}/layers/{record['uid']}"
    if record["home"] != home.id or record["filled"].get("mechanism") not in MOUNTED or not os.path.isdir(layers):
        return False
    return not os.path.lexists(f"{layers}/stack")


def _forget_stacks(home: Home, keys: set[str]) -> None:
    """Delete the files of unused stacks. One that is about to be used is recent, or was touched."""
    with suppress(FileNotFoundError):
        for name in os.listdir(stacks_path(home)):
            path = f"{stacks_path(home)}/{name}"
            with suppress(FileNotFoundError):
                if name not in keys and os.stat(path).st_mtime < time.time() - DAY:
                    os.unlink(path)
