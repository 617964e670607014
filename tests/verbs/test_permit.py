"""The gate: the owner passes, an agent is judged, and reaches nothing but its own workspace."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest

from workstead.core.gate import AGENTS_MAY
from workstead.errors import (
    ApprovalRequired,
    Forbidden,
    InvalidConfig,
    PolicyDenied,
    RunNotFound,
    SandboxUnavailable,
    WorksteadError,
)
from workstead.local import Local
from workstead.settings import Settings, load_settings


@pytest.fixture
def desk(workspaces: Local) -> str:
    desk = workspaces.create(id="fix/a")
    workspaces.write_file(desk.id, "work/a.py", "one\n")
    return desk.id


@pytest.fixture
def agent(workspaces: Local, desk: str) -> Local:
    return workspaces.acting_as("bot", agent_of=desk)


def strict(workspaces: Local, desk: str, **policy: object) -> None:
    workspaces.change_policy(desk, policy)


# -- who is judged -----------------------------------------------------------------------------------------------------


def test_the_owner_is_never_judged(workspaces: Local, desk: str) -> None:
    workspaces.change_policy(desk, "read-only")
    workspaces.write_file(desk, "work/a.py", "two\n")
    workspaces.move_file(desk, "work/a.py", "work/b.py")
    workspaces.delete_file(desk, "work/b.py")
    assert workspaces.approvals(all=True) == []


def test_an_agent_reads_and_adds_and_asks_for_the_rest(agent: Local, desk: str) -> None:
    assert agent.read_file(desk, "work/a.py") == b"one\n"
    agent.write_file(desk, "work/b.py", "new\n")
    agent.make_directory(desk, "work/d/e", parents=True)
    agent.move_file(desk, "work/b.py", "work/c.py")
    for act in (
        lambda: agent.write_file(desk, "work/a.py", "two\n"),
        lambda: agent.write_file(desk, "work/a.py", "more\n", append=True),
        lambda: agent.delete_file(desk, "work/a.py"),
        lambda: agent.move_file(desk, "work/c.py", "work/a.py", replace=True),
        lambda: agent.run(desk, ["true"]),
        lambda: agent.destroy(desk, force=True),
    ):
        with pytest.raises(ApprovalRequired):
            act()
    assert agent.read_file(desk, "work/a.py") == b"one\n"


def test_a_denied_operation_changes_nothing_and_names_the_rule(workspaces: Local, agent: Local, desk: str) -> None:
    workspaces.change_policy(desk, {"preset": "trusting", "rules": [{"outcome": "deny", "paths": ["*.py"]}]})
    for act in (
        lambda: agent.read_file(desk, "work/a.py"),
        lambda: agent.write_file(desk, "work/a.py", "two\n"),
        lambda: agent.write_file(desk, "work/deep/b.py", "two\n", parents=True),
        lambda: agent.delete_file(desk, "work/a.py"),
        lambda: agent.move_file(desk, "work/a.py", "work/a.txt"),
        lambda: agent.make_directory(desk, "work/c.py"),
        lambda: agent.edit_file(desk, "work/a.py", []),
    ):
        with pytest.raises(PolicyDenied) as refused:
            act()
        assert refused.value.details["rule"] == "rule 1: deny everything in *.py"
    assert os.listdir(f"{workspaces.get(desk).path}/work") == ["a.py"]


def test_what_may_be_written_by_name_may_not_be_written_by_moving_onto_it(
    workspaces: Local, agent: Local, desk: str
) -> None:
    workspaces.change_policy(desk, {"preset": "trusting", "rules": [{"outcome": "deny", "paths": [".github/**"]}]})
    workspaces.make_directory(desk, "work/.github")
    agent.write_file(desk, "work/evil.yml", "x")
    with pytest.raises(PolicyDenied):
        agent.move_file(desk, "work/evil.yml", "work/.github/evil.yml")


def test_a_directory_is_judged_with_what_is_in_it(workspaces: Local, agent: Local, desk: str) -> None:
    workspaces.change_policy(desk, {"preset": "trusting", "rules": [{"outcome": "deny", "paths": ["*.key"]}]})
    workspaces.write_file(desk, "work/d/e/my.key", "secret", parents=True)
    workspaces.write_file(desk, "work/f/g", "x", parents=True)
    with pytest.raises(PolicyDenied):
        agent.delete_file(desk, "work/d", recursive=True)
    with pytest.raises(PolicyDenied):
        agent.move_file(desk, "work/d", "work/z")
    agent.delete_file(desk, "work/f", recursive=True)
    assert sorted(os.listdir(f"{workspaces.get(desk).path}/work")) == ["a.py", "d"]


def test_a_large_file_in_a_directory_counts_as_one(workspaces: Local, agent: Local, desk: str) -> None:
    rules = [{"outcome": "deny", "operations": ["delete"], "min_bytes": 100}]
    workspaces.change_policy(desk, {"preset": "trusting", "rules": rules})
    workspaces.write_file(desk, "work/d/large", "x" * 100, parents=True)
    with pytest.raises(PolicyDenied):
        agent.delete_file(desk, "work/d", recursive=True)
    workspaces.write_file(desk, "work/d/large", "x")
    agent.delete_file(desk, "work/d", recursive=True)


def test_links_do_not_lead_around_a_rule(workspaces: Local, agent: Local, desk: str) -> None:
    """The twin: by the text of the path the rule would let each of them pass."""
    from workstead.model.policy import AGENT, decide

    workspaces.change_policy(desk, {"preset": "trusting", "rules": [{"outcome": "deny", "paths": ["secret/**"]}]})
    workspaces.write_file(desk, "work/secret/s", "s", parents=True)
    work = Path(workspaces.get(desk).path, "work")
    (work / "way").symlink_to("secret")
    (work / "file").symlink_to("secret/s")
    for path, act in {
        "work/way/s": lambda: agent.read_file(desk, "work/way/s"),
        "work/file": lambda: agent.read_file(desk, "work/file"),
        "work/way/new": lambda: agent.write_file(desk, "work/way/new", "x"),
        "work/way/s ": lambda: agent.write_file(desk, "work/file", "x"),
        "work/way/s  ": lambda: agent.delete_file(desk, "work/way/s"),
        "work/a.py": lambda: agent.move_file(desk, "work/a.py", "work/way/a.py"),
        "work/way/dir": lambda: agent.make_directory(desk, "work/way/dir"),
        "work/way/d/e": lambda: agent.make_directory(desk, "work/way/d/e", parents=True),
    }.items():
        assert decide(workspaces.policy(desk), AGENT, "write", path.strip()).outcome == "allow"
        with pytest.raises(PolicyDenied):
            act()
    assert sorted(os.listdir(work / "secret")) == ["s"]
    agent.delete_file(desk, "work/file")  # the link itself is not in there


def test_size_and_content_count(workspaces: Local, agent: Local, desk: str) -> None:
    rules = [
        {"outcome": "deny", "operations": ["write", "overwrite"], "min_bytes": 101},
        {"outcome": "ask", "operations": ["write"], "binary": True},
    ]
    workspaces.change_policy(desk, {"preset": "trusting", "rules": rules})
    agent.write_file(desk, "work/small", b"x" * 100)
    with pytest.raises(PolicyDenied):
        agent.write_file(desk, "work/large", b"x" * 101)
    with pytest.raises(PolicyDenied):
        agent.write_file(desk, "work/stream", iter([b"x" * 60, b"x" * 60]))
    with pytest.raises(ApprovalRequired):
        agent.write_file(desk, "work/binary", b"\0ELF")
    with pytest.raises(ApprovalRequired):
        agent.write_file(desk, "work/stream", iter([b"text", b"\0"]))


# -- whom it reaches ---------------------------------------------------------------------------------------------------


def test_an_agent_has_its_own_workspace_and_does_not_learn_of_others(workspaces: Local, agent: Local) -> None:
    workspaces.create(id="fix/b")
    run = workspaces.run("fix/b", ["true"], sandbox="none")
    workspaces.wait(run.id)
    messages = set()
    for id in ("fix/b", "no/such"):
        for act in (
            lambda id=id: agent.get(id),
            lambda id=id: agent.exists(id),
            lambda id=id: agent.read_file(id, "work/a.py"),
            lambda id=id: agent.write_file(id, "work/a.py", "x"),
            lambda id=id: agent.list_files(id),
            lambda id=id: agent.snapshot(id),
            lambda id=id: agent.diff(id),
            lambda id=id: agent.run(id, ["true"]),
            lambda id=id: agent.runs(id),
            lambda id=id: agent.destroy(id),
            lambda id=id: agent.apply(id),
            lambda id=id: agent.approvals(id),
            lambda id=id: agent.policy(id),
            lambda id=id: agent.session(id),
        ):
            with pytest.raises(Forbidden) as refused:
                act()
            messages.add(refused.value.message)
    assert messages == {"this agent has fix/a and no other workspace"}
    assert [workspace.id for workspace in agent.list()] == ["fix/a"]
    assert agent.runs() == []
    with pytest.raises(RunNotFound):
        agent.get_run(run.id)


def test_a_verb_is_closed_to_agents_unless_it_was_opened(agent: Local) -> None:
    """Every verb there is, so that a new one is found here before an agent finds it."""
    verbs = {name for name, _ in inspect.getmembers(Local, callable) if not name.startswith("_")}
    assert verbs >= AGENTS_MAY
    assert {"approve", "deny", "approve_all", "deny_all", "change_policy", "undo", "sweep", "repair"} <= verbs
    for name in sorted(verbs - AGENTS_MAY):
        with pytest.raises(Forbidden, match=f"{name} is for the owner"):
            getattr(agent, name)("fix/a")


def test_an_agent_cannot_become_the_owner_or_another(workspaces: Local, agent: Local) -> None:
    for whom in (None, "", "fix/b"):
        with pytest.raises(Forbidden):
            agent.acting_as("owner", agent_of=whom)
    assert agent.acting_as("other", agent_of="fix/a").list()
    free = workspaces.acting_as("planner", agent_of="")
    with pytest.raises(Forbidden):
        free.acting_as("owner")
    assert free.acting_as("worker", agent_of="fix/a").list()


def test_an_agent_without_a_workspace_makes_some_but_no_rules_for_them(workspaces: Local, tmp_path: Path) -> None:
    free = workspaces.acting_as("planner", agent_of="")
    made = free.create(id="new/a")
    assert free.fork(made.id, new_id="new/b")[0].policy == made.policy
    for source in (f"folder:{tmp_path}", f"overlay:{tmp_path}", f"worktree:{tmp_path}", str(tmp_path), "archive:x"):
        with pytest.raises(WorksteadError) as refused:
            free.create(source, id="new/c")
        assert refused.value.code in ("forbidden", "invalid_source")
    for url in (f"clone:file://{tmp_path}", f"clone:{tmp_path}"):
        with pytest.raises(WorksteadError) as refused:
            free.create(url, id="new/c")
        assert refused.value.code in ("forbidden", "invalid_source")
    for config in (
        {"policy": "trusting"},
        {"allowed_operations": ["read"]},
        {"shares": [{"name": "s", "path": "/etc"}]},
    ):
        with pytest.raises(Forbidden):
            free.create(id="new/c", config=config)
    with pytest.raises(Forbidden):
        workspaces.acting_as("bot", agent_of="new/a").create(id="new/c")
    with pytest.raises(Forbidden):
        workspaces.acting_as("bot", agent_of="new/a").fork("new/a")
    assert not workspaces.exists("new/c")


def test_an_agent_runs_nothing_outside_its_sandbox(agent: Local, desk: str) -> None:
    for options in (
        {"sandbox": "none"},
        {"read_only": ["/etc"]},
        {"read_write": ["/tmp"]},
        {"tools": ["/opt"]},
        {"agent": "claude"},
    ):
        with pytest.raises(Forbidden):
            agent.run(desk, ["true"], **options)  # type: ignore[arg-type]


def test_an_agent_applies_to_nowhere_but_the_origin(agent: Local, desk: str, tmp_path: Path) -> None:
    for to in (f"patch:{tmp_path}/p", f"folder:{tmp_path}"):
        with pytest.raises(Forbidden):
            agent.apply(desk, to=to)


# -- where the policy comes from ---------------------------------------------------------------------------------------


def test_the_policy_is_that_of_the_day_the_workspace_was_made(home_path: str, settings: Settings) -> None:
    import workstead

    with workstead.open(home_path, settings=settings) as workspaces:
        old = workspaces.create(id="old")
        first = next(iter(workspaces.events(types=["workspace_creating"])))
        assert first.event_data["policy"] == workspaces.policy(old.id).stated()
    later = settings.replace(policy=settings.policy.replace(delete="deny", approval_timeout_seconds=5))
    with workstead.open(home_path, settings=later) as workspaces:
        new = workspaces.create(id="new", lazy=True)
        workspaces.path(new.id)
        assert workspaces.policy(old.id).defaults["delete"] == "ask"
        assert workspaces.policy(new.id).defaults["delete"] == "deny"
        assert workspaces.policy(new.id).approval_timeout_seconds == 5
        (fork,) = workspaces.fork(old.id, new_id="fork")
        assert workspaces.policy(fork.id) == workspaces.policy(old.id)


def test_what_comes_from_an_archive_is_judged_as_here(home_path: str, settings: Settings, tmp_path: Path) -> None:
    import workstead

    with workstead.open(home_path, settings=settings) as workspaces:
        desk = workspaces.create(id="old", config={"policy": "trusting"})
        workspaces.archive(desk.id, str(tmp_path / "old.aw.tar.zst"))
    later = settings.replace(policy=settings.policy.replace(delete="deny"))
    with workstead.open(home_path, settings=later) as workspaces:
        back = workspaces.create(f"archive:{tmp_path}/old.aw.tar.zst", id="back")
        assert workspaces.policy(back.id).defaults["delete"] == "deny"


def test_the_configuration_says_what_differs(workspaces: Local) -> None:
    made = workspaces.create(id="a", config={"policy": "trusting", "allowed_operations": ["read", "write"]})
    assert workspaces.judge(made.id, "write", "work/x").outcome == "allow"
    assert workspaces.judge(made.id, "overwrite", "work/x").outcome == "deny"
    assert workspaces.judge(made.id, "delete", "/mnt/workspace/work/x").number == 1
    (fork,) = workspaces.fork(made.id)
    assert workspaces.policy(fork.id) == workspaces.policy(made.id)
    with pytest.raises(InvalidConfig):
        workspaces.create(id="b", config={"policy": {"rules": [{"outcome": "perhaps"}]}})
    assert not workspaces.exists("b")


def test_a_changed_policy_is_an_event_and_holds_at_once(workspaces: Local, agent: Local, desk: str) -> None:
    workspaces.change_policy(desk, {"write": "deny"}, reason="enough")
    with pytest.raises(PolicyDenied):
        agent.write_file(desk, "work/new", "x")
    (event,) = workspaces.events(types=["policy_changed"])
    assert event.event_data["comment"] == "enough"
    assert workspaces.get(desk).reason == ""
    workspaces.verify().check()


def test_a_project_can_only_ask_for_more_care(tmp_path: Path) -> None:
    def load(text: str) -> Settings:
        (tmp_path / "aw.yaml").write_text(text)
        config = tmp_path / "config/aw"
        config.mkdir(parents=True, exist_ok=True)
        (config / "aw.yaml").write_text("policy: {delete: deny, approval_timeout_seconds: 60}")
        environ = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
        return load_settings(environ, str(tmp_path), system_directory=str(tmp_path / "none"))

    assert load("policy: {write: ask, read: deny, approval_timeout_seconds: 30}").policy.write == "ask"
    for looser in ("delete: ask", "delete: allow", "overwrite: allow", "apply: allow", "approval_timeout_seconds: 300"):
        with pytest.raises(InvalidConfig, match="looser"):
            load(f"policy: {{{looser}}}")


def test_a_policy_that_denies_execution_is_not_ignored_without_a_sandbox(workspaces: Local, desk: str) -> None:
    workspaces.change_policy(desk, {"execute": "deny"})
    with pytest.raises(SandboxUnavailable):
        workspaces.run(desk, ["true"], sandbox="none")


# -- what it is shown --------------------------------------------------------------------------------------------------


def test_an_agent_is_shown_nothing_of_what_it_may_not_read(workspaces: Local, agent: Local, desk: str) -> None:
    import io
    import tarfile

    rules = [{"outcome": "deny", "operations": ["read"], "paths": ["secret/**", ".env"]}]
    workspaces.change_policy(desk, {"preset": "trusting", "rules": rules})
    workspaces.write_file(desk, "work/secret/s", "needle\n", parents=True)
    workspaces.write_file(desk, "work/.env", "needle\n")
    workspaces.write_file(desk, "work/open", "needle\n")
    (Path(workspaces.get(desk).path) / "work/way").symlink_to("secret")
    assert len(workspaces.search_text(desk, "needle").matches) == 3  # the twin: all of it is there
    assert [match.path for match in agent.search_text(desk, "needle").matches] == ["work/open"]
    assert agent.search_text(desk, "needle", "work/way").matches == []
    with pytest.raises(PolicyDenied):
        agent.open_file(desk, "work/.env")
    assert "needle" in workspaces.diff(desk, paths=["secret/s"]).patch
    shown = agent.diff(desk)
    assert {change.path for change in shown.changes} == {"a.py", "open", "way"}
    assert "secret/s" not in shown.patch
    with tarfile.open(fileobj=io.BytesIO(b"".join(agent.tar_files(desk, "work")))) as tar:
        assert {member.name for member in tar if member.isfile()} == {"a.py", "open"}
    with tarfile.open(fileobj=io.BytesIO(b"".join(workspaces.tar_files(desk, "work")))) as tar:
        assert {member.name for member in tar if member.isfile()} == {"a.py", "open", ".env", "secret/s"}
    assert agent.list_files(desk, "work")["open"] == "file"


def test_a_diff_shows_nothing_below_a_changed_directory_that_may_not_be_read(
    workspaces: Local, agent: Local, desk: str
) -> None:
    """The directory itself is a change that the agent may see; what is below it is judged path by path."""
    workspaces.write_file(desk, "work/d/secret", b"needle\n", parents=True)
    workspaces.write_file(desk, "work/d/open", b"old\n")
    before = workspaces.snapshot(desk).id
    workspaces.change_policy(desk, {"rules": [{"outcome": "deny", "operations": ["read"], "paths": ["d/secret"]}]})
    Path(workspaces.path(desk), "work/d").chmod(0o700)
    workspaces.write_file(desk, "work/d/secret", b"another needle\n")
    workspaces.write_file(desk, "work/d/open", b"new\n")
    assert {change.path for change in workspaces.diff(desk, from_=before).changes} == {"d", "d/open", "d/secret"}
    assert {change.path for change in agent.diff(desk, from_=before).changes} == {"d", "d/open"}
    for patch in (agent.diff(desk, from_=before).patch.encode(), b"".join(agent.patch(desk, from_=before))):
        assert b"+new" in patch
        assert b"needle" not in patch
    assert b"needle" in b"".join(workspaces.patch(desk, from_=before))


def test_names_are_not_shown_where_reading_is_denied(workspaces: Local, agent: Local, desk: str) -> None:
    workspaces.make_directory(desk, "work/secret")
    workspaces.change_policy(desk, {"rules": [{"outcome": "deny", "operations": ["read"], "paths": ["secret"]}]})
    for look in (
        agent.list_directory,
        agent.list_files,
        agent.stat_file,
        agent.list_paths,
        lambda id, path: b"".join(agent.tree_json(id, path)),
        lambda id, path: agent.search_names(id, "*", path),
    ):
        with pytest.raises(PolicyDenied):
            look(desk, "work/secret")
        assert look(desk, "work")


def test_a_read_is_asked_for_and_allowed_once(workspaces: Local, agent: Local, desk: str) -> None:
    workspaces.change_policy(desk, {"read": "ask"})
    with pytest.raises(ApprovalRequired) as asked:
        agent.read_file(desk, "work/a.py")
    workspaces.approve(str(asked.value.details["approval_id"]))
    assert agent.read_file(desk, "work/a.py") == b"one\n"
    with pytest.raises(ApprovalRequired):
        agent.read_file(desk, "work/a.py")
    assert agent.list_files(desk, "work") == {"a.py": "file"}  # names are not content


def test_an_agent_sees_its_own_events_and_operations(workspaces: Local, agent: Local, desk: str) -> None:
    workspaces.change_policy(desk, "trusting")
    workspaces.create(id="fix/b")
    workspaces.write_file("fix/b", "work/x", "x")
    workspaces.destroy("fix/b")
    agent.delete_file(desk, "work/a.py")
    assert {event.event_data["workspace_id"] for event in agent.events()} == {desk}
    assert {event.event_data["workspace_id"] for event in agent.follow(after=0, timeout_seconds=0.01)} == {desk}
    assert len(list(agent.events(limit=2))) == 2
    assert [operation.kind for operation in agent.operations()] == ["change"]
    assert {operation.kind for operation in workspaces.operations()} == {"change", "destroy"}
    assert [row.workspace_id for row in agent.usage().workspaces] == [desk]


# -- whole workspaces --------------------------------------------------------------------------------------------------


def grant(workspaces: Local, act: object) -> str:
    """Let an agent do something that has to be approved, and give the preview that was shown."""
    with pytest.raises(ApprovalRequired) as asked:
        act()  # type: ignore[operator]
    approval = str(asked.value.details["approval_id"])
    shown = workspaces.preview(approval)
    workspaces.approve(approval)
    act()  # type: ignore[operator]
    assert workspaces.get_approval(approval).state == "used"
    return shown


def test_an_agent_applies_what_was_shown_and_nothing_else(workspaces: Local, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "a").write_text("one\n")
    desk = workspaces.create(f"overlay:{origin}", id="fix/o").id
    agent = workspaces.acting_as("bot", agent_of=desk)
    workspaces.write_file(desk, "work/a", "two\n")
    with pytest.raises(ApprovalRequired) as asked:
        agent.apply(desk)
    workspaces.approve(str(asked.value.details["approval_id"]))
    workspaces.write_file(desk, "work/a", "evil\n")  # after the decision
    with pytest.raises(ApprovalRequired):
        agent.apply(desk)
    assert (origin / "a").read_text() == "one\n"
    workspaces.write_file(desk, "work/a", "two\n")
    agent.apply(desk)
    assert (origin / "a").read_text() == "two\n"
    workspaces.write_file(desk, "work/a", "three\n")
    assert "+three" in grant(workspaces, lambda: agent.apply(desk))
    workspaces.undo()
    assert (origin / "a").read_text() == "two\n"


def test_a_rule_about_a_path_holds_for_applying_it(workspaces: Local, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    rules = [{"outcome": "deny", "operations": ["apply"], "paths": [".github/**"]}]
    desk = workspaces.create(f"overlay:{origin}", id="fix/o", config={"policy": {"apply": "allow", "rules": rules}}).id
    agent = workspaces.acting_as("bot", agent_of=desk)
    agent.write_file(desk, "work/.github/x", "x", parents=True)
    agent.write_file(desk, "work/fine", "x")
    with pytest.raises(PolicyDenied):
        agent.apply(desk)
    agent.apply(desk, ["fine"])
    assert os.listdir(origin) == ["fine"]


def test_a_restore_is_judged_by_what_it_takes_away(workspaces: Local, agent: Local, desk: str) -> None:
    taken = agent.snapshot(desk)
    agent.write_file(desk, "work/new", "x")
    shown = grant(workspaces, lambda: agent.restore(desk, taken.id))
    assert "-x" in shown
    assert not os.path.exists(f"{workspaces.get(desk).path}/work/new")
    agent.restore(desk, taken.id)  # nothing is taken away, so nobody is asked
    workspaces.change_policy(desk, {"rules": [{"outcome": "deny", "operations": ["overwrite"], "paths": ["a.py"]}]})
    workspaces.write_file(desk, "work/a.py", "later\n")
    with pytest.raises(PolicyDenied):
        agent.restore(desk, taken.id)


def test_a_session_of_an_agent_is_judged_and_the_owners_is_not(workspaces: Local, agent: Local, desk: str) -> None:
    with workspaces.session(desk) as mine, agent.session(desk) as theirs:
        turn = theirs.respond("hello")
        workspaces.write_file(desk, "work/a.py", "two\n")
        with pytest.raises(ApprovalRequired):
            theirs.restore(turn)
        with pytest.raises(ApprovalRequired):
            theirs.reset()
        mine.restore(turn)
    assert workspaces.read_file(desk, "work/a.py") == b"one\n"


def test_an_agent_destroys_what_was_shown(workspaces: Local, agent: Local, desk: str) -> None:
    with pytest.raises(ApprovalRequired) as asked:
        agent.destroy(desk)
    workspaces.approve(str(asked.value.details["approval_id"]))
    workspaces.write_file(desk, "work/precious", "x")
    with pytest.raises(ApprovalRequired):
        agent.destroy(desk)
    assert workspaces.exists(desk)
    assert "A a.py" in grant(workspaces, lambda: agent.destroy(desk))
    assert not workspaces.exists(desk)
    workspaces.undo()
    assert workspaces.read_file(desk, "work/precious") == b"x"


def test_what_is_asked_in_a_workspace_that_is_gone_is_void(workspaces: Local, agent: Local, desk: str) -> None:
    with pytest.raises(ApprovalRequired) as asked:
        agent.delete_file(desk, "work/a.py")
    workspaces.destroy(desk)
    with pytest.raises(WorksteadError, match="voided"):
        workspaces.approve(str(asked.value.details["approval_id"]))
    workspaces.sweep(everything=True)
    assert os.listdir(f"{workspaces._home.path}/approvals") == []
