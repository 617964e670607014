"""A copy of a home (a backup) has records whose paths lead into the original. It must not change the original."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from people import Person

UNGUARDED = """
import workstead.core.home
workstead.core.home.Home.check_place = lambda home: None
workstead.core.home._find_original = lambda home: ""
from workstead.cli import command
command()
"""


def copy_home(person: Person) -> Path:
    backup = person.directory / "backup"
    person.sh(f"cp -a {person.home} {backup}")
    return backup


def in_trash(person: Person) -> list[str]:
    return sorted(os.listdir(person.home / "workspaces/.carrel/trash"))


def without_guard(person: Person, home: Path, *words: str) -> None:
    person.do(person.python_program, "-B", "-c", UNGUARDED, *words, AW_HOME=str(home))


def error_of(person: Person, home: Path, *words: str) -> dict[str, Any]:
    found = person.aw_json(*words, AW_HOME=str(home))
    assert isinstance(found, dict), found
    error: dict[str, Any] = found["error"]
    return error


@pytest.mark.parametrize("is_known", [True, False], ids=["with its place", "of an older version"])
def test_a_copy_of_a_home_changes_nothing_in_the_original(person: Person, is_known: bool) -> None:
    person.aw_ok("create", "t/a")
    person.aw_ok("create", "t/b")
    person.aw_ok("destroy", "t/b")
    if not is_known:
        (person.home / "place").unlink()
    backup = copy_home(person)
    kept = in_trash(person)
    assert kept
    writing = (
        ["trash", "empty"],
        ["trash", "restore", "t/b"],
        ["undo"],
        ["sweep"],
        ["repair"],
        ["destroy", "t/a"],
        ["create", "t/c"],
        ["snapshot", "t/a"],
        ["rm", "t/a", "work/x"],
        ["run", "t/a", "--", "touch", "x"],
    )
    for words in writing:
        error = error_of(person, backup, *words)
        assert error["code"] == "home_copied", (words, error)
        assert str(backup) in error["message"]
        assert str(person.home) in error["message"]
    assert in_trash(person) == kept
    assert [each["workspace_id"] for each in person.aw_json("list", AW_HOME=str(backup))] == ["t/a"]
    person.aw_ok("show", "t/a", AW_HOME=str(backup))
    person.aw_ok("events", AW_HOME=str(backup))
    person.aw_ok("verify", AW_HOME=str(backup))
    # The original goes on, and so does the copy in its place.
    person.aw_ok("undo")
    person.sh(f"rm -rf {person.home} && mv {backup} {person.home}")
    person.aw_ok("destroy", "t/a")
    person.aw_ok("trash", "empty")
    assert not in_trash(person)


def test_twin_without_the_guard_a_copy_empties_the_trash_of_the_original(person: Person) -> None:
    person.aw_ok("create", "t/b")
    person.aw_ok("destroy", "t/b")
    backup = copy_home(person)
    assert in_trash(person)
    without_guard(person, backup, "trash", "empty")
    assert not in_trash(person)


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "twin"])
def test_opening_a_copy_that_was_made_during_a_create_leaves_the_workspace_of_the_original(
    person: Person, is_guarded: bool
) -> None:
    person.aw_ok("create", "t/a")
    path = Path(person.aw_ok("path", "t/a").strip())
    backup = copy_home(person)
    database = sqlite3.connect(backup / "log.db")  # as it was before the create ended
    with database:
        database.execute("DELETE FROM events WHERE position > 1")
        database.execute("DELETE FROM views WHERE kind != 'workspace'")
        database.execute("UPDATE views SET pending = 1, data = json_set(data, '$.state', 'creating')")
    database.close()
    (backup / "log.db.head").unlink()
    person.own(backup)
    if is_guarded:
        person.aw_ok("list", AW_HOME=str(backup))
    else:
        without_guard(person, backup, "list")
    assert path.exists() == is_guarded


def test_a_home_that_was_moved_works_again_at_its_old_place_or_through_a_link(person: Person) -> None:
    person.aw_ok("create", "t/a")
    moved = person.directory / "moved"
    person.home.rename(moved)
    assert error_of(person, moved, "create", "t/b")["code"] == "home_copied"
    assert not person.home.exists()
    person.sh(f"ln -s {moved} {person.home}")
    person.aw_ok("destroy", "t/a")
    person.aw_ok("create", "t/b", AW_HOME=str(moved))  # the same directory by another path
    person.home.unlink()
    moved.rename(person.home)
    person.aw_ok("undo", person.aw_json("ops")[-1]["operation_id"])


def test_a_home_without_workspaces_can_be_moved(person: Person) -> None:
    person.aw_ok("list")
    moved = person.directory / "moved"
    person.home.rename(moved)
    person.aw_ok("create", "t/a", AW_HOME=str(moved))
    person.aw_ok("destroy", "t/a", AW_HOME=str(moved))
