"""Build a new state from stored ones without writing files: copy a part of one into another, or store single contents.

Applying only some paths moves the base for these paths alone: the new base is the old one with the workspace's version
of them. The trees are edited in their encoded form; lower layers stay visible where they were.
"""

from __future__ import annotations

from workstead.errors import HunkNotFound
from workstead.model.snapshot import layer_root
from workstead.snapshots.entries import (
    CHUNK,
    DIR,
    FILE,
    LEFT_OUT,
    LINK,
    NO_DIGEST,
    WHITEOUT,
    Entry,
    decode_tree,
    encode_entry,
    encode_tree,
    flags,
)
from workstead.snapshots.merge import is_below, keep, keep_large
from workstead.snapshots.patch import find_hunks
from workstead.snapshots.renames import Pair
from workstead.snapshots.text_diff import with_groups
from workstead.snapshots.trees import compare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from workstead.model.change import Plan
    from workstead.snapshots.merge import Folder, Since
    from workstead.snapshots.objects import Objects, Writer
    from workstead.snapshots.trees import Tree


def graft(writer: Writer, base: Tree, theirs: Tree, paths: Iterable[str]) -> str:
    """Return the root of `base` with the entries of `theirs` at these paths, such as `work/src`, and below them.

    The caller commits the writer. Only `work/` can be changed this way.
    """
    wanted = list(paths)
    return transplant(writer, base, theirs, wanted) or _Graft(writer, base, theirs).run(wanted)


def transplant(writer: Writer, base: Tree, theirs: Tree, paths: Iterable[str]) -> str | None:
    """Like `graft`, for states on one stack, without reading its layers: lower layers stay visible where they were.

    Return None if that is impossible: the stacks differ, or a directory above a path is opaque in one state only.
    """
    if base.stack_key != theirs.stack_key:
        return None
    try:
        return _Transplant(writer, base, theirs).run(list(paths))
    except _Hidden:
        return None


class _Folder:
    """A changed directory of the new state: its entries, and its changed sub-directories."""

    def __init__(self, entry: Entry, names: dict[str, Entry]) -> None:
        self.entry = entry
        self.names = names
        self.below: dict[str, _Folder] = {}


class _Graft:
    def __init__(self, writer: Writer, base: Tree, theirs: Tree) -> None:
        self._writer = writer
        self._base = base
        self._theirs = theirs
        self._over = base.stack_key

    def run(self, paths: list[str]) -> str:
        """Apply the changes and return the new root."""
        top = dict(self._base.top.layers[0].entries())
        work = top["work"]
        if work.digest == NO_DIGEST:  # a state without objects: its directories were never read
            work = self.like_theirs("work", over=work.over)
        if "output" in top and top["output"].digest == NO_DIGEST:
            top["output"] = self.like_theirs("output", digest=self._writer.put_tree(b""))
        tree = _Folder(work, _entries(self._base.objects, work.digest))
        self._change(tree, paths)
        top["work"] = _write(self._writer, tree)
        return self._writer.put_tree(_encode(top)).hex()

    def _change(self, tree: _Folder, paths: list[str]) -> None:
        gone: set[str] = set()  # paths below which nothing is left
        for delta in compare(self._base, self._theirs, paths):
            above, _, name = delta.path.rpartition("/")
            if is_below(delta.path, gone):
                continue
            folder = self.open(tree, above)
            if delta.new is None:
                gone.add(delta.path)
                self._remove(folder, name)
            elif delta.new.kind == DIR:
                made = self.open(tree, delta.path)
                made.entry = self._copy(delta.new, made.entry)
            else:
                gone.add(delta.path)
                folder.below.pop(name, None)
                folder.names[name] = self._copy(delta.new)

    def like_theirs(self, name: str, *, digest: bytes = NO_DIGEST, over: str = "") -> Entry:
        found = self._theirs.top.find(name)
        if found is None or found.kind != DIR:
            return Entry(DIR, 0o755, digest=digest, over=over)
        return Entry(DIR, found.mode, found.mtime_ns, digest=digest, xattrs=found.xattrs, over=over)

    def _remove(self, folder: _Folder, name: str) -> None:
        folder.below.pop(name, None)
        folder.names.pop(name, None)
        if self._over:  # the lower layers may have the name
            folder.names[name] = Entry(WHITEOUT)

    def open(self, tree: _Folder, path: str) -> _Folder:
        """Return the directory at a path of the new state; create it if missing."""
        return self._open(tree, path)[0]

    def _open(self, tree: _Folder, path: str) -> tuple[_Folder, bool]:
        """Return the directory at a path, and whether it or a directory above it, below the top, is opaque."""
        folder, hidden = tree, False
        parts = path.split("/")
        for level, name in enumerate(parts[1:], 2):
            if name not in folder.below:
                folder.below[name] = self._make(folder.names.get(name), "/".join(parts[:level]))
            folder = folder.below[name]
            hidden |= folder.entry.opaque
        return folder, hidden

    def _make(self, own: Entry | None, path: str) -> _Folder:
        if own is not None and own.kind == DIR:
            return _Folder(own, _entries(self._base.objects, own.digest))
        seen = self._base.find(path)
        if own is None and seen is not None and seen.kind == DIR:  # from a lower layer, which stays visible
            return _Folder(self._copy(seen), {})
        there = self._theirs.find(path)
        fresh = self._copy(there) if there is not None and there.kind == DIR else Entry(DIR, 0o755)
        fresh.flags = flags(opaque=bool(self._over))
        return _Folder(fresh, {})

    def _copy(self, entry: Entry, old: Entry | None = None) -> Entry:
        """Return the entry in its stored form; a directory gets its content later, and keeps its opaque flag."""
        tree = self._theirs
        if entry.kind == DIR:
            kept = flags(opaque=old is not None and old.opaque)
            return Entry(DIR, entry.mode, entry.mtime_ns, xattrs=tree.xattrs(entry), flags=kept)
        if entry.kind != FILE:
            return Entry(entry.kind, entry.mode, entry.mtime_ns, entry.size, target=entry.target)
        digest = bytes.fromhex(keep(self._writer, tree, entry))
        kept = flags(sparse=entry.sparse, torn=entry.torn)
        found = Entry(FILE, entry.mode, entry.mtime_ns, entry.size, digest, xattrs=tree.xattrs(entry), flags=kept)
        found.twin = entry.twin
        return found


