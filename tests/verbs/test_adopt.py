"""A home that was moved or copied works at its new place after `aw repair --adopt`, and never touches the original."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import workstead
from people import Person
from situations import killed_at_effect, remove_home, tree_of
from waiting import wait_until
from workstead.errors import HomeCopied
from workstead.settings import Settings

STRIDE = int(os.environ.get("AW_CRASH_STRIDE", "1"))


def fill(person: Person) -> Path:
    """One workspace of each kind that stands in the home, a fork, a snapshot and one in the trash; gives the origin."""
    origin = person.folder("origin", {"a": "one\n", "b": "two\n"})
    person.aw_ok("create", "t/plain")
    person.aw_ok("put", "t/plain", "work/x", feed="first\n")
    person.aw_ok("snapshot", "t/plain", "-m", "kept")
    person.aw_ok("put", "t/plain", "work/x", feed="second\n")
    person.aw_ok("create", "t/view", "--source", f"overlay:{origin}")
    person.aw_ok("put", "t/view", "work/a", feed="changed\n")
    person.aw_ok("rm", "t/view", "work/b")
    person.aw_ok("snapshot", "t/view", "-m", "seen")
    person.aw_ok("fork", "t/view", "--as", "t/fork")
    person.aw_ok("put", "t/fork", "work/c", feed="forked\n")
    person.aw_ok("create", "t/gone")
    person.aw_ok("put", "t/gone", "work/y", feed="in the trash\n")
    person.aw_ok("destroy", "t/gone", "--force")
    return origin


def copy_home(person: Person, copy: Path) -> None:
    """A copy as people make it; the kernel's own directory of an overlay is closed to ordinary users."""
    person.sh(f"cp -a --one-file-system {person.home} {copy} 2>errors || ! grep -v work/work errors")


def snapshot_of(person: Person, id: str, home: Path) -> str:
    found: list[dict[str, Any]] = person.aw_json("snapshots", id, AW_HOME=str(home))
    return str(next(each["id"] for each in found if each.get("label")))


def check_works(person: Person, home: Path) -> None:
    """Every workspace has its files at the new place, and states, trash, runs and new workspaces work."""
    at = {"AW_HOME": str(home)}
    for id in ("t/plain", "t/view", "t/fork"):
        path = person.aw_ok("path", id, **at).strip()
        assert path.startswith(f"{home}/"), path
        assert person.aw_json("show", id, **at)["path"] == path
    assert person.aw_ok("cat", "t/plain", "work/x", **at) == "second\n"
    assert person.aw_ok("cat", "t/view", "work/a", **at) == "changed\n"
    assert person.aw_ok("cat", "t/fork", "work/c", **at) == "forked\n"
    assert person.aw_ok("cat", "t/fork", "work/a", **at) == "changed\n"
    assert "work/b" not in person.aw_ok("tree", "t/view", **at)
    person.aw_ok("verify", **at)
    person.aw_ok("restore", "t/plain", snapshot_of(person, "t/plain", home), **at)
    assert person.aw_ok("cat", "t/plain", "work/x", **at) == "first\n"
    person.aw_ok("undo", **at)
    assert person.aw_ok("cat", "t/plain", "work/x", **at) == "second\n"
    person.aw_ok("put", "t/view", "work/a", feed="again\n", **at)
    person.aw_ok("restore", "t/view", snapshot_of(person, "t/view", home), **at)
    assert person.aw_ok("cat", "t/view", "work/a", **at) == "changed\n"
    changed = {each["path"] for each in person.aw_json("diff", "t/view", **at)["changes"]}
    assert changed == {"a", "b"}
    person.aw_ok("trash", "restore", "t/gone", **at)
    assert person.aw_ok("cat", "t/gone", "work/y", **at) == "in the trash\n"
    person.aw_ok("run", "t/fork", "--", "touch", "made", **at)
    person.aw_ok("create", "t/new", **at)
    person.aw_ok("destroy", "t/plain", "--force", **at)
    person.aw_ok("trash", "empty", **at)
    assert not person.aw_json("repair", **at)
    person.aw_ok("verify", **at)


