"""Making workspaces."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

import workstead
from needs import need_root
from situations import check_whole, directories_of, names_in, tree_of
from workstead.core.home import Home
from workstead.errors import (
    DiskFull,
    FilesystemError,
    InvalidConfig,
    InvalidId,
    InvalidSource,
    NotADirectory,
    WorkspaceBusy,
    WorkspaceExists,
    WorkspaceNotFound,
)
from workstead.local import Local
from workstead.settings import Settings


def document(path: str, name: str) -> Any:
    return json.loads(Path(path, ".aw", name).read_text())


def types(workspaces: Local) -> list[str]:
    return [event.event_type for event in workspaces.events()]


@pytest.fixture
def a_stranger(workspaces: Local, home_path: str) -> Path:
    """Somebody's files at the place of a workspace that does not exist."""
    workspaces.create(id="t/other")
    path = Path(home_path, "workspaces", "t", "a")
    path.mkdir()
    (path / "precious").write_text("mine")
    return path


# -- what a workspace is -----------------------------------------------------------------------------------------------


def test_a_workspace_stands_at_its_id_with_its_four_directories(workspaces: Local, home_path: str) -> None:
    desk = workspaces.create(id="t1/a1")
    assert desk.path == f"{home_path}/workspaces/t1/a1"
    assert names_in(desk.path) == [".aw", "output", "tmp", "work"]
    assert (desk.id, desk.task_id, desk.agent_id, desk.state) == ("t1/a1", "t1", "a1", "ready")
    assert workspaces.get("t1/a1") == desk
    assert workspaces.path("t1/a1") == desk.path
    check_whole(workspaces, home_path)


def test_intent_and_fact_are_in_the_log(workspaces: Local) -> None:
    desk = workspaces.create(id="t1/a1", config={"prompt": "go"})
    creating, created = workspaces.events()
    assert (creating.event_type, created.event_type) == ("workspace_creating", "workspace_created")
    assert creating.stream == created.stream == "t1"
    for event in (creating, created):
        assert event.event_data["workspace_id"] == "t1/a1"
        assert event.event_data["uid"] == desk.uid
        assert event.event_data["workspace_path"] == desk.path
        assert event.event_data["config"] == {"prompt": "go", "max_size_mb": 1000, "max_files": 250_000}


def test_task_and_agent_may_be_given_apart_or_not_at_all(workspaces: Local) -> None:
    assert workspaces.create(task="t", agent="a").id == "t/a"
    assert workspaces.create(task="t").id == "t/main"
    assert workspaces.create(id="u").id == "u/main"
    one, other = workspaces.create(), workspaces.create()
    assert one.task_id != other.task_id
    assert one.agent_id == "main"
    with pytest.raises(InvalidId, match="an id and a task"):
        workspaces.create(id="t/b", task="t")


@pytest.mark.parametrize("id", ["ü b/. x", "a/~", "-/-", "line\nbreak/\x1b[31m", "%2E/%", ". /..."])
def test_unusual_ids_work_all_the_way(workspaces: Local, home_path: str, id: str) -> None:
    desk = workspaces.create(id=id)
    assert os.path.dirname(os.path.dirname(desk.path)) == f"{home_path}/workspaces"
    assert document(desk.path, "context.json")["workspace_id"] == id
    workspaces.destroy(id)
    workspaces.undo()
    assert workspaces.get(id).path == desk.path
    check_whole(workspaces, home_path)


@pytest.mark.parametrize("id", ["", "/", "..", "a/..", "a/b/c", "a\0", "x" * 201, "\udc80"])
def test_a_bad_id_is_refused_and_nothing_is_written(workspaces: Local, home_path: str, id: str) -> None:
    with pytest.raises(InvalidId):
        workspaces.create(id=id)
    assert types(workspaces) == []
    assert directories_of(home_path) == set()


