"""Measuring what takes space."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.errors import WorkspaceNotFound
from carrel.local import Local


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
