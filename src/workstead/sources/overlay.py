"""A copy-on-write view of any folder: uncommitted, untracked and ignored files included.

The folder is the lowest layer and is never written. Files that must differ in the workspace go into a small layer above
it (`Trim`), so that the upper layer holds only the agent's changes:

- excluded paths, named in `.awignore` or by the caller, and our own home if it is inside the folder;
- git's config, with settings that keep the first `git status` from reading every file again;
- a private `.git` wherever the folder's own is a pointer into a repository that points back (a linked work tree, a
  submodule): through it an agent without a sandbox would write the user's refs and index;
- a `.git` that cannot be trusted (see `repository.find_repository` and `lenders_of`) is hidden: the workspace has no
  git.

Later changes in the folder are visible where the workspace has not changed the path itself; `changed_since` lists them.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from workstead.errors import InvalidConfig, NotAFile, NotARepository, PermissionDenied, QuotaExceeded, WorksteadError
from workstead.model.source import Filled
from workstead.sources.folder import check_folder
from workstead.system.files import foreign
from workstead.system.files.root import Root
from workstead.system.files.walk import NO_LIMITS, Walk
from workstead.system.git import repository
from workstead.system.git.runner import Git
from workstead.system.overlay import layers, mounter, stack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workstead.model.source import FillOptions, Place, Source

IGNORE_FILE = ".awignore"


def fill(source: Source, place: Place, options: FillOptions, progress: Callable[[str], None]) -> Filled:
    """Make `work/` show the folder."""
    return lay(check_folder(source.location), place, options, progress)


def lay(
    path: str, place: Place, options: FillOptions, progress: Callable[[str], None], *, mounted: bool = True
) -> Filled:
    """Make `work/` show a folder without the excluded paths, with a working git.

    Without `mounted`, the files are copied: for a folder that may change at any time.
    """
    import time

    notes: list[str] = []
    since = time.time_ns()
    left_out = _left_out(path, place, options)
    trim = Trim(path, stack.new_frozen(place), place)
    stack.reserve(place, [trim.layer, path])
    for name in left_out:
        trim.hide(name)
    borrows = _calm_git(path, trim, options, notes)
    lowers = trim.finish()
    other = _other_mounts(path, place)
    notes += [f"{below} is another file system and looks empty in the workspace" for below in other]
    mechanism = layers.share(
        lowers,
        place,
        choice=options.mechanism,
        notes=notes,
        progress=progress,
        avoid=_ours(place),
        mounted=mounted,
    )
    if mechanism not in mounter.MOUNTED:
        trim.remove()
        lowers = []
    origin = {
        "kind": "overlay",
        "path": path,
        "since_ns": since,
        "left_out": left_out,
        "borrows": borrows,
    }
    return Filled(mechanism=mechanism, layers=lowers, origin=origin, notes=notes)


class Trim:
    """A layer of few entries over a folder, created with its first entry."""

    def __init__(self, origin: str, layer: str, place: Place) -> None:
        self.origin = origin
        self.layer = layer
        self.place = place
        self.directories: list[str] = []

    def hide(self, name: str) -> None:
        """Hide a path of the folder."""
        os.mknod(self._ready(name), stat.S_IFCHR, 0)

    def write(self, name: str, content: bytes) -> None:
        """Put a file over one of the folder."""
        path = self._ready(name)
        repository.write_text(path, content)
        self._own(path)

    def put_repository(self, name: str, found: repository.Repository, extra: str) -> None:
        """Put a private `.git` over the existing one."""
        from workstead.system.overlay.copying import give_tree, remove_tree

        path = self._ready(name)
        try:
            repository.borrowed_repository(found, path, extra)
        except BaseException:
            remove_tree(path)
            raise
        if self.place.owner:
            give_tree(path, self.place.owner)

    def finish(self) -> list[str]:
        """Return the lower layers: this one, if it has entries, and the folder."""
        for name in (*reversed(self.directories), "") if os.path.isdir(self.layer) else ():
            status = os.lstat(f"{self.origin}/{name}")
            path = f"{self.layer}/{name}"
            os.chmod(path, stat.S_IMODE(status.st_mode))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return [self.layer, self.origin] if os.path.isdir(self.layer) else [self.origin]

    def remove(self) -> None:
        from workstead.system.overlay.copying import remove_tree

        remove_tree(self.layer)

    def _ready(self, name: str) -> str:
        """Return the path of an entry, after creating its parent directories."""
        if not os.path.isdir(self.layer):
            os.mkdir(self.layer, 0o755)
            self._own(self.layer)
        parent = os.path.dirname(name)
        missing = []
        while parent and not os.path.isdir(f"{self.layer}/{parent}"):
            missing.append(parent)
            parent = os.path.dirname(parent)
        for directory in reversed(missing):
            os.mkdir(f"{self.layer}/{directory}", 0o755)
            self._own(f"{self.layer}/{directory}")
            self.directories.append(directory)
        return f"{self.layer}/{name}"

    def _own(self, path: str) -> None:
        if self.place.owner:
            os.chown(path, *self.place.owner)


# -- excluded paths ----------------------------------------------------------------------------------------------------


def _left_out(path: str, place: Place, options: FillOptions) -> list[str]:
    text = foreign.read_small(path, IGNORE_FILE) or b""
    lines = [line.strip() for line in text.decode(errors="surrogateescape").splitlines()]
    patterns = [line for line in lines if line and not line.startswith("#")] + list(options.leave_out)
    names = {name for pattern in patterns for name in expand(path, pattern)}
    names.update(ours[len(path) :].lstrip("/") for ours in _ours(place) if ours.startswith(path.rstrip("/") + "/"))
    # A path below another hidden path is hidden with it.
    return [name for name in sorted(names) if not any(name.startswith(f"{other}/") for other in names)]


def _ours(place: Place) -> list[str]:
    """Return the home and the directory of all workspaces: an agent must not find them in its own files."""
    return [os.path.realpath(path) for path in (os.path.dirname(place.cache), os.path.dirname(stack.private_of(place)))]


def expand(path: str, pattern: str, file: str = IGNORE_FILE) -> list[str]:
    """Return the existing paths that match a pattern, which is anchored at the top and matched part by part."""
    parts = [part for part in pattern.strip("/").split("/") if part]
    if not parts or pattern.startswith("!") or any(part in ("..", ".", "**") for part in parts):
        raise InvalidConfig(
            f"{pattern!r} in {file} cannot be used",
            hint="each line is a path from the top of the folder; * and ? stand for parts of one name",
        )
    found = [""]
    with foreign.hold_directory(path) as top:
        for part in parts:
            found = [f"{name}/{match}".lstrip("/") for name in found for match in _matches(top, name, part)]
    return found


def _matches(top: int, directory: str, part: str) -> list[str]:
    """Return the matching names in a directory of the folder; none if a link on the way leads elsewhere."""
    from fnmatch import fnmatchcase

    try:
        folder = foreign.open_beneath(top, directory or ".", os.O_DIRECTORY)
    except OSError:
        return []
    try:
        if any(char in part for char in "*?["):
            return [name for name in os.listdir(f"/proc/self/fd/{folder}") if fnmatchcase(name, part)]
        os.stat(part, dir_fd=folder, follow_symlinks=False)
        return [part]
    except (OSError, ValueError):  # ValueError: a pattern with a NUL byte, which names no file
        return []
    finally:
        os.close(folder)


def _other_mounts(path: str, place: Place) -> list[str]:
    from workstead.system.kernel.mount_table import mounts_below

    return mounts_below(path, memory=f"{stack.private_of(place)}/mounts", besides=_ours(place))


# -- git ---------------------------------------------------------------------------------------------------------------


def _calm_git(path: str, trim: Trim, options: FillOptions, notes: list[str]) -> list[str]:
    """Make git work in the workspace; return the external object directories that it reads.

    A `.git` that leads to a forbidden place is hidden, and the notes say why: the files come without git.
    """
    extra = repository.identity_config(options.identity)
    try:
        found = repository.find_repository(path)
        if found is None:
            return []
        lenders = repository.lenders_of(found, Git(state=trim.place.cache, config={}))
        if not repository.is_plain(found):
            trim.put_repository(".git", found, extra)
            notes.append(
                "the folder's .git leads elsewhere: the workspace has one of its own, which starts at the same commit"
            )
            return [f"{found.common}/objects", *lenders]
        config = foreign.read_small(found.common, "config") or b""
    except (NotARepository, NotAFile, PermissionDenied, QuotaExceeded) as error:
        trim.hide(".git")
        notes.append(f"the workspace is without git: {error.message}" + (f" ({error.hint})" if error.hint else ""))
        return []
    trim.write(".git/config", repository.calmed(config, extra))
    for name in ("worktrees", "index.lock"):
        if os.path.lexists(f"{path}/.git/{name}"):
            trim.hide(f".git/{name}")
    for name, nested in _linked_work_trees(path):
        trim.put_repository(f"{name}/.git", nested, extra)
        notes.append(f"{name} is a linked work tree: in the workspace it is a repository of its own")
    return lenders


def _linked_work_trees(path: str) -> Iterator[tuple[str, repository.Repository]]:
    """Yield the work trees of this repository inside the folder, from git's own list, without searching the folder."""
    pointers = []
    try:
        with foreign.hold_directory(f"{path}/.git/worktrees") as entries:
            for name in sorted(os.listdir(f"/proc/self/fd/{entries}")):
                with suppress(WorksteadError):
                    pointers.append(foreign.read_small(entries, f"{name}/gitdir") or b"")
    except OSError:
        return
    for pointer in pointers:
        try:
            folder = os.path.dirname(os.path.realpath(os.fsdecode(pointer.strip())))
            found = repository.find_repository(folder) if folder.startswith(f"{path}/") else None
        except (WorksteadError, ValueError):  # a bad entry is not a work tree; ValueError: a NUL in the path
            continue
        if found is not None and found.common == f"{path}/.git":
            yield folder[len(path) + 1 :], found


# -- later changes in the folder ---------------------------------------------------------------------------------------


def changed_since(filled: Filled, limit: int = 100) -> list[str]:
    """Return paths in the folder that changed after the workspace was made, at most `limit`; reads every directory.

    A directory is listed if an entry was added to it or removed from it, the folder itself as `.`.
    """
    top, since = check_folder(filled.origin["path"]), filled.origin["since_ns"]
    left_out = {".git", *filled.origin.get("left_out", ())}
    changed = ["."] if os.stat(top).st_mtime_ns > since else []
    with Root.open(top) as root, Walk(root, ".", NO_LIMITS) as walk:
        for visit in walk:
            prefix = visit.prefix()
            for entry in visit.entries or ():
                if prefix + entry.name in left_out:
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if max(status.st_mtime_ns, status.st_ctime_ns) > since:
                        changed.append(prefix + entry.name)
            visit.subdirectories = [name for name in visit.subdirectories if prefix + name not in left_out]
            if len(changed) >= limit:
                break
    return sorted(changed)[:limit]
