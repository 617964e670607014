"""Mounts that were taken away and go in the background."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from needs import need_root
from situations import fork, wait
from sources.yard import Desk, Yard, as_agent, mounts_in, yard_fixture
from waiting import wait_until
from workstead import sources
from workstead.system.overlay import deferred_unmount, mounter

yard = yard_fixture


@pytest.fixture
def desk(yard: Yard) -> Desk:
    need_root()
    folder = yard.folder()
    with open(f"{folder}/file", "w") as file:
        file.write("one\n")
    return yard.create(f"overlay:{folder}")


@pytest.fixture
def patient(desk: Desk) -> Iterator[None]:
    """Nothing goes in the background during the test."""
    before, deferred_unmount.PAUSE_SECONDS = deferred_unmount.PAUSE_SECONDS, 60.0
    yield
    deferred_unmount.PAUSE_SECONDS = before
    for upper in list(deferred_unmount._left):
        deferred_unmount.wait_for(upper)


def in_use(desk: Desk, upper: str) -> bool:
    return mounter.is_in_use(mounter.OVERLAY, desk.place.layers, upper)


@pytest.mark.usefixtures("patient")
def test_whoever_unmounts_does_not_wait_and_whoever_mounts_again_does(desk: Desk) -> None:
    upper = desk.upper
    as_agent(desk, "echo two > file")
    assert sources.detach(desk.filled, desk.place)
    assert mounts_in(desk.place.root) == []
    assert in_use(desk, upper)  # the kernel still has it
    sources.attach(desk.filled, desk.place)
    assert upper not in deferred_unmount._left
    assert as_agent(desk, "cat file") == "two\n"
    assert in_use(desk, upper)  # by the new mount, which the kernel knows as its user


def test_what_was_unmounted_is_gone_a_moment_later(yard: Yard, desk: Desk) -> None:
    as_agent(desk, "echo two > file")
    for _ in range(3):
        yard.fork(desk)
        as_agent(desk, "echo more >> file")
    upper = desk.upper
    sources.detach(desk.filled, desk.place)
    wait_until(lambda: deferred_unmount._left == {})
    assert not in_use(desk, upper)


@pytest.mark.usefixtures("patient")
def test_a_child_neither_keeps_them_nor_waits_for_them(desk: Desk) -> None:
    upper = desk.upper
    sources.detach(desk.filled, desk.place)
    with deferred_unmount._table, deferred_unmount._closing:  # as its parent's thread may at the moment of the fork

        def child() -> int:
            assert deferred_unmount._left == {}
            deferred_unmount.wait_for(upper)
            deferred_unmount.keep("another", os.open("/", os.O_PATH))
            deferred_unmount.wait_for("another")
            return 7

        assert wait(fork(child)) == 7
    deferred_unmount.wait_for(upper)
    assert not in_use(desk, upper)


@pytest.mark.usefixtures("patient")
def test_a_child_that_is_born_while_one_goes_does_not_wait_for_it() -> None:
    """The descriptor is gone from then on, and the closing is not over: as with a socket that lingers."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 2))
        near.setblocking(False)
        with suppress(BlockingIOError):
            while near.send(bytes(1 << 20)):
                pass
        near.setblocking(True)
        number = near.detach()
        deferred_unmount.keep("slow", number)
        closing = threading.Thread(target=deferred_unmount.wait_for, args=("slow",))
        closing.start()
        while os.path.exists(f"/proc/self/fd/{number}"):
            time.sleep(0.01)
        assert closing.is_alive()

        def child() -> int:
            assert deferred_unmount._left == {}
            deferred_unmount.keep("another", os.open("/", os.O_PATH))
            deferred_unmount.wait_for("another")
            return 7

        assert wait(fork(child)) == 7
        closing.join()
        far.close()
    assert "slow" not in deferred_unmount._left
