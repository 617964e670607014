"""Editing a text by quoting it, and writes that refuse to go over somebody else's."""

from __future__ import annotations

import hashlib

import pytest

from workstead.errors import FileChanged, FileNotFound, Invalid
from workstead.local import Local
from workstead.model.edit import Edit, apply_edits
from workstead.model.workspace import Workspace


@pytest.fixture
def desk(workspaces: Local) -> Workspace:
    desk = workspaces.create(id="t/a")
    workspaces.write_file(desk.id, "work/a.py", "def f():\n    return 1\n")
    return desk


def test_an_edit_changes_the_file_and_gives_the_difference(workspaces: Local, desk: Workspace) -> None:
    edited = workspaces.edit_file(desk.id, "work/a.py", [Edit(old="return 1", new="return 2")])
    assert workspaces.read_text(desk.id, "work/a.py") == "def f():\n    return 2\n"
    assert edited.hunks == "@@ -1,2 +1,2 @@\n def f():\n-    return 1\n+    return 2\n"


def test_a_dry_run_changes_nothing(workspaces: Local, desk: Workspace) -> None:
    edited = workspaces.edit_file(desk.id, "work/a.py", [Edit(old="1", new="2")], dry_run=True)
    assert "+    return 2" in edited.hunks
    assert workspaces.read_text(desk.id, "work/a.py").endswith("1\n")


def test_all_edits_or_none(workspaces: Local, desk: Workspace) -> None:
    with pytest.raises(Invalid, match="edit 2"):
        workspaces.edit_file(desk.id, "work/a.py", [Edit(old="1", new="2"), Edit(old="nowhere", new="x")])
    assert workspaces.read_text(desk.id, "work/a.py").endswith("1\n")


@pytest.mark.parametrize(
    ("text", "old", "new", "result"),
    [
        ("a\r\nb\r\n", "a\nb", "c", "c\n"),
        ("  if x:\n      y()\n", "if x:\n    y()", "if z:\n    y()", "  if z:\n  y()\n"),
        ("    a\n    b\n", "a\nb", "c\nd\n  e", "    c\nd\n  e\n"),
        ("x x", "x", r"\1$&", r"\1$& x"),
    ],
)
def test_lines_are_found_without_regard_to_their_indentation(text: str, old: str, new: str, result: str) -> None:
    assert apply_edits(text, [Edit(old=old, new=new)]) == result


def test_a_file_that_is_no_text_is_not_edited(workspaces: Local, desk: Workspace) -> None:
    workspaces.write_file(desk.id, "work/b", b"\xff\x00")
    with pytest.raises(Invalid, match="UTF-8"):
        workspaces.edit_file(desk.id, "work/b", [Edit(old="a", new="b")])


def test_nobodys_work_in_between_is_lost(workspaces: Local, desk: Workspace) -> None:
    seen = hashlib.sha256(workspaces.read_file(desk.id, "work/a.py")).hexdigest()
    workspaces.write_file(desk.id, "work/a.py", "theirs\n")
    for attempt in (
        lambda: workspaces.write_file(desk.id, "work/a.py", "mine\n", if_digest=seen),
        lambda: workspaces.delete_file(desk.id, "work/a.py", if_digest=seen),
        lambda: workspaces.move_file(desk.id, "work/a.py", "work/b.py", if_digest=seen),
        lambda: workspaces.write_file(desk.id, "work/new.py", "mine\n", if_digest=seen),
    ):
        with pytest.raises(FileChanged):
            attempt()
    assert workspaces.read_text(desk.id, "work/a.py") == "theirs\n"
    with pytest.raises(FileNotFound):
        workspaces.read_file(desk.id, "work/new.py")
    now = hashlib.sha256(b"theirs\n").hexdigest()
    workspaces.write_file(desk.id, "work/a.py", "mine\n", if_digest=now)
    workspaces.write_file(desk.id, "work/a.py", "without the guard, the last one wins\n")


def test_paths_by_a_glob_from_the_top(workspaces: Local, desk: Workspace) -> None:
    for path in ("work/b.js", "work/src/c.ts", "work/src/deep/d.js", "work/node_modules/x/e.js"):
        workspaces.write_file(desk.id, path, "x", parents=True)

    def paths(pattern: str, *exclude: str) -> list[str]:
        return [each.path for each in workspaces.list_paths(desk.id, "work", pattern=pattern, exclude=exclude)]

    assert paths("*.js") == ["b.js"]
    assert paths("**/*.js", "node_modules") == ["b.js", "src/deep/d.js"]
    assert paths("**/*.{js,ts}", "**/node_modules") == ["b.js", "src/c.ts", "src/deep/d.js"]
    assert [(each.path, each.kind) for each in workspaces.list_paths(desk.id, "work/src")] == [
        ("c.ts", "file"),
        ("deep", "directory"),
        ("deep/d.js", "file"),
    ]
    assert paths("{" + ",".join("abcdefgh") * 100 + "}") == []
