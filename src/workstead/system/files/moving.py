"""Move an entry by copying where `rename` cannot: to another mount, or a directory from an overlay's lower layer.

The copy is made under a temporary name in the target directory, renamed atomically to its final name, and only then is
the original removed. Both sides belong to the agent, who may swap entries meanwhile: every directory is held by a
descriptor, and owner and mode are changed only on inodes that we have just created.
"""

from __future__ import annotations

import os
from errno import EEXIST, ENXIO
from stat import S_IMODE, S_ISDIR, S_ISFIFO, S_ISLNK, S_ISREG

from workstead.errors import QuotaExceeded
from workstead.system.files.durable import sync_file, sync_names
from workstead.system.files.mkdir import make_one
from workstead.system.files.root import HANDLE, rename_no_replace, reopen
from workstead.system.files.walk import Limits, remove_tree
from workstead.system.files.writing import forget, open_temporary, take_after, temporary_name
from workstead.system.overlay.copying import copy_bytes

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LEVELS = 200  # two descriptors each


def carry(source: int, name: bytes, folder: int, new_name: bytes, *, replace: bool, limits: Limits) -> None:
    """Copy an entry of one open directory into another as `new_name`, then remove the original."""
    if not replace and _is_taken(folder, new_name):  # the rename checks again; this saves a copy
        raise OSError(EEXIST, os.strerror(EEXIST))
    aside = temporary_name()
    try:
        _copy(source, name, folder, aside)
        if replace:
            os.rename(aside, new_name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            rename_no_replace(folder, aside, folder, new_name)
        sync_names(folder)
    except BaseException:
        _remove(folder, aside, limits)
        raise
    _remove(source, name, limits)


def _is_taken(folder: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove(folder: int, name: bytes, limits: Limits) -> None:
    try:
        if S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            remove_tree(folder, name, limits)
        else:
            forget(folder, name)
    except FileNotFoundError:
        return


def _copy(source: int, name: bytes, folder: int, new_name: bytes) -> None:
    levels: list[tuple[int, int, list[bytes]]] = []  # (source, target, names still to copy) of each directory
    try:
        _copy_one(levels, source, name, folder, new_name)
        while levels:
            inside, target, names = levels[-1]
            if names:
                inner = names.pop()
                _copy_one(levels, inside, inner, target, inner)
            else:
                levels.pop()
                sync_names(target)
                os.close(inside)
                os.close(target)
    finally:
        for inside, target, _ in levels:
            os.close(inside)
            os.close(target)


def _copy_one(
    levels: list[tuple[int, int, list[bytes]]], source: int, name: bytes, folder: int, new_name: bytes
) -> None:
    found = os.stat(name, dir_fd=source, follow_symlinks=False)
    if S_ISDIR(found.st_mode):
        levels.append(_enter(len(levels), source, name, folder, new_name))
    elif S_ISREG(found.st_mode):
        _copy_file(source, name, folder, new_name)
    elif S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), new_name, dir_fd=folder)
    elif S_ISFIFO(found.st_mode):
        os.mkfifo(new_name, S_IMODE(found.st_mode) & 0o777, dir_fd=folder)
    else:
        raise OSError(ENXIO, "sockets and devices stay on their mount")


def _enter(depth: int, source: int, name: bytes, folder: int, new_name: bytes) -> tuple[int, int, list[bytes]]:
    if depth >= _MAX_LEVELS:
        raise QuotaExceeded(
            f"more than {_MAX_LEVELS} levels to copy to another mount",
            hint="move its parts",
            details={"limit": "max_depth", "max": _MAX_LEVELS},
        )
    inside = os.open(name, _FOLDER, dir_fd=source)
    try:
        make_one(folder, new_name, S_IMODE(os.fstat(inside).st_mode) & 0o777 | 0o700)
        return inside, os.open(new_name, _FOLDER, dir_fd=folder), [os.fsencode(inner) for inner in os.listdir(inside)]
    except BaseException:
        os.close(inside)
        raise


def _copy_file(source: int, name: bytes, folder: int, new_name: bytes) -> None:
    handle = os.open(name, HANDLE, dir_fd=source)
    try:
        old, found = reopen(handle)
    finally:
        os.close(handle)
    try:
        _, new = open_temporary(folder, new_name)
        try:
            copy_bytes(old, new, found)
            take_after(new, found, folder)
            os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))
            sync_file(new)
        finally:
            os.close(new)
    finally:
        os.close(old)
