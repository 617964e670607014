"""Approvals between processes, on SQLite and on PostgreSQL: one decides, one uses it, and nobody gets around it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workstead
from situations import fork, wait, wait_all
from workstead.errors import (
    ApprovalDecided,
    ApprovalDenied,
    ApprovalExpired,
    ApprovalRequired,
    FileChanged,
    FileNotFound,
)
from workstead.local import Local
from workstead.settings import Settings

DESK = "fix/a"


class Shared:
    """A home that several processes use, with a workspace in it."""

    def __init__(self, path: str, settings: Settings) -> None:
        self.path = path
        self.settings = settings
        with self.open() as workspaces:
            self.work = Path(workspaces.create(id=DESK).path, "work")
            workspaces.write_file(DESK, "work/a.py", "one\n")

    def open(self, **who: object) -> Local:
        return workstead.open(self.path, settings=self.settings, **who)  # type: ignore[arg-type]

    def agent(self, seconds: float = 60) -> Local:
        return self.open(actor_id="bot", agent_of=DESK, wait_seconds=seconds)

    def first_question(self) -> str:
        """The id of what is asked first, from now or before."""
        with self.open() as workspaces:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                found = workspaces.approvals()
                if found:
                    return found[0].id
                time.sleep(0.002)
        raise AssertionError("nobody asked anything")

    def events(self, *types: str) -> list[str]:
        with self.open() as workspaces:
            workspaces.verify().check()
            return [event.event_type for event in workspaces.events(types=types)]


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> Iterator[Shared]:
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        settings = settings.replace(store=settings.store.replace(url=url))
    yield Shared(str(tmp_path / "home"), settings)
    shutil.rmtree(tmp_path / "home")


def in_process(act: Callable[[], object]) -> int:
    return fork(act)


def test_of_two_deciders_one_wins_and_the_other_learns_who(shared: Shared) -> None:
    for round_number in range(10):
        with shared.open() as workspaces:
            workspaces.write_file(DESK, "work/a.py", f"{round_number}\n")
        with shared.agent(0) as agent, pytest.raises(ApprovalRequired) as asked:
            agent.delete_file(DESK, "work/a.py")
        approval = str(asked.value.details["approval_id"])
        ready, go = os.pipe()

        def decide(name: str, approval: str = approval, ready: int = ready) -> int:
            with shared.open(actor_id=name) as workspaces:
                os.read(ready, 1)
                try:
                    (workspaces.approve if name == "yes" else workspaces.deny)(approval)
                    return 10
                except ApprovalDecided as error:
                    return 20 if error.details["decided_by"] == {"yes": "no", "no": "yes"}[name] else 30

        children = [in_process(lambda name=name: decide(name)) for name in ("yes", "no")]
        time.sleep(0.05)
        os.write(go, b"xx")
        assert sorted(wait(child) for child in children) == [10, 20]
        os.close(ready)
        os.close(go)
    decided = shared.events("approval_granted", "approval_denied")
    assert len(decided) == 10


def test_of_two_who_use_one_grant_one_gets_through(shared: Shared) -> None:
    for round_number in range(6):
        with shared.open() as workspaces:
            workspaces.write_file(DESK, "work/a.py", f"{round_number}\n")
        with shared.agent(0) as agent, pytest.raises(ApprovalRequired) as asked:
            agent.delete_file(DESK, "work/a.py")
        with shared.open() as workspaces:
            workspaces.approve(str(asked.value.details["approval_id"]))
            workspaces.snapshot(DESK)  # so that nobody has to keep a state first, and both come at once

        def use() -> int:
            with shared.agent(0) as agent:
                try:
                    agent.delete_file(DESK, "work/a.py")
                    return 10
                except (ApprovalRequired, FileNotFound, FileChanged):  # asked anew; gone; going
                    return 20

        assert sorted(wait(child) for child in [in_process(use), in_process(use)]) == [10, 20]
        assert len(shared.events("approval_used")) == round_number + 1


def test_a_caller_in_another_process_wakes_and_goes_on(shared: Shared) -> None:
    def write() -> None:
        with shared.agent() as agent:
            agent.write_file(DESK, "work/a.py", "two\n")

    child = in_process(write)
    approval = shared.first_question()
    with shared.open() as workspaces:
        workspaces.approve(approval)
    wait_all([child])
    assert (shared.work / "a.py").read_text() == "two\n"
    assert shared.events("approval_granted", "approval_used", "file_written")[1:] == [
        "approval_granted",
        "approval_used",
        "file_written",
    ]


def test_content_swapped_while_a_caller_waits_is_never_overwritten(shared: Shared) -> None:
    def overwrite() -> int:
        with shared.agent(20) as agent:
            try:
                agent.write_file(DESK, "work/a.py", "two\n")
                return 10
            except ApprovalDenied:
                return 20

    child = in_process(overwrite)
    approval = shared.first_question()
    (shared.work / "a.py").write_text("precious\n")  # not through us: nobody is told
    with shared.open() as workspaces:
        with pytest.raises(FileChanged):
            workspaces.approve(approval)
        assert workspaces.get_approval(approval).state == "voided"
    second = shared.first_question()  # the caller still waits, and asks for what is there now
    with shared.open() as workspaces:
        assert "-precious" in workspaces.preview(second)
        workspaces.deny(second)
    assert wait(child) == 20
    assert (shared.work / "a.py").read_text() == "precious\n"


def test_a_caller_whose_content_was_swapped_after_the_decision_asks_anew(shared: Shared) -> None:
    with shared.agent(0) as agent, pytest.raises(ApprovalRequired) as asked:
        agent.write_file(DESK, "work/a.py", "two\n")
    first = str(asked.value.details["approval_id"])
    with shared.open() as workspaces:
        workspaces.approve(first)
    (shared.work / "a.py").write_text("precious\n")

    def overwrite() -> int:
        with shared.agent(20) as agent:
            try:
                agent.write_file(DESK, "work/a.py", "two\n")
                return 10
            except ApprovalDenied:
                return 20

    child = in_process(overwrite)
    second = shared.first_question()
    assert second != first
    with shared.open() as workspaces:
        assert "-precious" in workspaces.preview(second)
        workspaces.deny(second)
    assert wait(child) == 20
    assert (shared.work / "a.py").read_text() == "precious\n"


def test_a_decision_after_the_caller_died_is_harmless_and_used_by_the_next(shared: Shared) -> None:
    def delete() -> None:
        with shared.agent() as agent:
            agent.delete_file(DESK, "work/a.py")

    child = in_process(delete)
    approval = shared.first_question()
    os.kill(child, signal.SIGKILL)
    assert wait(child) == -signal.SIGKILL
    with shared.open() as workspaces:
        assert workspaces.approve(approval)[0].state == "granted"
        assert (shared.work / "a.py").exists()
    with shared.agent(0) as agent:
        agent.delete_file(DESK, "work/a.py")
    assert not (shared.work / "a.py").exists()
    assert shared.events("approval_requested", "approval_granted", "approval_used") == [
        "approval_requested",
        "approval_granted",
        "approval_used",
    ]


def test_many_callers_with_one_wish_ask_once(shared: Shared) -> None:
    def overwrite() -> int:
        with shared.agent(60) as agent:
            try:
                agent.write_file(DESK, "work/a.py", "two\n")
                return 10
            except (ApprovalExpired, ApprovalDenied):
                return 20

    children = [in_process(overwrite) for _ in range(4)]
    approval = shared.first_question()
    time.sleep(0.3)  # the others join meanwhile, or come later and find it granted
    with shared.open() as workspaces:
        assert len(workspaces.approvals()) == 1
        workspaces.deny(approval)
    assert [wait(child) for child in children] == [20] * 4
