"""Notes of what a workspace's changes lie over in the user's folder, taken when a run ends.

An overlay forgets two things that an apply has to know. A file that the agent replaced by a rename carries no mark of
the file below it: when the user deletes that one, the agent's looks new. And in an overlay of an ordinary user a
directory that was copied up does not say which inode it came from: when the user moves another one to its place, only
times tell, and a file that is made in it hides that. So both are written down, beside the upper layer, where the agent
cannot reach it: names of replaced files, and inode and birth time of directories. The first note about a path stands
for as long as the workspace has a change there.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import ExitStack

from workstead.snapshots.folders import Folders
from workstead.system.files.parts import open_folder, open_part
from workstead.system.kernel.statx import birth_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.model.snapshot import Overlay
    from workstead.snapshots.origins import Origins

_FILE = "notes"
_MOST = 100_000  # paths; a workspace that changed more has its snapshots


class Notes:
    """What was noted about one workspace: by path, `[inode, birth time]` of a directory, or [] for a file."""

    def __init__(self, overlay: Overlay) -> None:
        self._path = f"{os.path.dirname(overlay.upper)}/{_FILE}"
        try:
            with open(self._path, "rb") as file:
                found = json.loads(file.read())
        except (OSError, ValueError):  # derived: what is lost is told by times, as without notes
            found = {}
        self.found: dict[str, list[float]] = found if isinstance(found, dict) else {}

    def is_another(self, path: str, fd: int) -> bool | None:
        """Whether the directory at this descriptor is another than the one that was noted; None if none was."""
        noted = self.found.get(path)
        return None if not noted else noted != _identity(fd)

    def has_file(self, path: str) -> bool:
        """Whether the folder had a file where the workspace put one of its own."""
        return self.found.get(path) == []

    def keep(self) -> None:
        """Write them down; without a sync, because the changes that they are about are not synced either."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(f"{self._path}.new", flags, 0o600), "wb") as file:
            file.write(json.dumps(self.found).encode())
        os.rename(f"{self._path}.new", self._path)


def take_notes(overlay: Overlay, origins: Origins) -> None:
    """Note what the workspace's upper layer lies over now, where nothing was noted yet."""
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
    """Note one directory that both have; return those below it."""
    try:
        ours, theirs = upper.open(path), lower.open(path)
        if path and path not in notes.found and not origins.is_exchanged(f"{path}/"):
            notes.found[path] = _identity(theirs)
        names = set(os.listdir(ours)).intersection(os.listdir(theirs))
    except OSError:  # gone, closed, or no directory in the folder
        return []
    below = []
    for name in names:
        each = f"{path}/{name}" if path else name
        mode = os.stat(name, dir_fd=ours, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            below.append(each)
        elif not stat.S_ISCHR(mode):  # a whiteout says by itself that something was there
            notes.found.setdefault(each, [])
    return below


def _identity(fd: int) -> list[float]:
    return [os.fstat(fd).st_ino, birth_time(fd)]
