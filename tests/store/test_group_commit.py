"""Many callers share one sync, and nobody relies on a sync that began before its own write."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from people import Person
from waiting import wait_until
from workstead.model.shared_call import SharedCall


class Disk:
    """Counts syncs, and lets each one end when it is told to."""

    def __init__(self) -> None:
        self.may_end = threading.Semaphore(0)
        self.running = 0
        self.done = 0
        self.written = 0
        self.durable = 0

    def sync(self) -> None:
        self.running += 1
        covered = self.written
        self.may_end.acquire()
        self.durable, self.done = covered, self.done + 1


def test_callers_that_come_during_a_sync_share_the_next_one() -> None:
    shared, disk = SharedCall(), Disk()
    durable_at_return = []

    def write_and_sync(_: int) -> None:
        disk.written += 1
        mine = disk.written
        waiting.append(mine)
        shared.run(disk.sync)
        durable_at_return.append((mine, disk.durable))

    waiting: list[int] = []
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(write_and_sync, 0)
        wait_until(lambda: disk.running == 1)
        others = [pool.submit(write_and_sync, number) for number in range(1, 8)]
        wait_until(lambda: len(waiting) == 8)
        wait_until(lambda: _sleeping_threads() >= 8)
        disk.may_end.release()
        first.result()
        wait_until(lambda: disk.running == 2)
        disk.may_end.release()
        for other in others:
            other.result()
    assert disk.done == 2
    assert all(durable >= mine for mine, durable in durable_at_return)


def _sleeping_threads() -> int:
    """How many threads of this process wait for something: those that have drawn a ticket are among them."""
    states = []
    for name in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{name}/stat") as file:
            states.append(file.read().rpartition(")")[2].split()[0])
    return states.count("S")


def test_a_failed_sync_is_no_sync_for_those_who_waited() -> None:
    shared, begun, go_on = SharedCall(), threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        go_on.wait()
        raise OSError("the disk failed")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(shared.run, fail)
        begun.wait()
        before = _sleeping_threads()
        second = pool.submit(shared.run, fail)
        wait_until(lambda: _sleeping_threads() > before)
        go_on.set()
        for each in (first, second):
            with pytest.raises(OSError, match="the disk failed"):
                each.result()


_MANY = """
import os, workstead
from concurrent.futures import ThreadPoolExecutor
home = workstead.open({home!r})
ids = [home.create(id=f"t/{{number}}").id for number in range(8)]
with ThreadPoolExecutor(8) as pool:
    for round in range(5):
        list(pool.map(lambda id: home.write_file(id, "work/f", f"{{round}} of {{id}}"), ids))
        list(pool.map(lambda number: home.write_file(ids[0], f"work/{{number}}", "x" * number), range(8)))
        list(pool.map(home.snapshot, ids))
    if os.fork() == 0:  # locks that threads of the parent hold must not stop the child
        home.write_file(ids[0], "work/child", "of the child")
        home.snapshot(ids[0])
        os._exit(0)
    assert os.wait()[1] == 0
    list(pool.map(home.snapshot, ids))
assert home.verify().broken is None
assert [home.read_file(id, "work/f").decode() for id in ids] == [f"4 of {{id}}" for id in ids]
assert home.read_file(ids[0], "work/child") == b"of the child"
home.close()
print(len(os.listdir({home!r} + "/snapshots/packs")))
"""


def test_many_threads_write_and_snapshot_at_once(person: Person) -> None:
    assert int(person.python(_MANY.format(home=str(person.home)))) >= 8
    for finding in person.aw_json("repair"):
        pytest.fail(str(finding))