def test_the_home_is_closed_to_others_and_the_agents_part_is_the_agents(workspaces: Local, home_path: str) -> None:
    desk = workspaces.create(id="t/a", config={"claude_md": "x"})
    for path in (home_path, f"{home_path}/workspaces", f"{home_path}/workspaces/.carrel", f"{home_path}/workspaces/t"):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700, path
    for name in ("log.db", "locks", "id"):
        assert os.stat(f"{home_path}/{name}").st_mode & 0o077 == 0, name
    agent = 64042 if os.geteuid() == 0 else os.geteuid()
    for name in ("", "work", "output", "tmp"):
        status = os.stat(f"{desk.path}/{name}")
        assert (status.st_uid, status.st_gid) == (agent, agent if agent == 64042 else os.getegid()), name
        assert stat.S_IMODE(status.st_mode) == 0o755
    for name in (".aw", ".aw/run.json", "CLAUDE.md"):
        assert os.stat(f"{desk.path}/{name}").st_uid == os.geteuid(), name
    assert stat.S_IMODE(os.stat(f"{desk.path}/.aw/run.json").st_mode) == 0o444


def test_the_settings_say_who_the_agent_is(home_path: str, settings: Settings) -> None:
    need_root()
    changed = settings.replace(sandbox=settings.sandbox.replace(uid=4711))
    with workstead.open(home_path, settings=changed) as workspaces:
        assert os.stat(workspaces.create(id="t/a").path + "/work").st_uid == 4711


def test_workspaces_may_stand_elsewhere(home_path: str, settings: Settings, tmp_path: Path) -> None:
    elsewhere = settings.replace(storage=settings.storage.replace(workspaces_path=str(tmp_path / "far" / "away")))
    with workstead.open(home_path, settings=elsewhere) as workspaces:
        desk = workspaces.create(id="t/a")
        assert desk.path == str(tmp_path / "far" / "away" / "t" / "a")
        workspaces.destroy("t/a")
        workspaces.undo()
        assert names_in(desk.path)
    assert not os.path.exists(f"{home_path}/workspaces")


# -- metadata ----------------------------------------------------------------------------------------------------------


def test_the_metadata_says_what_the_workspace_is_for(workspaces: Local) -> None:
    config = {
        "prompt": "fix the lögin",
        "repo_id": "r1",
        "repo_name": "shop",
        "max_size_mb": 5,
        "allowed_operations": ["read"],
        "git_config": {"user_name": "Ada", "user_email": "ada@example.org"},
        "task_spec": {"goal": "green", "files": ["a"]},
        "context": {"ticket": 7},
    }
    desk = workspaces.create(id="t/a", config=config)
    common = {"task_id": "t", "agent_id": "a"}
    spec = document(desk.path, "task_spec.json")
    assert spec == {**common, "prompt": "fix the lögin", "goal": "green", "files": ["a"]}
    assert document(desk.path, "workspace_config.json") == {
        **common,
        "workspace_path": desk.path,
        "created_at": document(desk.path, "context.json")["created_at"],
        "max_size_mb": 5,
        "allowed_operations": ["read"],
        "git_config": {"enabled": True, "user_name": "Ada", "user_email": "ada@example.org"},
    }
    context = document(desk.path, "context.json")
    assert context.pop("created_at").endswith("Z")
    assert context == {"workspace_path": desk.path, "workspace_id": "t/a", "source": "empty", "ticket": 7}
    run = document(desk.path, "run.json")
    assert isinstance(run.pop("created_at"), int)
    assert run == {
        "run_id": None,
        "repo_id": "r1",
        "repo_name": "shop",
        "prompt": "fix the lögin",
        "workspace_id": "t/a",
        "uid": desk.uid,
    }


def test_what_nobody_said_has_a_default(workspaces: Local) -> None:
    path = workspaces.create(id="t/a").path
    config = document(path, "workspace_config.json")
    assert (config["max_size_mb"], config["git_config"]) == (1000, None)
    assert config["allowed_operations"] == ["read", "write", "execute"]
    assert document(path, "task_spec.json")["prompt"] is None
    assert "CLAUDE.md" not in names_in(path)


