"""Select folders, and list the recent ones."""

from __future__ import annotations

import json
import os
import time

from workstead.errors import from_os
from workstead.model.folder import Folder, RecentFolder
from workstead.system.files.durable import replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home

MOST = 50


def open_folder(home: Home, folder: str) -> RecentFolder:
    """Check that a folder exists, is a directory and can be read, and put it first among the recent ones."""
    from workstead.sources.folder import check_folder

    selected = RecentFolder(path=check_folder(folder), opened_at=time.time())
    with home.hold("recent folders"):
        others = [each for each in recent(home) if each.path != selected.path]
        _write(home, [selected, *others][:MOST])
    return selected


def recent(home: Home) -> list[RecentFolder]:
    """Return the selected folders, most recent first; none if the file is damaged, which `aw verify` reports."""
    try:
        with open(f"{home.path}/recent.json", "rb") as file:
            return [RecentFolder(**each) for each in json.load(file)]
    except (FileNotFoundError, ValueError, TypeError):
        return []


def _write(home: Home, folders: list[RecentFolder]) -> None:
    try:
        replace_file(f"{home.path}/recent.json", json.dumps([each.as_dict() for each in folders]).encode())
    except OSError as error:
        raise from_os(error, "the list of recent folders") from error


def browse(path: str) -> Folder:
    """List a folder of the host, for a person who chooses one to open; raises the same errors as opening it."""
    from workstead.sources.folder import check_folder

    real = check_folder(path)
    try:
        with os.scandir(real) as found:
            names = sorted(each.name for each in found if each.is_dir())
    except OSError as error:
        raise from_os(error, f"folder {real}") from None
    return Folder(
        path=real,
        parent=os.path.dirname(real) if real != "/" else "",
        folders=sorted(names, key=lambda name: name.startswith(".")),
        is_repository=os.path.exists(os.path.join(real, ".git")),
    )
