"""Watch a workspace: what is seen, who did it, and the watcher in the background that writes it down."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import workstead
from needs import need_root
from origins import FILES, make_origin, write
from waiting import wait_until
from workstead.errors import WorkspaceNotFound
from workstead.local import Local
from workstead.model.change import FileChange
from workstead.model.workspace import Workspace
from workstead.settings import Settings

QUIET = 0.6


@pytest.fixture(params=["empty", "overlay", "folder"])
def desk(request: pytest.FixtureRequest, workspaces: Local, tmp_path: Path) -> Workspace:
    if request.param == "empty":
        desk = workspaces.create(id="t/a")
        write(Path(desk.path, "work"), FILES)
        return desk
    origin = make_origin(tmp_path / "origin")
    if request.param == "overlay":
        need_root()
    return workspaces.create(f"{request.param}:{origin}", id="t/a")


def brief(changes: list[FileChange]) -> list[tuple[str, ...]]:
    return sorted((each.kind, each.path.removeprefix("/mnt/workspace/"), each.by) for each in changes)


def see(workspaces: Local, desk: Workspace, act: Callable[[], object]) -> list[FileChange]:
    """What a watcher sees of what is done."""
    with workspaces.watch(desk.id, timeout_seconds=QUIET) as watch:
        act()
        return list(watch)


def test_what_others_do_in_a_workspace_is_seen(workspaces: Local, desk: Workspace) -> None:
    work = Path(desk.path, "work")

    def act() -> None:
        (work / "src/app.py").write_text("changed")
        (work / "new/deep").mkdir(parents=True)
        (work / "new/deep/file").write_text("new")
        os.unlink(work / "src/old.py")
        os.rename(work / "README.md", work / "READ.md")
        Path(desk.path, "output/result").write_text("done")

    changes = see(workspaces, desk, act)
    assert brief(changes) == [
        ("added", "output/result", "outside"),
        ("added", "work/new", "outside"),
        ("added", "work/new/deep", "outside"),
        ("added", "work/new/deep/file", "outside"),
        ("changed", "work/src/app.py", "outside"),
        ("deleted", "work/src/old.py", "outside"),
        ("renamed", "work/READ.md", "outside"),
    ]
    (renamed,) = [each for each in changes if each.kind == "renamed"]
    assert renamed.from_path == "/mnt/workspace/work/README.md"
    assert all(each.certain for each in changes)


def test_what_is_done_through_our_verbs_is_the_owners(workspaces: Local, desk: Workspace) -> None:
    def act() -> None:
        workspaces.acting_as("ada").write_file(desk.id, "work/made/by.txt", "verb", parents=True)
        workspaces.move_file(desk.id, "work/src/app.py", "work/src/moved.py")
        workspaces.delete_file(desk.id, "work/src/old.py")
        Path(desk.path, "work/outside.txt").write_text("not by us")

    changes = {each.path.removeprefix("/mnt/workspace/work/"): each for each in see(workspaces, desk, act)}
    assert {path: each.by for path, each in changes.items()} == {
        "made": "owner",
        "made/by.txt": "owner",
        "src/moved.py": "owner",
        "src/old.py": "owner",
        "outside.txt": "outside",
    }
    assert changes["made/by.txt"].who == "ada"


def test_what_a_run_does_is_the_runs(workspaces: Local, desk: Workspace) -> None:
    found = []

    def act() -> None:
        run = workspaces.run(desk.id, ["sh", "-c", "echo x > run.txt; rm src/old.py"], sandbox="none")
        workspaces.wait(run.id)
        found.append(run.id)

    changes = see(workspaces, desk, act)
    by_run = [each for each in changes if each.path.startswith("/mnt/workspace/work/")]
    assert brief(by_run) == [("added", "work/run.txt", "run"), ("deleted", "work/src/old.py", "run")]
    assert {each.who for each in by_run} == set(found)
    assert not [each for each in by_run if each.certain]  # by the time only: without a sandbox anybody might have


def test_what_the_sandboxs_own_user_made_is_certainly_the_runs(workspaces: Local) -> None:
    need_root()
    desk = workspaces.create(id="t/s")

    def act() -> None:
        script = "echo x > run.txt; until [ -e mine.txt ]; do sleep 0.05; done"
        run = workspaces.run(desk.id, ["sh", "-c", script], sandbox="bubblewrap")
        wait_until(Path(desk.path, "work/run.txt").exists)
        Path(desk.path, "work/mine.txt").write_text("by root, at the same time")
        workspaces.wait(run.id)

    certain = {each.path.rpartition("/")[2]: each.certain for each in see(workspaces, desk, act)}
    assert certain["run.txt"]
    assert not certain["mine.txt"]


@pytest.mark.parametrize("desk", ["empty", "overlay"], indirect=True)  # a folder in place is not restored
def test_a_restore_is_the_owners(workspaces: Local, desk: Workspace) -> None:
    snapshot = workspaces.snapshot(desk.id)
    Path(desk.path, "work/README.md").write_text("spoiled")
    changes = see(workspaces, desk, lambda: workspaces.restore(desk.id, snapshot.id))
    assert [each.by for each in changes if each.path.endswith("README.md")] == ["owner"]


def test_our_metadata_is_not_watched(workspaces: Local, desk: Workspace) -> None:
    run = workspaces.run(desk.id, ["true"], sandbox="none")
    assert see(workspaces, desk, lambda: workspaces.wait(run.id)) == []


def test_looking_leaves_no_event(workspaces: Local, desk: Workspace) -> None:
    before = len(list(workspaces.events()))
    assert see(workspaces, desk, lambda: Path(desk.path, "work/x").write_text("x"))
    assert len(list(workspaces.events())) == before


@pytest.mark.parametrize("desk", ["empty", "overlay"], indirect=True)
def test_a_fork_does_not_disturb_the_watch_of_its_parent(workspaces: Local, desk: Workspace) -> None:
    work = Path(desk.path, "work")
    (work / "src/app.py").write_text("before the watch")

    def act() -> None:
        (work / "src/before.py").write_text("before the fork")
        (fork,) = workspaces.fork(desk.id)
        Path(fork.path, "work/theirs").write_text("not ours")
        notes = workspaces.get(fork.id).filled["notes"]
        assert not [note for note in notes if "copied" in note], notes
        (work / "src/old.py").write_text("after the fork")
        (work / "after").write_text("after the fork")

    assert brief(see(workspaces, desk, act)) == [
        ("added", "work/after", "outside"),
        ("added", "work/src/before.py", "outside"),
        ("changed", "work/src/old.py", "outside"),
    ]


def test_the_watch_ends_with_the_workspace(workspaces: Local, desk: Workspace) -> None:
    watch = workspaces.watch(desk.id)
    Path(desk.path, "work/last").write_text("last")
    assert next(watch).path == "/mnt/workspace/work/last"
    workspaces.destroy(desk.id, force=True)
    assert list(watch) == []
    workspaces.undo()
    assert brief(see(workspaces, desk, lambda: Path(desk.path, "work/again").write_text("x"))) == [
        ("added", "work/again", "outside")
    ]


def test_the_watch_ends_when_it_is_told_to(workspaces: Local, desk: Workspace) -> None:
    asked: list[int] = []
    assert list(workspaces.watch(desk.id, until=lambda: len(asked) > 2 or bool(asked.append(1)))) == []
    with pytest.raises(WorkspaceNotFound):
        workspaces.watch("no/such")


# -- in the background -------------------------------------------------------------------------------------------------


def seen_in_log(workspaces: Local, path: str) -> list[dict[str, object]]:
    """The facts about a path, as soon as there are any."""

    def found() -> list[dict[str, object]]:
        facts = [event.event_data for event in workspaces.events(types=["file_changed"])]
        return [fact for fact in facts if fact["path"] == path]

    return wait_until(found)


def find_watcher(desk: Workspace) -> int | None:
    """The id of the process that watches the workspace."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            home = os.fsencode(desk.path.split("/workspaces/")[0])
            if b"--record" in words and home in words and desk.id.encode() in words:
                return int(name)
    return None


