"""Sweep: delete expired data and explain what is kept. The only verb that removes data.

Expired trash is deleted, snapshots are thinned out, unused caches are deleted, and workspaces idle for their retention
go to the trash. `model/retention.py` decides; this module gathers the facts and executes the verdicts.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from workstead.core import lookup
from workstead.core.gate import refuse_agents
from workstead.core.idle import LogTime, judge, last_uses, rules_of
from workstead.core.quota import exclusive, forget_count
from workstead.core.trash import trashed
from workstead.errors import CleanupFailed, Conflict, WorkspaceBusy, WorkspaceNotFound, WorksteadError, from_os
from workstead.model.event import WorkspacePurged, WorkspacePurging
from workstead.model.moment import seconds
from workstead.model.retention import Candidate, Trashed, judge_cached, judge_trashed, least_recent
from workstead.model.workspace import Workspace
from workstead.verbs.destroy import destroy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.retention import Rules

HOUR = 3600
GIB = 1 << 30


def sweep(
    home: Home,
    *,
    dry_run: bool = False,
    everything: bool = False,
    uids: Sequence[str] = (),
    free_bytes: int | None = None,
) -> list[Candidate]:
    """Delete expired data: trash past its retention is deleted, workspaces past theirs go to the trash.

    With `everything`, delete all of the trash, or with `uids` just these, and nothing else. Unless only trash was
    requested, old snapshots are thinned out, caches are reduced to `storage.max_cache_gb`, and workspaces idle for
    `workspaces.retention_days` go to the trash, archived first with `workspaces.archive_workspaces`. Objects that no
    state needs any more are deleted in any case.

    `free_bytes` requests that much space: unused caches, then workspaces are removed, the longest idle first and under
    the same rules, until that much is free or in the trash. The trash keeps its retention, so that undo works;
    `everything` deletes it.

    A workspace that is being restored at the same time stays, without an error. Raises CleanupFailed with the files
    that could not be deleted; all others are, and the next sweep tries again. Raises EventsLost if the log lost events:
    then nothing is deleted, because files unknown to the log may be needed.
    """
    refuse_agents(home, "to sweep")
    home.check_place()
    home.check_log()
    problems: list[WorksteadError] = [problem for _, problem in ([] if dry_run else finish_purging(home)) if problem]
    only_trash = everything or bool(uids)
    looked_at = []
    rules, log_time = rules_of(home), LogTime(home)
    for workspace in trashed(home):
        if workspace.home != home.id or (uids and workspace.uid not in uids):
            continue
        measured = dry_run or free_bytes is not None
        candidate = _judge(home, workspace, rules, log_time, asked_for=only_trash, measured=measured)
        looked_at.append(candidate)
        if candidate.goes and not dry_run:
            try:
                _purge(home, workspace)
            except CleanupFailed as problem:
                problems.append(problem)
    try:
        with home.hold("the states of this home", wait_seconds=0):  # one sweeper at a time
            thin = not only_trash and not rules.clock_fault
            looked_at += _sweep_states(home, looked_at, dry_run=dry_run, thin=thin)
            if not only_trash:
                looked_at += _sweep_caches(home, _left(free_bytes, looked_at), dry_run=dry_run)
    except WorkspaceBusy:
        pass  # another process is sweeping
    except WorksteadError as problem:
        problems.append(problem)
    except OSError as error:
        problems.append(from_os(error, "what states need no more"))
    if not only_trash:
        looked_at += _sweep_workspaces(home, _left(free_bytes, looked_at), problems, dry_run=dry_run)
    if not dry_run and not rules.clock_fault:
        from workstead.core.approval_requests import drop_old_previews

        drop_old_previews(home)
    if problems:
        raise problems[0]
    return looked_at


def plan(home: Home) -> list[Candidate]:
    """Return the candidates of a sweep now, without snapshots, which take longer to examine."""
    rules, log_time = rules_of(home), LogTime(home)
    ours = [each for each in trashed(home) if each.home == home.id]
    trash = [_judge(home, each, rules, log_time, asked_for=False, measured=True) for each in ours]
    return [*trash, *_sweep_caches(home, 0, dry_run=True), *_sweep_workspaces(home, 0, [], dry_run=True)]


def _left(free_bytes: int | None, looked_at: list[Candidate]) -> int:
    """Return how much of the requested space has not been found yet."""
    return max(0, (free_bytes or 0) - sum(each.bytes for each in looked_at if each.goes))


def _judge(
    home: Home, workspace: Workspace, rules: Rules, log_time: LogTime, *, asked_for: bool, measured: bool
) -> Candidate:
    from workstead.system.files.measure import measure

    age = max(0.0, (time.time() - seconds(workspace.updated_at)) / 86400)
    if age >= rules.trash_days and not asked_for:
        age = min(age, log_time.days_since("workspace_cleanup", "uid", workspace.uid))
    facts = Trashed(days=age, pinned=workspace.pinned, asked_for=asked_for)
    verdict = judge_trashed(facts, rules)
    layers = f"{home.private}/layers/{workspace.uid}"
    return Candidate(
        workspace_id=workspace.id,
        uid=workspace.uid,
        destroyed_at=workspace.updated_at,
        age_days=round(age, 3),
        goes=verdict.goes,
        why=verdict.why,
        bytes=measure(workspace.trash_path, layers).bytes if measured else 0,
    )


def _sweep_caches(home: Home, wanted_bytes: int, *, dry_run: bool) -> list[Candidate]:
    """Reduce the caches to their maximum size, and further if space is requested: the longest unused go first."""
    from workstead.core.caches import find_caches, finish, take_away

    if not dry_run:
        finish(home)
    if not os.path.isdir(f"{home.path}/cache"):
        return []
    found = find_caches(home)
    limit = home.settings.storage.max_cache_gb
    excess = max(0, sum(cache.bytes for cache in found) - int(limit * GIB)) if limit is not None else 0
    pressed = rules_of(home, pressed=True)
    may_go = [cache for cache in found if judge_cached(cache.facts, pressed).goes]
    sizes = [(cache.name, cache.facts.idle_days, cache.bytes) for cache in may_go]
    chosen = set(least_recent(sizes, max(excess, wanted_bytes)))
    candidates = []
    for cache in found:
        verdict = judge_cached(cache.facts, pressed.replace(pressed=cache.name in chosen))
        goes = verdict.goes and (dry_run or take_away(home, cache, pressed))
        why = verdict.why if goes == verdict.goes else "is in use again"
        age = round(cache.facts.idle_days, 3)
        candidates.append(_of_states("cache", why, goes=goes, name=cache.name, age_days=age, bytes=cache.bytes))
    return candidates


def _sweep_workspaces(
    home: Home, wanted_bytes: int, problems: list[WorksteadError], *, dry_run: bool
) -> list[Candidate]:
    """Move expired workspaces to the trash; if space is requested, then also the longest idle of the others."""
    known = last_uses(home)
    every = lookup.list_all(home)
    rules = rules_of(home)
    found = [_look(home, workspace, known, rules) for workspace in every]
    pressed = home.settings.workspaces.max_total_size_gb is not None or wanted_bytes > 0
    if pressed or dry_run:
        found = [
            each.replace(bytes=exclusive(home, workspace).bytes) for each, workspace in zip(found, every, strict=True)
        ]
    if pressed:
        others = [_look(home, workspace, known, rules.replace(pressed=True)) for workspace in every]
        found = _choose(found, others, max(wanted_bytes, _excess(home, found)))
    found.sort(key=lambda each: (not each.goes, -each.age_days))
    return [each if dry_run or not each.goes else _take(home, each, problems, pressed=pressed) for each in found]


def _excess(home: Home, found: list[Candidate]) -> int:
    """Return how much to remove to bring the total to nine tenths of its maximum, so that there is room again."""
    total = home.settings.workspaces.max_total_size_gb
    return max(0, sum(each.bytes for each in found) - int(total * GIB * 0.9)) if total is not None else 0


def _choose(by_age: list[Candidate], by_need: list[Candidate], wanted_bytes: int) -> list[Candidate]:
    """Return the candidates expired by age, then the longest idle of the others until enough space is found."""
    wanted_bytes -= sum(each.bytes for each in by_age if each.goes)
    pairs = list(zip(by_age, by_need, strict=True))
    may_go = [(need.uid, need.age_days, age.bytes) for age, need in pairs if need.goes and not age.goes]
    chosen = least_recent(may_go, wanted_bytes)
    found = []
    for age, need in pairs:
        if age.goes:
            found.append(age)
        elif need.goes and need.uid not in chosen:
            why = "not needed: others are unused for longer" if age.bytes else "takes nothing that would come free"
            found.append(age.replace(why=why))
        else:
            found.append(need.replace(bytes=age.bytes))
    return found


def _look(home: Home, workspace: Workspace, known: dict[str, float], rules: Rules) -> Candidate:
    facts, verdict = judge(home, workspace, rules, known)
    return Candidate(
        kind="workspace",
        workspace_id=workspace.id,
        uid=workspace.uid,
        destroyed_at="",
        age_days=round(facts.idle_days, 3),
        goes=verdict.goes,
        why=verdict.why,
    )


def _take(home: Home, candidate: Candidate, problems: list[WorksteadError], *, pressed: bool) -> Candidate:
    """Move one workspace to the trash, if the verdict still holds under its lock."""
    rules = rules_of(home, pressed=pressed)

    def check(workspace: Workspace) -> None:
        facts, verdict = judge(home, workspace, rules, last_uses(home), is_ours=True)
        if workspace.uid != candidate.uid or not verdict.goes:
            raise Conflict(verdict.why)
        if facts.idle_days < candidate.age_days - 0.001:  # age_days is rounded
            raise Conflict("was used a moment ago")

    try:
        if rules.archive_first and lookup.get(home, candidate.workspace_id).state == "ready":
            from workstead.verbs.archive import archive

            archive(home, candidate.workspace_id)
        destroy(home, [candidate.workspace_id], reason=f"sweep: {candidate.why}", check=check)
    except (Conflict, WorkspaceNotFound) as refused:
        return candidate.replace(goes=False, why=refused.message)
    except WorksteadError as problem:
        problems.append(problem)
        return candidate.replace(goes=False, why=problem.message)
    return candidate


def _sweep_states(home: Home, trash: list[Candidate], *, dry_run: bool, thin: bool) -> list[Candidate]:
    """Thin out snapshots and delete unneeded objects; return what was deleted, if more than trash was requested."""
    from workstead.core.retention import collect, drop, find_leaving

    leaving = find_leaving(home, (each.uid for each in trash if each.goes and dry_run), thin=thin)
    if not dry_run:
        drop(home, leaving)
    freed = collect(home, leaving, dry_run=dry_run)
    if not thin:
        return []
    now = time.time()
    found = [
        _of_states(
            "snapshot",
            f"{snapshot.cause}, thinned out with age",
            workspace_id=workspace.id,
            uid=workspace.uid,
            name=snapshot.id,
            age_days=round(max(0.0, (now - snapshot.taken_at) / 86400), 3),
        )
        for workspace, snapshot in leaving.snapshots
        if workspace.uid not in leaving.uids
    ]
    if freed.objects:
        found.append(_of_states("objects", f"{freed.objects} contents that no state needs", bytes=freed.objects_bytes))
    if freed.layers:
        found.append(_of_states("layers", f"{len(freed.layers)} layers that nothing lies on", bytes=freed.layers_bytes))
    return found


def _of_states(kind: str, why: str, **more: Any) -> Candidate:
    fields = {"workspace_id": "", "uid": "", "destroyed_at": "", "age_days": 0.0, "goes": True, **more}
    return Candidate(kind=kind, why=why, **fields)


def sweep_in_background(home: Home) -> None:
    """Start a background process that deletes expired data, at most once an hour; do not wait for it."""
    stamp = f"{home.path}/swept"
    try:
        age = time.time() - os.stat(stamp).st_mtime
    except FileNotFoundError:
        age = 0.0  # a new home has nothing that is due
    if age < 0:  # the clock was set back since
        age = HOUR
    if age >= HOUR:
        from workstead.system.process.background import start_aw
        from workstead.system.process.crash_log import log_path

        start_aw(
            ["sweep", "--quiet", "--home", home.path],
            home.settings.as_environment(),
            log=log_path(home.path, "sweep"),
            title="sweep in the background,",
        )
    if age == 0.0 or age >= HOUR:
        with suppress(OSError), open(stamp, "w"):  # on a full disk: a completed destroy must not fail for this
            os.utime(stamp)


def _purge(home: Home, workspace: Workspace) -> None:
    try:
        with home.hold(workspace.id, wait_seconds=0):
            record = home.log.get("workspace", workspace.uid)
            if record is None or record["state"] != "destroyed":
                return
            names = workspace.names()
            step = {"trash_path": workspace.trash_path, "operation_id": home.new_id()}
            # From here on undo refuses: partly deleted files cannot come back.
            home.record(workspace.task_id, WorkspacePurging(**names, **step))
            delete_files(home, workspace)
            home.record(workspace.task_id, WorkspacePurged(**names, **step))
    except WorkspaceBusy:
        return


def finish_purging(home: Home) -> list[tuple[Workspace, CleanupFailed | None]]:
    """Resume interrupted deletions; return each workspace, with the error that prevents its deletion."""
    found: list[tuple[Workspace, CleanupFailed | None]] = []
    for kind, record in home.log.find_pending():
        if kind == "workspace" and record["state"] == "purging" and record["home"] == home.id:
            workspace = Workspace(**record)
            try:
                if _finish(home, workspace):
                    found.append((workspace, None))
            except CleanupFailed as problem:
                found.append((workspace, problem))
            except WorkspaceBusy:
                continue
    return found


def _finish(home: Home, workspace: Workspace) -> bool:
    with home.hold(workspace.id, wait_seconds=0):
        current = home.log.get("workspace", workspace.uid)
        if current is None or current["state"] != "purging":
            return False
        delete_files(home, workspace)
        names = workspace.names()
        step = {"trash_path": workspace.trash_path, "operation_id": workspace.operation_id}
        home.record(workspace.task_id, WorkspacePurged(**names, **step))
        return True


def delete_files(home: Home, workspace: Workspace) -> None:
    """Delete a trashed workspace's files, and its layers and worktree entry in the user's repository."""
    from workstead import sources
    from workstead.core.mounting import filled_in
    from workstead.system.files.remove import remove_tree

    try:
        if workspace.filled:
            filled, place = filled_in(home, workspace.replace(path=workspace.trash_path))
            sources.detach(filled, place)
        if workspace.trash_path and os.path.lexists(workspace.trash_path):
            remove_tree(workspace.trash_path)
        if workspace.filled:
            sources.release(filled, place)
        forget_count(home, workspace.uid)
    except OSError as error:
        raise CleanupFailed(
            f"the files of {workspace.id} could not be deleted: {error.strerror or error}",
            hint=f"see what uses {workspace.trash_path}; the next aw sweep goes on",
        ) from error