def test_notes_for_the_agent_are_put_in(workspaces: Local) -> None:
    path = workspaces.create(id="t/a", config={"claude_md": "be kind ü\n", "agents_md": ""}).path
    assert Path(path, "CLAUDE.md").read_text() == "be kind ü\n"
    assert Path(path, "AGENTS.md").read_text() == ""


def test_inject_adds_the_path_to_a_copy_of_a_spec(workspaces: Local) -> None:
    desk = workspaces.create(id="t/a")
    spec = {"name": "x", "metadata": {"k": 1}}
    assert workspaces.inject(spec, "t/a") == {"name": "x", "metadata": {"k": 1, "workspace": desk.path}}
    assert spec == {"name": "x", "metadata": {"k": 1}}
    assert workspaces.inject({}, "t/a") == {"metadata": {"workspace": desk.path}}


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_an_id_is_taken_only_once(workspaces: Local, home_path: str) -> None:
    desk = workspaces.create(id="t/a")
    before = tree_of(desk.path)
    with pytest.raises(WorkspaceExists, match="t/a exists already"):
        workspaces.create(id="t/a")
    assert tree_of(desk.path) == before
    assert len(types(workspaces)) == 2
    check_whole(workspaces, home_path)


@pytest.mark.parametrize("source", ["", "nonsense:x", "empty:x", "template:", "template:../x", "fork:"])
def test_a_source_that_makes_no_sense_is_refused(workspaces: Local, source: str) -> None:
    with pytest.raises(InvalidSource):
        workspaces.create(source, id="t/a")
    assert types(workspaces) == []


def test_a_configuration_that_makes_no_sense_is_refused(workspaces: Local) -> None:
    for config in ({"bogus": 1}, {"max_size_mb": "x"}, {"prompt": "\udcff"}):
        with pytest.raises(InvalidConfig):
            workspaces.create(id="t/a", config=config)
    assert types(workspaces) == []


def test_too_little_space_is_said_before_anything_is_begun(home_path: str, settings: Settings) -> None:
    greedy = settings.replace(storage=settings.storage.replace(min_free_mb=2**40))
    with workstead.open(home_path, settings=greedy) as workspaces:
        for lazy in (False, True):
            with pytest.raises(DiskFull) as caught:
                workspaces.create(id="t/a", lazy=lazy)
        assert set(caught.value.details) == {"free_bytes", "needed_bytes"}
        assert types(workspaces) == []
        assert directories_of(home_path) == set()


def test_a_stranger_in_the_way_is_named_and_never_touched(workspaces: Local, a_stranger: Path, home_path: str) -> None:
    with pytest.raises(FilesystemError, match="not a known workspace"):
        workspaces.create(id="t/a")
    assert (a_stranger / "precious").read_text() == "mine"
    assert not workspaces.exists("t/a")
    assert names_in(f"{home_path}/workspaces/.carrel/staging") == []
    (a_stranger / "precious").unlink()
    a_stranger.rmdir()
    workspaces.create(id="t/a")
    check_whole(workspaces, home_path)


def test_a_failure_is_a_fact_and_leaves_nothing_behind(workspaces: Local, a_stranger: Path) -> None:
    with pytest.raises(FilesystemError):
        workspaces.create(id="t/a")
    failed = list(workspaces.events())[-1]
    assert failed.event_type == "workspace_create_failed"
    assert failed.event_data["code"] == "filesystem_error"
    assert failed.event_data["kept"] is False
    assert [workspace.id for workspace in workspaces.list(all=True)] == ["t/other"]
    with pytest.raises(WorkspaceNotFound):  # it never was
        workspaces.destroy("t/a")
    assert a_stranger.is_dir()