def test_a_watcher_in_the_background_writes_down_what_changes(workspaces: Local, desk: Workspace) -> None:
    started = workspaces.start_watching(desk.id)
    try:
        assert workspaces.start_watching(desk.id) == started  # one for each workspace
        assert [each.workspace_id for each in workspaces.watching()] == [desk.id]
        Path(desk.path, "work/src/app.py").write_text("changed")
        (fact,) = seen_in_log(workspaces, "/mnt/workspace/work/src/app.py")
        assert (fact["kind"], fact["by"]) == ("changed", "outside")
        os.rename(f"{desk.path}/work/README.md", f"{desk.path}/work/last")
    finally:
        assert workspaces.stop_watching(desk.id)
    (fact,) = seen_in_log(workspaces, "/mnt/workspace/work/last")  # seen before it ended, so written down
    assert fact["from_path"] == "/mnt/workspace/work/README.md"
    assert workspaces.watching() == []
    assert workspaces.stop_watching(desk.id) is None
    wait_until(lambda: find_watcher(desk) is None)
    workspaces.verify()


def test_a_watcher_that_is_killed_is_noticed_and_another_can_be_started(
    workspaces: Local, home_path: str, settings: Settings
) -> None:
    desk = workspaces.create(id="t/a")
    workspaces.start_watching(desk.id)
    pid = find_watcher(desk)
    assert pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
    findings = [finding.what for finding in workspaces.repair()]
    assert findings == ["the watcher of t/a died"]
    assert workspaces.watching() == []
    assert workspaces.repair() == []
    workspaces.start_watching(desk.id)
    pid = find_watcher(desk)
    assert pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
    with workstead.open(home_path, settings=settings) as again:  # opening settles it, as any other step
        assert again.watching() == []
        again.start_watching(desk.id)
        Path(desk.path, "work/seen").write_text("x")
        seen_in_log(again, "/mnt/workspace/work/seen")
        again.stop_watching(desk.id)
        again.verify()


def test_a_watcher_ends_with_its_workspace(workspaces: Local) -> None:
    desk = workspaces.create(id="t/a")
    workspaces.start_watching(desk.id)
    workspaces.destroy(desk.id, force=True)
    wait_until(lambda: workspaces.watching() == [])
    (stopped,) = workspaces.events(types=["watch_stopped"])
    assert stopped.event_data["reason"] == "the workspace is gone"


def test_many_changes_are_all_written_down(workspaces: Local) -> None:
    desk = workspaces.create(id="t/a")
    workspaces.start_watching(desk.id)
    try:
        for number in range(1500):
            folder = Path(desk.path, "work", f"d{number % 40}")
            folder.mkdir(exist_ok=True)
            (folder / f"f{number}").write_text("x")
        seen_in_log(workspaces, "/mnt/workspace/work/d19/f1499")
    finally:
        workspaces.stop_watching(desk.id)
    facts = [event.event_data for event in workspaces.events(types=["file_changed"])]
    assert len([fact for fact in facts if fact["entry"] == "file" and fact["kind"] == "added"]) == 1500
