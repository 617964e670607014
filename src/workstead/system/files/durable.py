"""Sync changes to the disk before they are reported as done.

Every verb ends in the same order: contents, then names, then the event in the log. A write returns when the kernel has
the bytes; a power failure within half a minute can still lose them. Two kinds of sync make them durable:

- `sync_file` and `sync_names` for a change of a few files: the file, and each directory in which a name appeared,
  disappeared or moved. Other writers on the same disk add little cost.
- `sync_trees` for a change of many files: one `syncfs` for each file system, for any number of files. It also writes
  unsynced data of other processes there. Threads that call it at the same time share one.

Every sync except the log's own (store/sqlite.py) is in this module; docs/design/durability.md lists the one each verb
needs.
"""

from __future__ import annotations

import os
from errno import EINVAL, EIO
from functools import partial

from workstead.model.shared_call import SharedCall

_shared: dict[tuple[int, int], SharedCall] = {}  # (process, device) -> the `syncfs` that its threads share

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def sync_file(fd: int) -> None:
    """Sync an open file's content and attributes to the disk."""
    os.fsync(fd)


def sync_names(*folders: int | str | bytes) -> None:
    """Sync the names in these directories to the disk: paths, or descriptors, which may be O_PATH handles."""
    for folder in folders:
        try:
            fd = os.open(b".", _FOLDER, dir_fd=folder) if isinstance(folder, int) else os.open(folder, _FOLDER)
        except PermissionError:  # a directory that is writable but not readable cannot be opened to sync it
            os.sync()
            continue
        except FileNotFoundError:  # removed since: it has no names
            continue
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != EINVAL:  # the file system does not support fsync of directories
                raise
        finally:
            os.close(fd)


def sync_trees(*folders: int | str) -> None:
    """Sync the file systems of these directories to the disk, each of them once.

    Directories are paths, of which missing ones are skipped, or open descriptors.
    """
    # Importing `ctypes` takes as long as all of this; its C module is enough for one integer.
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
    """Replace the content of a file of ours atomically, synced with its name; the caller is its only writer.

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
    """Make a directory and its missing parents, and sync their names to the disk."""
    missing = []
    above = path
    while not os.path.isdir(above):
        missing.append(above)
        above = os.path.dirname(above)
    if missing:
        os.makedirs(path, mode, exist_ok=True)
        sync_names(*(os.path.dirname(each) for each in reversed(missing)))
