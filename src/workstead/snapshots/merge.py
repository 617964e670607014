"""Plan how to apply a workspace's changes: a three-way merge per file, as values, before the target is touched.

Base is the state that the agent started from, ours is the folder (or commit) now, theirs is the workspace. Only paths
that the workspace changed are read, so the cost is that of the changes. The plan records the fingerprint of every
target file: a step is executed only if the fingerprint still matches.

If a folder of the user is itself the lower layer, there is no copy from before the user's own edits. Such an edit is
detected by ctime, or because a directory was replaced by another one (`origins`). Base is then the version that the
snapshots preserved, or the version that one of our applies removed and an undo restored; without either, the two sides
are treated as a conflict. That holds for every target, a branch too: the initial state of the workspace does not depend
on the target of its changes.
"""

from __future__ import annotations

import os
import stat

from workstead.errors import from_os
from workstead.model.change import Clash, Plan, Step
from workstead.snapshots.diff import is_git_name, is_in_git
from workstead.snapshots.entries import CHUNK, DIR, FILE, LEFT_OUT, LINK, NO_DIGEST, Entry
from workstead.snapshots.ignored import is_directory
from workstead.snapshots.journal import is_own_name
from workstead.snapshots.patch import is_binary
from workstead.snapshots.text_diff import merge
from workstead.snapshots.trees import Delta, DiskDir, DiskLayer, Pile, StoredDir, compare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Protocol

    from workstead.snapshots.entries import Xattrs
    from workstead.snapshots.ignored import Ignoring
    from workstead.snapshots.objects import Objects, Writer
    from workstead.snapshots.origins import Origins
    from workstead.snapshots.trees import Tree

    class Ours(Protocol):
        """The target of the changes."""

        def find(self, path: str) -> Entry | None: ...
        def read(self, entry: Entry) -> bytes: ...
        def digest(self, entry: Entry) -> bytes: ...
        def is_empty_without(self, path: str, gone: set[str]) -> bool: ...
        def prefetch(self, paths: Iterable[str]) -> None: ...


_MAX_MERGE = CHUNK


class Folder:
    """A folder of the user, read by descriptor. Use as a context manager."""

    def __init__(self, path: str) -> None:
        self._layer = DiskLayer(path, is_users=True)
        self._absent: set[str] = set()  # paths that do not exist, so nothing is below them

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self._layer.close()

    def find(self, path: str) -> Entry | None:
        """Return the entry at a path, or None; never follow a link."""
        above, _, name = path.rpartition("/")
        found = DiskDir(self._layer, above).find(name) if above not in self._absent else None
        if found is None or found.kind != DIR:
            self._absent.add(path)
        return found

    def read(self, entry: Entry) -> bytes:
        """Return the content of a file."""
        assert entry.disk is not None
        where, name = entry.disk
        try:
            fd = where.open(name)
        except OSError as error:
            raise from_os(error, "the origin") from error
        with os.fdopen(fd, "rb") as file:
            return file.read()

    def digest(self, entry: Entry) -> bytes:
        """Return the digest of a file's content."""
        if entry.digest == NO_DIGEST and entry.disk is not None:
            entry.digest = entry.disk[0].digest(entry.disk[1])
        return entry.digest

    def xattrs(self, entry: Entry) -> Xattrs:
        """Return the xattrs of a file or directory."""
        return entry.disk[0].xattrs(entry.disk[1]) if entry.disk is not None else ()

    def is_empty_without(self, path: str, gone: set[str]) -> bool:
        """Return whether a directory would be empty without these paths."""
        return all(f"{path}/{name}" in gone for name in DiskDir(self._layer, path).entries())

    def prefetch(self, paths: Iterable[str]) -> None:
        """Do nothing: a disk gains nothing from prefetching."""


def fingerprint(ours: Ours, entry: Entry | None) -> str:
    """Return the fingerprint of a target entry, by which a later check detects a change."""
    if entry is None:
        return ""
    if entry.kind == FILE:
        return f"f{stat.S_IMODE(entry.mode):o}:{ours.digest(entry).hex()}"
    return {LINK: f"l:{entry.target}", DIR: "d"}.get(entry.kind, "x")


