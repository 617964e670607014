"""What an agent may not read, it does not learn from the preview of its own request, by moving it, or from a diff."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from people import Person
from workstead.errors import ApprovalRequired, FileChanged, PolicyDenied
from workstead.local import Local

SCRIPT = """
import json
import workstead
from workstead.errors import ApprovalRequired, WorksteadError

owner = workstead.open({home!r})
desk = owner.create(id="t/a", config={{"policy": {{"delete": "ask", "rules": {rules}}}}}).id
owner.write_file(desk, "work/box/secret/key", "hunter2", parents=True)
agent = owner.acting_as("bot", agent_of=desk)
said = {{}}

def attempt(name, act):
    try:
        said[name] = str(act())
    except ApprovalRequired as asked:
        approval = str(asked.details["approval_id"])
        said[f"{{name}}, shown to the owner"] = owner.preview(approval)
        attempt(f"{{name}}, shown to the agent", lambda: agent.preview(approval))
        said[f"{{name}}, digest"] = agent.get_approval(approval).digest_before
        owner.deny(approval)
    except WorksteadError as error:
        said[name] = error.code

attempt("read", lambda: agent.read_file(desk, "work/box/secret/key"))
attempt("overwrite", lambda: agent.write_file(desk, "work/box/secret/key", "x"))
attempt("delete", lambda: agent.delete_file(desk, "work/box/secret/key"))
attempt("move", lambda: agent.move_file(desk, "work/box/secret/key", "work/key"))
attempt("read it there", lambda: agent.read_file(desk, "work/key"))
attempt("move the folder", lambda: agent.move_file(desk, "work/box/secret", "work/open"))
attempt("move the folder above", lambda: agent.move_file(desk, "work/box", "work/cover"))
print(json.dumps(said))
"""
RULES = [{"outcome": "deny", "operations": ["read"], "paths": ["box/secret/**"]}]


def tried(person: Person, rules: list[dict[str, Any]], home: str) -> dict[str, str]:
    said = person.python(SCRIPT.format(home=str(person.directory / home), rules=rules))
    found: dict[str, str] = json.loads(said)
    return found


def test_a_denied_file_is_neither_previewed_nor_moved(person: Person) -> None:
    denied = tried(person, RULES, "denied")
    assert denied["read"] == "policy_denied"
    for operation in ("overwrite", "delete"):
        assert "-hunter2" in denied[f"{operation}, shown to the owner"]
        assert denied[f"{operation}, shown to the agent"] == "policy_denied"
        assert denied[f"{operation}, digest"] == ""
    assert [denied[name] for name in ("move", "read it there")] == ["policy_denied", "file_not_found"]
    assert [denied[name] for name in ("move the folder", "move the folder above")] == ["policy_denied"] * 2
    assert "hunter2" not in "".join(text for name, text in denied.items() if "owner" not in name)
    # the twin: without the rule each of these ways leads to the content
    allowed = tried(person, [], "allowed")
    for operation in ("overwrite", "delete"):
        assert "-hunter2" in allowed[f"{operation}, shown to the agent"]
        assert allowed[f"{operation}, digest"]
    assert "hunter2" in allowed["read it there"]


@pytest.fixture
def desk(workspaces: Local) -> str:
    desk = workspaces.create(id="t/a", config={"policy": {"rules": RULES}}).id
    workspaces.write_file(desk, "work/box/secret/key", "hunter2\n", parents=True)
    workspaces.write_file(desk, "work/open", "plain\n")
    return desk


def test_a_diff_shows_nothing_below_a_directory_that_the_agent_may_read(workspaces: Local, desk: str) -> None:
    """The directory itself has changed into a file, so that its own path leads to all that was in it."""
    agent = workspaces.acting_as("bot", agent_of=desk)
    first = workspaces.snapshot(desk).id
    workspaces.delete_file(desk, "work/box", recursive=True)
    workspaces.write_file(desk, "work/box", "a file now\n")
    assert "-hunter2" in workspaces.diff(desk, from_=first).patch
    shown = agent.diff(desk, from_=first)
    assert "+a file now" in shown.patch
    assert "hunter2" not in shown.patch
    assert "box/secret/key" not in [change.path for change in shown.changes]


def test_the_preview_of_a_restore_is_for_the_owner_where_something_may_not_be_read(
    workspaces: Local, desk: str
) -> None:
    agent = workspaces.acting_as("bot", agent_of=desk)
    first = workspaces.snapshot(desk).id
    workspaces.write_file(desk, "work/box/secret/key", "changed\n")
    with pytest.raises(ApprovalRequired) as asked:
        agent.restore(desk, first)
    approval = str(asked.value.details["approval_id"])
    assert "+hunter2" in workspaces.preview(approval)
    with pytest.raises(PolicyDenied):
        agent.preview(approval)
    workspaces.change_policy(desk, {"rules": []})
    assert agent.preview(approval) == workspaces.preview(approval)


@pytest.mark.parametrize("rules", [RULES, []], ids=["denied", "allowed"])
def test_no_digest_of_a_denied_file_is_told(workspaces: Local, desk: str, rules: list[dict[str, Any]]) -> None:
    """It would confirm a guess at a short content; with `allowed` as the twin, each of these tells it."""
    digest = hashlib.sha256(b"hunter2\n").hexdigest()
    workspaces.change_policy(desk, {"preset": "trusting", "rules": rules})
    agent = workspaces.acting_as("bot", agent_of=desk)
    told = [str(event) for event in agent.events()]
    with pytest.raises(FileChanged) as changed:
        agent.write_file(desk, "work/box/secret/key", "x", if_digest="0" * 64)
    told.append(str(changed.value.details))
    told.append(str(agent.write_file(desk, "work/box/secret/key", "new\n")))
    workspaces.write_file(desk, "work/box/secret/key", "hunter2\n")
    told.append(str(agent.delete_file(desk, "work/box/secret/key")))
    told += [str(event) for event in agent.follow(after=0, timeout_seconds=0.01)]
    told += [str(event) for event in workspaces.acting_as("planner", agent_of="").events()]
    assert any(digest in text for text in told) == (not rules)
    if rules:
        assert any(event.hash and event.event_data.get("digest") for event in agent.events())  # of what it may read
    assert any(digest in str(event) for event in workspaces.events())


def test_a_read_that_is_asked_for_is_asked_for_by_a_move_too(workspaces: Local, desk: str) -> None:
    workspaces.change_policy(desk, {"rules": [{**RULES[0], "outcome": "ask"}]})
    agent = workspaces.acting_as("bot", agent_of=desk)
    with pytest.raises(ApprovalRequired):
        agent.move_file(desk, "work/box/secret/key", "work/key")
    agent.move_file(desk, "work/open", "work/moved")
