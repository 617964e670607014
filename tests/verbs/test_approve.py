"""Approvals: exactly what was asked, once, decided by whoever is first."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pytest

from workstead.errors import (
    ApprovalDecided,
    ApprovalDenied,
    ApprovalExpired,
    ApprovalNotFound,
    ApprovalRequired,
    FileChanged,
    InvalidUsage,
)
from workstead.local import Local
from workstead.model.approval import Approval


@pytest.fixture
def desk(workspaces: Local) -> str:
    desk = workspaces.create(id="fix/a")
    workspaces.write_file(desk.id, "work/a.py", "one\n")
    return desk.id


@pytest.fixture
def agent(workspaces: Local, desk: str) -> Local:
    return workspaces.acting_as("bot", agent_of=desk, run_id="run-1")


def asked(workspaces: Local, act: object) -> Approval:
    """What is asked when somebody tries this."""
    with pytest.raises(ApprovalRequired) as required:
        act()  # type: ignore[operator]
    found = workspaces.get_approval(str(required.value.details["approval_id"]))
    assert found.expires_at == required.value.details["expires_at"]
    return found


def types_of(workspaces: Local) -> list[str]:
    return [event.event_type for event in workspaces.events() if event.event_type.startswith("approval")]


def test_a_request_says_all_that_a_person_wants_to_know(workspaces: Local, agent: Local, desk: str) -> None:
    found = asked(workspaces, lambda: agent.write_file(desk, "work/a.py", "two\n"))
    assert (found.operation, found.path, found.actor_id, found.run_id) == (
        "overwrite",
        "/mnt/workspace/work/a.py",
        "bot",
        "run-1",
    )
    assert found.digest_before != found.digest_after
    assert found.rule == "overwrite: ask (careful)"
    assert workspaces.preview(found.id).splitlines()[2:] == ["@@ -1 +1 @@", "-one", "+two"]
    assert agent.preview(found.id) == workspaces.preview(found.id)
    (event,) = workspaces.events(types=["approval_requested"])
    assert "two" not in str(event.event_data)


def test_previews_are_closed_to_others(workspaces: Local, agent: Local, desk: str, home_path: str) -> None:
    found = asked(workspaces, lambda: agent.delete_file(desk, "work/a.py"))
    path = f"{home_path}/approvals/{found.id}"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


def test_a_grant_is_used_once(workspaces: Local, agent: Local, desk: str) -> None:
    found = asked(workspaces, lambda: agent.write_file(desk, "work/a.py", "two\n"))
    (granted,) = workspaces.approve(found.id, comment="fine")
    assert (granted.state, granted.decided_by, granted.comment) == ("granted", "owner", "fine")
    agent.write_file(desk, "work/a.py", "two\n")
    assert workspaces.read_file(desk, "work/a.py") == b"two\n"
    assert types_of(workspaces) == ["approval_requested", "approval_granted", "approval_used"]
    workspaces.write_file(desk, "work/a.py", "one\n")
    again = asked(workspaces, lambda: agent.write_file(desk, "work/a.py", "two\n"))
    assert again.id != found.id


def test_a_grant_is_for_these_bytes_and_this_place(workspaces: Local, agent: Local, desk: str) -> None:
    workspaces.write_file(desk, "work/b.py", "one\n")
    found = asked(workspaces, lambda: agent.write_file(desk, "work/a.py", "two\n"))
    workspaces.approve(found.id)
    for act in (
        lambda: agent.write_file(desk, "work/a.py", "evil\n"),
        lambda: agent.write_file(desk, "work/b.py", "two\n"),
        lambda: agent.delete_file(desk, "work/a.py"),
        lambda: agent.write_file(desk, "work/a.py", "two\n", append=True),
    ):
        assert asked(workspaces, act).id != found.id
    assert workspaces.read_file(desk, "work/a.py") == b"one\n"


def test_the_same_question_is_asked_once(workspaces: Local, agent: Local, desk: str) -> None:
    ids = {asked(workspaces, lambda: agent.delete_file(desk, "work/a.py")).id for _ in range(3)}
    assert len(ids) == 1
    assert len(workspaces.approvals()) == 1
    assert len(os.listdir(f"{workspaces._home.path}/approvals")) == 1


def test_content_that_changes_before_the_decision_voids_it(workspaces: Local, agent: Local, desk: str) -> None:
    found = asked(workspaces, lambda: agent.delete_file(desk, "work/a.py"))
    workspaces.write_file(desk, "work/a.py", "precious\n")
    with pytest.raises(FileChanged):
        workspaces.approve(found.id)
    assert workspaces.get_approval(found.id).state == "voided"
    assert asked(workspaces, lambda: agent.delete_file(desk, "work/a.py")).id != found.id


def test_content_that_changes_after_the_decision_is_not_touched(workspaces: Local, agent: Local, desk: str) -> None:
    found = asked(workspaces, lambda: agent.delete_file(desk, "work/a.py"))
    workspaces.approve(found.id)
    workspaces.write_file(desk, "work/a.py", "precious\n")
    again = asked(workspaces, lambda: agent.delete_file(desk, "work/a.py"))
    assert again.id != found.id
    assert workspaces.get_approval(found.id).state == "voided"
    assert [each.id for each in workspaces.approvals()] == [again.id]  # nobody is asked about what is no more
    assert workspaces.read_file(desk, "work/a.py") == b"precious\n"


def test_a_directory_that_changes_is_another_one(workspaces: Local, agent: Local, desk: str) -> None:
    workspaces.write_file(desk, "work/d/e/f", "x", parents=True)
    found = asked(workspaces, lambda: agent.delete_file(desk, "work/d", recursive=True))
    assert "e/f  1" in workspaces.preview(found.id)
    path = f"{workspaces.get(desk).path}/work/d/e/f"
    before = os.stat(path)
    with open(path, "w") as file:  # same size, and the times that a program can set are set back
        file.write("y")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(FileChanged):
        workspaces.approve(found.id)


def test_nobody_decides_twice(workspaces: Local, agent: Local, desk: str) -> None:
    found = asked(workspaces, lambda: agent.delete_file(desk, "work/a.py"))
    workspaces.acting_as("first").deny(found.id, comment="no")
    with pytest.raises(ApprovalDecided, match="denied already, decided by first: no"):
        workspaces.acting_as("second").approve(found.id)
    with pytest.raises(ApprovalNotFound):
        workspaces.approve("ask-nothing")


def test_an_agent_that_waits_wakes_at_the_decision(workspaces: Local, desk: str) -> None:
    def decide() -> None:
        other = workspaces.acting_as("person")
        while not (found := other.approvals()):
            time.sleep(0.005)
        (other.approve if yes else other.deny)(found[0].id, comment="so be it")

    waiting = workspaces.acting_as("bot", agent_of=desk, wait_seconds=60)
    for yes in (True, False):
        thread = threading.Thread(target=decide)
        thread.start()
        if yes:
            waiting.write_file(desk, "work/a.py", iter([b"t", b"wo\n"]))
            assert workspaces.read_file(desk, "work/a.py") == b"two\n"
        else:
            with pytest.raises(ApprovalDenied, match=r"person did not approve .*: so be it"):
                waiting.delete_file(desk, "work/a.py")
        thread.join()


def test_an_agent_waits_no_longer_than_it_wants(workspaces: Local, desk: str) -> None:
    impatient = workspaces.acting_as("bot", agent_of=desk, wait_seconds=0.05)
    found = asked(workspaces, lambda: impatient.delete_file(desk, "work/a.py"))
    assert found.state == "open"


def test_time_that_is_over_denies(workspaces: Local, desk: str) -> None:
    workspaces.change_policy(desk, {"approval_timeout_seconds": 0.1})
    with pytest.raises(ApprovalExpired):
        workspaces.acting_as("bot", agent_of=desk, wait_seconds=60).delete_file(desk, "work/a.py")
    assert types_of(workspaces) == ["approval_requested", "approval_expired"]
    found = asked(workspaces, lambda: workspaces.acting_as("bot", agent_of=desk).delete_file(desk, "work/a.py"))
    time.sleep(0.1)
    with pytest.raises(ApprovalExpired):
        workspaces.approve(found.id)
    assert workspaces.approvals() == []
    assert [each.state for each in workspaces.approvals(all=True)] == ["expired", "expired"]


def test_many_whose_time_is_over_end_together(workspaces: Local, desk: str) -> None:
    workspaces.change_policy(desk, {"approval_timeout_seconds": 0.3})
    agent = workspaces.acting_as("bot", agent_of=desk)
    for number in range(5):
        asked(workspaces, lambda number=number: agent.write_file(desk, "work/a.py", f"{number}"))
    time.sleep(0.3)
    assert workspaces.approvals() == []
    assert types_of(workspaces).count("approval_expired") == 5


def test_a_grant_that_nobody_uses_expires(workspaces: Local, desk: str) -> None:
    workspaces.change_policy(desk, {"approval_timeout_seconds": 1.5})
    agent = workspaces.acting_as("bot", agent_of=desk)
    found = asked(workspaces, lambda: agent.delete_file(desk, "work/a.py"))
    workspaces.approve(found.id)
    time.sleep(1.6)
    assert asked(workspaces, lambda: agent.delete_file(desk, "work/a.py")).id != found.id


def test_all_of_a_kind_are_decided_together(workspaces: Local, agent: Local, desk: str) -> None:
    for name in ("build/a", "build/b", "src/c"):
        workspaces.write_file(desk, f"work/{name}", name, parents=True)
        asked(workspaces, lambda name=name: agent.delete_file(desk, f"work/{name}"))
    elsewhere = workspaces.acting_as("bot", agent_of=desk, run_id="run-2")
    asked(workspaces, lambda: elsewhere.write_file(desk, "work/build/b", "y"))
    asked(workspaces, lambda: agent.write_file(desk, "work/build/b", "x"))
    done = workspaces.approve_all(desk, operations=["delete"], paths=["build/**"], comment="all of it")
    assert [each.place for each in done] == ["work/build/a", "work/build/b"]
    agent.delete_file(desk, "work/build/a")
    agent.delete_file(desk, "work/build/b")
    assert len(workspaces.approvals()) == 3
    assert len(workspaces.deny_all(desk)) == 3
    assert workspaces.approvals() == []


def test_what_follows_of_a_kind_goes_without_asking(workspaces: Local, desk: str) -> None:
    run = workspaces.run(desk, ["true"], sandbox="none")
    workspaces.wait(run.id)
    agent = workspaces.acting_as("bot", agent_of=desk, run_id=run.id)
    for name in ("a", "b"):
        workspaces.write_file(desk, f"work/build/{name}", name, parents=True)
    asked(workspaces, lambda: agent.delete_file(desk, "work/build/a"))
    done = workspaces.approve_all(run=run.id, operations=["delete"], paths=["build/**"], also_later=True)
    assert len(done) == 1
    agent.delete_file(desk, "work/build/a")
    agent.delete_file(desk, "work/build/b")
    workspaces.write_file(desk, "work/build/c", "c")
    asked(workspaces, lambda: agent.delete_file(desk, "work/a.py"))
    asked(workspaces, lambda: workspaces.acting_as("b", agent_of=desk).delete_file(desk, "work/build/c"))
    with pytest.raises(InvalidUsage):
        workspaces.approve_all(also_later=True)


def test_a_thousand_open_questions_are_no_burden(workspaces: Local, agent: Local, desk: str) -> None:
    for number in range(1000):
        with pytest.raises(ApprovalRequired):
            agent.write_file(desk, "work/a.py", f"{number}")
    assert len(workspaces.approvals()) == 1000
    last = asked(workspaces, lambda: agent.write_file(desk, "work/a.py", "999"))
    workspaces.approve(last.id)
    agent.write_file(desk, "work/a.py", "999")
    assert workspaces.read_file(desk, "work/a.py") == b"999"


# -- taking back -------------------------------------------------------------------------------------------------------


def test_an_approved_mistake_is_undone(workspaces: Local, agent: Local, desk: str) -> None:
    workspaces.change_policy(desk, "trusting")
    workspaces.write_file(desk, "work/d/e", "deep", parents=True)
    workspaces.write_file(desk, "work/b.py", "b\n")
    agent.write_file(desk, "work/a.py", "two\n")
    agent.delete_file(desk, "work/d", recursive=True)
    agent.move_file(desk, "work/b.py", "work/a.py", replace=True)
    kinds = [operation.kind for operation in workspaces.operations()]
    assert kinds == ["change", "change", "change"]
    work = Path(workspaces.get(desk).path, "work")
    workspaces.undo()
    assert ((work / "a.py").read_text(), (work / "b.py").read_text()) == ("two\n", "b\n")
    workspaces.undo()
    assert (work / "d/e").read_text() == "deep"
    undone, _ = workspaces.undo()
    assert (work / "a.py").read_text() == "one\n"
    by = next(each for each in workspaces.operations() if each.undoes == undone.operation_id)
    workspaces.undo(by.operation_id)
    assert (work / "a.py").read_text() == "two\n"
    workspaces.verify().check()


def test_one_kept_state_does_for_many_changes_to_what_it_holds(workspaces: Local, agent: Local, desk: str) -> None:
    workspaces.change_policy(desk, "trusting")
    for number in range(10):
        workspaces.write_file(desk, f"work/{number}", str(number))
    for number in range(10):
        agent.delete_file(desk, f"work/{number}")
    assert [each.cause for each in workspaces.snapshots(desk)[1:]] == ["before_change"]
    agent.write_file(desk, "work/a.py", "two\n")
    agent.write_file(desk, "work/a.py", "three\n")  # what it writes over is in no state yet
    assert len(workspaces.snapshots(desk)) == 3
    for _ in range(12):
        workspaces.undo()
    assert sorted(os.listdir(f"{workspaces.get(desk).path}/work")) == [*map(str, range(10)), "a.py"]
    assert workspaces.read_file(desk, "work/a.py") == b"one\n"


def test_what_no_state_holds_is_changed_without_one(workspaces: Local, agent: Local, desk: str) -> None:
    workspaces.change_policy(desk, "trusting")
    agent.write_file(desk, "tmp/x", "1")
    agent.write_file(desk, "tmp/y", "1")
    agent.delete_file(desk, "tmp/x")
    assert workspaces.operations() == []
    assert len(workspaces.snapshots(desk)) == 1
    agent.move_file(desk, "tmp/y", "work/y")  # one end of it is kept, and that comes back
    workspaces.undo()
    assert sorted(workspaces.list_files(desk, "work")) == ["a.py"]


def test_the_notes_for_the_agent_are_kept_too(workspaces: Local) -> None:
    desk = workspaces.create(id="fix/n", config={"claude_md": "be careful\n", "policy": "trusting"}).id
    workspaces.acting_as("bot", agent_of=desk).write_file(desk, "CLAUDE.md", "be quick\n")
    workspaces.undo()
    assert workspaces.read_file(desk, "CLAUDE.md") == b"be careful\n"