class Since:
    """The initial state of a workspace, where the user may have changed the folder below it since.

    `fixed_ns` is that of the stack, 0 if the workspace lies on no folder. `covers` are the trees of the entries that
    its applies replaced there, oldest first. `find_was` returns the digest of a path from before the first change by
    the workspace or a workspace that it is a fork of, if its present state does not have that digest.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        fixed_ns: int = 0,
        covers: Sequence[str] = (),
        find_was: Callable[[str], bytes] = lambda _: b"",
        origins: Origins | None = None,
    ) -> None:
        self._objects = objects
        self._fixed_ns = fixed_ns
        self._covers = Pile(tuple(StoredDir(objects, bytes.fromhex(each)) for each in covers))
        self._find_was = find_was
        self._origins = origins

    def is_edited(self, base: Tree, path: str, before: Entry) -> bool:
        """Return whether the user changed this entry of base after the workspace was made."""
        if not self._fixed_ns or not base.is_users(before):
            return False
        is_exchanged = self._origins is not None and self._origins.is_exchanged(path)
        return is_exchanged or base.ctime_ns(before) > self._fixed_ns

    def is_deleted(self, base: Tree, theirs: Tree, path: str) -> bool:
        """Return whether base lacks a path only because the user deleted the file that the workspace changed."""
        if not self._fixed_ns or base.hides(f"work/{path}"):
            return False
        return bool(theirs.was(f"work/{path}")) or (self._origins is not None and self._origins.existed(path))

    def find(self, theirs: Tree, path: str) -> Entry | None:
        """Return the original of a file or link that the workspace changed, if any record of it exists."""
        was = theirs.was(f"work/{path}")
        if not was:
            taken = self._taken_away(path)
            if taken is not None:
                return taken
            was = self._find_was(path)
        return Entry(FILE, size=len(self._objects.get(was)), digest=was) if was else None

    def _taken_away(self, path: str) -> Entry | None:
        """Return the entry that the first apply replaced or deleted at a path.

        The apply did so because the entry was unchanged: an undo that restored it has only changed its ctime. For files
        in a deleted directory, and for a file replaced by another type, this is the only record.
        """
        pile = self._covers
        *above, name = path.split("/")
        for each in above:
            pile = pile.child(each)
        entry = pile.find(name)
        return entry if entry is not None and entry.kind in (FILE, LINK) else None


def plan_merge(
    base: Tree,
    ours: Ours,
    theirs: Tree,
    writer: Writer,
    *,
    under: str = "work",
    paths: Sequence[str] | None = None,
    mark_conflicts: bool = False,
    since: Since | None = None,
    names: tuple[str, str] = ("origin", "workspace"),
    ignoring: Ignoring | None = None,
) -> Plan:
    """Return the plan that applies the changes from `base` to `theirs` to the target `ours`.

    `writer` stores the merged texts and the replaced contents, so that the plan can be executed and undone later; the
    caller commits it. `since` has the initial state of a workspace that lies on a folder of the user. `mark_conflicts`
    plans texts with conflict markers where the sides conflict; otherwise the target keeps its version. Changes that
    `ignoring` finds are not planned.
    """
    planner = _Planner(base, ours, theirs, writer, mark_conflicts, since or Since(writer), names)
    try:
        return _plan(planner, under, paths, ignoring)
    except OSError as error:
        raise from_os(error, "the origin") from error


def _plan(planner: _Planner, under: str, paths: Sequence[str] | None, ignoring: Ignoring | None) -> Plan:
    base, ours, theirs = planner.base, planner.ours, planner.theirs
    wanted = [f"{under}/{path}" for path in paths] if paths is not None else [under]
    found = [*_made_way(base, theirs, under, paths or ()), *compare(base, theirs, wanted)]
    deltas = [(delta.path[len(under) + 1 :], delta) for delta in found]
    ignored: set[str] = set()
    if ignoring is not None:
        ignored = ignoring(base, theirs, [(path, delta) for path, delta in deltas if path and not is_in_git(path)])
        planner.ignored = sum(path in ignored and not is_directory(delta) for path, delta in deltas)
        deltas = [(path, delta) for path, delta in deltas if path not in ignored]
    ours.prefetch(path for path, _ in deltas if path and not is_in_git(path))
    unread: set[str] = set()  # unreadable directories: paths below them were not deleted
    for path, delta in deltas:
        if delta.new is not None and delta.new.kind == LEFT_OUT and delta.old is not None and delta.old.kind == DIR:
            unread.add(path)
    for path, delta in deltas:
        if path and not (unread and is_below(path, unread)):
            planner.consider(path, delta)
    return planner.finish()


def _made_way(base: Tree, theirs: Tree, under: str, paths: Iterable[str]) -> list[Delta]:
    """Return files that the workspace replaced by a directory above a chosen path: remove them here too."""
    above: set[str] = set()
    for path in paths:
        at = path.rpartition("/")[0]
        while at and at not in above:
            above.add(at)
            at = at.rpartition("/")[0]
    found = []
    for path in sorted(above - set(paths)):
        before, after = base.find(f"{under}/{path}"), theirs.find(f"{under}/{path}")
        if before is not None and before.kind != DIR and after is not None and after.kind == DIR:
            found.append(Delta(f"{under}/{path}", before, after))
    return found


class _Planner:
    def __init__(
        self,
        base: Tree,
        ours: Ours,
        theirs: Tree,
        writer: Writer,
        mark: bool,
        since: Since,
        names: tuple[str, str],
    ) -> None:
        self.base = base
        self.ours = ours
        self.theirs = theirs
        self._writer = writer
        self._mark = mark
        self._since = since
        self._names = names
        self._puts: list[Step] = []
        self._modes: list[Step] = []  # mode changes of directories
        self._deletes: list[Step] = []
        self._folders: list[str] = []  # directories to remove if they are empty by then
        self._clashes: list[Clash] = []
        self._refused: set[str] = set()
        self._same = 0
        self.ignored = 0

    def consider(self, path: str, delta: Delta) -> None:
        """Plan the steps for one path."""
        before, after = delta.old, delta.new
        if is_in_git(path) or ".aw-" in path:
            refused = _refused_part(path)
            if refused:
                self._refused.add(refused)
                return
        if (after is not None and after.kind == LEFT_OUT) or (after is None and _is_other(before)):
            self._refused.add(path)
            return
        target = self.ours.find(path)
        if before is not None and before.kind == DIR and (after is None or after.kind != DIR):
            self._folders.append(path)
            if after is None:
                return
        if after is not None and after.kind == DIR:
            self._consider_folder(path, before, after, target)
        elif before is not None and before.kind == DIR and target is not None and target.kind == DIR:
            self._put(path, after, target)  # the files below it and the directory itself are removed first
        else:
            self._consider_file(path, before, after, target)

    def _consider_folder(self, path: str, before: Entry | None, after: Entry, target: Entry | None) -> None:
        if target is not None and target.kind == DIR:
            self._consider_mode(path, before, after, target)
            return
        if target is not None and self._is_changed(path, before, target):
            self._clashes.append(Clash(path=path, reason="a directory here, a file there"))
            return
        if before is None or before.kind != DIR:
            if target is not None:
                self._delete(path, target)
            self._puts.append(Step(path=path, action="mkdir", mode=after.mode, mtime_ns=after.mtime_ns))

    def _consider_mode(self, path: str, before: Entry | None, after: Entry, target: Entry) -> None:
        """Plan the mode of a directory that both sides have. git has no directory modes."""
        if before is None or before.kind != DIR or before.mode == after.mode:
            return
        if target.disk is None or target.mode == after.mode:
            self._same += 1
        else:
            step = Step(path=path, action="chmod", mode=after.mode, old_mode=target.mode, before="d")
            self._modes.append(step)

    def _consider_file(self, path: str, before: Entry | None, after: Entry | None, target: Entry | None) -> None:
        is_new = before is None and after is not None and target is None
        if is_new and self._since.is_deleted(self.base, self.theirs, path):
            self._clashes.append(Clash(path=path, reason="changed in the workspace, deleted here"))
        elif self._is_same(before, after, target):
            self._same += 1
        elif not self._is_changed(path, before, target):
            if after is None:
                assert target is not None
                self._delete(path, target)
            else:
                self._put(path, after, target, mode=_mode(before, after, target))
        else:
            self._merge(path, before, after, target)

    # -- comparison ----------------------------------------------------------------------------------------------------

    def _is_same(self, before: Entry | None, after: Entry | None, target: Entry | None) -> bool:
        if after is None or target is None:
            return after is target
        if after.kind != target.kind:
            return False
        if after.kind == LINK:
            return after.target == target.target
        if after.kind != FILE:
            return True
        return (
            after.size == target.size
            and _mode(before, after, target) == target.mode
            and self.theirs.digest(after) == self.ours.digest(target)
        )

    def _is_changed(self, path: str, before: Entry | None, target: Entry | None) -> bool:
        """Return whether the target differs from the state that the workspace started from."""
        if self._has_changed_since(path, before):
            began = self._since.find(self.theirs, path)
            return began is None or self._differs(began, began.digest, target)
        if before is None or target is None:
            return before is not target
        return self._differs(before, self.base.digest(before) if before.kind == FILE else b"", target)

    def _differs(self, before: Entry, digest: bytes, target: Entry | None) -> bool:
        if target is None or before.kind != target.kind:
            return True
        if before.kind == LINK:
            return before.target != target.target
        return before.kind == FILE and (before.size != target.size or digest != self.ours.digest(target))

    def _has_changed_since(self, path: str, before: Entry | None) -> bool:
        """Return whether base differs from the initial state of the workspace."""
        if before is None:
            return self._since.is_deleted(self.base, self.theirs, path)
        return before.kind in (FILE, LINK) and self._since.is_edited(self.base, path, before)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _put(
        self, path: str, after: Entry | None, target: Entry | None, *, mode: int = -1, merged: bytes | None = None
    ) -> None:
        assert after is not None
        step = self._step(path, "link" if after.kind == LINK else "write", target)
        if after.kind == LINK:
            step = step.replace(target=after.target, mtime_ns=after.mtime_ns)
        elif merged is not None:
            step = step.replace(digest=self._writer.put(merged).hex(), size=len(merged), merged=True)
        else:
            digest = keep(self._writer, self.theirs, after)
            step = step.replace(digest=digest, size=after.size, mtime_ns=after.mtime_ns)
        self._puts.append(step.replace(mode=after.mode if mode < 0 else mode))

    def _delete(self, path: str, target: Entry) -> None:
        self._deletes.append(self._step(path, "delete", target))

    def _step(self, path: str, action: str, target: Entry | None) -> Step:
        """Return a step with the fingerprint of its target, whose content is stored for undo."""
        self._preserve(target)
        step = Step(path=path, action=action, before=fingerprint(self.ours, target))
        return step if target is None else step.replace(old_size=target.size, old_mtime_ns=target.mtime_ns)

    def _preserve(self, target: Entry | None) -> None:
        """Store the content that is about to be replaced: undo needs it."""
        if target is None or target.kind != FILE:
            return
        if target.size <= CHUNK:
            self._writer.put(self.ours.read(target))
            return
        keep_large(self._writer, self.ours.read(target))

    def _merge(self, path: str, before: Entry | None, after: Entry | None, target: Entry | None) -> None:
        """Merge a path that both sides changed."""
        if after is None or target is None:
            gone, stays = ("in the workspace", "here") if after is None else ("here", "in the workspace")
            reason = f"changed {stays}, deleted {gone}"
            self._clashes.append(Clash(path=path, reason=reason))
            return
        if after.kind != FILE or target.kind != FILE:
            self._clashes.append(Clash(path=path, reason="not the same kind of thing on both sides"))
            return
        if max(after.size, target.size) > _MAX_MERGE:
            self._clashes.append(Clash(path=path, reason="too large to merge"))
            return
        mine, yours = self.ours.read(target), self.theirs.read(after)
        if is_binary(mine) or is_binary(yours):
            self._clashes.append(Clash(path=path, reason="binary, and changed on both sides"))
            return
        text, conflicts = merge(
            self._base_text(path, before), mine, yours, our_name=self._names[0], their_name=self._names[1]
        )
        if conflicts:
            reason = f"{conflicts} place{'s' * (conflicts > 1)} changed on both sides"
            self._clashes.append(Clash(path=path, reason=reason, marked=self._mark))
            if not self._mark:
                return
        self._put(path, after, target, mode=_mode(before, after, target), merged=text)

    def _base_text(self, path: str, before: Entry | None) -> bytes:
        if self._has_changed_since(path, before):
            began = self._since.find(self.theirs, path)
            known = began is not None and began.kind == FILE and began.size <= _MAX_MERGE
            return self.theirs.objects.get(began.digest) if began is not None and known else b""
        if before is None or before.kind != FILE or before.size > _MAX_MERGE:
            return b""
        return self.base.read(before)

    def _with_folders(self, puts: list[Step], gone: set[str]) -> list[Step]:
        """Insert a step that creates each missing directory before the first step that uses it."""
        result: list[Step] = []
        there: set[str] = set()
        for step in puts:
            missing = []
            above = step.path.rpartition("/")[0]
            while above and above not in there:
                missing.append(above)
                above = above.rpartition("/")[0]
            for above in reversed(missing):
                there.add(above)
                found = self.ours.find(above)
                if above in gone or found is None:
                    result.append(Step(path=above, action="mkdir", mode=0o755))
                elif found.kind != DIR:
                    self._clashes.append(Clash(path=above, reason="a file or link here, a directory there"))
            if step.action == "mkdir":
                there.add(step.path)
            result.append(step)
        return result

    def finish(self) -> Plan:
        """Return the plan: removals, innermost first, then additions, outermost first."""
        gone = {step.path for step in self._deletes}
        replaced = {step.path for step in self._puts if step.action != "mkdir"}
        emptied = []
        for path in sorted(self._folders, key=lambda path: -path.count("/")):
            found = self.ours.find(path)
            if found is not None and found.kind == DIR:
                if self.ours.is_empty_without(path, gone):
                    gone.add(path)
                    emptied.append(Step(path=path, action="rmdir", mode=found.mode, before="d"))
                elif path in replaced:
                    self._clashes.append(Clash(path=path, reason="a directory with other files here, a file there"))
                    self._puts = [step for step in self._puts if step.path != path]
        puts = self._with_folders(self._puts, gone)
        blocked = tuple(f"{clash.path}/" for clash in self._clashes)
        puts = [step for step in puts if not step.path.startswith(blocked)] if blocked else puts
        # A file that replaces a directory finds no entry there any more.
        puts = [step.replace(before="") if step.before == "d" else step for step in puts]
        # A directory stays writable for its owner while steps change its content.
        opened = [step for step in self._modes if step.mode & 0o200]
        closed = [step for step in self._modes if not step.mode & 0o200]
        return Plan(
            steps=(*opened, *sorted(self._deletes, key=lambda step: step.path), *emptied, *puts, *closed),
            clashes=tuple(self._clashes),
            refused=tuple(sorted(self._refused)),
            ignored=self.ignored,
            same=self._same,
        )


def _mode(before: Entry | None, after: Entry, target: Entry | None) -> int:
    """Return the mode to set: the target's own, unless the workspace changed it."""
    if target is None or target.kind != FILE or after.kind != FILE:
        return after.mode
    if before is not None and before.kind == FILE and before.mode == after.mode:
        return target.mode
    return after.mode if before is not None else target.mode | (after.mode & 0o111)


