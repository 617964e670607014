"""Note, at the end of a run, the entries of the origin that its changes replace."""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack

from workstead.snapshots.folders import Folders
from workstead.snapshots.notes import _MOST, Notes, identity_of
from workstead.system.files.parts import open_folder, open_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.model.snapshot import Overlay
    from workstead.snapshots.origins import Origins


def take_notes(overlay: Overlay, origins: Origins) -> None:
    """Record the origin's entries below the workspace's upper layer, for paths without a note."""
    folder = overlay.stack.layers[-1]
    if not overlay.stack.fixed_ns or not os.path.isdir(folder):
        return
    notes = Notes(overlay)
    before = dict(notes.found)
    with ExitStack() as opened:
        upper = Folders(open_part(*os.path.split(overlay.upper)))
        opened.callback(upper.close)
        lower = Folders(open_folder(folder))
        opened.callback(lower.close)
        notes.found = {path: noted for path, noted in before.items() if _is_there(path, upper)}
        todo = [""]
        while todo and len(notes.found) < _MOST:
            todo += _note_folder(todo.pop(), upper, lower, notes, origins)
    if notes.found != before:
        notes.keep()


def _is_there(path: str, folders: Folders) -> bool:
    above, _, name = path.rpartition("/")
    try:
        os.stat(name, dir_fd=folders.open(above), follow_symlinks=False)
    except OSError:
        return False
    return True


def _note_folder(path: str, upper: Folders, lower: Folders, notes: Notes, origins: Origins) -> list[str]:
    """Note one directory that exists in both layers; return its sub-directories."""
    try:
        ours, theirs = upper.open(path), lower.open(path)
        if path and path not in notes.found and not origins.is_exchanged(f"{path}/"):
            notes.found[path] = identity_of(theirs)
        names = set(os.listdir(ours)).intersection(os.listdir(theirs))
    except OSError:  # missing, no permission, or not a directory in the folder
        return []
    below = []
    for name in names:
        each = f"{path}/{name}" if path else name
        mode = os.stat(name, dir_fd=ours, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            below.append(each)
        elif not stat.S_ISCHR(mode):  # a whiteout already shows that there was a file
            notes.found.setdefault(each, [])
    return below
