"""Policies and approvals as people type them and as programs read them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

import workstead
from workstead.errors import ApprovalRequired
from workstead.local import Local
from workstead.settings import Settings

from .aw_command import PROGRAM, Aw, program


@pytest.fixture
def aw(home_path: str, capsys: pytest.CaptureFixture[str]) -> Aw:
    return Aw(home_path, capsys)


@pytest.fixture
def agent(workspaces: Local) -> Local:
    desk = workspaces.create(id="fix/a")
    workspaces.write_file(desk.id, "work/a.py", "one\n")
    return workspaces.acting_as("bot", agent_of=desk.id)


def asks(agent: Local, path: str = "work/a.py", text: str = "two\n") -> str:
    with pytest.raises(ApprovalRequired) as asked:
        agent.write_file("fix/a", path, text)
    return str(asked.value.details["approval_id"])


def test_a_policy_is_shown_tried_and_changed(aw: Aw, agent: Local, tmp_path: Path) -> None:
    assert "OTHERWISE (careful)" in aw("policy", "show", "fix/a").out
    assert aw("policy", "why", "fix/a", "delete", "work/a.py").out == "ask: delete: ask (careful)\n"
    assert aw.ok("policy", "why", "fix/a", "delete", "work/a.py") == {
        "outcome": "ask",
        "rule": "delete: ask (careful)",
        "number": None,
    }
    rules = {"rules": [{"outcome": "deny", "operations": ["write"], "min_bytes": 100}]}
    (tmp_path / "policy.json").write_text(json.dumps(rules))
    assert aw.ok("policy", "set", "fix/a", f"@{tmp_path}/policy.json", "--reason", "no large files")["rules"]
    assert aw("policy", "why", "fix/a", "write", "work/x", "--size", "99").out.startswith("allow")
    assert aw("policy", "why", "fix/a", "write", "work/x").out == "deny: rule 1: deny write from 100 bytes\n"
    shown = aw("policy", "show", "--id", "fix/a").out
    assert "1     deny write from 100 bytes" in shown
    assert aw.ok("policy", "set", "fix/a", "trusting")["preset"] == "trusting"
    assert aw.ok("policy", "presets")["read-only"]["write"] == "deny"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("policy", "show"), "invalid_usage"),
        (("policy", "why", "fix/a"), "invalid_usage"),
        (("policy", "why", "fix/a", "fly", "x"), "invalid"),
        (("policy", "why", "no/such", "read"), "workspace_not_found"),
        (("policy", "set", "fix/a"), "invalid_usage"),
        (("policy", "set", "fix/a", "wild"), "invalid_config"),
        (("policy", "set", "fix/a", "{"), "invalid_config"),
        (("policy", "set", "fix/a", "@/no/such"), "filesystem_error"),
        (("policy", "fly", "fix/a"), "invalid_usage"),
        (("approve",), "invalid_usage"),
        (("approve", "ask-1", "--id", "fix/a"), "invalid_usage"),
        (("approve", "ask-1"), "approval_not_found"),
        (("deny", "ask-1"), "approval_not_found"),
        (("approve", "--also-later"), "invalid_usage"),
        (("approve", "--run", "run-none"), "run_not_found"),
        (("approve", "--id", "fix/a", "--operation", "fly", "--also-later"), "invalid_config"),
        (("approve", "--id", "fix/a", "--operation", "fly"), "invalid_usage"),
        (("deny", "--id", "fix/a", "--operation", "fly"), "invalid_usage"),
        (("approvals", "show", "ask-1"), "approval_not_found"),
        (("approvals", "a", "b"), "invalid_usage"),
    ],
)
def test_what_makes_no_sense_is_said_and_changes_nothing(
    aw: Aw, agent: Local, workspaces: Local, arguments: tuple[str, ...], code: str
) -> None:
    before = workspaces.last_position()
    assert aw.json(*arguments).error["code"] == code
    assert workspaces.last_position() == before


def test_the_story_of_an_approval(aw: Aw, agent: Local, workspaces: Local) -> None:
    assert aw("approvals").out == ""
    approval = asks(agent)
    listed = aw("approvals").out
    for word in (approval, "fix/a", "overwrite", "/mnt/workspace/work/a.py", "+1 -1", "bot", "s left"):
        assert word in listed
    shown = aw("approvals", "show", approval).out
    assert shown.endswith("@@ -1 +1 @@\n-one\n+two\n")
    assert "because" in shown
    assert aw.ok("approvals", "show", approval)["preview"].endswith("-one\n+two\n")
    assert aw("approve", approval, "-m", "looks right").code == 0
    agent.write_file("fix/a", "work/a.py", "two\n")
    assert aw("approvals").out == ""
    (done,) = aw.ok("approvals", "--all")
    assert (done["state"], done["comment"], done["decided_by"]) == ("used", "looks right", "owner")
    late = aw.json("deny", approval)
    assert (late.code, late.error["code"], late.error["details"]["decided_by"]) == (4, "approval_decided", "owner")


def test_a_denial_is_told_to_the_agent(aw: Aw, agent: Local, workspaces: Local) -> None:
    approval = asks(agent)
    assert aw.ok("deny", approval, "-m", "keep it")[0]["state"] == "denied"
    assert workspaces.get_approval(approval).comment == "keep it"


def test_all_of_a_kind_are_decided_together(aw: Aw, agent: Local, workspaces: Local) -> None:
    for name in ("build/x", "build/y", "src/z"):
        workspaces.write_file("fix/a", f"work/{name}", "1", parents=True)
        asks(agent, f"work/{name}", "2")
    done = aw.ok("approve", "--id", "fix/a", "--operation", "overwrite", "--path", "build/**", "--also-later")
    assert [each["place"] for each in done] == ["work/build/x", "work/build/y"]
    agent.write_file("fix/a", "work/build/x", "3")
    assert "allow overwrite in build/**" in aw("policy", "show", "fix/a").out
    assert [each["place"] for each in aw.ok("deny", "--id", "fix/a")] == ["work/src/z"]


def test_names_of_an_agent_do_not_act_on_the_terminal(aw: Aw, agent: Local, workspaces: Local) -> None:
    path = "work/\x1b[31mred\nline"
    workspaces.write_file("fix/a", path, "1\n")
    approval = asks(agent, path, "\x1b]0;title\x07\n")
    for arguments in (("approvals",), ("approvals", "show", approval), ("approve", approval)):
        assert "\x1b" not in aw(*arguments).out
        assert "\x07" not in aw(*arguments).out


def test_following_shows_what_is_asked_and_decided(agent: Local, workspaces: Local, home_path: str) -> None:
    first = asks(agent)
    with subprocess.Popen(
        [PROGRAM, "--home", home_path, "approvals", "--follow"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "AW_HOME": home_path},
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline().split()[:3] == [first, "asked", "fix/a"]
        second = asks(agent, text="three\n")
        assert following.stdout.readline().split()[:2] == [second, "asked"]
        workspaces.deny(first, comment="no")
        assert following.stdout.readline().split()[:2] == [first, "denied"]
        workspaces.approve(second)
        assert following.stdout.readline().split()[:2] == [second, "granted"]
        agent.write_file("fix/a", "work/a.py", "three\n")
        assert following.stdout.readline().split()[:2] == [second, "used"]
        following.kill()


def test_following_in_json_is_one_document_a_line(agent: Local, home_path: str) -> None:
    approval = asks(agent)
    with subprocess.Popen(
        [PROGRAM, "--home", home_path, "approvals", "--follow", "--format", "json"], stdout=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["approval_id"] == approval
        following.kill()


def test_a_caller_that_waits_is_woken_by_the_program(
    agent: Local, workspaces: Local, home_path: str, settings: Settings
) -> None:
    import threading

    def work() -> None:
        with workstead.open(home_path, settings=settings, actor_id="bot", agent_of="fix/a", wait_seconds=60) as waiting:
            waiting.delete_file("fix/a", "work/a.py")

    thread = threading.Thread(target=work)
    thread.start()
    while not workspaces.approvals():
        time.sleep(0.01)
    answer = program("approve", workspaces.approvals()[0].id, home=home_path)
    assert answer.code == 0, answer.err
    thread.join(60)
    assert not thread.is_alive()
    assert workspaces.list_files("fix/a", "work") == {}


def test_a_file_that_changed_voids_the_question(aw: Aw, agent: Local, workspaces: Local) -> None:
    approval = asks(agent)
    workspaces.write_file("fix/a", "work/a.py", "precious\n")
    answer = aw.json("approve", approval)
    assert (answer.code, answer.error["code"]) == (4, "file_changed")
    assert aw.ok("approvals", "--all")[0]["state"] == "voided"


def test_what_an_agent_did_is_undone_from_the_command_line(aw: Aw, agent: Local, workspaces: Local) -> None:
    aw("approve", asks(agent))
    agent.write_file("fix/a", "work/a.py", "two\n")
    assert "change" in aw("ops").out
    assert aw("undo").code == 0
    assert workspaces.read_file("fix/a", "work/a.py") == b"one\n"