class _Hidden(Exception):
    """A directory is opaque in only one of the states, so that entries mean different things in the two."""


class _Transplant(_Graft):
    """Copy entries of the upper layer unchanged, with everything below them."""

    def _change(self, tree: _Folder, paths: list[str]) -> None:
        for path in paths:
            above, _, name = path.rpartition("/")
            own, is_opaque = self._find_own(above, name)
            if own is None and not self._has_folder(tree, above):
                continue  # in neither state
            folder = self._open_like(tree, above, is_opaque)
            folder.below.pop(name, None)
            folder.names.pop(name, None)
            if own is not None:
                folder.names[name] = own
            elif is_opaque and self._over:
                folder.names[name] = Entry(WHITEOUT)

    def _find_own(self, above: str, name: str) -> tuple[Entry | None, bool]:
        """Return the entry of their upper layer at a path, and whether lower layers are hidden there."""
        entry = self._theirs.top.find("work")
        is_opaque = False
        for part in [*above.split("/")[1:], name]:
            if entry is None or entry.kind != DIR:
                return None, is_opaque or entry is not None
            is_opaque |= entry.opaque
            entry = _entries(self._theirs.objects, entry.digest).get(part)
        return entry, is_opaque

    def _has_folder(self, tree: _Folder, above: str) -> bool:
        found = self._base.find(above) if "/" in above else tree.entry
        return found is not None and found.kind == DIR

    def _open_like(self, tree: _Folder, above: str, is_opaque: bool) -> _Folder:
        folder, hidden = self._open(tree, above)
        if hidden != is_opaque and self._over:
            raise _Hidden(above)
        return folder


def _write(writer: Writer, tree: _Folder) -> Entry:
    """Write the changed directories, the inner ones first."""
    todo, order = [tree], []
    while todo:
        folder = todo.pop()
        order.append(folder)
        todo += folder.below.values()
    for folder in reversed(order):
        folder.names.update({name: below.entry for name, below in folder.below.items()})
        inside = [entry for entry in folder.names.values() if entry.kind in (DIR, FILE)]
        gaps = any(entry.gaps for entry in inside)
        gaps = gaps or any(entry.kind == LEFT_OUT for entry in folder.names.values())
        entry = folder.entry
        folder.entry = Entry(
            DIR,
            entry.mode,
            entry.mtime_ns,
            sum(each.size for each in inside),
            writer.put_tree(_encode(folder.names)),
            xattrs=entry.xattrs,
            flags=flags(opaque=entry.opaque, gaps=gaps),
            over=entry.over,
        )
    return tree.entry


def cover(writer: Writer, ours: Folder, paths: Iterable[str]) -> str:
    """Return a tree that, laid over a folder, preserves the present content of these paths whatever happens to them.

    The caller commits the writer.
    """
    tree = _Folder(Entry(DIR), {})
    known: dict[str, _Folder | None] = {"": tree}  # None: not a directory, so nothing is below it
    for path in sorted(paths):
        new, above = [], path
        while above not in known:
            new.append(above)
            above = above.rpartition("/")[0]
        for each in reversed(new):  # each directory is read once, at any depth
            above, _, name = each.rpartition("/")
            folder = known[above]
            found = ours.find(each) if folder is not None else None
            known[each] = None
            if folder is None:
                continue
            if found is None or found.kind != DIR:
                folder.names[name] = _held(writer, ours, found)
            else:
                where = Entry(DIR, found.mode, found.mtime_ns, xattrs=ours.xattrs(found))
                known[each] = folder.below[name] = _Folder(where, {})
    return _write(writer, tree).digest.hex()


