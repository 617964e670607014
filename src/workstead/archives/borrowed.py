"""Git objects that a workspace's repository borrows (alternates): from a mirror of ours, or from the user's repository.

They are not among the workspace's files, so an archive includes them as one pack, made and read by our own git from
directories that no agent can write. It holds all of them and not only the reachable ones: the branches are listed in
the agent's own `.git`, which our git never reads.

On import the pack becomes a mirror in the cache, identified by its digest, and the workspace's `.git` is changed to
borrow from there: two lines in files of the agent, written without following a link.
"""

from __future__ import annotations

import os
import stat
from contextlib import closing, suppress

from workstead.snapshots.folders import OPEN_DIR, Folders
from workstead.system.git import repository
from workstead.system.git.runner import Git
from workstead.system.overlay.copying import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ALTERNATES = "alternates"
_MOST_MODULES = 1000


def are_objects(path: str) -> bool:
    """Return whether this is a git object directory, and not another mount of a run."""
    return os.path.basename(path) == "objects" and os.path.isdir(f"{path}/pack")


def pack(borrows: Sequence[str], aside: str) -> str | None:
    """Write one pack of all objects in these directories to a directory of ours; None if there are none."""
    git = Git(state=aside, config={})
    git_dir = f"{aside}/repo.git"
    repository.private_repository(git_dir, head="ref: refs/heads/none", borrows=borrows)
    found = git.run("cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objectname)", git_dir=git_dir)
    if not found:
        return None
    # Existing packs are copied as they are; a search for better deltas would take longer than everything else.
    name = git.run("pack-objects", "--quiet", "--window=0", f"{aside}/borrowed", git_dir=git_dir, feed=found)
    return f"{aside}/borrowed-{name.decode().strip()}.pack"


def unpack(file: str, digest: str, cache: str) -> str:
    """Make a mirror from the pack of an archive, unless it exists; return its object directory."""
    from workstead.system.kernel.locks import hold

    directory = f"{cache}/mirrors/archived{digest[:32]}"
    objects = f"{directory}/repo.git/objects"
    os.makedirs(directory, 0o755, exist_ok=True)
    os.utime(directory)  # mark as used, so that a sweep keeps it
    with hold(f"{directory}/lock", "unpack", wait_seconds=600):
        if not os.path.isdir(objects):
            aside = f"{directory}/new.git"
            remove_tree(aside)
            repository.private_repository(aside, head="ref: refs/heads/none", config="[core]\n\tbare = true\n")
            packed = f"{aside}/objects/pack/pack-{digest}.pack"
            os.rename(file, packed)
            os.chmod(packed, 0o444)
            try:
                Git(state=directory, config={}).run("index-pack", packed, git_dir=aside)  # verifies object ids
            except BaseException:
                remove_tree(directory)
                raise
            os.rename(aside, f"{directory}/repo.git")
    return objects


def point_to(work: str, objects: str, owner: tuple[int, int] | None) -> None:
    """Make the repository at the top of a work tree, if there is one, and its submodules borrow from here.

    The files come from the agent or an untrusted archive: an entry that is not a plain directory or file is left alone.
    """
    try:
        top = os.open(work, OPEN_DIR)
    except OSError:
        return
    with closing(Folders(top)) as folders:
        for path in (".git", *_modules(folders)):
            try:
                folder = folders.open(f"{path}/objects/info")
            except OSError:
                continue
            if _is_file(folder, _ALTERNATES):
                _replace(folder, _ALTERNATES, os.fsencode(objects) + b"\n", owner)


def _modules(folders: Folders) -> Iterator[str]:
    """Yield the repositories of submodules, whose names may contain slashes."""
    pending = [".git/modules"]
    for _ in range(_MOST_MODULES):
        if not pending:
            return
        path = pending.pop()
        try:
            names = sorted(os.listdir(folders.open(path)))
        except OSError:
            continue
        if "objects" in names and "HEAD" in names:
            yield path
            names = ["modules"] if "modules" in names else []
        pending += [f"{path}/{name}" for name in names]


def _is_file(folder: int, name: str) -> bool:
    with suppress(OSError):
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def _replace(folder: int, name: str, content: bytes, owner: tuple[int, int] | None) -> None:
    fresh = f"{name}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(fresh, flags, 0o644, dir_fd=folder), "wb") as file:
        file.write(content)
        if owner is not None:
            os.fchown(file.fileno(), *owner)
    os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