def test_a_moved_home_works_at_its_new_place(person: Person) -> None:
    fill(person)
    moved = person.directory / "moved"
    person.home.rename(moved)
    assert person.aw_json("put", "t/plain", "work/x", feed="", AW_HOME=str(moved))["error"]["code"] == "home_copied"
    done = person.aw_json("repair", "--adopt", AW_HOME=str(moved))
    assert done[0]["what"] == f"the home was at {person.home}"
    check_works(person, moved)
    assert not person.home.exists()


def test_a_copied_home_works_at_its_new_place_and_leaves_the_original_as_it_was(person: Person) -> None:
    origin = fill(person)
    copy = person.directory / "copy"
    copy_home(person, copy)
    trash = sorted(os.listdir(person.home / "workspaces/.carrel/trash"))
    before = tree_of(person.home / "workspaces/t/plain"), tree_of(origin)
    log = person.aw_ok("events", "--format", "json")
    person.aw_ok("repair", "--adopt", AW_HOME=str(copy))
    check_works(person, copy)
    assert (tree_of(person.home / "workspaces/t/plain"), tree_of(origin)) == before
    assert sorted(os.listdir(person.home / "workspaces/.carrel/trash")) == trash
    assert person.aw_ok("events", "--format", "json") == log
    check_works(person, person.home)


def test_a_home_can_be_adopted_many_times_also_at_its_first_place(person: Person) -> None:
    fill(person)
    places = [person.directory / "one", person.directory / "two", person.home]
    last = person.home
    for place in places:
        last.rename(place)
        last = place
        person.aw_ok("repair", "--adopt", AW_HOME=str(place))
    check_works(person, person.home)


def test_documents_of_a_workspace_name_its_new_path(person: Person) -> None:
    person.aw_ok("create", "t/a")
    moved = person.directory / "moved"
    person.home.rename(moved)
    person.aw_ok("repair", "--adopt", AW_HOME=str(moved))
    text = person.sh(f"cat {moved}/workspaces/t/a/.aw/*.json")
    assert str(person.home) not in text
    assert f"{moved}/workspaces/t/a" in text


def test_a_clone_in_a_moved_home_still_finds_the_objects_that_it_borrows(person: Person) -> None:
    person.sh(
        "git init -q repo && cd repo && git config user.name n && git config user.email e@example.com "
        "&& echo one > a && git add a && git commit -q -m one"
    )
    person.aw_ok("create", "t/clone", "--source", f"clone:{person.directory}/repo")
    moved = person.directory / "moved"
    person.home.rename(moved)
    person.aw_ok("repair", "--adopt", AW_HOME=str(moved))
    person.aw_ok("run", "t/clone", "--", "git", "log", "--stat", AW_HOME=str(moved))
    person.aw_ok("run", "t/clone", "--", "git", "fsck", AW_HOME=str(moved))


def test_adopting_a_copy_does_not_stop_a_run_of_the_original(person: Person) -> None:
    person.aw_ok("create", "t/a")
    run = person.aw_json("run", "t/a", "--detach", "--", "sh", "-c", "echo up; sleep 1000")["run_id"]
    wait_until(lambda: person.aw_ok("logs", run) == "up\n")
    copy = person.directory / "copy"
    copy_home(person, copy)
    person.aw_ok("repair", "--adopt", AW_HOME=str(copy))
    states = {each["run_id"]: each["state"] for each in person.aw_json("runs", AW_HOME=str(copy))}
    assert states == {run: "failed"}
    assert person.aw_json("runs")[0]["state"] == "running"
    person.aw_ok("stop", run)
    assert person.aw_json("runs")[0]["state"] == "cancelled"


