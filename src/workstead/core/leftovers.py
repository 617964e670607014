"""Find and remove files that no record of the log names."""

from __future__ import annotations

import os
from contextlib import suppress

from workstead.system.overlay.stack import has_space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home


def clear_away(home: Home, uid: str, staging: str, final: str) -> None:
    """Remove the files of a workspace whose creation failed: rename them out of sight first, then delete them."""
    from workstead.system.files.remove import remove_tree

    layers = f"{home.private}/layers/{uid}"
    is_ours = _is_of(final, uid)
    if has_space(layers):
        from workstead.system.overlay import quota_image

        _unmount_below(final)
        quota_image.detach(layers, final)
        with suppress(OSError):
            os.rmdir(final)  # the mount point of the quota image: empty if it is ours
    # Files at the workspace's path are deleted only if they carry its identity: foreign files are never touched.
    paths = [staging, layers, *([final] if is_ours else [])]
    for number, path in enumerate(paths):
        aside = f"{home.private}/staging/{uid}.{number}"
        if os.path.lexists(aside):  # left by a crash at this point
            remove_tree(aside)
        if os.path.lexists(path):
            _unmount_below(path)
            os.rename(path, aside)
            remove_tree(aside)


def _is_of(path: str, uid: str) -> bool:
    import json

    from workstead.system.files.metadata import read_document

    document = read_document(path, "run.json")
    return document is not None and json.loads(document).get("uid") == uid


def _unmount_below(path: str) -> None:
    """Unmount the overlay that a partly built workspace may already have."""
    work = f"{path}/work"
    try:
        if (os.path.isdir(work) and os.lstat(work).st_dev != os.lstat(path).st_dev) or os.path.ismount(work):
            from workstead.system.kernel.mounts import unmount

            unmount(work, lazily=True)  # lazily: a process with open files there must not prevent the home from opening
    except FileNotFoundError:
        return


def find_strangers(home: Home) -> list[str]:
    """Return directories that look like workspaces but are in no log: they are reported, never touched."""
    known = {record["path"] for record in home.log.find_all("workspace", live_only=True)}
    found = []
    for task in names_in(home.workspaces_path):
        if task == ".carrel":
            continue
        for agent in names_in(f"{home.workspaces_path}/{task}"):
            path = f"{home.workspaces_path}/{task}/{agent}"
            if path not in known:
                found.append(path)
    return found


def names_in(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
