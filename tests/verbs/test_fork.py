"""Forks: what they hold, what they are called, where their changes are counted from, and what gets in their way."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

import workstead
from needs import need_root
from situations import check_whole
from sources.yard import listing, random_tree, repository, sh, upset
from waiting import wait_until
from workstead.errors import Invalid, InvalidSource, SnapshotNotFound, WorkspaceExists, WorkspaceNotFound
from workstead.local import Local
from workstead.model.workspace import Workspace
from workstead.settings import Settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    need_root()
    path = tmp_path / "folder"
    path.mkdir()
    random_tree(str(path), 3)
    (path / "text").write_text("one\n")
    return path


@pytest.fixture
def desk(workspaces: Local, folder: Path) -> Workspace:
    return workspaces.create(f"overlay:{folder}", id="t/a")


def files(workspace: Workspace) -> dict[bytes, tuple[object, ...]]:
    return listing(f"{workspace.path}/work")


def contents(workspace: Workspace) -> dict[bytes, tuple[object, ...]]:
    found = {name: (kind, mode & 0o777, what) for name, (kind, mode, _, what) in files(workspace).items()}
    plain = {
        name: (kind, mode, what[0] if isinstance(what, tuple) else what) for name, (kind, mode, what) in found.items()
    }
    return {name: entry for name, entry in plain.items() if entry[0] != stat.S_IFIFO}


def wait_for(path: Path) -> None:
    wait_until(path.exists)


def test_forks_are_numbered_named_or_both(workspaces: Local, desk: Workspace) -> None:
    assert [each.id for each in workspaces.fork(desk.id)] == ["t/a-1"]
    assert [each.id for each in workspaces.fork(desk.id, count=2)] == ["t/a-2", "t/a-3"]
    assert [each.id for each in workspaces.fork(desk.id, new_id="other/x")] == ["other/x"]
    assert [each.id for each in workspaces.fork(desk.id, new_id="other/x", count=2)] == ["other/x-1", "other/x-2"]
    assert [each.id for each in workspaces.fork("t/a-1", new_id="bare")] == ["bare/main"]
    workspaces.destroy("t/a-2", force=True)
    assert [each.id for each in workspaces.fork(desk.id)] == ["t/a-2"]
    assert workspaces.create("fork:t/a", id="by/source").source == "fork:t/a"


def test_what_cannot_be_forked(workspaces: Local, desk: Workspace) -> None:
    with pytest.raises(WorkspaceNotFound):
        workspaces.fork("t/none")
    with pytest.raises(WorkspaceExists):
        workspaces.fork(desk.id, new_id=desk.id)
    with pytest.raises(SnapshotNotFound):
        workspaces.fork(desk.id, snapshot="none")
    with pytest.raises(Invalid):
        workspaces.fork(desk.id, count=0)
    with pytest.raises(InvalidSource, match="cannot be made later"):
        workspaces.create(f"fork:{desk.id}", lazy=True)
    assert [each.id for each in workspaces.list()] == [desk.id]
    workspaces.destroy(desk.id)
    with pytest.raises(WorkspaceNotFound):
        workspaces.fork(desk.id)


def test_a_fork_of_a_planned_workspace_makes_both(workspaces: Local, folder: Path) -> None:
    workspaces.create(f"overlay:{folder}", id="t/a", lazy=True)
    (fork,) = workspaces.fork("t/a")
    assert files(fork) == files(workspaces.get("t/a"))


def test_the_changes_of_a_fork_are_counted_from_the_common_origin(
    workspaces: Local, desk: Workspace, folder: Path
) -> None:
    workspaces.write_file(desk.id, "work/text", "one\ntwo\n")
    (fork,) = workspaces.fork(desk.id)
    workspaces.write_file(fork.id, "work/more", "more\n")
    assert [each.path for each in workspaces.diff(desk.id).changes] == ["text"]
    assert [each.path for each in workspaces.diff(fork.id).changes] == ["more", "text"]
    assert fork.base == desk.base
    workspaces.apply(fork.id)
    assert (folder / "text").read_text() == "one\ntwo\n"
    assert (folder / "more").read_text() == "more\n"
    assert workspaces.diff(fork.id).changes == ()
    workspaces.apply(desk.id)  # has nothing that the folder does not have already
    assert (folder / "more").exists()


def test_the_changes_of_a_fork_of_a_clone_go_to_a_branch_of_their_own(
    workspaces: Local, tmp_path: Path, home_path: str
) -> None:
    need_root()
    origin = str(tmp_path / "origin")
    repository(origin)
    desk = workspaces.create(f"overlay:{origin}", id="t/a")
    forks = workspaces.fork(desk.id, count=2)
    for number, fork in enumerate(forks):
        workspaces.write_file(fork.id, "work/README", f"by {number}\n")
        workspaces.apply(fork.id, to=f"branch:agent-{number}", message="x")
    assert sh("git show agent-0:README agent-1:README", origin) == "by 0\nby 1\n"


def test_an_empty_workspace_that_grew_is_forked(workspaces: Local) -> None:
    need_root()
    desk = workspaces.create(id="t/a")
    random_tree(f"{desk.path}/work", 4)
    before = files(desk)
    one, two = workspaces.fork(desk.id, count=2)
    assert files(one) == files(two) == files(desk) == before
    assert workspaces.get(desk.id).filled["mechanism"] == one.filled["mechanism"] == "overlay"
    upset(f"{one.path}/work", 1)
    assert files(two) == files(desk) == before
    assert {each.path for each in workspaces.diff(two.id).changes} == {
        each.path for each in workspaces.diff(desk.id).changes
    }


def test_a_workspace_at_work_is_forked_without_stopping_it_and_marked(workspaces: Local, desk: Workspace) -> None:
    script = "i=0; echo built > built; touch ready; while :; do i=$((i+1)); echo $i > count; done"
    run = workspaces.run(desk.id, ["sh", "-c", script])
    wait_for(Path(desk.path, "work", "ready"))
    one, two = workspaces.fork(desk.id, count=2)
    for fork in (one, two):
        assert Path(fork.path, "work", "built").read_text() == "built\n"
        assert f"taken while {run.id} was at work" in fork.filled["notes"]  # type: ignore[operator]
        assert "copied as they were found" in str(fork.filled["notes"])
    counted = Path(one.path, "work", "count").read_text()
    assert workspaces.get_run(run.id).is_active
    later = Path(desk.path, "work", "count")
    wait_until(lambda: later.read_text() not in ("", counted))
    assert Path(one.path, "work", "count").read_text() == counted
    workspaces.stop(run.id, at_once=True)
    assert "was at work" not in str(workspaces.fork(desk.id)[0].filled["notes"])


def test_the_same_for_plain_files_at_work(workspaces: Local) -> None:
    need_root()
    desk = workspaces.create(id="t/a")
    run = workspaces.run(desk.id, ["sh", "-c", "echo built > built; touch ready; sleep 60"])
    wait_for(Path(desk.path, "work", "ready"))
    (fork,) = workspaces.fork(desk.id)
    assert Path(fork.path, "work", "built").read_text() == "built\n"
    assert f"taken while {run.id} was at work" in fork.filled["notes"]  # type: ignore[operator]
    workspaces.stop(run.id, at_once=True)


def test_forks_of_forks_to_depth_twenty(workspaces: Local, desk: Workspace) -> None:
    chain = [desk]
    for depth in range(20):
        workspaces.write_file(chain[-1].id, f"work/depth-{depth}", str(depth))
        (fork,) = workspaces.fork(chain[-1].id, new_id=f"deep/{depth}")
        chain.append(fork)
    workspaces.delete_file(chain[-1].id, "work/depth-0")
    for number, each in enumerate(chain):
        there = {name for name in os.listdir(f"{each.path}/work") if name.startswith("depth-")}
        expected = {f"depth-{depth}" for depth in range(min(number + 1, 20))}
        assert there == expected - ({"depth-0"} if number == 20 else set())
    changed = {each.path for each in workspaces.diff(chain[-1].id).changes}
    assert changed == {f"depth-{depth}" for depth in range(1, 20)}
    # Those in between may go, and come back.
    workspaces.destroy(*(each.id for each in chain[1:-1]), force=True)
    assert Path(chain[-1].path, "work", "depth-7").read_text() == "7"
    workspaces.undo()
    assert Path(chain[8].path, "work", "depth-7").read_text() == "7"
    workspaces.destroy(*(each.id for each in chain[:-1]), force=True)
    workspaces.sweep(everything=True)
    assert Path(chain[-1].path, "work", "depth-7").read_text() == "7"
    assert {each.path for each in workspaces.diff(chain[-1].id).changes} == changed


def test_a_fork_outlives_its_parent_and_the_parent_comes_back(workspaces: Local, desk: Workspace) -> None:
    workspaces.write_file(desk.id, "work/text", "changed")
    workspaces.write_file(desk.id, "output/report", "r")
    before = files(desk)
    (fork,) = workspaces.fork(desk.id)
    workspaces.destroy(desk.id, force=True)
    assert files(fork) == before
    workspaces.write_file(fork.id, "work/text", "by the fork")
    workspaces.undo()
    assert files(workspaces.get(desk.id)) == before
    (again,) = workspaces.fork(desk.id)
    assert files(again) == before
    assert workspaces.read_text(again.id, "output/report") == "r"
    assert Path(again.path, "output", "report").stat().st_uid == Path(again.path, "output").stat().st_uid


def test_a_state_that_was_kept_is_what_a_fork_of_it_holds(workspaces: Local, desk: Workspace) -> None:
    # Through the object store: content, modes and links; not which names are one file.
    before = contents(desk)
    workspaces.snapshot(desk.id, label="first")
    upset(f"{desk.path}/work", 2)
    after = files(desk)
    (fork,) = workspaces.fork(desk.id, snapshot="first")
    assert contents(fork) == before
    assert files(desk) == after
    # A fork whose state cannot be brought back is no fork at all.
    with pytest.raises(SnapshotNotFound):
        workspaces.create(f"fork:{desk.id}@nothing", id="t/x")
    assert not workspaces.exists("t/x")


def test_random_trees_are_kept_apart(workspaces: Local, tmp_path: Path) -> None:
    need_root()
    for seed in range(10):
        folder = tmp_path / f"tree-{seed}"
        folder.mkdir()
        random_tree(str(folder), seed)
        origin = listing(str(folder))
        desk = workspaces.create(f"overlay:{folder}", id=f"tree/{seed}")
        upset(f"{desk.path}/work", seed)
        parent = files(desk)
        one, two = workspaces.fork(desk.id, count=2)
        assert files(one) == files(two) == parent
        upset(f"{one.path}/work", seed + 100)
        upset(f"{desk.path}/work", seed + 200)
        assert files(two) == parent
        assert listing(str(folder)) == origin


def test_many_at_once_get_names_of_their_own(home_path: str, settings: Settings, desk: Workspace) -> None:
    made: list[str] = []
    broken: list[BaseException] = []

    def work() -> None:
        try:
            with workstead.open(home_path, settings=settings) as mine:
                made.extend(each.id for each in mine.fork(desk.id, count=4))
        except BaseException as error:
            broken.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    assert len(set(made)) == 20
    with workstead.open(home_path, settings=settings) as mine:
        assert mine.repair() == []
        check_whole(mine, home_path)
        assert len({str(listing(f"{each.path}/work")) for each in mine.list()}) == 1


def test_nothing_is_left_of_a_fork_that_fails(
    workspaces: Local, desk: Workspace, home_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspaces.write_file(desk.id, "work/text", "changed")
    before = files(desk)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("workstead.verbs.fork.write_metadata", fail)
    with pytest.raises(workstead.errors.DiskFull):
        workspaces.fork(desk.id)
    monkeypatch.undo()
    assert files(workspaces.get(desk.id)) == before
    check_whole(workspaces, home_path)
    assert os.listdir(f"{home_path}/workspaces/.carrel/layers") == [desk.uid]
    assert files(workspaces.fork(desk.id)[0]) == before


def test_a_fork_of_a_folder_in_place_leaves_it_alone_until_apply(workspaces: Local, folder: Path) -> None:
    desk = workspaces.create(f"folder:{folder}", id="t/in-place")
    before = listing(str(folder))
    (fork,) = workspaces.fork(desk.id)
    assert files(fork) == before
    script = f"echo more >> text; echo x > {folder}/text 2> /dev/null"
    workspaces.wait(workspaces.run(fork.id, ["sh", "-c", script]).id)
    assert listing(str(folder)) == before
    workspaces.apply(fork.id)
    assert (folder / "text").read_text() == "one\nmore\n"
