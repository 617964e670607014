"""Children with mounts and processes of their own: when such a child ends, the kernel ends everything in it."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import pkgutil
import select
import signal
import subprocess
import traceback
from collections.abc import Callable
from typing import Any

PARTS = ("archives", "model", "sandboxes", "snapshots", "sources", "system", "verbs")
LIMIT_SECONDS = 120
_NEW_MOUNTS, _NEW_PROCESSES, _RECURSIVE, _PRIVATE = 0x20000, 0x20000000, 0x4000, 0x40000
_END_WITH_PARENT, _DUMPABLE = 1, 4
_libc = ctypes.CDLL(None, use_errno=True)


def load_all() -> None:
    """Import what verbs import when they are called, so that no child has to."""
    for part in PARTS:
        package = importlib.import_module(f"workstead.{part}")
        for each in pkgutil.iter_modules(package.__path__, f"workstead.{part}."):
            if not each.name.rpartition(".")[2].startswith("lib"):  # a library for ctypes
                importlib.import_module(each.name)


def alone(mounts: list[tuple[str, str]], act: Callable[[], Any]) -> Any:
    """What `act` returns, as JSON, in a child with these images mounted; a sentence if it does not end or fails."""
    reading, writing = os.pipe()
    child = fork(lambda: _enter(mounts, act, writing))
    os.close(writing)
    said = b""
    while select.select([reading], [], [], LIMIT_SECONDS)[0]:
        if not (more := os.read(reading, 1 << 16)):
            break
        said += more
    else:
        os.kill(child, signal.SIGKILL)
        said = json.dumps([f"stuck: no answer within {LIMIT_SECONDS} seconds"]).encode()
    os.close(reading)
    os.waitpid(child, 0)
    return json.loads(said) if said else ["BUG: the process that looked ended without a word"]


def _enter(mounts: list[tuple[str, str]], act: Callable[[], Any], answer: int) -> None:
    _check(_libc.unshare(_NEW_MOUNTS | _NEW_PROCESSES))
    _check(_libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None))
    first = fork(lambda: _first_process(mounts, act, answer))
    os.close(answer)
    os.waitpid(first, 0)


def _first_process(mounts: list[tuple[str, str]], act: Callable[[], Any], answer: int) -> None:
    """Mount the disks, act, and end everything by ending."""
    _check(_libc.prctl(_END_WITH_PARENT, signal.SIGKILL))
    _check(_libc.mount(b"proc", b"/proc", b"proc", 0, None))
    fork(signal.pause)  # bubblewrap wants a process 2 in /proc, as every machine has
    os.chdir("/")
    for image, place in mounts:
        done = subprocess.run(["mount", "-o", "loop", image, place], check=False, capture_output=True, text=True)
        if done.returncode:
            os.write(answer, json.dumps([f"mount: {done.stderr}"]).encode())
            return
    said = json.dumps(act()).encode()
    while said:
        said = said[os.write(answer, said) :]


def as_user(uid: int, act: Callable[[], Any]) -> Any:
    """What `act` returns, as JSON, in a child of this user."""
    reading, writing = os.pipe()

    def child() -> None:
        become(uid)
        with open(writing, "w") as file:
            file.write(json.dumps(act()) + "\n")

    pid = fork(child)
    os.close(writing)
    with open(reading) as file:
        line = file.readline()  # and no more: what the child started may have the pipe, too
    os.waitpid(pid, 0)
    return json.loads(line) if line else ["BUG: a process ended without a word"]


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _check(_libc.prctl(_DUMPABLE, 1))  # its own /proc entry is its own again, as after an exec


def fork(act: Callable[[], object]) -> int:
    """Start a child that does `act` and ends."""
    child = os.fork()
    if child:
        return child
    try:
        act()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
