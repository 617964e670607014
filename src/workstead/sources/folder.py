"""A folder of the user, used in place: nothing is copied and every change is made there directly."""

from __future__ import annotations

import os
import stat

from workstead.errors import FolderNotFound, FolderNotReadable, NotADirectory, from_os
from workstead.model.source import Filled
from workstead.system.overlay import mounter
from workstead.system.overlay.stack import work_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.model.source import FillOptions, Place, Source


def fill(source: Source, place: Place, options: FillOptions, progress: Callable[[str], None]) -> Filled:
    """Point `work` at the folder with a symbolic link, so that removing the workspace cannot remove its content."""
    del options, progress
    path = check_folder(source.location)
    work = work_of(place)
    if os.path.isdir(work):
        os.rmdir(work)
    os.symlink(path, work)
    notes = _rights_of(path, place.owner) if place.owner else []
    return Filled(mechanism=mounter.NONE, layers=[], origin={"kind": "folder", "path": path}, notes=notes)


def _rights_of(path: str, owner: tuple[int, int]) -> list[str]:
    """Return notes about permissions that the agent's user lacks in a folder of another user.

    An ID-mapped mount that shows the files as the agent's would let the agent write them, and would also let it leave
    set-uid programs of their owner on the disk, root's among them. So in place, the permissions of the folder itself
    decide.
    """
    import subprocess

    uid, gid = owner
    said = subprocess.run(
        ["/bin/sh", "-c", "test -r . && test -x . && echo r; test -w . && echo w"],
        cwd=path,
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        user=uid,
        group=gid,
        extra_groups=[],
        check=False,
    ).stdout.split()
    if b"w" in said:
        return []
    what = "not write" if b"r" in said else "neither read nor write"
    return [
        f"commands in a sandbox run as user {uid}, who may {what} {path}: "
        f"chown it or setfacl -m u:{uid}:rwX, or use overlay: and aw apply"
    ]


def check_folder(location: str) -> str:
    """Return the real path of an existing, readable directory; raise a different error for each of the three."""
    try:
        path = os.path.realpath(location)
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL, or an incomplete character
        raise FolderNotFound(
            f"there is no folder {location}", hint="check the spelling; relative paths are too"
        ) from None
    except PermissionError:
        raise _not_readable(location) from None
    except OSError as error:  # a name that is too long, or a loop of links
        raise from_os(error, f"folder {location}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectory(f"{location} is not a directory")
    try:
        with os.scandir(path) as entries:
            next(entries, None)
        if not os.access(path, os.X_OK):
            raise _not_readable(location)
    except PermissionError:
        raise _not_readable(location) from None
    return path


def _not_readable(location: str) -> FolderNotReadable:
    return FolderNotReadable(f"{location} cannot be read", hint="check the owner and mode of the folder")
