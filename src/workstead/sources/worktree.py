"""A real `git worktree` of a repository of the user: detached at HEAD, registered there, sharing its objects and refs.

Only on explicit request: the agent and the user share one repository. In a sandbox the repository must be read-only and
the agent writes only its own entry, as `origin` of the result says:

    repository   the shared `.git`          to be mounted read-only
    admin        .git/worktrees/carrel-UID  HEAD, index and logs of this work tree; writable
    environment  variables for runs: new objects go into admin/objects, old ones are read from the repository

The files come from a checkout in our cache that all work trees of a commit share; git's own `worktree add` writes each
of them every time. The entry is locked, so that `git worktree prune` keeps it while nothing is mounted.
"""

from __future__ import annotations

import os
from contextlib import suppress

from workstead.errors import InvalidSource, NotARepository, WorksteadError, from_os
from workstead.model.source import Filled, is_commit
from workstead.sources.folder import check_folder
from workstead.sources.mirror import Prepared
from workstead.sources.overlay import expand
from workstead.system.files import foreign
from workstead.system.git import repository
from workstead.system.git.runner import Git, find_git
from workstead.system.overlay import layers, mounter, stack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.model.source import FillOptions, Place, Source

INCLUDE_FILE = ".worktreeinclude"
_PREFIX = "carrel-"  # prefix of the names of our entries
_MARK = "carrel"  # a file in our entries: which workspace's layers they belong to (a format: older versions wrote it)


def fill(source: Source, place: Place, options: FillOptions, progress: Callable[[str], None]) -> Filled:
    """Register a work tree and make `work/` show the files of HEAD, and those that `.worktreeinclude` names."""
    found = _find(check_folder(source.location), source.location)
    find_git()
    branch, commit = repository.head_of(found)
    if not commit or not is_commit(commit):
        raise InvalidSource(f"{source.location} has no commit yet", hint="commit something, or use overlay:")
    lenders = repository.lenders_of(found, Git(state=place.cache, config={}))
    heal(found.common)
    prepared = Prepared(_Shared(found, place, options), None, commit, place.owner)
    tree = prepared.tree(progress)
    admin = f"{found.common}/worktrees/{_PREFIX}{place.uid}"
    own = stack.new_frozen(place)
    stack.reserve(place, [own, tree])
    _write_layer(own, admin, found, place)
    _register(admin, prepared, tree, place)
    notes = prepared.notes()
    mechanism = layers.share([own, tree], place, choice=options.mechanism, notes=notes, progress=progress)
    origin = {
        "kind": "worktree",
        "path": found.work,
        "repository": found.common,
        "admin": admin,
        "commit": commit,
        "branch": branch,
        "borrows": [f"{found.common}/objects", *lenders],
        "environment": {
            "GIT_OBJECT_DIRECTORY": f"{admin}/objects",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{found.common}/objects",
        },
    }
    kept = [own, tree] if mechanism in mounter.MOUNTED else []
    return Filled(mechanism=mechanism, layers=kept, origin=origin, notes=notes)


class _Shared:
    """The user's repository in the role of a mirror: read, and never written by git."""

    def __init__(self, found: repository.Repository, place: Place, options: FillOptions) -> None:
        self.cache = place.cache
        self.key = repository.digest_of(f"worktree {found.common}".encode())
        self.git_dir = found.common
        self.options = options

    def git(self) -> Git:
        """Return a git without network access."""
        return Git(state=self.cache, config={}, timeout_seconds=self.options.timeout_seconds)


def _find(path: str, shown: str) -> repository.Repository:
    """Return the repository that contains a folder, found as git finds it."""
    directory = path
    while True:
        found = repository.find_repository(directory) or repository.find_bare(directory)
        if found is not None:
            return found
        if directory == "/":
            raise NotARepository(f"{shown} is not in a git repository", hint="overlay: takes any folder")
        directory = os.path.dirname(directory)


def _write_layer(layer: str, admin: str, found: repository.Repository, place: Place) -> None:
    """Write the layer over the checkout: the `.git` file that points at our entry, and the user's included files."""
    from workstead.system.overlay import copying

    os.mkdir(layer, 0o755)
    text = (foreign.read_small(found.work, INCLUDE_FILE) or b"").decode(errors="surrogateescape")
    patterns = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for name in sorted({name for pattern in patterns for name in expand(found.work, pattern, INCLUDE_FILE)}):
        copying.copy_entry(found.work, layer, name)
    repository.write_text(f"{layer}/.git", f"gitdir: {admin}\n".encode())
    if place.owner:
        copying.give_tree(layer, place.owner)