def test_a_file_where_a_task_belongs_is_an_error_of_ours(workspaces: Local, home_path: str) -> None:
    workspaces.create(id="u/a")
    Path(home_path, "workspaces", "t").write_text("a file")
    with pytest.raises(FilesystemError):
        workspaces.create(id="t/a")
    assert not workspaces.exists("t/a")
    assert names_in(f"{home_path}/workspaces/.carrel/staging") == []


def test_a_file_where_the_private_directory_belongs_is_an_error_of_ours(workspaces: Local, home_path: str) -> None:
    Path(home_path, "workspaces").mkdir()
    Path(home_path, "workspaces", ".carrel").write_text("a file")
    with pytest.raises((NotADirectory, FilesystemError)):
        workspaces.create(id="t/a")
    assert not workspaces.exists("t/a")


def test_what_somebody_is_at_work_on_is_busy(
    workspaces: Local, home_path: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Home.hold.__wrapped__.__kwdefaults__, "wait_seconds", 0.05)  # type: ignore[attr-defined]
    with workspaces._home.hold("t/a"), pytest.raises(WorkspaceBusy, match="t/a"):
        workspaces.create(id="t/a")
    assert types(workspaces) == []
    workspaces.create(id="t/a")


# -- lazily ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def a_planned_workspace(workspaces: Local) -> str:
    return workspaces.create(id="t/a", lazy=True, config={"prompt": "later"}).id


def test_a_planned_workspace_has_its_id_and_no_files(workspaces: Local, a_planned_workspace: str) -> None:
    desk = workspaces.get(a_planned_workspace)
    assert desk.state == "planned"
    assert not os.path.exists(desk.path)
    assert types(workspaces) == ["workspace_planned"]
    with pytest.raises(WorkspaceExists):
        workspaces.create(id="t/a")
    assert workspaces.list() == [desk]


def test_its_files_are_made_at_first_use(workspaces: Local, a_planned_workspace: str, home_path: str) -> None:
    path = workspaces.path(a_planned_workspace)
    assert document(path, "run.json")["prompt"] == "later"
    assert workspaces.get("t/a").state == "ready"
    assert workspaces.path("t/a") == path
    assert types(workspaces) == ["workspace_planned", "workspace_creating", "workspace_created"]
    check_whole(workspaces, home_path)


