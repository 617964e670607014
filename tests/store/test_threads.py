"""One connection for each thread, and none for a thread that has ended."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from waiting import wait_until
from workstead.local import Local


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_threads_that_ended_hold_no_connection(workspaces: Local) -> None:
    workspaces.create(id="t/a")

    def look() -> None:
        assert workspaces.exists("t/a")

    for _ in range(3):
        threads = [threading.Thread(target=look) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    before = _descriptors()

    def descriptors_after_another() -> int:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return _descriptors()

    for _ in range(50):
        descriptors_after_another()
    # The kernel may still list a thread for a moment after it was joined: its connection goes with the next look.
    wait_until(lambda: descriptors_after_another() <= before)


def test_a_thread_keeps_its_connection_while_others_come_and_go(workspaces: Local) -> None:
    with ThreadPoolExecutor(4) as lasting:
        list(lasting.map(lambda _: workspaces.list(), range(20)))
        for _ in range(20):
            passing = threading.Thread(target=workspaces.list)
            passing.start()
            list(lasting.map(lambda number: workspaces.create(task="t", agent=f"{number}"), range(2)))
            workspaces.destroy("t/0", "t/1")
            passing.join()
    assert workspaces.list() == []
