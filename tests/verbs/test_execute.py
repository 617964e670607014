"""What a policy on execute means for a run: of the owner's, of an agent's, and in a box that is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from needs import need_root
from workstead.errors import ApprovalRequired, PolicyDenied
from workstead.local import Local


@pytest.fixture(params=["empty", "overlay"])
def desk(request: pytest.FixtureRequest, workspaces: Local, tmp_path: Path) -> str:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "tool").write_text("#!/bin/sh\necho executed\n")
    (origin / "tool").chmod(0o755)
    if request.param == "overlay":
        need_root()
        return workspaces.create(f"overlay:{origin}", id="fix/a").id
    made = workspaces.create(id="fix/a")
    workspaces.write_file(made.id, "work/tool", (origin / "tool").read_bytes())
    os.chmod(f"{made.path}/work/tool", 0o755)
    return made.id


def ran(workspaces: Local, run_id: str) -> str:
    workspaces.wait(run_id, timeout_seconds=60)
    return b"".join(data for _, _, data in workspaces.output(run_id)).decode()


def test_deny_holds_in_the_owners_own_run(workspaces: Local, desk: str) -> None:
    assert ran(workspaces, workspaces.run(desk, ["./tool"]).id) == "executed\n"
    workspaces.change_policy(desk, {"execute": "deny"})
    straight = workspaces.run(desk, ["./tool"])
    assert ran(workspaces, straight.id) == ""
    assert workspaces.get_run(straight.id).exit_code == 125
    assert workspaces.why(straight.id).denials[0].kind == "execute"
    by_shell = workspaces.run(desk, ["sh", "-c", "cp tool /tmp/t; /tmp/t; ./tool"])
    assert "executed" not in ran(workspaces, by_shell.id)
    assert "noexec mounts" in workspaces.why(by_shell.id).enforcement["execute"]  # type: ignore[operator]
    assert ran(workspaces, workspaces.run(desk, ["sh", "tool"]).id) == "executed\n"


def test_a_kept_box_is_built_anew_when_the_policy_changes(workspaces: Local, desk: str) -> None:
    first = workspaces.run_kept(desk, ["./tool"])
    assert first.stdout == b"executed\n"
    workspaces.change_policy(desk, {"execute": "deny"})
    second = workspaces.run_kept(desk, ["./tool"])
    assert (second.exit_code != 0, second.run_id != first.run_id) == (True, True)
    workspaces.stop(second.run_id)


def test_an_agent_runs_what_was_approved_once(workspaces: Local, desk: str) -> None:
    agent = workspaces.acting_as("bot", agent_of=desk)
    with pytest.raises(ApprovalRequired):
        agent.run(desk, ["./tool", "x"], environment={"A": "b"})
    (found,) = workspaces.approvals()
    assert (found.operation, found.path, found.to) == ("execute", "./tool x", "none")
    assert workspaces.preview(found.id).splitlines()[:3] == ["run ./tool x", "network: none", "environment: A=b"]
    workspaces.approve(found.id)
    for other in (["./tool", "y"], ["./tool", "x"]):  # the second without its environment
        with pytest.raises(ApprovalRequired):
            agent.run(desk, other)
    run = agent.run(desk, ["./tool", "x"], environment={"A": "b"})
    assert ran(workspaces, run.id) == "executed\n"
    with pytest.raises(ApprovalRequired):
        agent.run(desk, ["./tool", "x"], environment={"A": "b"})
    with pytest.raises(ApprovalRequired):
        agent.run_kept(desk, ["./tool"])


def test_a_program_that_was_swapped_is_not_what_was_approved(workspaces: Local, desk: str) -> None:
    agent = workspaces.acting_as("bot", agent_of=desk)
    with pytest.raises(ApprovalRequired):
        agent.run(desk, ["sh", "tool"])
    (found,) = workspaces.approvals()
    workspaces.approve(found.id)
    workspaces.write_file(desk, "work/tool", "#!/bin/sh\necho evil\n")
    with pytest.raises(ApprovalRequired) as asked:
        agent.run(desk, ["sh", "tool"])
    assert asked.value.details["approval_id"] != found.id
    assert workspaces.runs(desk) == []


def test_an_agent_starts_nothing_where_execution_is_denied(workspaces: Local, desk: str) -> None:
    workspaces.change_policy(desk, {"execute": "deny"})
    agent = workspaces.acting_as("bot", agent_of=desk)
    for act in (lambda: agent.run(desk, ["true"]), lambda: agent.run_kept(desk, ["true"])):
        with pytest.raises(PolicyDenied):
            act()


def test_network_is_asked_for_unless_runs_have_it_anyway(workspaces: Local, desk: str) -> None:
    workspaces.change_policy(desk, {"preset": "trusting"})
    agent = workspaces.acting_as("bot", agent_of=desk)
    assert ran(workspaces, agent.run(desk, ["true"]).id) == ""
    with pytest.raises(ApprovalRequired):
        agent.run(desk, ["true"], network="example.org")
    workspaces.change_policy(desk, {"network": "deny"})
    with pytest.raises(PolicyDenied):
        agent.run(desk, ["true"], network="host")


def test_an_agents_limits_only_get_lower(workspaces: Local, desk: str) -> None:
    workspaces.change_policy(desk, "trusting")
    agent = workspaces.acting_as("bot", agent_of=desk)
    settings = workspaces._home.settings
    most = min(settings.sandbox.file_mb or 0, settings.workspaces.default_max_size_mb or 0)
    assert most > 0
    script = "ulimit -f"
    wide = ran(workspaces, agent.run(desk, ["bash", "-c", script], file_mb=most * 2).id)
    low = ran(workspaces, agent.run(desk, ["bash", "-c", script], file_mb=1).id)
    assert (int(wide), int(low)) == (most * 1024, 1024)
