"""File operations beneath a `Root`: stat, list, read, write, delete, move.

Every function takes a strict relative path (`Root.check`) and raises our errors, which name the public path. Reading
changes nothing; a change is complete, or the previous state stays. A refused operation leaves the tree unchanged, also
if parent directories were made on the way.

A change can be announced: `ready` is called with the description of the change and the affected entries immediately
before the last step. If it raises, nothing has changed.
"""

from __future__ import annotations

import os
from errno import ENOENT, ENOTDIR, EXDEV
from stat import S_IMODE, S_ISBLK, S_ISCHR, S_ISDIR, S_ISFIFO, S_ISLNK, S_ISREG, S_ISSOCK

from workstead.errors import FileExists, InvalidPath, NotADirectory
from workstead.model.file import Entry, Gone, Stat
from workstead.model.file import Written as Written
from workstead.system.files.durable import sync_file, sync_names
from workstead.system.files.mkdir import make_directory as make_directory
from workstead.system.files.reading import MAX_DIGEST_BYTES, digest_of
from workstead.system.files.reading import Reader as Reader
from workstead.system.files.reading import digest as digest
from workstead.system.files.reading import open_reader as open_reader
from workstead.system.files.reading import read as read
from workstead.system.files.resolved_entry import Held
from workstead.system.files.root import HANDLE, Root, rename_no_replace, reopen
from workstead.system.files.walk import Limits, remove_tree
from workstead.system.files.writing import append as append
from workstead.system.files.writing import refuse_changed
from workstead.system.files.writing import write as write
from workstead.system.kernel.statx import birth_time

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Path = str | bytes
    Ready = Callable[["Gone", Held], object] | None
    MoveReady = Callable[["Gone", Held, Held], object] | None

MAX_LIST_ENTRIES = 1_000_000


# -- stat and list -----------------------------------------------------------------------------------------------------


def stat(root: Root, path: Path) -> Stat:
    """Return the attributes of the entry at a path, without following a link."""
    raw = root.check(path)
    try:
        fd = root.open_path(raw, os.O_NOFOLLOW)
        try:
            found = os.fstat(fd)
            born = birth_time(fd)
            kind = kind_of(found.st_mode)
            target = os.fsdecode(os.readlink(b"", dir_fd=fd)) if kind == "link" else None
        finally:
            os.close(fd)
    except OSError as error:
        raise root.failure(error, raw) from None
    return Stat(
        kind=kind,
        size=found.st_size,
        allocated=found.st_blocks * 512,
        mode=S_IMODE(found.st_mode),
        mtime=found.st_mtime,
        atime=found.st_atime,
        born=born,
        target=target,
    )


def exists(root: Root, path: Path) -> bool:
    """Return whether an entry of this name exists, also a dangling link."""
    raw = root.check(path)
    try:
        os.close(root.open_path(raw, os.O_NOFOLLOW))
    except OSError as error:
        if error.errno in (ENOENT, ENOTDIR):
            return False
        raise root.failure(error, raw) from None
    return True


def scan(root: Root, path: Path = ".") -> Iterator[Entry]:
    """Yield the entries of a directory in disk order, one at a time, so that a directory may have any size."""
    raw = root.check(path)
    try:
        fd = root.open_folder(raw)
        try:
            with os.scandir(fd) as found:
                for item in found:
                    entry = _entry(fd, item)
                    if entry is not None:
                        yield entry
        finally:
            os.close(fd)
    except OSError as error:
        raise root.failure(error, raw) from None


def list_directory(root: Root, path: Path = ".", *, max_entries: int = MAX_LIST_ENTRIES) -> tuple[Entry, ...]:
    """Return the entries of a directory sorted by name; more than `max_entries` raise `quota_exceeded`."""
    entries: list[Entry] = []
    for entry in scan(root, path):
        entries.append(entry)
        if len(entries) > max_entries:
            raise root.over(root.check(path), "max_entries", max_entries, "names")
    entries.sort(key=lambda entry: entry.name)
    return tuple(entries)


def _entry(fd: int, item: os.DirEntry[str]) -> Entry | None:
    try:
        found = item.stat(follow_symlinks=False)
        kind = kind_of(found.st_mode)
        target = os.readlink(item.name, dir_fd=fd) if kind == "link" else None
    except OSError:
        return None  # removed since the directory was read
    return Entry(name=item.name, kind=kind, size=found.st_size, mtime=found.st_mtime, target=target)


def kind_of(mode: int) -> str:
    """Return our name for the file type of a mode."""
    if S_ISREG(mode):
        return "file"
    if S_ISDIR(mode):
        return "directory"
    if S_ISLNK(mode):
        return "link"
    if S_ISFIFO(mode):
        return "fifo"
    if S_ISSOCK(mode):
        return "socket"
    return "device" if S_ISCHR(mode) or S_ISBLK(mode) else "unknown"


# -- delete and move ---------------------------------------------------------------------------------------------------


