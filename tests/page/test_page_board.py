"""What all tabs share: rows at once, measured in time, and as little as possible."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from waiting import wait_until
from workstead.local import Local
from workstead.page import live_rows as boards
from workstead.page.live_rows import Board


@pytest.fixture
def board(workspaces: Local) -> Iterator[Board]:
    made = Board(workspaces)
    yield made
    made.stop()


def test_rows_are_there_before_anything_is_measured(workspaces: Local, board: Board) -> None:
    for number in range(3):
        workspaces.create(id=f"rows/a{number}")
        workspaces.write_file(f"rows/a{number}", "work/f", "x\n")
    board.start()
    assert [row["id"] for row in board.rows_of("rows")] == ["rows/a0", "rows/a1", "rows/a2"]
    wait_until(lambda: all(row["changed"] == 1 and row["size"] for row in board.rows_of("rows")))


def test_a_busy_workspace_is_measured_about_once_a_second(
    workspaces: Local, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    original = Board._measure_one

    def count(self: Board, workspace_id: str) -> None:
        measured.append(workspace_id)
        original(self, workspace_id)

    monkeypatch.setattr(Board, "_measure_one", count)
    workspaces.create(id="busy/a")
    board.start()
    began = time.monotonic()
    for number in range(200):
        workspaces.write_file("busy/a", f"work/f{number}", "x\n")
    wait_until(lambda: (row := board.row_of("busy/a")) and row["changed"] == 200)
    assert len(measured) <= (time.monotonic() - began) / boards._REST_SECONDS + 2


def test_a_row_says_whether_its_task_has_others(workspaces: Local, board: Board) -> None:
    def flags() -> list[bool]:
        return [row["several"] for row in board.rows_of("both")]

    workspaces.create(id="both/a")
    board.start()
    assert flags() == [False]
    workspaces.create(id="both/b")
    wait_until(lambda: flags() == [True, True])
    version = board.version
    workspaces.destroy("both/b", force=True)
    wait_until(lambda: flags() == [False])
    _, rows, gone = board.newer_than(version)
    assert ([row["id"] for row in rows], len(gone)) == (["both/a"], 1)
    workspaces.undo()
    wait_until(lambda: flags() == [True, True])


def test_one_is_measured_without_the_others(workspaces: Local) -> None:
    workspaces.create(id="size/a", config={"max_size_mb": 5})
    workspaces.write_file("size/a", "work/f", "x" * 100_000)
    workspaces.create(id="size/b")
    used = workspaces.usage_of("size/a")
    assert used == workspaces.usage("size/a").workspaces[0]
    assert used.bytes > 100_000
    assert used.max_bytes == 5 << 20
