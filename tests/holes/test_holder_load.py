"""The process that holds an ordinary user's mounts, asked by many threads at once."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from people import Person
from waiting import wait_until
from workstead.local import Local
from workstead.page import live_rows
from workstead.page.live_rows import Board
from workstead.system.overlay.mount_daemon import Holder

MANY = """
import os, pathlib, signal, threading, traceback
import workstead
from workstead.system.overlay.mount_daemon import Holder
workspaces = workstead.open({home!r})
ids = [workspaces.create("overlay:{origin}", id=f"load/w{{number}}").id for number in range(20)]
failures = []
def ask(start):
    for number in range(15):
        try:
            assert len(workspaces.status(ids[(start + number) % len(ids)])) == 0
        except Exception:
            failures.append(traceback.format_exc())
threads = [threading.Thread(target=ask, args=(number,)) for number in range(32)]
for socket in pathlib.Path({home!r}).rglob("holder.sock"):  # an ordinary user's: let it be slow for a moment
    holder = Holder(str(socket.parent)).find_process()
    os.kill(holder, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (holder, signal.SIGCONT)).start()
for thread in threads: thread.start()
for thread in threads: thread.join()
for each in ids: workspaces.destroy(each, force=True)
print(len(failures), failures[:1])
"""


def test_many_threads_may_ask_for_the_status_of_many_workspaces(person: Person) -> None:
    origin = person.folder("origin", {"a.txt": "a\n", "sub/b.txt": "b\n"})
    assert person.python(MANY.format(home=str(person.home), origin=origin)).startswith("0 ")


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A listener where the holder's would be, with a backlog that is full: nobody accepts yet."""
    monkeypatch.chdir(tmp_path)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first,
    ):
        listener.bind("holder.sock")
        listener.listen(0)
        first.connect("holder.sock")
        yield listener


def test_whoever_meets_a_full_queue_waits(full: socket.socket, tmp_path: Path) -> None:
    found: list[int | None] = []
    asking = threading.Thread(target=lambda: found.append(Holder(str(tmp_path)).find_process()))
    asking.start()
    wait_until(lambda: _is_waiting_in_the_kernel(asking))
    assert found == []
    for _ in range(2):
        full.accept()[0].close()
    asking.join(30)
    assert found == [os.getpid()]


def test_a_socket_with_a_python_timeout_does_not_wait(full: socket.socket) -> None:
    """The twin: what the holder's clients did before."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(60)
        with pytest.raises(BlockingIOError) as caught:
            client.connect("holder.sock")
    assert caught.value.errno == errno.EAGAIN
    assert full.fileno() >= 0


def _is_waiting_in_the_kernel(thread: threading.Thread) -> bool:
    state = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "S"


def test_a_failed_round_does_not_end_the_thread_that_measures(
    workspaces: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_rows, "_RETRY_SECONDS", 0.01)
    desk = workspaces.create(id="t/a")
    shown = Board(workspaces)
    measured, rounds = shown._workspaces.usage_of, []

    def fails_once(workspace_id: str) -> object:
        rounds.append(workspace_id)
        if len(rounds) == 1:
            raise BlockingIOError(errno.EAGAIN, "a full queue")
        return measured(workspace_id)

    monkeypatch.setattr(shown._workspaces, "usage_of", fails_once)
    shown.start()
    try:
        wait_until(lambda: (shown.row_of(desk.id) or {}).get("size") is not None)
        assert len(rounds) >= 2
    finally:
        shown.stop()