def delete(
    root: Root,
    path: Path,
    *,
    recursive: bool = False,
    limits: Limits | None = None,
    ready: Ready = None,
    exact: bool = False,
) -> Gone:
    """Delete a file, a link itself, an empty directory, or with `recursive` a directory with everything below.

    With `exact`, raise `file_changed` if the entry is no longer the one that `ready` was called with."""
    raw = root.check(path)
    try:
        folder, name, found = _open_entry(root, raw)
        try:
            gone = _describe(folder, name, found)
            if ready:
                ready(gone, Held(root, folder, name))
            if exact:
                refuse_changed(root, raw, folder, name, found)
            if gone.kind != "directory":
                os.unlink(name, dir_fd=folder)
            elif recursive:
                gone = gone.replace(entries=remove_tree(folder, name, limits or Limits()))
            else:
                os.rmdir(name, dir_fd=folder)
            sync_names(folder)
            return gone
        finally:
            os.close(folder)
    except OSError as error:
        raise root.failure(error, raw) from None


def move(
    root: Root, path: Path, to: Path, *, replace: bool = False, ready: MoveReady = None, exact: bool = False
) -> Gone:
    """Rename a file, link or directory within the root; `replace` allows it to replace an existing entry.

    With `exact`, raise `file_changed` or `file_exists` if source or target differ from those that `ready` was called
    with."""
    raw, raw_to = root.check(path), root.check(to)
    try:
        source, name, found = _open_entry(root, raw)
    except OSError as error:
        raise root.failure(error, raw) from None
    try:
        return _move(root, raw, raw_to, source, name, found, replace, ready, exact)
    except OSError as error:
        raise root.failure(error, raw_to) from None
    finally:
        os.close(source)


def _move(
    root: Root,
    raw: bytes,
    raw_to: bytes,
    source: int,
    name: bytes,
    found: os.stat_result,
    replace: bool,
    ready: MoveReady,
    exact: bool,
) -> Gone:
    folder, new_name = _open_place(root, raw_to, is_directory=S_ISDIR(found.st_mode))
    try:
        if replace and _is_same(source, name, folder, new_name):
            raise FileExists(f"{root.shown(raw_to)} is the same file")
        gone = _describe(source, name, found)
        target = Held(root, folder, new_name)
        there = target.stat() if exact else None
        if ready:
            ready(gone, Held(root, source, name), target)
        if exact:
            refuse_changed(root, raw, source, name, found)
            replace = replace and there is not None
            if there is not None:
                refuse_changed(root, raw_to, folder, new_name, there)
        _sync_content(source, name, found)
        _rename(source, name, folder, new_name, replace)
        sync_names(folder, source)
        return gone
    finally:
        os.close(folder)


def _sync_content(folder: int, name: bytes, found: os.stat_result) -> None:
    """Sync a file to the disk before it replaces another: its content may have been written just now."""
    if not S_ISREG(found.st_mode):
        return
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return  # not readable, or replaced since the check
    try:
        sync_file(fd)
    finally:
        os.close(fd)


def _rename(source: int, name: bytes, folder: int, new_name: bytes, replace: bool) -> None:
    try:
        if replace:
            os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=folder)
        else:
            rename_no_replace(source, name, folder, new_name)
    except OSError as error:
        if error.errno != EXDEV:
            raise
        from workstead.system.files.moving import carry

        carry(source, name, folder, new_name, replace=replace, limits=Limits())


def _open_place(root: Root, raw_to: bytes, *, is_directory: bool) -> tuple[int, bytes]:
    """Return the directory and name of a move's target; only a directory may have a trailing slash."""
    if raw_to.endswith(b"/") and not is_directory:
        raise OSError(ENOTDIR, os.strerror(ENOTDIR))
    return root.open_parent(raw_to.rstrip(b"/"))


def _is_same(source: int, name: bytes, folder: int, new_name: bytes) -> bool:
    """Return whether two names are one inode: `rename` would then report success without doing anything."""
    try:
        there = os.stat(new_name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.stat(name, dir_fd=source, follow_symlinks=False), there)


def _open_entry(root: Root, raw: bytes) -> tuple[int, bytes, os.stat_result]:
    """Return the parent directory, name and stat of an existing entry; a trailing slash requires a directory."""
    bare = raw.rstrip(b"/")
    if bare in (b"", b".") or bare.endswith(b"/."):
        raise InvalidPath(f"{root.shown(raw)} is not a name that can be removed or moved")
    folder, name = root.open_parent(bare)
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if bare != raw and not S_ISDIR(found.st_mode):
            raise NotADirectory(f"{root.shown(bare)} is not a directory", hint="leave out the slash at the end")
    except BaseException:
        os.close(folder)
        raise
    return folder, name, found


def _describe(folder: int, name: bytes, found: os.stat_result) -> Gone:
    """Return the audit record of an entry that is about to be removed or renamed."""
    kind = kind_of(found.st_mode)
    if kind != "file" or found.st_size > MAX_DIGEST_BYTES:
        return Gone(kind=kind, size=0 if kind == "directory" else found.st_size)
    handle = os.open(name, HANDLE, dir_fd=folder)
    try:
        fd, found = reopen(handle)
        try:
            return Gone(kind=kind, size=found.st_size, digest=digest_of(fd, min(found.st_size, MAX_DIGEST_BYTES)))
        finally:
            os.close(fd)
    except OSError:
        return Gone(kind=kind, size=found.st_size)  # not readable, or another kind by now
    finally:
        os.close(handle)
