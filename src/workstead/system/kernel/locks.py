"""Locks that end with their holder: byte ranges of one file, one for each key.

Open-file-description locks belong to the descriptor: threads exclude each other as processes do, and the kernel gives
the lock back when the holder dies, however it dies. That is also how repair knows that nobody is at work any more.
One file holds all keys, so that no lock file is left behind for each workspace that ever was.
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


class Held(Exception):
    """Somebody else holds the lock."""


@contextmanager
def hold(path: str, key: str, *, wait_seconds: float = 0.0, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a key, alone or with others who share it, or raise Held after waiting that long for it."""
    # Two keys that meet in 62 bits would wait for each other, which harms nobody.
    offset = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") >> 2
    request = struct.pack("hhqqi", fcntl.F_RDLCK if shared else fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for(lambda: fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request), key, wait_seconds)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def hold_folder(path: str, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold a directory itself, whoever else on this machine may want it; leaves nothing in it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _wait_for(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), path, wait_seconds)
        yield
    finally:
        os.close(descriptor)


def _wait_for(take: Callable[[], object], key: str, wait_seconds: float) -> None:
    end = time.monotonic() + wait_seconds
    pause = 0.0001
    while True:
        try:
            take()
            return
        except OSError as error:
            if not isinstance(error, BlockingIOError | PermissionError):
                raise
        if time.monotonic() >= end:
            raise Held(key)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
