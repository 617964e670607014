"""Locks that the kernel releases when their process dies: byte ranges of one file, one for each key.

Open-file-description locks belong to the descriptor: threads exclude each other as processes do, and the kernel
releases the lock when its process dies, for whatever reason. Repair uses this to know that no process is working on a
workspace any more. One file holds the locks of all keys, so that no lock file is left behind for each former workspace.

No wait is unlimited: a process that was stopped (SIGSTOP, a debugger) does not continue by itself, so a wait ends early
when the lock's owner is stopped, and `Held` names that process.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from contextlib import contextmanager

from workstead.model.digest import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


LOOK_SECONDS = 3.0  # after this time a waiter checks whether the lock's owner is stopped, and again each time


class Held(Exception):
    """Another process has the lock; `holder` describes it, if there was a wait for the lock."""

    def __init__(self, key: str, holder: str = "") -> None:
        super().__init__(key)
        self.holder = holder


@contextmanager
def hold(path: str, key: str, *, wait_seconds: float = 0.0, shared: bool = False) -> Iterator[None]:
    """Hold the exclusive or shared lock of a key; raise Held after the timeout."""
    # A collision of two keys in 62 bits only makes them wait for each other, which is harmless.
    offset = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") >> 2
    request = struct.pack("hhqqi", fcntl.F_RDLCK if shared else fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        take = lambda: fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)  # noqa: E731
        _wait_for(take, key, wait_seconds, lambda: _find_holder(descriptor, offset))
        yield
    finally:
        os.close(descriptor)


@contextmanager
def hold_folder(path: str, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Lock a directory itself, against every process of this machine; no lock file is left in it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        take(descriptor, path, wait_seconds=wait_seconds)
        yield
    finally:
        os.close(descriptor)


def take(descriptor: int, key: str, *, kind: int = fcntl.LOCK_EX, wait_seconds: float = 60.0) -> None:
    """Lock an open file as a whole, or raise Held after the timeout; closing the file releases the lock."""
    _wait_for(
        lambda: fcntl.flock(descriptor, kind | fcntl.LOCK_NB), key, wait_seconds, lambda: _find_holder(descriptor)
    )


def describe(pid: int) -> str:
    """Describe a process for an error message: its command line, and whether it is stopped."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read(200).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({command!r}{', which is stopped' if is_stopped(pid) else ''})"


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped, by a signal or a debugger."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _find_holder(descriptor: int, offset: int | None = None) -> int:
    """Return the process that has the lock of a file, or of one byte of it; a stopped one first; 0 if none is found.

    /proc/locks does not name the process of an open-file-description lock; /proc/PID/fdinfo does."""
    wanted = os.fstat(descriptor)
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # another user's process, or ended
            continue
        if any(_holds(pid, name, wanted, offset) for name in names):
            found = int(pid)
            if is_stopped(found):
                break
    return found


def _holds(pid: str, name: str, wanted: os.stat_result, offset: int | None) -> bool:
    try:
        status = os.stat(f"/proc/{pid}/fd/{name}")
        if (status.st_dev, status.st_ino) != (wanted.st_dev, wanted.st_ino):
            return False
        with open(f"/proc/{pid}/fdinfo/{name}") as file:
            locks = [line.split() for line in file if line.startswith("lock:")]
    except OSError:
        return False
    return any(offset is None or str(offset) in words for words in locks)


def _wait_for(take: Callable[[], object], key: str, wait_seconds: float, find_holder: Callable[[], int]) -> None:
    end = time.monotonic() + wait_seconds
    look_at = time.monotonic() + LOOK_SECONDS
    pause = 0.0001
    while True:
        try:
            take()
            return
        except OSError as error:
            if not isinstance(error, BlockingIOError | PermissionError):
                raise
        now = time.monotonic()
        if now >= end or now >= look_at:
            holder = find_holder() if wait_seconds else 0
            if now >= end or is_stopped(holder):
                raise Held(key, describe(holder) if holder else "")
            look_at = now + LOOK_SECONDS
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
