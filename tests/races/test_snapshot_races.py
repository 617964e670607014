"""An agent that swaps a directory for a link, as fast as it can, while we read and write beside it.

Each test has a twin that does the same by path, to show that the attack works: without it, passing would mean nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "snapshots"))

from desks import Desk

from workstead.errors import WorksteadError
from workstead.snapshots.apply import apply_plan, reverse
from workstead.snapshots.gc import verify
from workstead.snapshots.merge import Folder, plan_merge

SECONDS = 1.5
SECRET = b"a secret of the host\n"
libc = ctypes.CDLL(None, use_errno=True)
EXCHANGE = 2


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Exchange two names all the time, in another process."""
    a, b = os.fsencode(one), os.fsencode(other)
    child = os.fork()
    if child == 0:
        try:
            while True:
                libc.renameat2(-100, a, -100, b, EXCHANGE)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(SECRET)
    (folder / "victim").write_bytes(b"untouched")
    return folder


@pytest.fixture
def trap(tmp_path: Path, outside: Path) -> Iterator[tuple[Desk, Path, Path]]:
    """A workspace with a directory and, ready to take its place, a link to the outside."""
    desk = Desk(tmp_path)
    for name in ("secret", "victim", "other"):
        desk.write(f"dir/sub/{name}", "inside")
        desk.write(f"dir/{name}", "inside")
    link = tmp_path / "evil-link"
    link.symlink_to(outside)
    (outside / "sub").mkdir()
    (outside / "sub/secret").write_bytes(SECRET)
    yield desk, desk.work / "dir", link
    desk.close()


def untouched(outside: Path) -> bool:
    return (
        sorted(os.listdir(outside)) == ["secret", "sub", "victim"] and (outside / "victim").read_bytes() == b"untouched"
    )


def until(seconds: float, action: Callable[[], object]) -> int:
    """Do it again and again; our own errors are a fair answer, others are not."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        try:
            action()
        except WorksteadError:
            continue
        count += 1
    return count


def test_a_snapshot_never_reads_the_outside(trap: tuple[Desk, Path, Path]) -> None:
    desk, folder, link = trap
    roots: list[str] = []
    with swapping(folder, link):
        count = until(SECONDS, lambda: roots.append(desk.take(live=True).root))
    assert count > 20
    assert not desk.store.has(hashlib.sha256(SECRET).digest())
    assert len(set(roots)) > 1, "the attacker was too slow to matter"
    assert verify(desk.store, set(roots)) == []


def test_twin_reading_by_path_leaks(trap: tuple[Desk, Path, Path]) -> None:
    desk, folder, link = trap
    leaked = []

    def walk() -> None:
        for above, _, files in os.walk(desk.work):
            for name in files:
                with open(os.path.join(above, name), "rb") as file:
                    leaked.append(file.read() == SECRET)

    with swapping(folder, link):
        end = time.monotonic() + 60
        while not any(leaked) and time.monotonic() < end:
            try:
                walk()
            except OSError:
                continue
    assert any(leaked)


def test_a_restore_never_writes_or_removes_outside(trap: tuple[Desk, Path, Path], outside: Path) -> None:
    desk, folder, link = trap
    full = desk.take().root
    (folder / "victim").write_text("changed inside")
    (folder / "sub/new").write_text("x")
    other = desk.take().root
    with swapping(folder, link):
        count = until(SECONDS, lambda: (desk.restore(full), desk.restore(other), desk.restore("empty")))
    assert untouched(outside)
    assert sorted(os.listdir(outside / "sub")) == ["secret"]
    assert count >= 0
    if link.is_symlink():
        link.unlink()
    desk.restore(full)
    assert (folder / "victim").read_text() == "inside"


def test_twin_restoring_by_path_writes_outside(trap: tuple[Desk, Path, Path], outside: Path) -> None:
    _, folder, link = trap
    with swapping(folder, link):
        end = time.monotonic() + 60
        while untouched(outside) and time.monotonic() < end:
            target = folder / "victim"
            if not folder.is_symlink():
                try:
                    target.write_text("inside")
                except OSError:
                    continue
    assert not untouched(outside)


def test_an_apply_never_writes_or_removes_outside(trap: tuple[Desk, Path, Path], outside: Path, tmp_path: Path) -> None:
    desk, folder, link = trap
    full = desk.take().root
    (folder / "victim").write_text("changed inside")
    (folder / "other").unlink()
    (folder / "sub/new").write_text("x")
    theirs = desk.take().root
    desk.restore(full)
    journal = str(tmp_path / "journal")

    def apply() -> None:
        with (
            desk.tree(full) as base,
            desk.tree(theirs) as after,
            Folder(str(desk.work)) as ours,
            desk.store.writer() as writer,
        ):
            made = plan_merge(base, ours, after, writer)
            writer.commit()
        done = apply_plan(desk.store, made, str(desk.work), journal)
        apply_plan(desk.store, reverse(done.plan), str(desk.work), journal)

    with swapping(folder, link):
        until(SECONDS, apply)
    assert untouched(outside)
    assert sorted(os.listdir(outside / "sub")) == ["secret"]


def test_two_names_that_change_places_all_the_time_do_not_stop_a_snapshot(trap: tuple[Desk, Path, Path]) -> None:
    desk, folder, _ = trap
    fifo = desk.work / "pipe"
    os.mkfifo(fifo)
    file = desk.write("file", "x" * 1000)
    with swapping(file, fifo), swapping(folder, desk.write("plain", "y")):
        count = until(SECONDS, lambda: desk.take(live=True))
    assert count > 20
