"""The virtual machines of a home, from outside: find, use and stop them.

A user of a machine holds a shared lock on `use` in its directory: a VM daemon exits only when it holds that lock
exclusively, so that no client connects to a socket that is just being closed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time

from workstead.model.value import Value
from workstead.sandboxes.vm import keeper
from workstead.system.kernel import cgroups
from workstead.system.process import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_STOP_SECONDS = 8.0


class Found(Value):
    """A running machine."""

    name: str  # of its directory: owner and configuration digest
    pid: int
    mode: str = ""
    memory_mb: int = 0
    cpus: int = 0
    workspace: str = ""
    public_mount: str = ""
    started_at: float = 0.0
    warm: bool = False
    notes: tuple[str, ...] = ()
    qemu: int = 0


@contextlib.contextmanager
def use(order: keeper.Order) -> Iterator[None]:
    """Lock the machine for use, starting it if there is none; it may still be starting."""
    os.makedirs(order.directory, mode=0o700, exist_ok=True)
    held = os.open(f"{order.directory}/use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        starting = os.open(f"{order.directory}/start", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(starting, fcntl.LOCK_EX)
            if _keeper(order.directory) is None:
                keeper.start(order)
        finally:
            os.close(starting)
        yield
    finally:
        os.close(held)


def _keeper(directory: str) -> tuple[int, int] | None:
    """Return process id and start time of the VM daemon; None if there is none."""
    try:
        lock = os.open(f"{directory}/lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pid, _, start_time = os.pread(lock, 64, 0).partition(b" ")
            return int(pid or 0), int(start_time or 0)
        return None
    finally:
        os.close(lock)


def find_all(root: str, owner: str = "") -> list[Found]:
    """Return the running machines, of one owner or of all."""
    found = []
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        if owner and not name.startswith(f"{owner}."):
            continue
        keeping = _keeper(f"{root}/{name}")
        if keeping is None:
            continue
        try:
            with open(f"{root}/{name}/machine") as file:
                told = json.load(file)
        except (OSError, ValueError):
            told = {}
        known = {key: told[key] for key in Found.__types__ if key in told}
        found.append(Found(**{**known, "name": name, "pid": keeping[0], "notes": tuple(told.get("notes", ()))}))
    return found


def is_used(root: str, name: str, *, wait_seconds: float = 0.0) -> bool:
    """Return whether a process has a command in it, or is about to, also after waiting that long.

    A run releases its machine a moment after its end is known.
    """
    try:
        held = os.open(f"{root}/{name}/use", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    end = time.monotonic() + wait_seconds
    try:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            except OSError:
                if time.monotonic() >= end:
                    return True
                time.sleep(0.005)
    finally:
        os.close(held)


def stop(root: str, name: str) -> bool:
    """Stop a machine: the guest writes everything back, and its processes end. False if there was none."""
    directory = f"{root}/{name}"
    keeping = _keeper(directory)
    if keeping is None:
        return False
    pid, start_time = keeping
    end = time.monotonic() + _STOP_SECONDS
    if spawn.is_alive(pid, start_time):
        spawn.send([pid], spawn.SIGTERM)
    while _keeper(directory) is not None and time.monotonic() < end:
        time.sleep(0.005)
    if _keeper(directory) == keeping and spawn.is_alive(pid, start_time):
        spawn.send([pid], spawn.SIGKILL)  # QEMU and the relay die with it
        while _keeper(directory) is not None:
            time.sleep(0.005)
    group = cgroups.find(f"aw-vm-{name}")
    return cgroups.kill(group) and cgroups.remove(group)


def forget(root: str, owner: str) -> None:
    """Stop the machines of an owner that is being removed, and remove their directories."""
    import shutil

    for name in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        if name.startswith(f"{owner}."):
            stop(root, name)
            shutil.rmtree(f"{root}/{name}", ignore_errors=True)
