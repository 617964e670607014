"""Paths and limits of archives in the home."""

from __future__ import annotations

import os

from workstead.model.archive import KnownArchive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.archives.trees import Caps
    from workstead.core.home import Home


def caps_of(home: Home) -> Caps:
    """Return the size limits of an archive, from the settings."""
    from workstead.archives.trees import Caps

    said = home.settings.archives
    return Caps(max_files=said.max_files, max_bytes=int(said.max_gb * (1 << 30)), max_ratio=said.max_ratio)


def archives_path(home: Home) -> str:
    """Return the default directory of archives."""
    said = home.settings.workspaces.archives_path or f"{home.path}/archives"
    return said if said.endswith("/") else said + "/"


def history_path(home: Home, uid: str) -> str:
    """Return the path of the history of an archive: beside the workspace's layers, and deleted with them."""
    return f"{home.private}/layers/{uid}/history.jsonl"


def archives(home: Home) -> list[KnownArchive]:
    """Return the recorded archives whose file still exists, oldest first; buckets are not queried."""
    from workstead.archives.places import is_remote

    found = {}
    for event in home.log.read(types=("workspace_archived",)):
        data: dict[str, Any] = event.event_data
        if is_remote(data["path"]) or os.path.isfile(data["path"]):
            fields = {key: data[key] for key in ("workspace_id", "path", "bytes", "digest")}
            found[data["path"]] = KnownArchive(**fields, archived_at=event.recorded_at)
    return list(found.values())
