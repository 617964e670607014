"""Garbage collection of the object store: drop the objects that no snapshot needs; verify the rest.

A collection never blocks a writer for long. Reachable objects are marked without a lock; then, under a short exclusive
lock, the roots are read again, new roots are marked too, and unmarked objects are deleted from the index. From then on
no writer can rely on them, and their bytes are removed without a lock: a pack without live objects is unlinked, a pack
with few is rewritten, compressed, together with other small packs. A crash in between leaves unreferenced bytes, which
the next collection removes.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

from workstead.errors import DiskFull, StoreDamaged, from_os
from workstead.model.snapshot import EMPTY
from workstead.model.value import Value
from workstead.snapshots import packs
from workstead.snapshots.entries import CHUNK, DIR, FILE, decode_pieces, decode_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workstead.snapshots.objects import Store

_SMALL_PACK = 1 << 20
_ENOUGH_SMALL = 16  # number of small packs from which on they are joined
_LEFT_BEHIND_SECONDS = 60
_WASTE = 0.3  # a pack with a larger dead fraction is rewritten


class Collected(Value):
    """The result of a collection, or of a dry run."""

    objects: int
    freed_bytes: int
    kept_objects: int
    kept_bytes: int


class Problem(Value):
    """A damaged object or pack."""

    where: str
    what: str


def collect(store: Store, live_roots: Callable[[], Iterable[str]], *, dry_run: bool = False) -> Collected:
    """Drop every object that no live root needs. `live_roots` is called twice, the second time with writers locked out.

    Raise StoreDamaged, with nothing dropped, if a live root cannot be read in full: damage must not be made worse.
    """
    marked: set[bytes] = set()
    _mark(store, live_roots(), marked)
    if dry_run:
        return _count(store, marked)
    with store.hold_collecting():
        with store.hold_alone():
            _mark(store, live_roots(), marked)
            try:
                counted = _drop(store, marked)
            except DiskFull:
                if not store.use_reserve():
                    raise
                counted = _drop(store, marked)
        try:
            _remove_leftovers(store)
            _tidy(store)
        except OSError as error:
            raise from_os(error, "the snapshot store") from error
        finally:
            store.make_reserve()
    return counted


def _drop(store: Store, marked: set[bytes]) -> Collected:
    """Delete unmarked objects from the index."""
    store.refresh()
    counted = _count(store, marked)
    if counted.objects:
        # Increment the generation first: if we are killed now, an older stat cache must not be trusted.
        try:
            store.next_generation()
        except OSError as error:
            raise from_os(error, "the snapshot store") from error
        with store.transaction() as index:
            dead = [(digest,) for (digest,) in index.execute("SELECT digest FROM objects") if digest not in marked]
            index.executemany("DELETE FROM objects WHERE digest = ?", dead)
        # Sync before a pack is removed: after a power cut an older index would list its objects, and the next snapshot
        # would rely on them.
        try:
            store.sync_index()
        except OSError as error:
            raise from_os(error, "the snapshot store") from error
    return counted


def reachable(store: Store, roots: Iterable[str]) -> set[bytes]:
    """Return the digests of all objects that the roots need. Raise StoreDamaged if an object is missing."""
    marked: set[bytes] = set()
    _mark(store, roots, marked)
    return marked


def stack_keys(store: Store, roots: Iterable[str]) -> set[str]:
    """Return the lower stacks that the roots lie on: their layers must stay too."""
    keys = set()
    for root in roots:
        if root.startswith("layer:"):
            keys.add(root[6:])
        elif root != EMPTY:
            work = decode_tree(store.get(bytes.fromhex(root))).get("work")
            if work is not None and work.over:
                keys.add(work.over)
    return keys


def _mark(store: Store, roots: Iterable[str], marked: set[bytes]) -> None:
    todo = [bytes.fromhex(root) for root in roots if root != EMPTY and not root.startswith("layer:")]
    while todo:
        tree = todo.pop()
        if tree in marked:
            continue
        marked.add(tree)
        for entry in decode_tree(store.get(tree)).values():
            if entry.kind == DIR:
                todo.append(entry.digest)
            elif entry.kind == FILE and entry.digest not in marked:
                marked.add(entry.digest)
                if entry.size > CHUNK:
                    marked.update(digest for _, digest in decode_pieces(store.get(entry.digest)))
            if entry.was:
                marked.add(entry.was)


def _count(store: Store, marked: set[bytes]) -> Collected:
    dead = dead_bytes = kept = kept_bytes = 0
    for digest, stored in store.index().execute("SELECT digest, stored FROM objects"):
        size = stored + packs.RECORD.size
        if digest in marked:
            kept += 1
            kept_bytes += size
        else:
            dead += 1
            dead_bytes += size
    return Collected(objects=dead, freed_bytes=dead_bytes, kept_objects=kept, kept_bytes=kept_bytes)


def _remove_leftovers(store: Store) -> None:
    """Remove temporary files of dead writers: a live writer holds a lock on its file."""
    for name in os.listdir(store.packs_path):
        if not name.startswith(packs.TEMPORARY):
            continue
        path = os.path.join(store.packs_path, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A writer locks its file a moment after creating it, so a young file may not be locked yet.
            if os.fstat(fd).st_mtime < time.time() - _LEFT_BEHIND_SECONDS:
                os.unlink(path)
        except (BlockingIOError, FileNotFoundError):
            continue
        finally:
            os.close(fd)


def _tidy(store: Store) -> None:
    """Remove packs without live objects; rewrite packs that are mostly waste or small and many."""
    live: dict[int, int] = dict(
        store.index().execute("SELECT pack, SUM(stored + ?) FROM objects GROUP BY pack", (packs.RECORD.size,))
    )
    wasteful, small = [], []
    for pack, name, size in list(store.index().execute("SELECT id, name, bytes FROM packs")):
        if not live.get(pack):
            _remove_pack(store, pack, name)
        elif live[pack] < size * (1 - _WASTE):
            wasteful.append((pack, name))
        elif size < _SMALL_PACK:
            small.append((pack, name))
    if len(small) >= _ENOUGH_SMALL:
        wasteful += small
    if wasteful:
        _rewrite(store, wasteful)


def _remove_pack(store: Store, pack: int, name: str) -> None:
    # Unlink the file inside the transaction that deletes the pack from the index. With the opposite order another
    # process could find an unknown pack, index its objects again, and rely on them after the file is gone.
    with store.transaction() as index:
        if index.execute("SELECT 1 FROM objects WHERE pack = ? LIMIT 1", (pack,)).fetchone() is not None:
            return
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(store.packs_path, name))
        index.execute("DELETE FROM packs WHERE id = ?", (pack,))
    store.forget_packs()


def _rewrite(store: Store, old: list[tuple[int, str]]) -> None:
    packer = packs.Packer(store.packs_path, compress=True)
    try:
        for pack, name in old:
            fd = os.open(os.path.join(store.packs_path, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                rows = store.index().execute(
                    "SELECT digest, at, coding, raw, stored FROM objects WHERE pack = ? ORDER BY at", (pack,)
                )
                for digest, at, coding, raw, stored in rows.fetchall():
                    if coding == packs.RAW and raw < CHUNK:
                        packer.add(digest, packs.read_object(fd, digest, at, coding, stored))
                    else:
                        packer.append(digest, coding, raw, os.pread(fd, stored, at))
            except packs.Damaged as error:
                raise StoreDamaged(f"{name}: {error}", hint="aw verify --deep lists what is damaged") from error
            finally:
                os.close(fd)
        packer.finish()
        # Index only objects that are still listed: a concurrent collection may have dropped some since.
        with store.transaction() as index:
            index.execute("INSERT INTO packs (name, bytes) VALUES (?, ?)", (packer.name, packer.size))
            (new,) = index.execute("SELECT id FROM packs WHERE name = ?", (packer.name,)).fetchone()
            index.executemany(
                "UPDATE objects SET pack = ?, at = ?, coding = ?, raw = ?, stored = ? WHERE digest = ?",
                [(new, at, coding, raw, stored, digest) for digest, at, coding, raw, stored in packer.rows],
            )
    finally:
        packer.abandon()
    for pack, name in old:
        _remove_pack(store, pack, name)


def verify(store: Store, roots: Iterable[str] = ()) -> list[Problem]:
    """Read every byte of the store and compare it with its digest; then check that the roots are complete."""
    problems: list[Problem] = []
    whole: set[bytes] = set()
    try:
        store.refresh()
        names = sorted(name for name in os.listdir(store.packs_path) if not name.startswith(packs.TEMPORARY))
    except OSError as error:
        raise from_os(error, "the snapshot store") from error
    for name in names:
        _verify_pack(store, name, whole, problems)
    for (digest,) in store.index().execute("SELECT digest FROM objects"):
        if digest not in whole:
            problems.append(Problem(where=digest.hex(), what="named by the index, and in no pack"))
    for root in roots:
        try:
            missing = reachable(store, [root]) - whole
        except (StoreDamaged, ValueError) as error:
            problems.append(Problem(where=root, what=str(error)))
            continue
        problems += [Problem(where=root, what=f"object {digest.hex()} is missing") for digest in sorted(missing)]
    return problems


def verify_pack(store: Store, name: str, pace: Callable[[int], None]) -> list[Problem]:
    """Read one pack and compare each object with its digest; `pace` is called with the size of each."""
    problems: list[Problem] = []
    _verify_pack(store, name, set(), problems, pace)
    return problems


def _verify_pack(
    store: Store, name: str, whole: set[bytes], problems: list[Problem], pace: Callable[[int], None] = lambda _: None
) -> None:
    try:
        fd = os.open(os.path.join(store.packs_path, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(Problem(where=name, what=str(error)))
        return
    try:
        for digest, at, coding, raw, stored in packs.read_rows(fd):
            try:
                data = packs.read_object(fd, digest, at, coding, stored)
                if len(data) != raw:
                    raise packs.Damaged("wrong length")
                whole.add(digest)
                pace(stored)
            except packs.Damaged as error:
                problems.append(Problem(where=f"{name}: {digest.hex()}", what=str(error)))
    except packs.Damaged as error:
        problems.append(Problem(where=name, what=str(error)))
    finally:
        os.close(fd)
