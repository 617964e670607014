"""Make directories beneath a `Root`, one component at a time, and take them back."""

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
    """Make a directory; with `parents` those above too, and one that is there already is fine."""
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
    """Make every directory of `raw` that is not there; gives the paths made, outermost first. On failure, none stay."""
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
                pass  # taken meanwhile, or by a dangling link all along: to go on, it has to be a real directory
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
    """Write the names of new directories to the disk, the outer ones first."""
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
    """Open the longest part of the path that exists, and say how many steps that is; found by halving."""
    low, high = 0, len(steps)  # `low` steps exist, more than `high` do not
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
    """Make one directory in an open one; it belongs to whom that belongs to."""
    os.mkdir(name, mode, dir_fd=folder)
    if os.geteuid() == 0:
        _give_to_owner(folder, name)


def _give_to_owner(folder: int, name: bytes) -> None:
    """A directory that root makes for an agent belongs to whom the directory around it belongs to.

    The name may have been swapped since: only an empty directory of root's is given away, there is nothing to lose.
    """
    owner = os.fstat(folder)
    if not (owner.st_uid or owner.st_gid):
        return
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return  # swapped for something else, which is not ours to give
    try:
        if os.fstat(fd).st_uid == 0 and not os.listdir(fd):
            give(fd, owner)
    finally:
        os.close(fd)


def give(fd: int, owner: os.stat_result) -> None:
    """Let an inode of ours belong to whom another belongs to, where that is somebody here."""
    try:
        os.fchown(fd, owner.st_uid, owner.st_gid)
    except OSError as error:
        if error.errno not in (EINVAL, EPERM):  # root of a user namespace, which does not know that owner
            raise


def unmake(root: Root, made: list[bytes]) -> None:
    """Take back directories that were made on the way to a refusal, as long as they are empty."""
    for raw in reversed(made):
        try:
            folder, name = root.open_parent(raw)
        except OSError:
            return
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError:
            return  # somebody uses it by now
        finally:
            os.close(folder)