def _register(admin: str, prepared: Prepared, tree: str, place: Place) -> None:
    """Write the entry under another path, then rename it: git treats every directory in `worktrees` as an entry."""
    from workstead.system.overlay.copying import give_tree

    common = os.path.dirname(os.path.dirname(admin))
    aside = f"{common}/carrel-new-{place.uid}"
    for directory in (aside, f"{aside}/objects", f"{aside}/objects/info", f"{aside}/objects/pack"):
        os.mkdir(directory, 0o755)
    with open(f"{prepared.directory}/index", "rb") as file:
        index = repository.with_full_stats(file.read(), tree, place.owner)
    texts = {
        "HEAD": prepared.commit,
        "commondir": "../..",
        "gitdir": f"{place.root}/work/.git",
        "locked": f"workspace {place.uid}",
        _MARK: place.layers,
    }
    for name, text in texts.items():
        repository.write_text(f"{aside}/{name}", f"{text}\n".encode(errors="surrogateescape"))
    repository.write_text(f"{aside}/index", index)
    if place.owner:
        give_tree(aside, place.owner)
    with foreign.hold_directory(common) as top:
        with suppress(FileExistsError):
            os.mkdir("worktrees", 0o755, dir_fd=top)
            if os.geteuid() == 0:
                status = os.fstat(top)
                os.chown("worktrees", status.st_uid, status.st_gid, dir_fd=top, follow_symlinks=False)
        entries = foreign.open_beneath(top, "worktrees", os.O_DIRECTORY)
        try:
            os.rename(os.path.basename(aside), os.path.basename(admin), src_dir_fd=top, dst_dir_fd=entries)
        finally:
            os.close(entries)


# -- the agent's entry -------------------------------------------------------------------------------------------------
#
# A run may write everything in its entry: links, pipes, directories where files should be. So all of it is opened from
# the entry's descriptor without following links, and unreadable or unwritable entries affect only this workspace.


def point_back(filled: Filled, place: Place) -> None:
    """Update the path of the work tree in the entry; a workspace is renamed after it is filled, and may be moved.

    If the agent made that impossible, git lists its work tree at an old path, and nothing else is wrong.
    """
    from workstead.system.overlay.copying import clear

    wanted = f"{place.root}/work/.git\n".encode(errors="surrogateescape")
    with suppress(OSError), foreign.hold_directory(filled.origin["admin"]) as entry:
        with suppress(WorksteadError):
            if foreign.read_small(entry, "gitdir") == wanted:
                return
        name = f"gitdir.{os.urandom(8).hex()}"
        writer = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=entry)
        try:
            os.write(writer, wanted)
            if place.owner:
                os.fchown(writer, *place.owner)
        finally:
            os.close(writer)
        clear(entry, "gitdir")  # a directory could not be replaced by a rename
        os.rename(name, "gitdir", src_dir_fd=entry, dst_dir_fd=entry)


def unregister(filled: Filled) -> None:
    """Remove our entry from the repository; commits made there and never applied are lost with it."""
    admin = filled.origin["admin"]
    with suppress(OSError), foreign.hold_directory(os.path.dirname(admin)) as entries:
        _remove_entry(entries, os.path.basename(admin))


def heal(common: str) -> list[str]:
    """Remove our entries whose workspace and layers are gone, and no others; return the names removed."""
    gone: list[str] = []
    with suppress(OSError), foreign.hold_directory(f"{common}/worktrees") as entries:
        for name in os.listdir(f"/proc/self/fd/{entries}"):
            if name.startswith(_PREFIX) and _is_stale(entries, name):
                with suppress(OSError):
                    _remove_entry(entries, name)
                    gone.append(name)
    return gone


def _is_stale(entries: int, name: str) -> bool:
    try:
        mark = foreign.read_small(entries, f"{name}/{_MARK}")
        pointer = foreign.read_small(entries, f"{name}/gitdir") or b""
    except WorksteadError:  # something else than our file is there: removed with the workspace itself
        return False
    if mark is None:
        return False
    work = os.path.dirname(os.fsdecode(pointer.strip()))
    return not os.path.exists(os.fsdecode(mark.strip())) and not os.path.exists(work)


def _remove_entry(entries: int, name: str) -> None:
    from workstead.system.overlay.copying import clear

    if name.startswith(_PREFIX):
        clear(entries, name)


def private_layer(parent: Filled, place: Place) -> str:
    """Return a layer for a fork of a work tree: a `.git` of its own at the same commit, not the parent's entry."""
    from workstead.system.overlay.copying import give_tree

    admin, common = parent.origin["admin"], parent.origin["repository"]
    found = repository.Repository(work=parent.origin["path"], git_dir=admin, common=common)
    layer = stack.new_frozen(place)
    stack.reserve(place, [layer])
    os.mkdir(layer, 0o755)
    try:
        repository.borrowed_repository(found, f"{layer}/.git")
    except OSError as error:  # a link or missing permission, set by the agent
        raise from_os(error, "the git directory of the work tree") from None
    if place.owner:
        give_tree(layer, place.owner)
    return layer
