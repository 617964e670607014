"""What the gate costs, and how long an answer takes from one process to another."""

from __future__ import annotations

import fnmatch
import itertools
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from harness import Row

import workstead
from workstead.errors import ApprovalRequired
from workstead.local import Local
from workstead.model.policy import AGENT, Rule, decide, parse_policy

COUNT = itertools.count()
DESK = "bench/a"


def rows(scratch: str) -> Iterator[Row]:
    os.makedirs(scratch)
    yield _decide()
    yield _write(f"{scratch}/write")
    yield _overwrite(f"{scratch}/overwrite")
    yield _answer(f"{scratch}/answer")
    yield _list(f"{scratch}/list")
    yield _execute(f"{scratch}/execute")


def _decide() -> Row:
    rules = [Rule(outcome="deny", paths=[f"vendor-{number}/**/*.py"]).stated() for number in range(20)]
    policy = parse_policy({"rules": rules})
    patterns = [f"work/vendor-{number}/*.py" for number in range(20)]
    path = "work/src/package/module/deep/file.py"
    arms: dict[str, Callable[[], object]] = {
        "workstead": lambda: decide(policy, AGENT, "write", path, size=100),
        "20 fnmatch patterns": lambda: [fnmatch.fnmatchcase(path, pattern) for pattern in patterns],
    }
    return Row("judge a path by 20 rules", arms, "a tenth of a millisecond", rounds=30, inner=200)


def _desk(top: str, policy: str = "careful") -> tuple[Local, Local]:
    owner = workstead.open(f"{top}/home")
    owner.create(id=DESK, config={"policy": policy})
    return owner, owner.acting_as("bot", agent_of=DESK)


def _write(top: str) -> Row:
    owner, agent = _desk(top)
    arms: dict[str, Callable[[], object]] = {
        "an agent, allowed": lambda: agent.write_file(DESK, f"work/{next(COUNT)}", "x" * 2000),
        "the owner, not judged": lambda: owner.write_file(DESK, f"work/{next(COUNT)}", "x" * 2000),
    }
    return Row("write_file of a new file of 2 kB, judged", arms, "the owner's <= 1.2x", rounds=30, inner=5)


def _overwrite(top: str) -> Row:
    """The agent's can be taken back: a state with the old content is kept before each."""
    owner, agent = _desk(top, "trusting")
    beside = owner.create(id="bench/b").id  # whose snapshots hold nothing of what the agent overwrites
    for desk, path in ((DESK, "work/a"), (beside, "work/b"), (beside, "work/c")):
        owner.write_file(desk, path, "x" * 2000)

    def and_snapshot() -> None:
        owner.snapshot(beside)
        owner.write_file(beside, "work/c", f"{next(COUNT)}")

    arms: dict[str, Callable[[], object]] = {
        "an agent, allowed and undoable": lambda: agent.write_file(DESK, "work/a", f"{next(COUNT)}"),
        "the owner": lambda: owner.write_file(beside, "work/b", f"{next(COUNT)}"),
        "the owner, with a snapshot before": and_snapshot,
    }
    return Row("write_file onto a file, judged and kept before", arms, "a snapshot and a write <= 2x", rounds=20)


def _answer(top: str) -> Row:
    owner, _ = _desk(top)
    owner.write_file(DESK, "work/a", "x\n")
    agent = owner.acting_as("bot", agent_of=DESK, wait_seconds=60)
    children: list[int] = []

    def decider() -> None:
        with workstead.open(f"{top}/home") as other:
            for event in other.follow(types=["approval_requested"]):
                other.approve(str(event.event_data["approval_id"]))

    ask_read, ask_write = os.pipe()
    answer_read, answer_write = os.pipe()

    def echo() -> None:
        while os.read(ask_read, 1):
            database = _database(f"{top}/raw.db")
            database.execute("INSERT INTO log (data) VALUES (?)", ("granted" * 40,))
            os.write(answer_write, b"y")

    def raw() -> None:
        database.execute("INSERT INTO log (data) VALUES (?)", ("asked" * 60,))
        os.write(ask_write, b"?")
        os.read(answer_read, 1)
        database.execute("INSERT INTO log (data) VALUES (?)", ("used" * 60,))

    @contextmanager
    def hold() -> Iterator[None]:
        children.extend([_fork(decider), _fork(echo)])
        try:
            yield
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)

    os.makedirs(top, exist_ok=True)
    database = _database(f"{top}/raw.db")
    arms: dict[str, Callable[[], object]] = {
        "workstead: asked, previewed, granted elsewhere, kept before, written": lambda: agent.write_file(
            DESK, "work/a", f"{next(COUNT)}\n"
        ),
        "a pipe there and back, 3 durable sqlite3 inserts": raw,
    }
    return Row("an approval, from the wish to the deed, between two processes", arms, "< 100 ms", rounds=15, hold=hold)


def _list(top: str) -> Row:
    owner, agent = _desk(top)
    owner.write_file(DESK, "work/a", "x\n")
    for number in range(1000):
        with suppress(ApprovalRequired):
            agent.write_file(DESK, "work/a", f"{number}\n")
    first = owner.approvals()[0].id
    arms: dict[str, Callable[[], object]] = {
        "workstead: list them": owner.approvals,
        "find one by its id": lambda: owner.get_approval(first),
    }
    return Row("1,000 open approvals", arms, rounds=15)


def _execute(top: str) -> Row:
    owner, _ = _desk(top)
    owner.create(id="bench/b", config={"policy": {"execute": "deny"}})

    def run(desk: str) -> None:
        owner.wait(owner.run(desk, ["true"]).id)

    arms: dict[str, Callable[[], object]] = {
        "nothing can be executed that was written": lambda: run("bench/b"),
        "as usual": lambda: run(DESK),
    }
    return Row("run `true` under a policy that denies execute", arms, "as usual <= 1.1x", rounds=8)


def _database(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE IF NOT EXISTS log (position INTEGER PRIMARY KEY, data)")
    return database


def _fork(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    return pid
