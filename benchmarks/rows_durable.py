"""What it costs that an acknowledged change is on the disk: ours beside the same calls with the same syncs by hand."""

from __future__ import annotations

import ctypes
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
    home = workstead.open(f"{scratch}/home")
    raw = Raw(f"{scratch}/raw")
    desk = home.create(id="bench/a")
    yield Row(
        "durable write_file of 2 kB",
        {
            "workstead": lambda: home.write_file(desk.id, "work/f", TEXT),
            "the same with syncs by hand": raw.write,
            "the same without syncs": lambda: raw.write(sync=False),
        },
        aim="by hand <= 1.5x",
        rounds=40,
    )
    yield Row(
        f"durable write_file of 2 kB by {CALLERS} callers",
        {
            "workstead": lambda: _all(lambda number: home.write_file(desk.id, f"work/f{number}", TEXT)),
            "the same with syncs by hand": lambda: _all(lambda number: raw.write(f"f{number}")),
        },
        aim="by hand <= 1.5x",
        rounds=15,
    )
    yield Row(
        "durable create",
        {
            "workstead": lambda: home.create(id=f"bench/{next(COUNT)}"),
            "the same with syncs by hand": raw.create,
            "the same without syncs": lambda: raw.create(sync=False),
        },
        aim="by hand <= 1.5x",
        rounds=40,
    )
    yield Row(
        "durable snapshot of one changed file",
        {"workstead": lambda: home.snapshot(desk.id), "a synced file and a row": raw.snapshot},
        before={"workstead": lambda: home.write_file(desk.id, "work/f", os.urandom(2000))},
        rounds=30,
    )
    yield Row(
        "durable destroy and undo",
        {
            "workstead": lambda: (home.destroy(desk.id, force=True), home.undo()),
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
        for name in ("work", "staging", "task", "trash", "packs"):
            os.mkdir(f"{top}/{name}")
        self._log = sqlite3.connect(f"{top}/log.db", isolation_level=None, check_same_thread=False)
        self._log.execute("PRAGMA journal_mode = WAL")
        self._log.execute("PRAGMA synchronous = FULL")
        self._log.execute("CREATE TABLE log (position INTEGER PRIMARY KEY, data)")

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
            descriptor = os.open(self._top, os.O_RDONLY)
            libc.syncfs(descriptor)
            os.close(descriptor)
            self._insert()

    def snapshot(self) -> None:
        folder = f"{self._top}/packs"
        aside = f"{folder}/.{next(COUNT)}"
        _write(aside, os.urandom(2200), sync=True)
        os.rename(aside, f"{folder}/{next(COUNT)}")
        _sync(folder)
        self._insert()

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
