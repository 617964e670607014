"""Many processes at once, on SQLite and on PostgreSQL: nothing is lost, nothing is doubled, one of two wins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import workstead
from situations import check_whole, fork, wait, wait_all
from workstead.errors import WorkspaceExists
from workstead.settings import Settings
from workstead.store import open_log

WRITERS = 8


class Shared:
    """A home that several processes use."""

    def __init__(self, path: str, settings: Settings) -> None:
        self.path = path
        self.settings = settings
        self.each = 200  # creates and destroys of each writer

    def open(self) -> workstead.local.Local:
        return workstead.open(self.path, settings=self.settings)


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> Iterator[Shared]:
    """In memory where there is some: this is about order, and a slow disk would only hide races."""
    fast = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    top = fast / f"workstead-{os.getpid()}-{os.urandom(4).hex()}"
    top.mkdir()
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        # Nor is it about durability: a server that waits for its disk at each commit would take minutes.
        settings = settings.replace(store=settings.store.replace(url=f"{url}&options=-csynchronous_commit%3Doff"))
    yield Shared(str(top / "home"), settings)
    shutil.rmtree(top)


def test_eight_writers_lose_nothing_and_a_follower_sees_it_all_in_order(shared: Shared, tmp_path: Path) -> None:
    made = WRITERS * shared.each
    total = made * 4  # creating, created, destroying, cleanup
    shared.open().close()

    def follow() -> None:
        with shared.open() as workspaces, open(tmp_path / "seen", "w") as seen:
            for number, event in enumerate(workspaces.follow(after=0, timeout_seconds=60), 1):
                seen.write(f"{event.position} {event.hash}\n")
                if number == total:
                    return

    def write(writer: int) -> None:
        with shared.open() as workspaces:
            for number in range(shared.each):
                # Tasks are shared by all writers, so that they also meet in one stream.
                workspaces.create(id=f"t{number % 3}/{writer}-{number}")
                workspaces.destroy(f"t{number % 3}/{writer}-{number}")

    follower = fork(follow)
    wait_all([fork(lambda writer=writer: write(writer)) for writer in range(WRITERS)])  # type: ignore[misc]
    assert wait(follower) == 0
    with shared.open() as workspaces:
        events = list(workspaces.events())
        assert [event.position for event in events] == list(range(1, total + 1))
        assert Counter(event.event_type for event in events) == {
            "workspace_creating": made,
            "workspace_created": made,
            "workspace_destroying": made,
            "workspace_cleanup": made,
        }
        seen = (tmp_path / "seen").read_text().splitlines()
        assert seen == [f"{event.position} {event.hash}" for event in events]
        assert len(workspaces.operations()) == made
        check_whole(workspaces, shared.path)


def test_of_two_that_create_the_same_id_exactly_one_wins(shared: Shared, tmp_path: Path) -> None:
    rounds = 60
    shared.open().close()

    def contend(name: str) -> None:
        with shared.open() as workspaces, open(tmp_path / name, "w") as won:
            for number in range(rounds):
                meet(tmp_path / f"{name}-{number}", tmp_path / f"{'b' if name == 'a' else 'a'}-{number}")
                try:
                    desk = workspaces.create(id=f"t/{number}")
                except WorkspaceExists:
                    continue
                won.write(f"{number} {desk.uid}\n")

    wait_all([fork(lambda name=name: contend(name)) for name in ("a", "b")])  # type: ignore[misc]
    winners = [line.split() for name in ("a", "b") for line in (tmp_path / name).read_text().splitlines()]
    assert sorted(int(number) for number, _ in winners) == list(range(rounds))
    with shared.open() as workspaces:
        assert {workspace.uid for workspace in workspaces.list()} == {uid for _, uid in winners}
        check_whole(workspaces, shared.path)


def meet(mine: Path, other: Path) -> None:
    """Wait until both are here, without sleeping: the start is to be the same moment."""
    mine.touch()
    end = time.monotonic() + 30
    while not other.exists():
        assert time.monotonic() < end, "the other one is gone"


def test_creating_and_destroying_the_same_id_at_once_leaves_it_whole_or_gone(shared: Shared) -> None:
    shared.open().close()

    def churn() -> None:
        with shared.open() as workspaces:
            for _ in range(40):
                try:
                    workspaces.create(id="t/a")
                except WorkspaceExists:
                    workspaces.destroy("t/a")

    wait_all([fork(churn) for _ in range(4)])
    with shared.open() as workspaces:
        check_whole(workspaces, shared.path)
        counts = Counter(event.event_type for event in workspaces.events())
        gone = len(workspaces.trash())
        assert counts["workspace_created"] == gone + len(workspaces.list())
        assert counts["workspace_cleanup"] == gone


def test_first_openers_at_once_make_one_home(shared: Shared) -> None:
    def first(number: int) -> None:
        with shared.open() as workspaces:
            workspaces.create(id=f"t/{number}")

    wait_all([fork(lambda number=number: first(number)) for number in range(6)])  # type: ignore[misc]
    with shared.open() as workspaces:
        assert len({workspace.home for workspace in workspaces.list()}) == 1
        assert len(workspaces.list()) == 6
        assert workspaces.repair() == []
        check_whole(workspaces, shared.path)


def test_undo_and_sweep_at_once_never_both_win(shared: Shared) -> None:
    with shared.open() as workspaces:
        for number in range(20):
            workspaces.create(id=f"t/{number}")
            workspaces.destroy(f"t/{number}")

    def bring_back() -> None:
        with shared.open() as workspaces:
            for workspace in workspaces.trash():
                try:
                    workspaces.restore_trashed(workspace.uid)
                except workstead.errors.WorksteadError:
                    continue

    def delete() -> None:
        with shared.open() as workspaces:
            workspaces.sweep(everything=True)

    wait_all([fork(bring_back), fork(delete)])
    with shared.open() as workspaces:
        states = Counter(workspace.state for workspace in workspaces.list(all=True))
        assert sum(states.values()) == 20
        assert set(states) <= {"ready", "purged", "destroyed"}
        check_whole(workspaces, shared.path)


def test_many_first_users_of_a_home_all_get_in(tmp_path: Path) -> None:
    """Changing a new file to write-ahead logging is the one moment at which SQLite does not wait for others."""
    script = "import sys; from workstead.store import open_log; log = open_log(sys.argv[1]); print(log.last_position())"
    for number in range(6):
        path = str(tmp_path / f"log{number}.db")
        users = [
            subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(8)
        ]
        for user in users:
            out, err = user.communicate(timeout=60)
            assert (user.returncode, out) == (0, b"0\n"), err.decode()


def test_another_connection_does_not_take_our_locks_away(tmp_path: Path) -> None:
    """POSIX locks of a process go when any descriptor of the file is closed: opening must not open and close it."""
    path = str(tmp_path / "log.db")
    log = open_log(path)
    log.last_position()
    before = _locks_on(path)
    assert before
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(open_log(path).last_position()))
    thread.start()
    thread.join()
    assert seen == [0]
    assert _locks_on(path) >= before
    log.close()


def _locks_on(path: str) -> int:
    inode = os.stat(path).st_ino
    with open("/proc/locks") as table:
        return sum(f":{inode} " in line and f" {os.getpid()} " in line for line in table)
