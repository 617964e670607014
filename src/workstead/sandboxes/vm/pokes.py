"""What the host changes in folders that programs in the guest watch.

On a share nobody is told what the other side does. The guest says which folders are watched in there, see `pins.py`; we
watch them too, and say what changed. What comes from the guest is hostile: a path is opened beneath the workspace and
leads over no link, and there are no more of them than a guest of ours asks for.
"""

from __future__ import annotations

import os

from workstead.sandboxes.vm import wire
from workstead.system.kernel import openat2
from workstead.system.kernel.inotify import CHANGES, OVERFLOW, Inotify

_MOST_AT_ONCE = 512  # changes that are told one by one; above that, the folders they are in


class Pokes:
    """The folders of one workspace, an open one."""

    def __init__(self, workspace: int) -> None:
        self._workspace = workspace
        self._inotify = Inotify()
        self._folders: dict[int, bytes] = {}

    def fileno(self) -> int:
        """To wait for: readable when something changed."""
        return self._inotify.fileno()

    def close(self) -> None:
        """Watch nothing any more."""
        self._inotify.close()

    def watch(self, path: bytes) -> None:
        """Watch a folder; one that cannot be watched is not."""
        if len(self._folders) >= wire.MOST_WATCHED or len(path) > 4096 or b"\0" in path:
            return
        try:
            folder = openat2.by_kernel(self._workspace, path or b".", os.O_PATH | os.O_DIRECTORY, links=False)
        except OSError:
            return
        try:
            self._folders[self._inotify.watch(folder)] = path
        except OSError:
            pass  # not the agent's to read, or there are too many watches on this machine
        finally:
            os.close(folder)

    def forget(self, path: bytes) -> None:
        """Watch it no longer."""
        for number in [number for number, folder in self._folders.items() if folder == path]:
            self._inotify.forget(number)
            del self._folders[number]

    def take(self) -> list[bytes]:
        """What changed since last asked, each path once."""
        changed: dict[bytes, bytes] = {}  # path -> its folder
        for number, mask, name in self._inotify.notices():
            if mask & OVERFLOW:
                changed.update({folder: folder for folder in self._folders.values()})
            elif number in self._folders and mask & CHANGES:
                folder = self._folders[number]
                changed[os.path.join(folder, os.fsencode(name))] = folder
        return list(changed if len(changed) <= _MOST_AT_ONCE else dict.fromkeys(changed.values()))