def _refused_part(path: str) -> str:
    """Return the path up to a name that is never applied: `.git`, or one of our temporary names."""
    parts = path.split("/")
    for count, name in enumerate(parts, 1):
        if is_git_name(name) or is_own_name(name):
            return "/".join(parts[:count])
    return ""


def is_below(path: str, tops: set[str]) -> bool:
    """Return whether a path is below one of these."""
    at = path.rfind("/") if tops else 0
    while at > 0:
        if path[:at] in tops:
            return True
        at = path.rfind("/", 0, at)
    return False


def _is_other(entry: Entry | None) -> bool:
    return entry is not None and entry.kind == LEFT_OUT


def keep(writer: Writer, tree: Tree, entry: Entry) -> str:
    """Ensure that a file's content is in the store, and return its digest."""
    if entry.disk is None:
        return entry.digest.hex()  # a stored tree has its contents in the store already
    if entry.size <= CHUNK:
        return writer.put(tree.read(entry)).hex()
    return keep_large(writer, tree.read(entry)).hex()


def keep_large(writer: Writer, data: bytes) -> bytes:
    """Store a large content in chunks, as the walker does."""
    from workstead.snapshots.entries import encode_pieces

    pieces = []
    for at in range(0, len(data), CHUNK):
        part = data[at : at + CHUNK]
        if part.count(0) != len(part):
            pieces.append((at // CHUNK, writer.put(part)))
    return writer.put(encode_pieces(len(data), pieces))
