"""Have the disk keep what was written before anybody is told that it was done.

Every verb ends in the same order: contents, then names, then the fact in the log. A write returns when the kernel has
the bytes; a power cut still takes them, for up to half a minute. Two calls make them stay:

- `sync_file` and `sync_names` for a change of a few files: the file, and each directory in which a name appeared,
  disappeared or moved. Others who write to the same disk meanwhile cost little.
- `sync_trees` for a change of many files: one `syncfs` for each file system, however many files there are. It also
  writes what others have written there and not synced. Threads that ask at the same time share one.

Every sync but the log's own (store/sqlite.py) is in this module; docs/design/durability.md says which verb needs which.
"""

from __future__ import annotations

import os
from errno import EINVAL, EIO
from functools import partial

from workstead.model.shared_call import SharedCall

_shared: dict[tuple[int, int], SharedCall] = {}  # by process and device: the `syncfs` that its threads share

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def sync_file(fd: int) -> None:
    """Write an open file's content and attributes to the disk."""
    os.fsync(fd)


def sync_names(*folders: int | str | bytes) -> None:
    """Write the names in these directories to the disk: paths, or descriptors, which may be O_PATH handles."""
    for folder in folders:
        try:
            fd = os.open(b".", _FOLDER, dir_fd=folder) if isinstance(folder, int) else os.open(folder, _FOLDER)
        except PermissionError:  # a directory that may be written and not read cannot be opened to sync it
            os.sync()
            continue
        except FileNotFoundError:  # removed since: there are no names in it
            continue
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != EINVAL:  # a file system that keeps directories in another way
                raise
        finally:
            os.close(fd)


def sync_trees(*folders: int | str) -> None:
    """Write everything to the disk that the file systems of these directories hold, each of them once.

    Directories are paths, where one that is missing is left out, or open descriptors.
    """
    # `ctypes` takes as long to import as all of this to do; what it is made of is enough for one integer.
    from _ctypes import call_function, dlopen, dlsym

    syncfs = dlsym(dlopen(None, os.RTLD_NOW), "syncfs")  # type: ignore[arg-type] # None is this process

    def sync(fd: int, folder: int | str) -> None:
        if call_function(syncfs, (fd,)):
            raise OSError(EIO, "the disk could not write everything", folder)

    done = set()
    for folder in folders:
        try:
            fd = os.dup(folder) if isinstance(folder, int) else os.open(folder, _FOLDER)
        except FileNotFoundError:
            continue
        try:
            device = os.fstat(fd).st_dev
            if device not in done:
                _shared.setdefault((os.getpid(), device), SharedCall()).run(partial(sync, fd, folder))
            done.add(device)
        finally:
            os.close(fd)


def replace_file(path: str, data: bytes, *, sync_name: bool = True) -> None:
    """Give a file of ours new content, all or nothing, on the disk with its name; whoever calls is alone at it.

    Without `sync_name` the caller syncs the directory before it relies on the name."""
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        sync_file(fd)
    finally:
        os.close(fd)
    os.rename(f"{path}.new", path)
    if sync_name:
        sync_names(os.path.dirname(path))


def make_folders(path: str, mode: int = 0o700) -> None:
    """Make a directory and those above it that are missing, and write their names to the disk."""
    missing = []
    above = path
    while not os.path.isdir(above):
        missing.append(above)
        above = os.path.dirname(above)
    if missing:
        os.makedirs(path, mode, exist_ok=True)
        sync_names(*(os.path.dirname(each) for each in reversed(missing)))
