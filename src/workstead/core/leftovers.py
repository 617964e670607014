"""Find and remove files that no record of the log names."""

from __future__ import annotations

import os
from contextlib import suppress

from workstead.system.overlay.stack import has_space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home


def clear_away(home: Home, uid: str, staging: str, final: str) -> None:
    """Remove what was built for a workspace that never came to be: out of sight at once, then deleted."""
    from workstead.system.files.remove import remove_tree

    layers = f"{home.private}/layers/{uid}"
    is_ours = _is_of(final, uid)
    if has_space(layers):
        from workstead.system.overlay import quota_image

        _unmount_below(final)
        quota_image.detach(layers, final)
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

    from workstead.system.files.metadata import read_document

    document = read_document(path, "run.json")
    return document is not None and json.loads(document).get("uid") == uid


def _unmount_below(path: str) -> None:
    """A half-made workspace may have its view mounted already."""
    work = f"{path}/work"
    try:
        if (os.path.isdir(work) and os.lstat(work).st_dev != os.lstat(path).st_dev) or os.path.ismount(work):
            from workstead.system.kernel.mounts import unmount

            unmount(work, lazily=True)  # somebody may be looking in: that must not keep the home from opening
    except FileNotFoundError:
        return


def find_strangers(home: Home) -> list[str]:
    """Directories that look like workspaces and are in no log: they are named, never touched."""
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
