"""The object store: what goes in comes out, and nothing that is needed goes away."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from desks import Desk, describe

from situations import tiny_disk
from workstead.errors import DiskFull, StoreDamaged, StoreFull
from workstead.snapshots import packs
from workstead.snapshots.gc import collect, stack_keys, verify
from workstead.snapshots.objects import Store
from workstead.snapshots.take import take
from workstead.system.files import wal_mode


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(str(tmp_path / "store")) as opened:
        yield opened


def put(store: Store, *contents: bytes) -> list[bytes]:
    with store.writer() as writer:
        digests = [writer.put(content) for content in contents]
        writer.commit()
    return digests


def pack_files(store: Store) -> list[Path]:
    return sorted(Path(store.packs_path).glob("*.pack"))


def test_what_is_put_comes_back_in_this_and_in_another_process(store: Store) -> None:
    contents = [b"", b"a", os.urandom(5000), b"text " * 20000, os.urandom(1 << 20)]
    digests = put(store, *contents)
    assert [store.get(digest) for digest in digests] == contents
    with Store(store.path) as again:
        assert [again.get(digest) for digest in digests] == contents
    assert verify(store) == []


def test_an_object_is_stored_once(store: Store) -> None:
    put(store, b"same" * 1000)
    before = store.stored_bytes()
    put(store, b"same" * 1000)
    assert store.stored_bytes() == before
    assert len(pack_files(store)) == 1


def test_text_is_compressed_and_random_bytes_are_not(store: Store) -> None:
    put(store, b"all work and no play\n" * 50_000)
    small = store.stored_bytes()
    assert small < 100_000
    noise = os.urandom(1 << 20)
    put(store, noise)
    coding = dict(store.index().execute("SELECT raw, coding FROM objects"))
    assert coding[len(noise)] == packs.RAW


def test_without_commit_nothing_stays(store: Store) -> None:
    with store.writer() as writer:
        writer.put(b"x" * 1000)
    assert os.listdir(store.packs_path) == []


@pytest.mark.parametrize("damage", ["missing", "garbage", "cut"])
def test_a_lost_index_is_made_again_from_the_packs(store: Store, damage: str) -> None:
    digests = put(store, b"one" * 100, b"two" * 100) + put(store, b"three" * 100)
    store.close()
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        path = Path(store.path, name)
        if not path.exists():
            continue
        if damage == "missing":
            path.unlink()
        elif damage == "garbage":
            path.write_bytes(os.urandom(4096))
        else:
            path.write_bytes(path.read_bytes()[:100])
    assert [store.get(digest)[:3] for digest in digests] == [b"one", b"two", b"thr"]
    assert verify(store) == []


def test_a_full_disk_is_not_taken_for_a_damaged_index(tmp_path: Path) -> None:
    """SQLite says "disk I/O error" for both. Rebuilding the index would need the room that is not there."""
    with tiny_disk(tmp_path / "disk", "2m") as disk:
        with Store(str(disk / "store")) as store:
            (digest,) = put(store, b"kept" * 100)
        index = disk / "store/index.db"
        before = index.stat().st_ino
        with open(disk / "filler", "wb", buffering=0) as filler, suppress(OSError):
            while filler.write(bytes(4096)):
                pass
        with Store(str(disk / "store")) as store:
            assert store.get(digest) == b"kept" * 100  # looking needs no room
            with pytest.raises(DiskFull):
                put(store, b"new" * 100)
        assert index.stat().st_ino == before
        (disk / "filler").unlink()
        with Store(str(disk / "store")) as store:
            assert store.get(digest) == b"kept" * 100


def test_a_pack_that_a_crash_kept_from_the_index_is_found(store: Store) -> None:
    put(store, b"first" * 100)
    packer = packs.Packer(store.packs_path)
    import hashlib

    digest = hashlib.sha256(b"second" * 100).digest()
    packer.add(digest, b"second" * 100)
    packer.finish()
    assert not store.has(digest)
    assert store.get(digest) == b"second" * 100
    assert store.has(digest)


def test_a_changed_byte_is_found_by_reading_and_by_verify(store: Store) -> None:
    (digest,) = put(store, b"precious" * 100)
    store.close()
    (pack,) = pack_files(store)
    data = bytearray(pack.read_bytes())
    data[100] ^= 1
    pack.write_bytes(data)
    with pytest.raises(StoreDamaged):
        store.get(digest)
    assert any("digest" in problem.what for problem in verify(store))


def test_a_cut_pack_is_named_by_verify(store: Store) -> None:
    put(store, b"precious" * 100)
    store.close()
    (pack,) = pack_files(store)
    pack.write_bytes(pack.read_bytes()[:-40])
    assert any(pack.name in problem.where for problem in verify(store))


def test_a_missing_object_is_an_error_and_not_empty(store: Store) -> None:
    put(store, b"x")
    with pytest.raises(StoreDamaged, match="missing"):
        store.get(b"\1" * 32)


def test_a_full_store_refuses_and_keeps_what_it_has(tmp_path: Path, desk: Desk) -> None:
    desk.write("small", "x")
    first = desk.take()
    desk.store.max_bytes = desk.store.stored_bytes() + 50_000
    desk.write("noise", os.urandom(200_000))
    with pytest.raises(StoreFull):
        desk.take()
    assert verify(desk.store, [first.root]) == []
    assert not [name for name in os.listdir(desk.store.packs_path) if name.startswith(packs.TEMPORARY)]
    desk.store.max_bytes = None
    assert desk.take().root != first.root


# -- collecting --------------------------------------------------------------------------------------------------------


def test_collecting_says_first_what_it_would_free_and_then_frees_it(desk: Desk) -> None:
    kept = desk.write("kept", os.urandom(50_000))
    desk.write("gone", os.urandom(50_000))
    first = desk.take()
    (desk.work / "gone").unlink()
    second = desk.take()
    would = collect(desk.store, lambda: [second.root], dry_run=True)
    assert would.freed_bytes > 50_000
    assert verify(desk.store, [first.root, second.root]) == []
    did = collect(desk.store, lambda: [second.root])
    assert did == would
    assert desk.store.stored_bytes() < 60_000
    assert verify(desk.store, [second.root]) == []
    assert verify(desk.store, [first.root]) != []
    kept.write_text("changed")
    desk.restore(second.root)
    assert kept.stat().st_size == 50_000
    assert collect(desk.store, lambda: [second.root]).objects == 0


def test_a_stat_cache_from_before_a_collection_does_not_lose_files(desk: Desk) -> None:
    for number in range(20):
        desk.write(f"d{number % 3}/f{number}", f"content {number}" * 50)
    desk.write("large", os.urandom(3 << 20))
    desk.take()
    time.sleep(0.03)
    desk.take()  # everything is in the cache now
    collect(desk.store, list)
    assert desk.store.stored_bytes() == 0
    again = desk.take()
    assert verify(desk.store, [again.root]) == []
    before = describe(desk.root)
    (desk.work / "large").unlink()
    desk.restore(again.root)
    assert describe(desk.root) == before


def test_looking_after_a_collection_does_not_miss_what_the_cache_names(desk: Desk) -> None:
    for number in range(20):
        desk.write(f"d{number % 3}/f{number}", f"content {number}" * 50)
    desk.take()
    time.sleep(0.03)
    desk.take()
    collect(desk.store, list)
    assert len(desk.status()) == 20


def test_many_small_packs_are_joined(desk: Desk) -> None:
    roots = []
    for number in range(40):
        desk.write("file", f"version {number}\n" * 100)
        roots.append(desk.take().root)
    assert len(pack_files(desk.store)) == 40
    collect(desk.store, lambda: roots)
    assert len(pack_files(desk.store)) == 1
    assert verify(desk.store, roots) == []


def test_collecting_refuses_to_drop_anything_while_a_live_root_is_damaged(desk: Desk) -> None:
    desk.write("a", "a")
    first = desk.take()
    desk.write("a", "b")
    desk.take()
    with pytest.raises(StoreDamaged):
        collect(desk.store, lambda: ["ab" * 32])
    assert verify(desk.store, [first.root]) == []


def _take_many(scratch: str, name: str, roots: str, seconds: float) -> None:
    from desks import Desk as Made

    desk = Made(Path(scratch), name, store=Store(os.path.join(scratch, "home", "snapshots")))
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        desk.write(f"f{number % 7}", f"{number % 5}" * 3000)
        with desk.store.hold():
            taken = take(desk.store, desk.place, cache_path=desk.cache)
            # Only the last few count as kept, so that collecting always finds something to drop.
            Path(roots, name + ".new").write_text(taken.root)
            os.rename(Path(roots, name + ".new"), Path(roots, name))
        number += 1
    os._exit(0)


def test_collecting_beside_writers_never_drops_what_they_just_recorded(tmp_path: Path) -> None:
    roots = tmp_path / "roots"
    roots.mkdir()
    context = multiprocessing.get_context("fork")
    writers = [
        context.Process(target=_take_many, args=(str(tmp_path), f"w{number}", str(roots), 2.0)) for number in range(3)
    ]
    for writer in writers:
        writer.start()

    def live() -> list[str]:
        return [path.read_text() for path in roots.iterdir() if not path.name.endswith(".new")]

    with Store(str(tmp_path / "home" / "snapshots")) as store:
        rounds = 0
        while any(writer.is_alive() for writer in writers):
            if live():
                collect(store, live)
                rounds += 1
        for writer in writers:
            writer.join()
        assert rounds > 3
        assert len(live()) == 3
        assert verify(store, live()) == []


def test_the_layers_that_snapshots_lie_on_can_be_asked_for(overlay_desk: Desk) -> None:
    overlay_desk.write("x", "x")
    taken = overlay_desk.take()
    assert stack_keys(overlay_desk.store, [taken.root, overlay_desk.base, "empty"]) == {"desk-0"}


def test_an_index_that_another_process_is_making_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite does not wait when it switches a file to write-ahead logging: without our wait it was opened to read."""
    store = Store(str(tmp_path / "store"))
    (tmp_path / "store").mkdir()
    other = sqlite3.connect(tmp_path / "store" / "index.db", isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE t (a)")
    other.execute("BEGIN IMMEDIATE")
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        other.close()

    monkeypatch.setattr(wal_mode, "time", SimpleNamespace(monotonic=time.monotonic, sleep=wait))
    with store.transaction() as index:
        index.execute("INSERT INTO packs (name, bytes) VALUES ('a', 1)")
    assert len(waits) == 1
    store.close()
