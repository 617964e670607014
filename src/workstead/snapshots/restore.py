"""Restore a snapshot: write only the differences, through the mount that the agent sees.

The order makes every crash harmless. Conflicting entries are removed first, then directories and files are created from
the outside in, then modes and times of directories are set from the inside out. Restore keeps no state: a retry
compares again and completes the rest, and also removes temporary files of the first attempt.

Writes go through the mount, never into the upper layer below it: the kernel caches the content of the upper layer.
"""

from __future__ import annotations

import errno
import os
import stat

from workstead.errors import PathOutsideWorkspace, WorksteadError, from_os
from workstead.model.snapshot import Restored
from workstead.snapshots.diff import is_below
from workstead.snapshots.entries import DIR, FILE, LEFT_OUT, LINK, Entry
from workstead.snapshots.take import LIMITS, NOTES, look, open_work, with_own_stack
from workstead.snapshots.tree_writer import Hands
from workstead.snapshots.trees import Delta, Tree, compare, is_bare
from workstead.system.files.parts import make_parts, open_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workstead.model.snapshot import Limits, Place
    from workstead.snapshots.objects import Store
    from workstead.snapshots.trees import FindStack

_TRIES = 4
_MOVED = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EXDEV)


def restore(
    store: Store,
    root: str,
    place: Place,
    find_stack: FindStack = lambda _: None,
    *,
    paths: Sequence[str] | None = None,
    back_to: str = "",
    cache_path: str = "",
    owner: tuple[int, int] | None = None,
    limits: Limits = LIMITS,
) -> Restored:
    """Restore the workspace, or the given paths in it (such as `work/src`), to its state at `root`.

    The caller keeps the agent from running and has taken a snapshot of the present state; if it passes that as
    `back_to`, an error (a full disk) rolls back to it before the error is raised. After a crash, the same call
    completes the restore. `owner` is set on new files when we are root; the default is the owner of the `work`
    directory.
    """
    if paths is not None:
        for path in paths:
            _check(path)

    def go_to(there: str) -> Restored:
        return _go_to(store, there, place, find_stack, paths, cache_path, owner, limits)

    try:
        return go_to(root)
    except WorksteadError as error:
        if back_to:
            try:
                go_to(back_to)
            except WorksteadError as again:
                raise error from again
        raise


def _go_to(
    store: Store,
    root: str,
    place: Place,
    find_stack: FindStack,
    paths: Sequence[str] | None,
    cache_path: str,
    owner: tuple[int, int] | None,
    limits: Limits,
) -> Restored:
    total = _Counts()
    for attempt in range(_TRIES):
        with (
            look(store, place, find_stack, cache_path=cache_path, limits=limits) as now,
            Tree(store, root, with_own_stack(place, find_stack)) as target,
        ):
            deltas = list(compare(now, target, paths, times=True))
            try:
                _Restore(now, target, place, owner, total).run(deltas)
                break
            except OSError as error:
                # Another process is changing the files: compare again. A full disk and similar errors are not retried.
                if error.errno not in _MOVED or attempt == _TRIES - 1:
                    raise from_os(error, "restoring the workspace") from error
    return Restored(
        written=total.written,
        removed=total.removed,
        adjusted=total.adjusted,
        kept=tuple(sorted(total.kept)),
        missing=tuple(sorted(total.missing)),
    )


def _check(path: str) -> None:
    first = path.strip("/").split("/")[0]
    if first not in ("", "work", "output", *NOTES):
        raise PathOutsideWorkspace(f"{path!r} is not in a snapshot", hint="paths start with work/ or output/")


class _Counts:
    def __init__(self) -> None:
        self.written = 0
        self.removed = 0
        self.adjusted = 0
        self.kept: set[str] = set()
        self.missing: set[str] = set()


