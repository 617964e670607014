"""What a workspace's repository reads from elsewhere: git objects of a mirror of ours, or of the user's repository.

They are not among the workspace's files, so an archive takes them along as one pack, made and read by our own git from
directories that no agent can write. It holds all of them and not only what some branch leads to: which branches there
are stands in the agent's own `.git`, which no git of ours looks at.

On the other side the pack becomes a mirror in the cache, known by its digest, and the workspace's `.git` is told to
borrow from there: that is two lines in files of the agent's, written without following a link.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack, suppress

from carrel.system import repository
from carrel.system.copying import remove_tree
from carrel.system.git import Git

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ALTERNATES = ("objects", "info", "alternates")
_MOST_MODULES = 1000


def are_objects(path: str) -> bool:
    """Whether this is where git keeps objects, and not something else that a run has to see."""
    return os.path.basename(path) == "objects" and os.path.isdir(f"{path}/pack")


def pack(borrows: Sequence[str], aside: str) -> str | None:
    """One pack of all objects in these directories, made in a directory of ours; None if there are none."""
    git = Git(state=aside, config={})
    git_dir = f"{aside}/repo.git"
    repository.private_repository(git_dir, head="ref: refs/heads/none", borrows=borrows)
    found = git.run("cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objectname)", git_dir=git_dir)
    if not found:
        return None
    # What is packed already is copied as it is; to look for better deltas would take longer than all the rest.
    name = git.run("pack-objects", "--quiet", "--window=0", f"{aside}/borrowed", git_dir=git_dir, feed=found)
    return f"{aside}/borrowed-{name.decode().strip()}.pack"


def unpack(file: str, digest: str, cache: str) -> str:
    """Make a mirror of a pack that came with an archive, unless there is one; gives the directory of its objects."""
    from carrel.system.locks import hold

    directory = f"{cache}/mirrors/archived{digest[:32]}"
    objects = f"{directory}/repo.git/objects"
    os.makedirs(directory, 0o755, exist_ok=True)
    os.utime(directory)  # whoever sweeps leaves it alone now
    with hold(f"{directory}/lock", "unpack", wait_seconds=600):
        if not os.path.isdir(objects):
            aside = f"{directory}/new.git"
            remove_tree(aside)
            repository.private_repository(aside, head="ref: refs/heads/none", config="[core]\n\tbare = true\n")
            packed = f"{aside}/objects/pack/pack-{digest}.pack"
            os.rename(file, packed)
            os.chmod(packed, 0o444)
            try:
                Git(state=directory, config={}).run("index-pack", packed, git_dir=aside)  # each object by its id
            except BaseException:
                remove_tree(directory)
                raise
            os.rename(aside, f"{directory}/repo.git")
    return objects


def point_to(work: str, objects: str, owner: tuple[int, int] | None) -> bool:
    """Let the repository at the top of a work tree, and its submodules, borrow from here; False if there is none.

    The files are the agent's, or whoever's the archive is: what is not a plain directory or file is left alone."""
    pointed = False
    for parts in ((".git",), *_modules(work)):
        with ExitStack() as opened:
            folder = _open(work, (*parts, *_ALTERNATES[:-1]), opened)
            if folder is not None and _is_file(folder, _ALTERNATES[-1]):
                _replace(folder, _ALTERNATES[-1], os.fsencode(objects) + b"\n", owner)
                pointed = True
    return pointed


def _modules(work: str) -> Iterator[tuple[str, ...]]:
    """Repositories of submodules, which may have a slash in their names."""
    pending: list[tuple[str, ...]] = [(".git", "modules")]
    for _ in range(_MOST_MODULES):
        if not pending:
            return
        parts = pending.pop()
        with ExitStack() as opened:
            folder = _open(work, parts, opened)
            names = sorted(os.listdir(folder)) if folder is not None else []
        if "objects" in names and "HEAD" in names:
            yield parts
            names = ["modules"] if "modules" in names else []
        pending += [(*parts, name) for name in names]


def _open(work: str, parts: Sequence[str], opened: ExitStack) -> int | None:
    folder: int | None = None
    for part in (work, *parts):
        try:
            folder = os.open(part, _DIRECTORY, dir_fd=folder)
        except OSError:
            return None
        opened.callback(os.close, folder)
    return folder


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