def test_many_first_users_make_it_once(workspaces: Local, a_planned_workspace: str) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(workspaces.path("t/a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    assert types(workspaces).count("workspace_created") == 1


def test_a_planned_workspace_stays_planned_if_its_files_cannot_be_made(workspaces: Local, a_stranger: Path) -> None:
    workspaces.create(id="t/a", lazy=True)
    with pytest.raises(FilesystemError):
        workspaces.path("t/a")
    assert workspaces.get("t/a").state == "planned"
    (a_stranger / "precious").unlink()
    a_stranger.rmdir()
    assert names_in(workspaces.path("t/a"))


def test_a_planned_workspace_can_be_destroyed_and_brought_back(workspaces: Local, a_planned_workspace: str) -> None:
    workspaces.destroy(a_planned_workspace)
    assert not workspaces.exists(a_planned_workspace)
    workspaces.undo()
    assert workspaces.get(a_planned_workspace).state == "planned"
    assert names_in(workspaces.path(a_planned_workspace))


# -- looking -----------------------------------------------------------------------------------------------------------


def test_looking_leaves_no_event(workspaces: Local) -> None:
    workspaces.create(id="t/a")
    workspaces.create(id="u/a")
    before = types(workspaces)
    assert [workspace.id for workspace in workspaces.list()] == ["t/a", "u/a"]
    assert [workspace.id for workspace in workspaces.list("u")] == ["u/a"]
    assert workspaces.list("nobody") == []
    assert workspaces.exists("t/a")
    assert not workspaces.exists("t/b")
    with pytest.raises(WorkspaceNotFound, match="t/b"):
        workspaces.get("t/b")
    with pytest.raises(WorkspaceNotFound):
        workspaces.path("t/b")
    with pytest.raises(InvalidId):
        workspaces.list("a/b")
    assert types(workspaces) == before


def test_workspaces_are_listed_oldest_first_however_quickly_they_were_made(workspaces: Local) -> None:
    ids = [workspaces.create(id=f"t/{number}", lazy=True).id for number in range(100)]
    assert [workspace.id for workspace in workspaces.list()] == ids


def test_a_relative_source_is_relative_to_where_the_home_was_opened(workspaces: Local) -> None:
    with pytest.raises(workstead.errors.WorksteadError):
        workspaces.create("folder:nowhere", id="t/a")
    assert not workspaces.exists("t/a")


# -- on whose behalf ---------------------------------------------------------------------------------------------------


def test_what_one_opener_does_belongs_together(home_path: str, settings: Settings) -> None:
    with workstead.open(home_path, settings=settings) as workspaces:
        workspaces.create(id="t/a")
        workspaces.create(id="u/a")
        (correlation,) = {event.metadata["correlation_id"] for event in workspaces.events()}
    assert correlation
    with workstead.open(home_path, settings=settings, actor_id="ada", correlation_id="job-7") as workspaces:
        workspaces.create(id="t/b")
        last = list(workspaces.events())[-1]
        assert (last.actor_id, last.metadata["correlation_id"]) == ("ada", "job-7")


def test_the_ids_of_a_caller_flow_into_every_event(workspaces: Local) -> None:
    eve = workspaces.acting_as("eve", correlation_id="c", causation_id="e")
    eve.create(id="t/a")
    eve.destroy("t/a")
    eve.undo()
    for event in workspaces.events():
        assert event.actor_id == "eve"
        assert event.metadata == {"correlation_id": "c", "causation_id": "e"}
    assert {operation.actor_id for operation in workspaces.operations()} == {"eve"}


def test_threads_share_an_opener(workspaces: Local, home_path: str) -> None:
    def work(number: int) -> None:
        for index in range(5):
            workspaces.create(id=f"t{number}/{index}")
        workspaces.destroy(f"t{number}/0")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(workspaces.list()) == 24
    check_whole(workspaces, home_path)


# -- opening -----------------------------------------------------------------------------------------------------------


def test_a_home_is_made_at_first_use_and_keeps_its_identity(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "deep" / "er" / "home"
    with workstead.open(str(path), settings=settings) as workspaces:
        identity = workspaces.create(id="t/a").home
    with workstead.open(str(path), settings=settings) as workspaces:
        assert workspaces.create(id="t/b").home == identity
    assert [name for name in names_in(path) if name.startswith("id")] == ["id"]


def test_the_home_may_be_a_path_object_or_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AW_HOME", str(tmp_path / "from-variable"))
    with workstead.open() as workspaces:
        assert workspaces.create(id="t/a").path.startswith(str(tmp_path / "from-variable"))
    with workstead.open(tmp_path / "object") as workspaces:  # type: ignore[arg-type]
        assert workspaces.create(id="t/a").path.startswith(str(tmp_path / "object"))
    monkeypatch.delenv("AW_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with workstead.open() as workspaces:
        assert workspaces.create(id="t/a").path == str(tmp_path / "data" / "aw" / "workspaces" / "t" / "a")
    monkeypatch.delenv("XDG_DATA_HOME")
    with workstead.open() as workspaces:
        assert workspaces.create(id="t/a").path.startswith(f"{os.environ['HOME']}/.local/share/aw/")


def test_a_home_that_is_a_file_or_no_utf8_is_refused(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectory):
            workstead.open(str(path), settings=settings)
    with pytest.raises(workstead.errors.InvalidPath, match="UTF-8"):
        workstead.open(str(tmp_path / "\udcff"), settings=settings)
    assert names_in(tmp_path) == ["file", "user"]
