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

from workstead.system.files.sealed import seal, unseal
from workstead.system.kernel.statx import birth_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.model.snapshot import Overlay

_FILE = "notes"
_MOST = 100_000  # paths; a workspace that changed more has its snapshots


class Notes:
    """What was noted about one workspace: by path, `[inode, birth time]` of a directory, or [] for a file."""

    def __init__(self, overlay: Overlay) -> None:
        self._path = f"{os.path.dirname(overlay.upper)}/{_FILE}"
        try:
            with open(self._path, "rb") as file:
                found = json.loads(unseal(file.read()) or b"{}")
        except (OSError, ValueError):  # derived: what is lost is told by times, as without notes
            found = {}
        self.found: dict[str, list[float]] = found if isinstance(found, dict) else {}

    def is_another(self, path: str, fd: int) -> bool | None:
        """Whether the directory at this descriptor is another than the one that was noted; None if none was."""
        noted = self.found.get(path)
        return None if not noted else noted != identity_of(fd)

    def has_file(self, path: str) -> bool:
        """Whether the folder had a file where the workspace put one of its own."""
        return self.found.get(path) == []

    def keep(self) -> None:
        """Write them down; without a sync, because the changes that they are about are not synced either."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(f"{self._path}.new", flags, 0o600), "wb") as file:
            file.write(seal(json.dumps(self.found).encode()))
        os.rename(f"{self._path}.new", self._path)


def identity_of(fd: int) -> list[float]:
    return [os.fstat(fd).st_ino, birth_time(fd)]
