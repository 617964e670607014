"""Report the host's changes in folders that programs in the guest watch.

On a share neither side gets events of the other side's changes. The guest reports which folders are watched there, see
`pins.py`; we watch them too, and report changes. Data from the guest is untrusted: a path is opened beneath the
workspace without following links, and their number is limited to what our own guest agent would request.
"""

from __future__ import annotations

import os

from workstead.sandboxes.vm import wire
from workstead.system.kernel import openat2
from workstead.system.kernel.inotify import CHANGES, OVERFLOW, Inotify

_MOST_AT_ONCE = 512  # changes reported one by one; above that, only their folders


class Pokes:
    """The watched folders of one open workspace."""

    def __init__(self, workspace: int) -> None:
        self._workspace = workspace
        self._inotify = Inotify()
        self._folders: dict[int, bytes] = {}

    def fileno(self) -> int:
        """Return the descriptor to poll: readable when something changed."""
        return self._inotify.fileno()

    def close(self) -> None:
        """Stop watching."""
        self._inotify.close()

    def watch(self, path: bytes) -> None:
        """Watch a folder; ignore one that cannot be watched."""
        if len(self._folders) >= wire.MOST_WATCHED or len(path) > 4096 or b"\0" in path:
            return
        try:
            folder = openat2.by_kernel(self._workspace, path or b".", os.O_PATH | os.O_DIRECTORY, links=False)
        except OSError:
            return
        try:
            self._folders[self._inotify.watch(folder)] = path
        except OSError:
            pass  # no permission to read, or too many watches on this host
        finally:
            os.close(folder)

    def forget(self, path: bytes) -> None:
        """Stop watching a folder."""
        for number in [number for number, folder in self._folders.items() if folder == path]:
            self._inotify.forget(number)
            del self._folders[number]

    def take(self) -> list[bytes]:
        """Return the paths changed since the last call, each once."""
        changed: dict[bytes, bytes] = {}  # path -> its folder
        for number, mask, name in self._inotify.notices():
            if mask & OVERFLOW:
                changed.update({folder: folder for folder in self._folders.values()})
            elif number in self._folders and mask & CHANGES:
                folder = self._folders[number]
                changed[os.path.join(folder, os.fsencode(name))] = folder
        return list(changed if len(changed) <= _MOST_AT_ONCE else dict.fromkeys(changed.values()))
