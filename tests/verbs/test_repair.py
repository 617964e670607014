"""Mending what can be mended without a loss. What crashes leave behind is in tests/crash."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import workstead
from situations import check_whole, names_in
from workstead.local import Local
from workstead.model.event import WorkspaceCreating, WorkspaceDestroying
from workstead.settings import Settings


@pytest.fixture
def a_workspace(workspaces: Local) -> str:
    return workspaces.create(id="t/a").id


def interrupted_creation(workspaces: Local, home_id: str = "") -> None:
    home = workspaces._home
    fact = WorkspaceCreating(
        workspace_id="t/b",
        agent_id="b",
        uid="u-b",
        workspace_path=home.workspace_path("t", "b"),
        source="empty",
        config={},
        home=home_id or home.id,
    )
    home.record("t", fact)


def test_a_whole_home_needs_nothing(workspaces: Local, a_workspace: str, home_path: str) -> None:
    workspaces.create(id="t/planned", lazy=True)
    workspaces.create(id="t/gone")
    workspaces.destroy("t/gone")
    before = list(workspaces.events())
    assert workspaces.repair() == []
    assert list(workspaces.events()) == before


def test_an_interrupted_creation_is_cleared_away_at_the_next_opening(
    workspaces: Local, a_workspace: str, home_path: str, settings: Settings
) -> None:
    interrupted_creation(workspaces)
    os.makedirs(f"{home_path}/workspaces/.carrel/staging/u-b/work")
    with workstead.open(home_path, settings=settings) as opened:
        assert not opened.exists("t/b")
        check_whole(opened, home_path)
        opened.create(id="t/b")


def test_an_interrupted_creation_does_not_cost_a_stranger_his_files(
    workspaces: Local, a_workspace: str, home_path: str
) -> None:
    interrupted_creation(workspaces)
    stranger = Path(home_path, "workspaces", "t", "b")
    (stranger / "work").mkdir(parents=True)
    (stranger / "work" / "precious").write_text("mine")
    (finding, *_) = workspaces.repair()
    assert "t/b was interrupted while creating" in finding.what
    assert (stranger / "work" / "precious").read_text() == "mine"


def test_what_has_a_living_owner_is_left_alone(workspaces: Local, a_workspace: str, home_path: str) -> None:
    interrupted_creation(workspaces)
    os.makedirs(f"{home_path}/workspaces/.carrel/staging/u-b/work")
    with workspaces._home.hold("t/b"):
        assert workspaces.repair() == []
    assert workspaces.get("t/b").state == "creating"
    assert os.path.isdir(f"{home_path}/workspaces/.carrel/staging/u-b/work")
    assert len(workspaces.repair()) == 1


def test_what_belongs_to_another_home_is_left_alone(workspaces: Local, a_workspace: str) -> None:
    interrupted_creation(workspaces, home_id="another-machine")
    assert workspaces.repair() == []
    assert workspaces.get("t/b").state == "creating"


def test_an_interrupted_destruction_leaves_no_trace_if_nothing_had_moved(workspaces: Local, a_workspace: str) -> None:
    desk = workspaces.get(a_workspace)
    fact = WorkspaceDestroying(
        workspace_id=desk.id,
        agent_id=desk.agent_id,
        uid=desk.uid,
        workspace_path=desk.path,
        trash_path=f"{desk.path}-trash",
        cleanup_reason="x",
        operation_id="o",
    )
    workspaces._home.record("t", fact)
    assert [finding.done for finding in workspaces.repair()] == ["it is as it was"]
    after = workspaces.get(a_workspace)
    assert after == desk.replace(updated_at=after.updated_at)


def test_left_over_building_sites_are_deleted(workspaces: Local, a_workspace: str, home_path: str) -> None:
    staging = f"{home_path}/workspaces/.carrel/staging"
    os.makedirs(f"{staging}/unknown/work")
    os.makedirs(f"{staging}/{workspaces.get(a_workspace).uid}.0/work")
    assert len(workspaces.repair()) == 2
    assert names_in(staging) == []


def test_a_missing_directory_is_told_and_made_again(workspaces: Local, a_workspace: str) -> None:
    shutil.rmtree(workspaces.path(a_workspace))
    (finding,) = workspaces.repair()
    assert "was gone" in finding.what
    assert "brought back from base" in finding.done
    assert workspaces.repair() == []
    workspaces.write_file(a_workspace, "work/a", "a")


def test_changed_metadata_is_told(workspaces: Local, a_workspace: str) -> None:
    run = Path(workspaces.path(a_workspace), ".aw", "run.json")
    run.chmod(0o644)
    run.write_text("{}")
    (finding,) = workspaces.repair()
    assert "metadata of t/a was changed" in finding.what
    run.unlink()
    run.symlink_to("/etc/passwd")
    assert len(workspaces.repair()) == 1


def test_strangers_are_told_and_never_touched(workspaces: Local, a_workspace: str, home_path: str) -> None:
    stranger = Path(home_path, "workspaces", "t", "stranger")
    stranger.mkdir()
    Path(home_path, "workspaces", "file").write_text("x")
    (finding,) = workspaces.repair()
    assert str(stranger) in finding.what
    assert stranger.is_dir()


def test_views_are_made_anew_on_request(workspaces: Local, a_workspace: str, home_path: str) -> None:
    with workspaces._home.log._database.transaction(durable=True):
        workspaces._home.log._database.execute("DELETE FROM views")
    assert not workspaces.exists(a_workspace)
    with pytest.raises(workstead.errors.LogBroken, match="view"):
        workspaces.verify()
    (finding,) = workspaces.repair(rebuild_views=True)
    assert "1 records" in finding.done
    assert workspaces.exists(a_workspace)
    check_whole(workspaces, home_path)
