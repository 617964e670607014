"""A home that the last version under the former name (Carrel) made opens, and everything in it works.

`tests/fixtures/old_home/make.py` says how the fixture was made. A home remembers its absolute path, so each test
unpacks it there, one test at a time.
"""

from __future__ import annotations

import fcntl
import lzma
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from needs import need_program, need_root
from people import Person, _end_everything, remove_tree

FIXTURES = Path(__file__).parents[1] / "fixtures" / "old_home"
PLACE = Path("/var/tmp/workstead-old-home-fixture")
UID = 100_042  # the ordinary user that made the fixture

WORKSPACES = {"clone", "empty", "empty-1", "folder", "overlay", "template", "worktree"}


@pytest.fixture
def owner(person: Person) -> Iterator[Person]:
    """The person, at the place of the old home, which is unpacked there."""
    need_root()
    need_program("tar")
    lock = os.open(f"{PLACE}.{person.name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        old = Person(person.name, person.uid, PLACE / person.name, person.python_program, person.packages)
        remove_tree(old.directory)  # a killed test left it
        unpack(old)
        try:
            yield old
        finally:
            _end_everything(old.uid)
            remove_tree(old.directory)
    finally:
        os.close(lock)


def unpack(person: Person) -> None:
    packed = lzma.decompress((FIXTURES / f"{person.name}.tar.xz").read_bytes())
    words = ["tar", "-x", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-C", "/"]
    subprocess.run(words, input=packed, check=True)
    if not person.is_root:
        given = f"{person.uid}:{person.uid}"
        subprocess.run(["chown", "-hR", f"--from={UID}:{UID}", given, str(person.directory)], check=True)


def operation(person: Person, kind: str) -> str:
    """The id of the one operation of this kind in the log."""
    (found,) = [each for each in person.aw_json("ops") if each["kind"] == kind]
    return str(found["operation_id"])


def cat(person: Person, workspace: str, path: str) -> str:
    return person.aw_ok("cat", workspace, path)


def test_an_old_home_opens_with_all_its_workspaces(owner: Person) -> None:
    assert "whole" in owner.aw_ok("verify")
    assert {each["agent_id"] for each in owner.aw_json("list")} == WORKSPACES
    assert cat(owner, "old/empty", "work/kept.txt") == "two\n"
    assert cat(owner, "old/empty-1", "work/made.txt") == "made\n"
    assert cat(owner, "old/folder", "work/notes.txt") == "mine\n"
    assert cat(owner, "old/template", "work/src/main.py") == "print('skeleton')\n"
    for kind in ("clone", "worktree", "overlay"):
        assert kind in cat(owner, f"old/{kind}", "work/login.py")
        assert cat(owner, f"old/{kind}", "work/new.txt") == f"{kind}\n"
    assert owner.aw("cat", "old/overlay", "work/README").returncode != 0  # deleted there, and in the origin still
    assert (owner.directory / "project/README").exists()
    for name in ("empty", "clone", "worktree", "overlay"):
        owner.aw_ok("run", f"old/{name}", "--", "sh", "-ec", "echo more >> new.txt")
        assert cat(owner, f"old/{name}", "work/new.txt").endswith("more\n")
    owner.aw_ok("verify")


def test_what_an_old_home_remembers_is_there(owner: Person) -> None:
    (run,) = owner.aw_json("runs")
    assert owner.aw_ok("logs", run["run_id"]) == "printed by the old version\n"
    (recent,) = owner.aw_json("recent")
    assert recent["path"] == str(owner.directory / "project")
    assert [each["name"] for each in owner.aw_json("template", "list")] == ["skeleton"]
    owner.aw_ok("create", "new/template", "--template", "skeleton")
    assert "skeleton" in cat(owner, "new/template", "work/src/main.py")
    for kind in ("clone", "worktree", "overlay"):  # from the caches of the old version
        owner.aw_ok("create", f"new/{kind}", "--source", f"{kind}:{owner.directory}/project")
        assert cat(owner, f"new/{kind}", "work/README") == "a project\n"
    assert "repair" not in owner.aw_ok("repair")
    owner.aw_ok("verify")


def test_snapshots_of_an_old_home_are_restored_and_the_restore_undone(owner: Person) -> None:
    owner.aw_ok("restore", "old/empty", "first")
    assert cat(owner, "old/empty", "work/kept.txt") == "one\n"
    assert owner.aw("cat", "old/empty", "work/made.txt").returncode != 0
    owner.aw_ok("undo")
    assert cat(owner, "old/empty", "work/kept.txt") == "two\n"
    owner.aw_ok("restore", "old/overlay", "changed")
    assert cat(owner, "old/overlay", "work/README") == "a project\n"
    for kind in ("clone", "worktree"):
        owner.aw_ok("restore", f"old/{kind}", "base")
        assert cat(owner, f"old/{kind}", "work/login.py") == "def login(user):\n    return user\n"
    assert "kept.txt" in owner.aw_ok("diff", "old/empty")
    owner.aw_ok("verify")


def test_operations_of_an_old_home_are_undone(owner: Person) -> None:
    project = owner.directory / "project"
    assert "overlay" in (project / "login.py").read_text()
    owner.aw_ok("undo", operation(owner, "apply"))
    assert (project / "login.py").read_text() == "def login(user):\n    return user\n"
    assert not (project / "new.txt").exists()
    owner.aw_ok("undo", operation(owner, "destroy"))
    assert cat(owner, "old/gone", "work/unapplied.txt") == "nobody applied me\n"
    owner.aw_ok("verify")


def test_the_trash_of_an_old_home_is_restored_and_emptied(owner: Person) -> None:
    (gone,) = owner.aw_json("trash", "list")
    owner.aw_ok("trash", "restore", gone["uid"], "--as", "old/back")
    assert cat(owner, "old/back", "work/unapplied.txt") == "nobody applied me\n"
    for kind in ("clone", "worktree", "overlay"):
        owner.aw_ok("destroy", f"old/{kind}", "--force")
    owner.aw_ok("trash", "empty")
    assert not owner.aw_json("trash", "list")
    assert not list((owner.directory / "project/.git").glob("worktrees/*"))
    owner.aw_ok("verify")


AGENT = """
import os, workstead
from workstead.errors import ApprovalRequired
with workstead.open(os.environ["AW_HOME"]) as workspaces:
    agent = workspaces.acting_as("bot", agent_of="old/empty")
    try:
        agent.write_file("old/empty", "work/NAME", "after\\n")
        print("written")
    except ApprovalRequired as asked:
        print(asked.details["approval_id"])
"""


def agent_writes(person: Person, name: str) -> str:
    return person.python(AGENT.replace("NAME", name)).strip()


def test_approvals_of_an_old_home_are_used_and_decided(owner: Person) -> None:
    (pending,) = owner.aw_json("approvals")
    approval: dict[str, Any] = owner.aw_json("approvals", "show", pending["approval_id"])
    assert approval["preview"].endswith("-before\n+after\n")
    assert agent_writes(owner, "pending") == pending["approval_id"]  # the same question, not another one
    assert agent_writes(owner, "granted") == "written"
    owner.aw_ok("approve", pending["approval_id"])
    assert agent_writes(owner, "pending") == "written"
    assert cat(owner, "old/empty", "work/pending") == "after\n"
    owner.aw_ok("verify")


def test_an_archive_of_the_old_version_opens_as_a_workspace(owner: Person) -> None:
    archive = owner.directory / "clone.aw.tar.zst"
    owner.aw_ok("archive", "verify", str(archive))
    owner.aw_ok("create", "new/archived", "--source", f"archive:{archive}")
    assert "clone" in cat(owner, "new/archived", "work/login.py")
    owner.aw_ok("restore", "new/archived", "changed")
    assert cat(owner, "new/archived", "work/new.txt") == "clone\n"
    assert "first" in owner.aw_ok("run", "new/archived", "--", "git", "log", "--format=%s")
    owner.aw_ok("verify")
