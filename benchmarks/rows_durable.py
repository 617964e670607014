"""What it costs that an acknowledged change is on the disk: ours beside the same calls with the same syncs by hand."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from harness import Row

import workstead

COUNT = itertools.count()
TEXT = b"x" * 2000
DOCUMENTS = ("task_spec.json", "workspace_config.json", "context.json", "run.json")
CALLERS = 8
POOL = ThreadPoolExecutor(CALLERS)
libc = ctypes.CDLL(None)


def rows(scratch: str) -> Iterator[Row]:
    os.makedirs(f"{scratch}/raw")
    os.makedirs(f"{scratch}/origin")
    for number in range(20):
        _write(f"{scratch}/origin/{number}.txt", TEXT, sync=False)
    home = workstead.open(f"{scratch}/home")
    raw = Raw(f"{scratch}/raw")
    one = home.create(id="bench/a")
    many = [home.create(id=f"bench/caller-{number}") for number in range(CALLERS)]
    back = home.create(id="bench/back", source=f"overlay:{scratch}/origin")
    yield Row(
        "durable write_file of 2 kB (by hand: the same 3 syncs)",
        {
            "workstead": lambda: home.write_file(one.id, "work/f", TEXT),
            "the same with syncs by hand": raw.write,
            "the same without syncs": lambda: raw.write(sync=False),
        },
        aim="by hand <= 1.5x",
        rounds=40,
    )
    yield Row(
        f"durable write_file of 2 kB by {CALLERS} callers in one workspace (by hand: 3 syncs each)",
        {
            "workstead": lambda: _all(lambda number: home.write_file(one.id, f"work/f{number}", TEXT)),
            "the same with syncs by hand": lambda: _all(lambda number: raw.write(f"f{number}")),
        },
        aim="by hand <= 1.5x",
        rounds=20,
    )
    yield Row(
        f"durable write_file of 2 kB by {CALLERS} callers in {CALLERS} workspaces (by hand: 3 syncs each)",
        {
            "workstead": lambda: _all(lambda number: home.write_file(many[number].id, "work/f", TEXT)),
            "the same with syncs by hand": lambda: _all(lambda number: raw.write(f"f{number}")),
        },
        aim="by hand <= 1.5x",
        rounds=20,
    )
    yield Row(
        "durable create (by hand: the same 4 syncs)",
        {
            "workstead": lambda: home.create(id=f"bench/{next(COUNT)}"),
            "the same with syncs by hand": raw.create,
            "the same without syncs": lambda: raw.create(sync=False),
        },
        aim="by hand <= 1.5x",
        rounds=40,
    )
    yield Row(
        f"durable create by {CALLERS} callers (by hand: 4 syncs each)",
        {
            "workstead": lambda: _all(lambda _: home.create(id=f"bench/{next(COUNT)}")),
            "the same with syncs by hand": lambda: _all(lambda _: raw.create()),
        },
        aim="by hand <= 1.5x",
        rounds=20,
    )
    yield Row(
        "durable snapshot of one changed file (by hand: the same 3 syncs)",
        {"workstead": lambda: home.snapshot(one.id), "the same with syncs by hand": raw.snapshot},
        before={
            "workstead": lambda: home.write_file(one.id, "work/f", os.urandom(2000)),
            "the same with syncs by hand": raw.write,
        },
        aim="by hand <= 1.5x",
        rounds=30,
    )
    yield Row(
        f"durable snapshot of one changed file by {CALLERS} callers (by hand: 3 syncs each)",
        {
            "workstead": lambda: _all(lambda number: home.snapshot(many[number].id)),
            "the same with syncs by hand": lambda: _all(lambda _: raw.snapshot()),
        },
        before={
            "workstead": lambda: [home.write_file(each.id, "work/f", os.urandom(2000)) for each in many],
            "the same with syncs by hand": lambda: [raw.write(f"f{number}") for number in range(CALLERS)],
        },
        aim="by hand <= 1.5x",
        rounds=20,
    )
    yield Row(
        "durable apply of one changed file, with the snapshots that undo needs",
        {
            "workstead": lambda: home.apply(back.id),
            f"by hand with the same {Raw.SYNCS_OF_APPLY} syncs": raw.apply,
            "by hand without undo and recovery, 4 syncs": raw.apply_without_undo,
        },
        before={
            "workstead": lambda: home.write_file(back.id, "work/1.txt", os.urandom(1000).hex()),
            f"by hand with the same {Raw.SYNCS_OF_APPLY} syncs": raw.write,
            "by hand without undo and recovery, 4 syncs": raw.write,
        },
        aim="the same syncs by hand <= 1.5x",
        rounds=20,
    )
    yield Row(
        "durable destroy and undo",
        {
            "workstead": lambda: (home.destroy(one.id, force=True), home.undo()),
            "the same with syncs by hand": raw.destroy_and_undo,
        },
        rounds=20,
    )


def _all(call: Callable[[int], object]) -> None:
    list(POOL.map(call, range(CALLERS)))


class Raw:
    """The same system calls without a guard, a digest, a lifecycle or a hash chain."""

    def __init__(self, top: str) -> None:
        self._top = top
        for name in ("work", "staging", "task", "trash", "packs", "origin", "journals"):
            os.mkdir(f"{top}/{name}")
        self._log = _database(f"{top}/log.db", "FULL")
        self._index = _database(f"{top}/index.db", "NORMAL")
        _write(f"{top}/origin/1.txt", TEXT, sync=True)

    def _insert(self) -> None:
        self._log.execute("INSERT INTO log (data) VALUES (?)", ("x" * 400,))

    def write(self, name: str = "f", *, sync: bool = True) -> None:
        folder = f"{self._top}/work"
        aside = f"{folder}/.{next(COUNT)}"
        _write(aside, TEXT, sync=sync)
        if sync:
            self._insert()
        os.rename(aside, f"{folder}/{name}")
        if sync:
            _sync(folder)

    def create(self, *, sync: bool = True) -> None:
        number = next(COUNT)
        root = f"{self._top}/staging/{number}"
        if sync:
            self._insert()
        os.mkdir(root)
        for name in (".aw", "work", "output", "tmp"):
            os.mkdir(f"{root}/{name}")
        for name in DOCUMENTS:
            _write(f"{root}/.aw/{name}", b"x" * 200, sync=sync and name == DOCUMENTS[-1])
        os.rename(root, f"{self._top}/task/{number}")
        if sync:
            _sync_disk(self._top)
            self._insert()

    def snapshot(self) -> None:
        """Look for what changed, read it, keep it with its digest, name it in an index that is not synced."""
        for entry in os.scandir(f"{self._top}/work"):
            entry.stat()
        self._pack()
        self._insert()

    def _pack(self) -> None:
        data = os.urandom(2200)
        _replace(f"{self._top}/packs", data)
        self._index.execute("INSERT INTO log (data) VALUES (?)", (hashlib.sha256(data).digest(),))

    SYNCS_OF_APPLY = 22

    def apply(self) -> None:
        """A snapshot before; the three trees and the record that undo needs; the plan and three states of a journal."""
        self._pack()
        self._insert()
        for _ in range(3):
            self._pack()
        _replace(f"{self._top}/packs", b"x" * 300)
        self._insert()
        journals = f"{self._top}/journals"
        _write(f"{journals}/{next(COUNT)}", b"x" * 1000, sync=True)
        _replace(journals, b"x" * 300)
        self._exchange(lambda: _replace(journals, b"x" * 300))
        _replace(journals, b"x" * 300)
        self._insert()

    def apply_without_undo(self) -> None:
        """Intent; the file aside, synced; renamed, synced; the fact. A crash in between leaves a mixture."""
        self._insert()
        self._exchange(lambda: None)
        self._insert()

    def _exchange(self, before_rename: Callable[[], None]) -> None:
        folder = f"{self._top}/origin"
        aside = f"{folder}/.{next(COUNT)}"
        os.mkdir(aside)
        _write(f"{aside}/0", TEXT, sync=False)
        _sync_disk(folder)
        before_rename()
        os.rename(f"{aside}/0", f"{folder}/1.txt")
        _sync_disk(folder)
        os.rmdir(aside)

    def destroy_and_undo(self) -> None:
        here, there = f"{self._top}/task", f"{self._top}/trash"
        for source, target in ((here, there), (there, here)):
            os.makedirs(f"{source}/x", exist_ok=True)
            self._insert()
            os.rename(f"{source}/x", f"{target}/x")
            _sync(source)
            _sync(target)
            self._insert()


def _write(path: str, data: bytes, *, sync: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, data)
    if sync:
        os.fsync(descriptor)
    os.close(descriptor)


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _sync_disk(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    libc.syncfs(descriptor)
    os.close(descriptor)


def _replace(folder: str, data: bytes) -> None:
    """A file under a fresh name: its content synced, then its name."""
    aside = f"{folder}/.{next(COUNT)}"
    _write(aside, data, sync=True)
    os.rename(aside, f"{folder}/{next(COUNT)}")
    _sync(folder)


def _database(path: str, synchronous: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {synchronous}")
    database.execute("CREATE TABLE log (position INTEGER PRIMARY KEY, data)")
    return database
