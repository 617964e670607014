"""Take a snapshot of a workspace, or read its present state without storing it."""

from __future__ import annotations

import gc
import os
from contextlib import ExitStack, contextmanager

from workstead.errors import FilesystemError, PartReplaced
from workstead.model.snapshot import EMPTY, LeftOut, Limits, Taken, layer_root
from workstead.snapshots import cache as stat_cache
from workstead.snapshots.cache import Directory
from workstead.snapshots.entries import CHUNK, DIR, FILE, LEFT_OUT, Entry, encode_entry, encode_tree, flags
from workstead.snapshots.objects import Scratch
from workstead.snapshots.origins import Origins
from workstead.snapshots.trees import Tree
from workstead.snapshots.walker import Redirected, Walk
from workstead.system.files.parts import open_folder, open_part
from workstead.system.kernel.boot import this_boot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workstead.model.snapshot import Place, Stack
    from workstead.snapshots.cache import Directories
    from workstead.snapshots.objects import Sink, Store
    from workstead.snapshots.trees import FindStack

NOTES = ("AGENTS.md", "CLAUDE.md")
LIMITS = Limits()


def take(
    store: Store,
    place: Place,
    find_stack: FindStack = lambda _: None,
    *,
    cache_path: str = "",
    previous: str = "",
    live: bool = False,
    limits: Limits = LIMITS,
) -> Taken:
    """Store the state of a workspace and return its root, durable when this returns.

    `previous` is the root of the last snapshot: it has the original of a change when the user has edited that since.
    `live` says that an agent may be running: the result is marked, and nothing new goes into the stat cache. Call this
    inside `store.hold()` together with the record of the root. Raise DiskFull or StoreFull; then nothing was stored.
    """
    with store.hold(), store.writer() as writer:
        generation = store.generation()
        key = _cache_key(place, limits)
        memory = stat_cache.load(cache_path, key) if cache_path else stat_cache.Memory(generation, {})
        cached, trust = memory.directories, memory.generation == generation
        with Tree(writer, previous or EMPTY, with_own_stack(place, find_stack)) as earlier:
            seen = _see(writer, place, cached, trust=trust, live=live, limits=limits, keep_was=True, earlier=earlier)
        writer.commit()
        if cache_path and (seen.changed or seen.gone):
            stat_cache.save(cache_path, key, generation, memory, seen.changed, seen.gone)
        with Tree(writer, seen.root) as tree:
            left_out, torn = _gaps(tree) if seen.gaps else ((), ())
        return Taken(
            root=seen.root,
            files=seen.files,
            size=seen.size,
            left_out=left_out,
            torn=torn,
            live=live,
            stored_bytes=writer.stored_bytes,
        )


@contextmanager
def look(
    store: Store,
    place: Place,
    find_stack: FindStack = lambda _: None,
    *,
    cache_path: str = "",
    contents: bool = False,
    limits: Limits = LIMITS,
) -> Iterator[Tree]:
    """Yield the present state without storing it. With `contents`, files can be read, not only compared."""
    # Objects that the cache refers to must not be dropped meanwhile.
    with store.hold(), Scratch(store, contents=contents) as scratch:
        generation = store.generation()
        key = _cache_key(place, limits)
        memory = stat_cache.load(cache_path, key) if cache_path else stat_cache.Memory(generation, {})
        cached, trust = memory.directories, memory.generation == generation
        seen = _see(scratch, place, cached, trust=trust, live=True, limits=limits, keep_was=False)
        with Tree(scratch, seen.root, with_own_stack(place, find_stack)) as tree:
            yield tree


def with_own_stack(place: Place, find_stack: FindStack) -> Callable[[str], Stack | None]:
    """Return a stack finder that knows the workspace's own stack without a lookup."""
    own = place.overlay.stack if place.overlay is not None else None
    return lambda key: own if own is not None and own.key == key else find_stack(key)


def _gaps(tree: Tree) -> tuple[tuple[LeftOut, ...], tuple[str, ...]]:
    left_out, torn = [], []
    for path, entry in tree.gaps():
        if entry.kind == LEFT_OUT:
            left_out.append(LeftOut(path=path, kind=entry.target, size=entry.size))
        else:
            torn.append(path)
    return tuple(sorted(left_out, key=lambda each: each.path)), tuple(sorted(torn))


# -- the walk over `work`, `output` and the rest -----------------------------------------------------------------------


class _Seen:
    """The combined result of walking the parts of a workspace."""

    def __init__(self) -> None:
        self.root = ""
        self.files = 0
        self.size = 0
        self.gaps = False
        self.names: dict[str, bytes] = {}
        self.changed: Directories = {}
        self.gone: set[str] = set()

    def add(self, name: str, entry: Entry, files: int, walk: Walk | None = None) -> None:
        self.names[name] = encode_entry(name, entry)
        self.files += files
        self.size += entry.size if entry.kind in (DIR, FILE) else 0
        self.gaps |= entry.kind == LEFT_OUT or (entry.kind in (DIR, FILE) and entry.gaps)
        if walk is not None:
            self.changed.update(walk.changed)
            self.gone |= walk.gone