class _Restore:
    """One pass from the present state to the target."""

    def __init__(self, now: Tree, target: Tree, place: Place, owner: tuple[int, int] | None, counts: _Counts) -> None:
        self._now = now
        self._target = target
        self._place = place
        self._owner = owner
        self._counts = counts
        self._parts: dict[str, Hands] = {}
        self._stirred: set[str] = set()  # directories whose mtime or mode was changed by us
        self._there: set[str] = set()  # directories known to exist
        self._unkept: set[str] = set()  # in no snapshot, so they stay unchanged, with everything below
        self._blocked: set[str] = set()  # the same, and directories above them
        self._twins: list[tuple[str, Entry | None, Entry]] = []  # names of files with several hard links

    def run(self, deltas: list[Delta]) -> None:
        """Execute the restore. Raise OSError."""
        try:
            deltas = self._without_unkept(deltas)
            self._remove(deltas)
            self._make(deltas)
            self._settle(deltas)
        finally:
            for hands in self._parts.values():
                hands.close()

    # -- directories ---------------------------------------------------------------------------------------------------

    def _hands(self, path: str) -> tuple[Hands, str]:
        """Return the writer for a part of the workspace, and the path in it."""
        part, _, rest = path.partition("/")
        if part in NOTES:
            part, rest = "", path
        hands = self._parts.get(part)
        if hands is None:
            fd = self._open(part)
            try:
                status = os.fstat(fd)
                hands = self._parts[part] = Hands(fd, self._owner or (status.st_uid, status.st_gid))
            finally:
                os.close(fd)
        return hands, rest

    def _open(self, part: str) -> int:
        root = self._place.root
        if not part:
            return open_part(root, ".")
        if part == "work" and self._place.work:
            return open_work(self._place)
        if part == "output":  # if the agent replaced it, rename the replacement
            status = os.lstat(root)
            make_parts(root, (part,), self._owner or (status.st_uid, status.st_gid), move_aside=True)
        return open_part(root, part)

    def _stir(self, path: str) -> None:
        above = path.rpartition("/")[0]
        if above:
            self._stirred.add(above)

    # -- changes -------------------------------------------------------------------------------------------------------

    def _without_unkept(self, deltas: list[Delta]) -> list[Delta]:
        """Drop the changes that would lose files that are in no snapshot."""
        for delta in deltas:
            if delta.old is not None and delta.old.unkept and (delta.new is None or delta.new.kind != LEFT_OUT):
                self._unkept.add(delta.path)
                self._counts.kept.add(delta.path)
                above = delta.path
                while above not in self._blocked:
                    self._blocked.add(above)
                    above = above.rpartition("/")[0] or above
        if not self._unkept:
            return deltas
        return [delta for delta in deltas if delta.path not in self._unkept and not is_below(delta.path, self._unkept)]

    def _remove(self, deltas: Iterable[Delta]) -> None:
        """Remove entries that are not in the target, or have another type there."""
        gone = ""  # everything below this path is removed already
        for delta in deltas:
            old, new = delta.old, delta.new
            if old is None or (new is not None and new.kind in (old.kind, LEFT_OUT)):
                continue
            if gone and delta.path.startswith(gone):
                continue
            if new is not None and old.kind != DIR and new.kind != DIR and old.kind != LEFT_OUT:
                continue  # replaced by a rename
            if delta.path in self._blocked:
                continue  # its other files are removed one by one below
            hands, path = self._hands(delta.path)
            if not path:
                continue  # `work` and `output` themselves stay
            self._open_up_above(delta.path)
            hands.remove(path)
            self._stir(delta.path)
            self._counts.removed += 1
            gone = delta.path + "/"

    def _make(self, deltas: Iterable[Delta]) -> None:
        """Create directories, files and links, the outer ones first."""
        for delta in deltas:
            old, new = delta.old, delta.new
            if new is None or (delta.path in self._blocked and new.kind != DIR):
                continue
            hands, path = self._hands(delta.path)
            if not path:
                continue
            if new.kind == LEFT_OUT:
                if old is None or old.kind != LEFT_OUT:
                    self._counts.missing.add(delta.path)
                continue
            if old is None:
                self._make_above(delta.path)
            self._open_up_above(delta.path)
            if new.kind == DIR:
                if old is None or old.kind != DIR:
                    hands.make_folder(path)
                    self._there.add(delta.path)
                    self._stir(delta.path)
            elif new.twin:
                self._twins.append((delta.path, old, new))
            elif self._put(hands, path, old, new):
                self._stir(delta.path)
        for where, old, new in self._twins:  # after the first name of each exists
            hands, path = self._hands(where)
            if self._join(hands, where, new) or self._put(hands, path, old, new):
                self._stir(where)

    def _join(self, hands: Hands, where: str, new: Entry) -> bool:
        """Make a path a hard link to its file again; False if the first name is not that file now."""
        first = self._target.find(new.twin)
        part, rest = new.twin.partition("/")[::2]
        if first is None or first.kind != FILE or first.digest != new.digest or part != where.partition("/")[0]:
            return False
        if not hands.join(rest, where.partition("/")[2], size=new.size, mtime_ns=new.mtime_ns, mode=new.mode):
            return False
        self._counts.written += 1
        return True

    def _make_above(self, path: str) -> None:
        """Create missing directories above a chosen path, replacing other entries in their place."""
        above = path.rpartition("/")[0]
        if above in self._there or "/" not in above:
            return
        self._there.add(above)
        parts = above.split("/")
        for level in range(2, len(parts) + 1):
            each = "/".join(parts[:level])
            hands, rest = self._hands(each)
            status = hands.status(rest)
            if status is None or not stat.S_ISDIR(status.st_mode):
                if status is not None:
                    hands.remove(rest)
                hands.make_folder(rest)
                self._stir(each)
                self._stirred.add(each)

    def _put(self, hands: Hands, path: str, old: Entry | None, new: Entry) -> bool:
        """Write a file or link; False if the existing one only needed new metadata."""
        if new.kind == LINK:
            if old is not None and old.kind == LINK and old.target == new.target:
                hands.set_link_time(path, new.mtime_ns)
                self._counts.adjusted += 1
                return False
            hands.link(path, new.target, new.mtime_ns)
            self._counts.written += 1
            return True
        xattrs = self._target.xattrs(new)
        if (
            old is not None
            and old.kind == FILE
            and old.size == new.size
            and self._now.digest(old) == self._target.digest(new)
            and hands.set_meta(path, mode=new.mode, mtime_ns=new.mtime_ns, xattrs=xattrs)
        ):
            self._counts.adjusted += 1
            return False
        hands.write(
            path,
            self._target.pieces(new),
            new.size,
            mode=new.mode,
            mtime_ns=new.mtime_ns,
            xattrs=xattrs,
            sparse=new.sparse,
        )
        self._counts.written += 1
        return True

    def _open_up_above(self, path: str) -> None:
        above = path.rpartition("/")[0]
        if above and above not in self._stirred:
            hands, rest = self._hands(above)
            if rest and hands.open_up(rest):
                self._stirred.add(above)  # its own mode is restored at the end

    def _settle(self, deltas: Iterable[Delta]) -> None:
        """Set modes and times of directories, the inner ones first."""
        changed = {delta.path: delta.new for delta in deltas if delta.new is not None and delta.new.kind == DIR}
        for path in sorted(changed.keys() | self._stirred, key=lambda path: (-path.count("/"), path)):
            entry = changed.get(path) or self._target.find(path)
            if entry is None or entry.kind != DIR or is_bare(entry):
                continue
            hands, rest = self._hands(path)
            hands.set_meta(rest, mode=entry.mode, mtime_ns=entry.mtime_ns, xattrs=self._target.xattrs(entry))
            self._counts.adjusted += path in changed
