"""Make directories beneath a `Root`, one component at a time, with rollback on failure."""

from __future__ import annotations

import os
from errno import EINVAL, ENOENT, EPERM

from workstead.system.files.durable import sync_names
from workstead.system.files.resolved_entry import Held
from workstead.system.files.root import HANDLE, Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def make_directory(
    root: Root, path: str | bytes, *, parents: bool = False, ready: Callable[[Held], object] | None = None
) -> None:
    """Make a directory; with `parents` also its parents, and an existing one is no error."""
    raw = root.check(path)
    try:
        if parents:
            sync_above(root, make_missing(root, raw, ready))
            return
        raw = raw.rstrip(b"/")
        folder, name = root.open_parent(raw)
        try:
            if ready:
                ready(Held(root, folder, name))
            make_one(folder, name)
            sync_names(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise root.failure(error, raw) from None


def make_missing(root: Root, raw: bytes, ready: Callable[[Held], object] | None = None) -> list[bytes]:
    """Make every missing directory of `raw`; return the paths made, outermost first. On failure all are removed."""
    steps = [step for step in raw.split(b"/") if step not in (b"", b".")]
    here, present = _open_longest(root, steps)
    made: list[bytes] = []
    try:
        root.refuse_kept_out(here)
        if ready and present < len(steps):
            ready(Held(root, here, b"/".join(steps[present:])))
        for count in range(present + 1, len(steps) + 1):
            name = steps[count - 1]
            try:
                make_one(here, name)
                made.append(b"/".join(steps[:count]))
            except FileExistsError:
                pass  # created meanwhile, or a dangling link: to continue, it must be a real directory
            inner = os.open(name, HANDLE | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = inner
    except BaseException:
        unmake(root, made)
        raise
    finally:
        os.close(here)
    return made


def sync_above(root: Root, made: list[bytes]) -> None:
    """Sync the names of new directories to the disk, outer ones first."""
    for raw in made:
        try:
            folder = root.open_folder(raw.rpartition(b"/")[0] or b".")
        except OSError:
            return  # moved or removed by the agent since
        try:
            sync_names(folder)
        finally:
            os.close(folder)


def _open_longest(root: Root, steps: list[bytes]) -> tuple[int, int]:
    """Open the longest existing part of the path, found by bisection; return it with its number of components."""
    low, high = 0, len(steps)  # `low` components exist, more than `high` do not
    here = root.open_path(b".", os.O_DIRECTORY)
    try:
        while low < high:
            middle = (low + high + 1) // 2
            try:
                fd = root.open_path(b"/".join(steps[:middle]), os.O_DIRECTORY)
            except OSError as error:
                if error.errno != ENOENT:
                    raise
                high = middle - 1
            else:
                os.close(here)
                here, low = fd, middle
    except BaseException:
        os.close(here)
        raise
    return here, low


def make_one(folder: int, name: bytes, mode: int = 0o755) -> None:
    """Make one directory in an open one, with the same owner."""
    os.mkdir(name, mode, dir_fd=folder)
    if os.geteuid() == 0:
        _give_to_owner(folder, name)


def _give_to_owner(folder: int, name: bytes) -> None:
    """Give a directory that root made for an agent to the owner of its parent directory.

    The name may have been swapped since: only an empty directory owned by root is given away, which is harmless.
    """
    owner = os.fstat(folder)
    if not (owner.st_uid or owner.st_gid):
        return
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return  # replaced by something that is not ours to change
    try:
        if os.fstat(fd).st_uid == 0 and not os.listdir(fd):
            give(fd, owner)
    finally:
        os.close(fd)


def give(fd: int, owner: os.stat_result) -> None:
    """Change the owner of an inode of ours to that of another, if that owner is mapped here."""
    try:
        os.fchown(fd, owner.st_uid, owner.st_gid)
    except OSError as error:
        if error.errno not in (EINVAL, EPERM):  # root of a user namespace in which that owner is not mapped
            raise


def unmake(root: Root, made: list[bytes]) -> None:
    """Remove directories that were made before a refused operation, as long as they are empty."""
    for raw in reversed(made):
        try:
            folder, name = root.open_parent(raw)
        except OSError:
            return
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError:
            return  # in use by now
        finally:
            os.close(folder)