def _held(writer: Writer, ours: Folder, found: Entry | None) -> Entry:
    if found is None:
        return Entry(WHITEOUT)
    if found.kind != FILE:
        return Entry(found.kind, found.mode, found.mtime_ns, found.size, target=found.target)
    data = ours.read(found)
    digest = writer.put(data) if len(data) <= CHUNK else keep_large(writer, data)
    kept = flags(sparse=found.sparse)
    return Entry(FILE, found.mode, found.mtime_ns, len(data), digest, xattrs=ours.xattrs(found), flags=kept)


def as_begun(writer: Writer, base: Tree, theirs: Tree, paths: Sequence[str], since: Since) -> tuple[str, list[str]]:
    """Return the root of base with the initial version of entries that the user has changed since, and the unknown
    ones.

    The caller commits the writer. `paths`, such as `work/src`, limits this to these paths and below. The second value
    lists the paths whose initial version is not recorded anywhere.
    """
    made = _Graft(writer, base, theirs)
    top = dict(base.top.layers[0].entries())
    work = top["work"] if top["work"].digest != NO_DIGEST else made.like_theirs("work", over=top["work"].over)
    tree = _Folder(work, _entries(base.objects, work.digest))
    unknown = []
    for delta in compare(base, theirs, paths):
        path = delta.path.removeprefix("work/")
        before = delta.old
        if before is None and (delta.new is None or not since.is_deleted(base, theirs, path)):
            continue
        if before is not None and (before.kind not in (FILE, LINK) or not since.is_edited(base, path, before)):
            continue
        began = since.find(theirs, path)
        if began is None:
            unknown.append(path)
            continue
        above, _, name = delta.path.rpartition("/")
        like = before or delta.new
        mode = like.mode if like is not None and like.kind == FILE else 0o644
        made.open(tree, above).names[name] = Entry(
            began.kind, mode if began.kind == FILE else 0o777, began.mtime_ns, began.size, began.digest, began.target
        )
    top["work"] = _write(writer, tree)
    return writer.put_tree(_encode(top)).hex(), unknown


def lay_on(writer: Writer, tree: Tree, key: str) -> str:
    """Return the root of the same state over another stack. The caller commits the writer."""
    if tree.root.startswith("layer:"):
        return layer_root(key)
    names = dict(tree.top.layers[0].entries())
    names["work"].over = key
    return writer.put_tree(_encode(names)).hex()


def choose_hunks(writer: Writer, base: Tree, theirs: Tree, chosen: Mapping[str, Sequence[str]]) -> str:
    """Return the root of `theirs` in which these files of `work/` have only the chosen hunks: path -> hunk ids.

    The caller commits the writer. Raise HunkNotFound if a file has changed since its hunks were listed.
    """
    made = _Graft(writer, theirs, theirs)
    top = dict(theirs.top.layers[0].entries())
    tree = _Folder(top["work"], _entries(theirs.objects, top["work"].digest))
    for path, ids in chosen.items():
        above, _, name = f"work/{path}".rpartition("/")
        before, after = base.find(f"work/{path}"), theirs.find(f"work/{path}")
        found = find_hunks(base, theirs, Pair(path, before, path, after))
        unknown = [each for each in ids if each not in {hunk.id for hunk, _ in found}]
        if unknown or before is None or after is None:
            raise HunkNotFound(
                f"{path} has no hunk {', '.join(unknown)}",
                hint="aw diff --hunks lists them; a file that was edited since, or is new or gone, is given back whole",
            )
        data = with_groups(base.read(before), theirs.read(after), [group for hunk, group in found if hunk.id in ids])
        raw = theirs.folder(above).raw(name)
        made.open(tree, above).names[name] = Entry(
            FILE,
            after.mode if len(set(ids)) == len(found) else before.mode,
            after.mtime_ns,
            len(data),
            writer.put(data) if len(data) <= CHUNK else keep_large(writer, data),
            xattrs=theirs.xattrs(after),
            was=raw.was if raw is not None else b"",
        )
    top["work"] = _write(writer, tree)
    return writer.put_tree(_encode(top)).hex()


def hold_contents(writer: Writer, plan: Plan) -> str:
    """Return a root that keeps every content needed to execute or undo the plan. The caller commits the writer."""
    names: dict[str, Entry] = {}
    for step in plan.steps:
        if step.action == "write":
            names[step.digest] = Entry(FILE, size=step.size, digest=bytes.fromhex(step.digest))
        if step.before.startswith("f"):
            digest = step.before.partition(":")[2]
            names[digest] = Entry(FILE, size=step.old_size, digest=bytes.fromhex(digest))
    return writer.put_tree(_encode(names)).hex()


def _entries(objects: Objects, digest: bytes) -> dict[str, Entry]:
    return decode_tree(objects.get(digest)) if digest != NO_DIGEST else {}


def _encode(names: dict[str, Entry]) -> bytes:
    return encode_tree({name: encode_entry(name, entry) for name, entry in names.items()})
