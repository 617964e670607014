"""Backup of each workspace's essential events beside the log, from which a lost log is rebuilt.

    HOME/records/UID     one sealed line for each essential event of a workspace, as in the log

In the home, where no agent can write. A line is written after its event is in the log and is not synced: the log is the
source of truth; `aw verify` compares these files with it, and `aw repair` rewrites them. They contain how a workspace
was made and ended, its snapshots and its runs, but no file accesses.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from workstead.model import run, workspace
from workstead.system.files.sealed import seal, unseal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from workstead.model.event import Event

KEPT = frozenset(
    {*workspace.EVENTS, *run.EVENTS, "snapshot_taken", "snapshot_imported", "snapshot_dropped"},
)
_FIRST = ("workspace_planned", "workspace_creating")
_ENDS = ("workspace_purged",)  # after this event nothing of the workspace is left
_begun: dict[str, bytes] = {}  # intents of this process that have not ended yet
_dumps = json.JSONEncoder(separators=(",", ":")).encode


def directory_of(home: str) -> str:
    """Return the directory of a home's records."""
    return f"{home}/records"


def keep(home: str, events: Iterable[Event]) -> list[str]:
    """Record events that were appended to the log; return the uids that have no record yet, for `replace`.

    A workspace of an older version has none, and neither has one whose creation another process began. On a write error
    the record is removed.
    """
    lines: dict[str, list[bytes]] = {}
    started = set()
    for event in events:
        if event.event_type not in KEPT:
            continue
        uid = str(event.event_data["uid"])
        if event.event_type == "workspace_creating":
            _begun[uid] = _line(event)  # written together with its end: a workspace that was never made needs no record
            continue
        begun = _begun.pop(uid, b"")
        if event.event_type in _ENDS or _is_aborted(event):
            lines.pop(uid, None)
            forget(home, uid)
        else:
            lines.setdefault(uid, []).append(begun + _line(event))
            if begun or event.event_type in _FIRST:
                started.add(uid)
    missing = []
    for uid, own in lines.items():
        path = f"{directory_of(home)}/{uid}"
        if uid not in started and not os.path.lexists(path):
            missing.append(uid)
            continue
        try:
            _append(path, b"".join(own))
        except OSError:  # no record is better than half of one: the next event writes it whole
            forget(home, uid)
    return missing


def forget(home: str, uid: str) -> None:
    """Remove the record of a workspace that was purged."""
    with suppress(OSError):
        os.unlink(f"{directory_of(home)}/{uid}")


def replace(home: str, uid: str, events: Iterable[Event]) -> None:
    """Rewrite a record."""
    fresh = f"{directory_of(home)}/{uid}.{os.urandom(4).hex()}"
    _append(fresh, b"".join(_line(event) for event in events))
    os.rename(fresh, f"{directory_of(home)}/{uid}")


def uids(home: str) -> list[str]:
    """Return the uids of the workspaces that have a record."""
    try:
        return sorted(name for name in os.listdir(directory_of(home)) if "." not in name)
    except FileNotFoundError:
        return []


def read(home: str, uid: str) -> tuple[list[dict[str, Any]], int, bool]:
    """Return the recorded events of a workspace, the number of damaged lines, and whether only the end is damaged.

    A power cut leaves a record empty, or with a last line that is half written.
    """
    try:
        with open(f"{directory_of(home)}/{uid}", "rb") as file:
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return [], 0, False
    texts = [unseal(line) for line in lines]
    damaged = texts.count(None)
    is_unfinished = not lines or (damaged == 1 and texts[-1] is None)
    return [json.loads(text) for text in texts if text is not None], damaged, is_unfinished


def _line(event: Event) -> bytes:
    return seal(_dumps(event.as_dict()).encode("ascii"))


def _is_aborted(event: Event) -> bool:
    return event.event_type == "workspace_create_failed" and not event.event_data.get("kept")


def _append(path: str, lines: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, lines)  # in one call: lines of two concurrent writers do not mix
    finally:
        os.close(descriptor)