def _cache_key(place: Place, limits: Limits) -> str:
    """Return the key of a stat cache: another directory, other limits or another boot invalidate it.

    After a power cut a file may have its old size and times but zeros as content, while the cache still describes the
    old content. So after each boot everything is read once.
    """
    overlay = place.overlay
    if overlay is None:
        return "\0".join((this_boot(), place.work or place.root, str(limits)))
    stack = overlay.stack  # not its key, which an apply changes while the upper layer stays the same
    return "\0".join((this_boot(), overlay.upper, *stack.layers, stack.marks, str(stack.fixed_ns), str(limits)))


def _see(
    sink: Sink,
    place: Place,
    cached: Directories,
    *,
    trust: bool,
    live: bool,
    limits: Limits,
    keep_was: bool,
    earlier: Tree | None = None,
) -> _Seen:
    # 50,000 tuples are created and kept: Python's garbage collector would scan all of them repeatedly for nothing.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _see_parts(
            sink, place, cached, trust=trust, live=live, limits=limits, keep_was=keep_was, earlier=earlier
        )
    finally:
        if collecting:
            gc.enable()


def _see_parts(
    sink: Sink,
    place: Place,
    cached: Directories,
    *,
    trust: bool,
    live: bool,
    limits: Limits,
    keep_was: bool,
    earlier: Tree | None = None,
) -> _Seen:
    seen = _Seen()

    def new_walk(marks: str = "", find_was: Callable[[str], bytes] | None = None) -> Walk:
        return Walk(sink, limits, cached=cached, trust_objects=trust, live=live, marks=marks, find_was=find_was)

    root = open_part(place.root, ".")
    try:
        _see_work(seen, place, new_walk, sink if keep_was else None, earlier)
        walk = new_walk()
        try:
            fd = open_part(place.root, "output")
        except PartReplaced as replaced:
            if replaced.details["kind"]:  # the agent replaced it by something else
                seen.add("output", Entry(LEFT_OUT, target="foreign"), 0)
        else:
            try:
                entry, files = walk.run(fd, "output")
            finally:
                os.close(fd)
            seen.add("output", entry, files, walk)
        for name in NOTES:
            note = walk.read_note(root, name)
            if note is not None:
                seen.add(name, note, note.kind == FILE)
    finally:
        os.close(root)
    _see_root(seen, sink, cached, trust=trust)
    return seen


def _see_root(seen: _Seen, sink: Sink, cached: Directories, *, trust: bool) -> None:
    """Add the top of the tree; if it is unchanged, the store is not even opened."""
    data = encode_tree(seen.names)
    old = cached.get("")
    if trust and old is not None and old.head == data:
        digest = old.digest
    else:
        digest = sink.put_tree(data)
        seen.changed[""] = Directory((0, 0, 0), data, digest, (0, 0), (0, 0, 0), b"", b"", {})
    seen.root = digest.hex()


def _see_work(
    seen: _Seen,
    place: Place,
    new_walk: Callable[..., Walk],
    keep: Sink | None,
    earlier: Tree | None,
) -> None:
    overlay = place.overlay
    if overlay is not None:
        stack = overlay.stack
        with ExitStack() as opened, Tree(keep, layer_root(stack.key), lambda _: stack) if keep else _nothing() as lower:
            find_was = None
            if keep and lower is not None and stack.fixed_ns:
                find_was = _preserver(keep, lower, stack, earlier, opened.enter_context(Origins(overlay)))
            walk = new_walk(stack.marks, find_was)
            try:
                fd = open_part(*os.path.split(overlay.upper))
                try:
                    entry, files = walk.run(fd, "work")
                finally:
                    os.close(fd)
                entry.over = stack.key
                entry.flags &= ~flags(opaque=True)
                seen.add("work", entry, files, walk)
                return
            except Redirected:
                pass  # created by another overlay than ours: read through the mount instead
    fd = open_work(place)
    walk = new_walk()
    try:
        entry, files = walk.run(fd, "work")
    finally:
        os.close(fd)
    seen.add("work", entry, files, walk)


def open_work(place: Place) -> int:
    """Return a readable descriptor of a workspace's `work` directory."""
    if place.in_place:
        return open_folder(place.work)
    return open_part(*os.path.split(place.work or f"{place.root}/work"))


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


def _preserver(sink: Sink, lower: Tree, stack: Stack, earlier: Tree | None, origins: Origins) -> Callable[[str], bytes]:
    """Return a function that stores the original of a changed file of a user's folder and returns its digest.

    The user may edit the folder later, and a three-way merge needs the common ancestor. Once the user has edited it,
    the fallback is the digest in an earlier snapshot.
    """

    def known_before(path: str) -> bytes:
        was = earlier.was(path) if earlier else b""
        return was if was and sink.has(was) else b""

    def find_was(path: str) -> bytes:
        entry = lower.find(path)
        # Deleted or replaced since, by the user or by one of our applies.
        if entry is None or lower.ctime_ns(entry) > stack.fixed_ns or origins.is_exchanged(path.removeprefix("work/")):
            return known_before(path)
        if entry.kind != FILE or entry.size > CHUNK:
            return b""
        try:
            return sink.put(lower.read(entry))
        except (OSError, FilesystemError):
            return b""

    return find_was
