"""Measuring what takes space."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import workstead
from needs import need_root
from origins import make_origin
from workstead.errors import WorkspaceNotFound
from workstead.local import Local
from workstead.settings import Settings
from workstead.system.files.measure import measure


@pytest.fixture
def a_large_and_a_small_workspace(workspaces: Local) -> None:
    large = workspaces.create(id="t/large", config={"max_size_mb": 5})
    Path(large.path, "work", "data").write_bytes(os.urandom(3 * 2**20))
    os.link(f"{large.path}/work/data", f"{large.path}/work/again")
    workspaces.create(id="t/small")


def test_everything_is_measured(workspaces: Local, a_large_and_a_small_workspace: None) -> None:
    found = workspaces.usage()
    large, small = found.workspaces
    assert (large.workspace_id, small.workspace_id) == ("t/large", "t/small")
    assert 3 * 2**20 <= large.bytes < 4 * 2**20  # a hard link takes nothing
    assert large.files == 2  # what we wrote about it does not count
    assert large.max_bytes == 5 * 2**20
    assert small.bytes < 2**20
    assert found.workspaces_bytes == large.bytes + small.bytes
    assert (found.trash, found.trash_bytes) == (0, 0)
    assert found.log_bytes > 0
    assert 0 < found.disk_free_bytes <= found.disk_total_bytes


def test_the_trash_is_measured_too(workspaces: Local, a_large_and_a_small_workspace: None) -> None:
    workspaces.destroy("t/large")
    found = workspaces.usage()
    assert found.trash == 1
    assert found.trash_bytes >= 3 * 2**20
    assert [row.workspace_id for row in found.workspaces] == ["t/small"]


def test_one_alone_is_measured(workspaces: Local, a_large_and_a_small_workspace: None) -> None:
    (row,) = workspaces.usage("t/small").workspaces
    assert row.workspace_id == "t/small"
    with pytest.raises(WorkspaceNotFound):
        workspaces.usage("t/none")


def test_what_is_only_planned_takes_nothing(workspaces: Local) -> None:
    workspaces.create(id="t/a", lazy=True)
    (row,) = workspaces.usage().workspaces
    assert (row.state, row.bytes, row.files) == ("planned", 0, 0)


def test_own_and_shared_are_told_apart_and_what_is_shared_is_measured_once(
    workspaces: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_root()  # others share by a view in a namespace, which is measured the same
    desk = workspaces.create(id="t/a")
    Path(desk.path, "work", "data").write_bytes(os.urandom(2 * 2**20))
    workspaces.fork("t/a", new_id="t/b")
    Path(workspaces.path("t/b"), "work", "more").write_bytes(os.urandom(2**20))
    found = workspaces.usage()
    first, second = found.workspaces
    assert first.bytes < 2**20 <= second.bytes < 2 * 2**20
    assert first.shared_bytes == second.shared_bytes == found.shared_bytes >= 2 * 2**20
    walked = []
    monkeypatch.setattr("workstead.flows.usage.measure", lambda *paths: (walked.extend(paths), measure(*paths))[1])
    assert workspaces.usage().shared_bytes == found.shared_bytes
    assert not [path for path in walked if "/frozen/" in path]


def test_it_says_what_a_sweep_would_take(home_path: str, settings: Settings) -> None:
    forgetful = settings.replace(workspaces=settings.workspaces.replace(retention_days=0))
    with workstead.open(home_path, settings=forgetful) as workspaces:
        for name in ("goes", "stays"):
            desk = workspaces.create(id=f"t/{name}")
            Path(desk.path, "tmp", "scratch").write_bytes(os.urandom(2**20))
        workspaces.pin("t/stays")
        found = workspaces.usage()
        assert found.sweepable_bytes is not None
        assert 2**20 <= found.sweepable_bytes < 2 * 2**20
        assert {row.workspace_id: row.pinned for row in found.workspaces} == {"t/goes": False, "t/stays": True}
        assert workspaces.usage("t/goes").sweepable_bytes is None


def test_snapshots_caches_archives_and_output_are_measured(workspaces: Local, tmp_path: Path) -> None:
    origin = make_origin(tmp_path / "origin")
    desk = workspaces.create(f"clone:{origin}", id="t/a")
    Path(desk.path, "work", "more.bin").write_bytes(os.urandom(2**20))
    workspaces.snapshot("t/a")
    workspaces.archive("t/a")
    workspaces.wait(workspaces.run("t/a", ["seq", "100000"], sandbox="none").id)
    found = workspaces.usage()
    assert found.snapshots_bytes >= 2**20
    assert found.archives_bytes >= 2**20
    assert found.runs_bytes >= 400_000
    assert found.cache_bytes > 100_000


def test_what_tasks_share_is_shown_and_counts_for_no_workspace(workspaces: Local) -> None:
    desk = workspaces.create(id="t/a", config={"shares": [{"name": "data", "mode": "rw"}], "mailbox": True})
    ended = workspaces.wait(workspaces.run(desk.id, ["sh", "-c", 'head -c 300000 /dev/zero > "$AW_SHARES/data/f"']).id)
    assert ended.exit_code == 0
    found = workspaces.usage()
    assert 300_000 <= found.areas_bytes < 400_000
    assert found.workspaces[0].bytes < 100_000
