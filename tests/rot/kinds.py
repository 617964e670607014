"""Every kind of file in a home, and what is promised when one of them rots.

found    `aw verify` names it
deep     `aw verify --deep` names it
log      the log: `aw verify` fails, and `aw repair --rebuild-log` brings everything back
heals    it is derived: whoever reads it sees that it is damaged and makes it anew, or it is believed only as far
         as it does no harm
empty    nobody reads its content: a lock, a time stamp, reserved space
agent    the agent's own files, which anybody may change: the snapshots of them are covered
"""

from __future__ import annotations

import re

KINDS: dict[str, tuple[str, str]] = {
    "id": (r"id", "heals"),
    "place": (r"place", "heals"),
    "format": (r"(snapshots/)?format", "heals"),
    "clock": (r"clock|swept|locks|log\.db\.lock", "empty"),
    "reserve": (r"(snapshots/)?reserve(\.\d)?", "empty"),
    "log": (r"log\.db", "log"),
    "write-ahead log": (r"log\.db-wal", "log"),
    "index of the write-ahead log": (r"log\.db-shm|snapshots/index\.db-(shm|wal)", "heals"),
    "head": (r"log\.db\.head", "found"),
    "record": (r"records/\w+", "found"),
    "digests": (r"digests/.+", "deep"),
    "token": (r"token", "heals"),
    "quota count": (r"quota/\w+(\.asked)?", "heals"),
    "recent folders": (r"recent\.json", "heals"),
    "layer sizes": (r"layer-sizes", "heals"),
    "state of the verification": (r"verification", "heals"),
    "output of a run": (r"runs/[\w-]+/(output|result|command|request.*)", "deep"),
    "lock of a run": (r"runs/[\w-]+/lock", "empty"),
    "pack": (r"snapshots/packs/\w+\.pack", "deep"),
    "index of objects": (r"snapshots/index\.db", "heals"),
    "lock of the store": (r"snapshots/(gate|lock|collecting)", "empty"),
    "generation": (r"snapshots/generation", "heals"),
    "stat cache": (r"snapshots/caches/\w+", "heals"),
    "stack of a state": (r"snapshots/stacks/\w+", "found"),
    "stack": (r"workspaces/\.carrel/layers/\w+/stack", "found"),
    "frozen layer": (r"workspaces/\.carrel/frozen/.+", "deep"),
    "notes of an origin": (r"workspaces/\.carrel/layers/\w+/notes", "heals"),
    "upper layer": (r"workspaces/\.carrel/layers/\w+/upper\.\d+/.+", "agent"),
    "table of mounts": (r"workspaces/\.carrel/(mounts|holder.*)", "heals"),
    "document": (r"workspaces/[^.][^/]*/[^/]+/\.aw/\w+\.json", "found"),
    "document in the trash": (r"workspaces/\.carrel/trash/\w+/\.aw/\w+\.json", "agent"),
    "file of a workspace": (r"workspaces/[^.][^/]*/[^/]+/(work|output|tmp)/.+|workspaces/[^.].*\.md", "agent"),
    "file in the trash": (r"workspaces/\.carrel/trash/\w+/(work|output|tmp)/.+", "agent"),
    "checkout": (r"cache/checkouts/\w+/\w+/(tree|git-\w+)/.+", "deep"),
    "index of a checkout": (r"cache/checkouts/\w+/\w+/(index|left-out)", "heals"),
    "lock of a cache": (r"cache/(checkouts/\w+/\w+|mirrors/\w+)/lock", "empty"),
    "pack of a mirror": (r"cache/mirrors/\w+/repo\.git/objects/pack/.+\.(pack|idx)", "deep"),
    "repository of a mirror": (r"cache/mirrors/\w+/(repo\.git/.+|fetched|trusted)", "heals"),
    "mark of a template": (r"cache/templates/\w+", "found"),
    "template": (r"templates/.+", "deep"),
    "archive": (r"archives/.+", "deep"),
    "job of an apply": (r"applied/.+", "heals"),
}


def kind_of(path: str) -> str | None:
    """The kind of the file at a path relative to the home; None for a file that nobody has thought of."""
    for name, (pattern, _) in KINDS.items():
        if re.fullmatch(pattern, path, re.DOTALL):
            return name
    return None
