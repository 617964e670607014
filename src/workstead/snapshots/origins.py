"""Detect whether a workspace's changes were made over the files that the user's folder has now.

When the user moves a directory, the files in it keep their timestamps, which therefore do not show that other files are
there now. But the kernel records the original inode of everything that it copies up, directories too
(`overlay.origin`). In an overlay of an ordinary user it records only that there was one: then our own notes are used
(see `notes`). The fallback without a note: a directory is treated as replaced if its timestamps show a rename since (a
rename changes only its ctime, and the mtime of the parent directory).
"""

from __future__ import annotations

import ctypes
import os
from contextlib import ExitStack, suppress

from workstead.snapshots.folders import Folders
from workstead.snapshots.notes import Notes
from workstead.system.files.parts import open_folder, open_part
from workstead.system.kernel.libc import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.model.snapshot import Overlay

_EMPTY_PATH = 0x1000
_HANDLE_AT = 21  # in the kernel's struct ovl_fb: version, magic, length, flags, type, uuid
_TYPE_AT = 4


class _Handle(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint), ("type", ctypes.c_int), ("bytes", ctypes.c_ubyte * 128))


class Origins:
    """Compare the layers of one workspace with the user's folder at the bottom. Use as a context manager."""

    def __init__(self, overlay: Overlay) -> None:
        *own, folder = overlay.stack.layers
        self._fixed_ns = overlay.stack.fixed_ns
        self._key = f"{overlay.stack.marks}.overlay.origin"
        self._known: dict[str, bool] = {"": False}
        self._notes = Notes(overlay)
        with ExitStack() as opened:
            lowest_first = (*reversed(own), overlay.upper)
            self._own = [_held(open_part(*os.path.split(layer)), opened) for layer in lowest_first]
            self._folder = _held(open_folder(folder), opened) if os.path.isdir(folder) else None
            self._opened = opened.pop_all()

    def __enter__(self) -> Origins:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def is_exchanged(self, path: str) -> bool:
        """Return whether a directory above a path was replaced since the workspace changed something in it."""
        new, above = [], path.rpartition("/")[0]
        while above not in self._known:
            new.append(above)
            above = above.rpartition("/")[0]
        found = self._known[above]
        for each in reversed(new):
            found = found or self._is_another(each)
            self._known[each] = found
        return found

    def existed(self, path: str) -> bool:
        """Return whether a changed file, or a directory above it, was in the folder when it was first changed."""
        while path:
            if self._notes.has_file(path):
                return True
            above, _, name = path.rpartition("/")
            for folders in self._own:
                with suppress(OSError):
                    there = f"/proc/self/fd/{folders.open(above)}/{name}"
                    # Only the lowest layer with the file was copied up from the folder; the others from that layer.
                    if self._key in os.listxattr(there, follow_symlinks=False):
                        return True
                    break
            path = path.rpartition("/")[0]
            if self._in_folder(path):
                return False
        return False

    def _in_folder(self, path: str) -> bool:
        try:
            return self._folder is not None and bool(self._folder.open(path))
        except OSError:
            return False

    def _is_another(self, path: str) -> bool:
        if self._folder is None:
            return False
        try:
            now = self._folder.open(path)
        except (FileNotFoundError, NotADirectoryError):
            return False  # missing, which other checks detect
        except PermissionError:
            return True  # unknown: assume that it was replaced
        for folders in self._own:
            with suppress(OSError):
                noted = os.getxattr(folders.open(path), self._key)
                if len(noted) > _HANDLE_AT:
                    return (noted[_TYPE_AT], noted[_HANDLE_AT:]) != _handle_of(now)
                another = self._notes.is_another(path, now)
                return self._looks_renamed(path, os.fstat(now)) if another is None else another
        # Removed or created again by the agent: only the ctime is left to tell.
        return os.fstat(now).st_ctime_ns > self._fixed_ns

    def _looks_renamed(self, path: str, status: os.stat_result) -> bool:
        if status.st_ctime_ns <= self._fixed_ns or status.st_ctime_ns == status.st_mtime_ns or self._folder is None:
            return False
        return os.fstat(self._folder.open(path.rpartition("/")[0])).st_mtime_ns > self._fixed_ns


def _held(fd: int, opened: ExitStack) -> Folders:
    folders = Folders(fd)
    opened.callback(folders.close)
    return folders


def _handle_of(fd: int) -> tuple[int, bytes]:
    handle, mount = _Handle(size=128), ctypes.c_int()
    if libc.name_to_handle_at(fd, b"", ctypes.byref(handle), ctypes.byref(mount), _EMPTY_PATH) < 0:
        return 0, b""
    return handle.type, bytes(handle.bytes[: handle.size])
