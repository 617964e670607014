"""Watching: how soon a write is reported, and what it costs to begin."""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import watchfiles
from harness import Row
from watchdog.events import FileSystemEventHandler
from watchdog.observers import Observer

import workstead
from workstead.local import Local
from workstead.system.kernel.inotify import Inotify

COUNT = itertools.count()


def rows(scratch: str) -> Iterator[Row]:
    os.makedirs(scratch)
    workspaces = workstead.open(f"{scratch}/home")
    yield from _latency(workspaces, scratch)
    for count in (5_000, 50_000):
        yield from _start(workspaces, scratch, count)


def _write(folder: str) -> None:
    with open(f"{folder}/f{next(COUNT) % 100}", "w") as file:
        file.write("x")


class _Desk:
    """A workspace that is watched, and a file in it that is written."""

    def __init__(self, workspaces: Local, debounce_seconds: float | None) -> None:
        desk = workspaces.create(task="latency", agent=str(next(COUNT)))
        self.folder = f"{desk.path}/work"
        self.watch = workspaces.watch(desk.id, debounce_seconds=debounce_seconds)

    def once(self) -> None:
        _write(self.folder)
        while not self.watch.batch(5.0):
            pass


class _Raw:
    def __init__(self, folder: str) -> None:
        os.mkdir(folder)
        self.folder = folder
        self.queue = Inotify()
        self.queue.watch(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))

    def once(self) -> None:
        _write(self.folder)
        self.queue.wait(5.0)
        list(self.queue.notices())


class _Watchdog(FileSystemEventHandler):
    def __init__(self, folder: str) -> None:
        os.mkdir(folder)
        self.folder = folder
        self.seen: queue.Queue[str] = queue.Queue()
        self.observer = Observer()
        self.observer.schedule(self, folder, recursive=True)
        self.observer.start()

    def on_closed(self, event: Any) -> None:
        self.seen.put(str(event.src_path))

    def once(self) -> None:
        _write(self.folder)
        self.seen.get(timeout=5)


class _Watchfiles:
    """As it comes: it reports when nothing has come for 50 ms."""

    def __init__(self, folder: str) -> None:
        os.mkdir(folder)
        self.folder = folder
        self.stop = threading.Event()
        self.changes = watchfiles.watch(folder, stop_event=self.stop, yield_on_timeout=True, rust_timeout=1)
        next(self.changes)

    def once(self) -> None:
        _write(self.folder)
        while not next(self.changes):
            pass


def _latency(workspaces: Local, scratch: str) -> Iterator[Row]:
    quick, raw = _Desk(workspaces, 0.0), _Raw(f"{scratch}/raw")
    dog = _Watchdog(f"{scratch}/dog")
    yield Row(
        "from a write to its report, without debounce",
        {"workstead": quick.once, "raw inotify": raw.once, "watchdog": dog.once},
        rounds=40,
    )
    usual, files = _Desk(workspaces, None), _Watchfiles(f"{scratch}/files")
    yield Row("from a write to its report, as it comes", {"workstead, 100 ms": usual.once, "watchfiles": files.once})
    dog.observer.stop()
    for each in (quick, usual):
        each.watch.close()


def _start(workspaces: Local, scratch: str, count: int) -> Iterator[Row]:
    origin = f"{scratch}/origin{count}"
    for number in range(count):
        os.makedirs(f"{origin}/{number % 100}/{number}")
    view = workspaces.create(f"overlay:{origin}", task="start", agent=f"view{count}")

    def ours(id: str, *, whole: bool) -> Callable[[], None]:
        def start() -> None:
            with workspaces.watch(id) as watch:
                while whole and watch.is_reading:
                    watch.batch(0.0)

        return start

    arms: dict[str, Callable[[], object]] = {"workstead, a view": ours(view.id, whole=True)}
    place = workspaces.create(f"folder:{origin}", task="start", agent=f"folder{count}")
    arms["workstead, in place, until it reports"] = ours(place.id, whole=False)
    arms["workstead, in place, all read"] = ours(place.id, whole=True)
    arms["raw inotify"] = lambda: _walk(origin)
    arms["watchdog"] = lambda: _observe(origin)
    arms["watchfiles"] = lambda: _begin(origin)
    yield Row(f"begin to watch {count:,} directories", arms, aim="flat", rounds=3)


def _walk(top: str) -> None:
    queue_ = Inotify()
    for above, _, _ in os.walk(top):
        folder = os.open(above, os.O_RDONLY | os.O_DIRECTORY)
        queue_.watch(folder)
        os.close(folder)
    queue_.close()


def _observe(top: str) -> None:
    observer = Observer()
    observer.schedule(FileSystemEventHandler(), top, recursive=True)
    observer.start()
    observer.stop()
    observer.join()


def _begin(top: str) -> None:
    stop = threading.Event()
    next(watchfiles.watch(top, stop_event=stop, yield_on_timeout=True, rust_timeout=1))
    stop.set()