def test_a_copy_with_work_trees_of_git_is_not_adopted_beside_its_original(person: Person) -> None:
    person.sh(
        "git init -q repo && cd repo && git config user.name n && git config user.email e@example.com "
        "&& echo one > a && git add a && git commit -q -m one"
    )
    person.aw_ok("create", "t/tree", "--source", f"worktree:{person.directory}/repo")
    copy = person.directory / "copy"
    copy_home(person, copy)
    error = person.aw_json("repair", "--adopt", AW_HOME=str(copy))["error"]
    assert error["code"] == "home_copied"
    assert "t/tree" in error["message"]
    person.sh(f"mv {person.home} {person.directory}/away")
    person.aw_ok("repair", "--adopt", AW_HOME=str(copy))
    person.aw_ok("run", "t/tree", "--", "git", "status", AW_HOME=str(copy))


def test_a_home_inside_its_former_place_is_not_adopted(person: Person) -> None:
    person.aw_ok("create", "t/a")
    inside = person.home / "copy"
    person.sh(f"cp -a {person.home} {person.directory}/aside && mv {person.directory}/aside {inside}")
    error = person.aw_json("repair", "--adopt", AW_HOME=str(inside))["error"]
    assert error["code"] == "home_copied"
    assert "lie in each other" in error["message"]


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    remove_home(tmp_path)


@pytest.mark.parametrize("goes_back", [False, True], ids=["adopted again", "moved back and adopted"])
def test_a_kill_while_adopting_is_finished_by_adopting_again(top: Path, settings: Settings, goes_back: bool) -> None:
    origin = top / "origin"
    origin.mkdir()
    (origin / "a").write_text("one\n")
    kills = 0
    for number in itertools.count(1, STRIDE):
        home, moved = str(top / f"home{number}"), str(top / f"moved{number}")
        with workstead.open(home, settings=settings) as workspaces:
            workspaces.create(f"overlay:{origin}", id="t/view")
            workspaces.write_file("t/view", "work/a", "two\n")
            workspaces.fork("t/view", new_id="t/fork")
            kept = workspaces.snapshot("t/view").id
        os.rename(home, moved)

        def act(moved: str = moved) -> None:
            workstead.open(moved, settings=settings).repair(adopt=True)

        killed = killed_at_effect(number, act)
        kills += killed
        if goes_back:
            os.rename(moved, home)
            moved = home
        with workstead.open(moved, settings=settings) as workspaces:
            workspaces.repair(adopt=True)
            for id in ("t/view", "t/fork"):
                assert workspaces.get(id).path.startswith(f"{moved}/")
                assert workspaces.read_text(id, "work/a") == "two\n"
            workspaces.write_file("t/view", "work/a", "three\n")
            workspaces.restore("t/view", kept)
            assert workspaces.read_text("t/view", "work/a") == "two\n"
            workspaces.verify()
            assert not workspaces.repair()
        remove_home(moved)
        if not killed:
            break
    assert kills > 5


def test_an_adopted_home_has_no_path_of_its_former_place_in_its_views(tmp_path: Path, settings: Settings) -> None:
    home, moved = str(tmp_path / "home"), str(tmp_path / "moved")
    with workstead.open(home, settings=settings) as workspaces:
        workspaces.create(id="t/a")
        workspaces.destroy(workspaces.create(id="t/b").id)
    shutil.move(home, moved)
    with workstead.open(moved, settings=settings) as workspaces:
        with pytest.raises(HomeCopied):
            workspaces.create(id="t/c")
        workspaces.repair(adopt=True)
        workspaces.create(id="t/c")
        assert workspaces.verify().broken is None
        workspaces.repair(rebuild_views=True)
    with sqlite3.connect(f"{moved}/log.db") as database:
        rows = database.execute("SELECT data FROM views WHERE kind != 'home'").fetchall()
    assert rows
    assert not [row for row in rows if f"{home}/" in row[0]]
