"""Rebuild a lost or damaged log from its intact events and from the records beside it.

    intact events of the damaged file → records/UID for the others → the directories of workspaces and the trash

The damaged file is kept beside the new one. If events are missing that the head knows of, the head is not changed: then
nothing is deleted until `aw repair --accept-log`, because files unknown to the new log may belong to a snapshot.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from workstead.core.building import default_limits, policy_of
from workstead.core.home import Home
from workstead.core.leftovers import find_strangers
from workstead.core.metadata import DOCUMENTS
from workstead.core.mounting import place_of
from workstead.errors import Conflict, InvalidUsage, WorkspaceBusy, WorksteadError, from_os
from workstead.flows.repair import settle_moves
from workstead.model.config import parse_config
from workstead.model.event import (
    ChangesApplyFailed,
    LogRebuilt,
    SnapshotRestoreFailed,
    WorkspaceCleanup,
    WorkspaceCreated,
    WorkspaceCreating,
    WorkspaceDestroying,
    WorkspaceRestored,
    WorkspaceRestoring,
)
from workstead.model.health import Finding
from workstead.model.names import format_id, parse_id
from workstead.model.snapshot import EMPTY
from workstead.model.workspace import Workspace
from workstead.store import head, open_log
from workstead.store.salvage import SUFFIXES, read_whole
from workstead.system.files import metadata, records
from workstead.system.files.durable import sync_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.model.event import Caller
    from workstead.settings import Settings

    Stored = tuple[str, str, str, str, str, str]  # stream, type, data, actor, metadata, time

_LOST = "f" * 64  # the hash of no event: a head with it marks lost events
_UID = frozenset("0123456789abcdefghjkmnpqrstvwxyz")


def rebuild_log(path: str, settings: Settings, caller: Caller) -> list[Finding]:
    """Rebuild the log of a home; no process may have the home open."""
    if settings.store.url:
        raise InvalidUsage("the log is in PostgreSQL, not in the home", hint="restore it from a backup of the database")
    log = f"{path}/log.db"
    if not os.path.isdir(path):
        raise Conflict(f"there is no home at {path}", hint="choose another --home")
    _refuse_users(log)
    try:
        stored, damaged = _gather(path)
        aside, refused = _exchange(path, stored)
    except OSError as error:
        raise from_os(error, f"the event log at {log}") from error
    findings = []
    if aside:
        findings.append(Finding(what="the damaged log", done=f"kept as {aside}"))
    if damaged:
        findings.append(Finding(what=f"{damaged} events of the old log", done="left out: their hashes do not fit"))
    if refused:
        kinds = ", ".join(sorted({kind for _, kind in refused}))
        findings.append(Finding(what=f"{len(refused)} events", done=f"left out: what came before is missing ({kinds})"))
    home = Home.open(path, settings, caller)
    try:
        return [*findings, *_finish(home, aside, damaged)]
    finally:
        home.close()


def _refuse_users(log: str) -> None:
    """Raise WorkspaceBusy if a process has the log open: it would go on writing to the old file."""
    own = os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != own:
            with suppress(OSError):
                for descriptor in os.listdir(f"/proc/{name}/fd"):
                    with suppress(FileNotFoundError):
                        if os.readlink(f"/proc/{name}/fd/{descriptor}").removesuffix("-wal") == log:
                            raise WorkspaceBusy(
                                f"process {name} has the event log open", hint="end it (aw serve, aw run), try again"
                            )


def _gather(path: str) -> tuple[list[Stored], int]:
    """Return every recoverable event, in order, and the number of damaged events in the old log."""
    newest = (head.read(f"{path}/log.db.head") or (0, ""))[0]
    whole, damaged = read_whole(f"{path}/log.db", f"{path}/log.db.salvage", newest)
    found = {(row[0], row[7], row[3]): (row[1], *row[3:8]) for row in whole}
    for uid in records.uids(path):
        for event in records.read(path, uid)[0]:
            key = (event["position"], event["recorded_at"], event["event_type"])
            texts = [json.dumps(event[name], separators=(",", ":")) for name in ("event_data", "metadata")]
            stored = (event["stream"], event["event_type"], texts[0], event["actor_id"], texts[1], event["recorded_at"])
            found.setdefault(key, stored)
    return [found[key] for key in sorted(found)], damaged


def _exchange(path: str, stored: list[Stored]) -> tuple[str, list[tuple[str, str]]]:
    """Replace the log by a new one; return the path of the old one, and the events that were not accepted."""
    log, fresh = f"{path}/log.db", f"{path}/log.db.rebuilt"
    for suffix in (*SUFFIXES, "-shm", ".lock", ".head"):
        with suppress(FileNotFoundError):
            os.unlink(f"{fresh}{suffix}")  # of a killed rebuild
    new = open_log(fresh)
    try:
        refused = new.fill(stored)
    finally:
        new.close()  # closing the last connection writes everything into the main file
    aside = ""
    if os.path.lexists(log):
        aside = f"{log}.damaged-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(2).hex()}"
        os.link(log, aside)
        # Before the rename: SQLite would read the old write-ahead log into the new file.
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.rename(f"{log}{suffix}", f"{aside}{suffix}")
    with suppress(FileNotFoundError):
        os.unlink(f"{fresh}.lock")
    os.rename(fresh, log)
    sync_names(path)
    if head.read(f"{path}/log.db.head") is None:  # without a head it is unknown how much is missing
        head.write(f"{path}/log.db.head", len(stored) + 1, _LOST, durable=True)
    return aside, refused


def _finish(home: Home, aside: str, damaged: int) -> list[Finding]:
    """Compare the new log with the disk, and record the differences as events."""
    home.check_place()
    findings = []
    for kind, record in home.log.find_pending():
        if kind == "workspace" and record["home"] == home.id:
            findings += _end_step(home, Workspace(**record))
    for record in home.log.find_all("workspace"):
        if record["home"] == home.id:
            findings += _compare(home, Workspace(**record))
    for path in find_strangers(home):
        findings += _adopt(home, path)
    for uid in _names(f"{home.private}/trash"):
        if home.log.get("workspace", uid) is None:
            findings += _adopt(home, f"{home.private}/trash/{uid}", trashed=True)
    known = sum(record["state"] not in ("purged", "aborted") for record in home.log.find_all("workspace"))
    fact = LogRebuilt(kept_as=aside, events=home.log.last_position(), damaged=damaged, workspaces=known)
    home.record("", fact)
    write_records(home)
    snapshots = len(home.log.find_all("snapshot"))
    done = f"{fact.events} events, {known} workspaces, {snapshots} snapshots"
    try:
        home.check_log()
    except WorksteadError:
        done += (
            "; events are missing (files that were written through us, approvals, tokens, races, calls), so nothing is "
            "deleted until you have looked and said aw repair --accept-log"
        )
    return [*findings, Finding(what="the log was rebuilt", done=done)]


def write_records(home: Home) -> None:
    """Rewrite the record of every workspace from the log."""
    kept: dict[str, list[Any]] = {}
    for event in home.log.read(types=sorted(records.KEPT)):
        kept.setdefault(str(event.event_data["uid"]), []).append(event)
    for record in home.log.find_all("workspace"):
        if record["home"] == home.id and record["state"] not in ("purged", "aborted"):
            records.replace(home.path, record["uid"], kept.get(record["uid"], ()))


def _end_step(home: Home, workspace: Workspace) -> list[Finding]:
    """Complete a step without a recorded end, from the state of the disk."""
    what = f"{workspace.id} was {workspace.state} when the log ended"
    reason = "the log was rebuilt"
    names = workspace.names()
    if workspace.state == "creating":
        return _adopt(home, workspace.path, known=workspace) if _uid_of(workspace.path) == workspace.uid else []
    if workspace.state in ("destroying", "restoring"):
        return [Finding(what=what, done=settle_moves(home, workspace))]
    if workspace.state == "reverting":
        home.record(workspace.task_id, SnapshotRestoreFailed(**names, **_step(workspace), reason=reason))
    elif workspace.state == "applying":
        home.record(workspace.task_id, ChangesApplyFailed(**names, **_step(workspace), reason=reason))
    else:
        return []
    return [Finding(what=what, done="its files are as they are; aw diff shows them")]


def _step(workspace: Workspace) -> dict[str, Any]:
    return {"operation_id": workspace.operation_id}


def _compare(home: Home, workspace: Workspace) -> list[Finding]:
    """Record where the directory really is: the last lines of a record may be missing."""
    trash = f"{home.private}/trash/{workspace.uid}"
    names = workspace.names()
    operation = home.new_id()
    step = {"workspace_path": workspace.path, "operation_id": operation}
    if workspace.state == "ready" and not os.path.lexists(workspace.path) and os.path.isdir(trash):
        gone = {**step, "trash_path": trash, "cleanup_reason": "found in the trash"}
        home.record(workspace.task_id, WorkspaceDestroying(**names, **gone), WorkspaceCleanup(**names, **gone))
        return [Finding(what=workspace.id, done="is in the trash: aw undo or aw trash restore brings it back")]
    if workspace.state == "destroyed" and not os.path.lexists(trash) and _uid_of(workspace.path) == workspace.uid:
        home.record(
            workspace.task_id,
            WorkspaceRestoring(**names, **step, trash_path=trash),
            WorkspaceRestored(**names, **step),
        )
        return [Finding(what=workspace.id, done="is in its place, not in the trash")]
    return []


def _adopt(home: Home, path: str, *, known: Workspace | None = None, trashed: bool = False) -> list[Finding]:
    """Record a directory that is known only by its own `.aw`.

    An agent may have changed its content, so it is trusted only where it can do no harm: the id has to match the path,
    and the source is recorded for information, not used.
    """
    context, uid = _context(path), known.uid if known else _uid_of(path)
    try:
        workspace_id = str(format_id(*parse_id(str(context.get("workspace_id")))))
    except WorksteadError:
        workspace_id = ""
    task, agent = parse_id(workspace_id) if workspace_id else ("", "")
    final = home.workspace_path(task, agent) if workspace_id else ""
    fits = os.path.basename(path) == uid if trashed else final == path
    is_free = trashed or home.log.find_live("workspace", workspace_id) is None or known is not None
    if not uid or not workspace_id or not fits or not is_free or (known is None and home.log.get("workspace", uid)):
        return [Finding(what=f"{path} could not be brought back", done="nothing: its own record in .aw is damaged")]
    config = parse_config({}, defaults=default_limits(home))
    stated: dict[str, Any] = {
        "workspace_id": workspace_id,
        "agent_id": agent,
        "uid": uid,
        "workspace_path": final,
        "source": "empty",
        "config": config.stated(),
    }
    if known is None:
        policy = policy_of(home, config).stated()
        home.record(task, WorkspaceCreating(**stated, home=home.id, policy=policy))
    digest = metadata.digest_of(path, DOCUMENTS) or ""
    filled, base = _filled(home, uid, path)
    home.record(task, WorkspaceCreated(**stated, filled=filled, metadata_digest=digest, base=base))
    if trashed:
        names = {"workspace_id": workspace_id, "agent_id": agent, "uid": uid, "workspace_path": final}
        step = {"trash_path": path, "cleanup_reason": "found in the trash", "operation_id": home.new_id()}
        home.record(task, WorkspaceDestroying(**names, **step), WorkspaceCleanup(**names, **step))
    source = str(context.get("source") or "")
    told = f"; it was made from {source}, which it cannot be applied to any more" if source not in ("", "empty") else ""
    where = "in the trash" if trashed else "back"
    lost = "its configuration, policy and snapshots are not known"
    return [Finding(what=workspace_id, done=f"is {where}, from its own record in .aw: {lost}{told}")]


def _filled(home: Home, uid: str, path: str) -> tuple[dict[str, Any], str]:
    """Return the mechanism and origin of the workspace, from its layers, and the base of its changes."""
    from workstead.core.states import base_of
    from workstead.model.source import Filled
    from workstead.system.overlay.layers import candidates
    from workstead.system.overlay.mounter import PLAIN
    from workstead.system.overlay.stack import read_stack

    stack = read_stack(f"{home.private}/layers/{uid}")
    origin = {"kind": "empty"}
    if stack is None:
        return Filled(mechanism=PLAIN, layers=[], origin=origin, notes=[]).as_dict(), EMPTY
    filled = Filled(mechanism=candidates()[0], layers=stack.lowers, origin=origin, notes=[])
    return filled.as_dict(), base_of(home, filled, place_of(home, uid, path), uid)


def _context(path: str) -> dict[str, Any]:
    document = metadata.read_document(path, "context.json")
    return dict(json.loads(document)) if document else {}


def _uid_of(path: str) -> str:
    document = metadata.read_document(path, metadata.IDENTITY)
    uid = json.loads(document).get("uid") if document else ""
    return uid if isinstance(uid, str) and len(uid) == 16 and _UID.issuperset(uid) else ""


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []
