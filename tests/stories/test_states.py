"""The story of changes: made in a workspace, looked at, brought back, given back, taken back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from needs import need_root
from workstead.errors import Invalid, NotARepository, OriginMoved, SnapshotNotFound, UnappliedChanges, WorkspaceBusy
from workstead.local import Local
from workstead.model.workspace import Workspace


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A folder with a repository in it, and a file that is not committed."""
    folder = tmp_path / "origin"
    (folder / "src").mkdir(parents=True)
    (folder / "README.md").write_text("one\ntwo\nthree\n")
    (folder / "src" / "app.py").write_text("print('hello')\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "draft.txt").write_text("not committed\n")
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }


@pytest.fixture
def desk(workspaces: Local, origin: Path) -> Workspace:
    """A copy-on-write view of the origin in which something was changed, made and removed."""
    need_root()
    made = workspaces.create(f"overlay:{origin}", id="fix/a1")
    workspaces.write_file(made.id, "work/README.md", "one\nTWO\nthree\n")
    workspaces.write_file(made.id, "work/new.txt", "new\n")
    workspaces.delete_file(made.id, "work/src/app.py", keep=False)
    return made


def test_the_origin_is_not_touched_before_apply(desk: Workspace, origin: Path, workspaces: Local) -> None:
    assert contents(origin) == {
        "README.md": b"one\ntwo\nthree\n",
        "draft.txt": b"not committed\n",
        "src/app.py": b"print('hello')\n",
    }
    assert git(origin, "status", "--short") == "?? draft.txt\n"
    assert workspaces.read_file(desk.id, "work/draft.txt") == b"not committed\n"


def test_diff_shows_what_changed_since_the_base(desk: Workspace, workspaces: Local) -> None:
    found = workspaces.diff(desk.id)
    assert [(change.status, change.path) for change in found.changes] == [
        ("M", "README.md"),
        ("A", "new.txt"),
        ("D", "src/app.py"),
    ]
    assert "-two\n+TWO\n" in found.patch
    assert [change.path for change in workspaces.diff(desk.id, paths=["new.txt"]).changes] == ["new.txt"]


def test_the_patch_applies_with_git(desk: Workspace, workspaces: Local, origin: Path, tmp_path: Path) -> None:
    patch = tmp_path / "changes.patch"
    workspaces.apply(desk.id, to=f"patch:{patch}")
    git(origin, "apply", "--check", str(patch))
    git(origin, "apply", str(patch))
    assert contents(origin)["README.md"] == b"one\nTWO\nthree\n"


def test_restore_brings_back_a_state_and_undo_takes_the_restore_back(desk: Workspace, workspaces: Local) -> None:
    kept = workspaces.snapshot(desk.id, label="good")
    before = contents(Path(desk.path, "work"))
    workspaces.write_file(desk.id, "work/new.txt", "spoiled\n")
    workspaces.write_file(desk.id, "work/rubbish/deep.txt", "x", parents=True)
    spoiled = contents(Path(desk.path, "work"))
    workspaces.restore(desk.id, "good")
    assert contents(Path(desk.path, "work")) == before
    workspaces.undo()
    assert contents(Path(desk.path, "work")) == spoiled
    workspaces.restore(desk.id, kept.id, ["work/new.txt"])
    assert workspaces.read_text(desk.id, "work/new.txt") == "new\n"
    assert workspaces.read_text(desk.id, "work/rubbish/deep.txt") == "x"
    workspaces.restore(desk.id, "base")
    assert workspaces.diff(desk.id).changes == ()
    workspaces.verify()


def test_an_unknown_snapshot_is_named_and_changes_nothing(desk: Workspace, workspaces: Local) -> None:
    before = contents(Path(desk.path, "work"))
    with pytest.raises(SnapshotNotFound, match="no snapshot nothing-like-it"):
        workspaces.restore(desk.id, "nothing-like-it")
    assert contents(Path(desk.path, "work")) == before


def test_restore_is_refused_while_a_run_is_active(desk: Workspace, workspaces: Local) -> None:
    run = workspaces.run(desk.id, ["sleep", "60"])
    with pytest.raises(WorkspaceBusy):
        workspaces.restore(desk.id, "base")
    workspaces.stop(run.id, at_once=True)


def test_apply_gives_the_changes_to_the_folder_once(desk: Workspace, workspaces: Local, origin: Path) -> None:
    done = workspaces.apply(desk.id)
    assert sorted(done.written) == ["README.md", "new.txt"]
    assert done.deleted == ["src/app.py"]
    after = contents(origin)
    assert after["README.md"] == b"one\nTWO\nthree\n"
    assert after["new.txt"] == b"new\n"
    assert "src/app.py" not in after
    assert workspaces.diff(desk.id).changes == ()
    assert workspaces.apply(desk.id).written == []  # a second time gives only what is new
    workspaces.write_file(desk.id, "work/later.txt", "later\n")
    assert workspaces.apply(desk.id).written == ["later.txt"]


def test_undo_takes_an_apply_back_and_can_be_undone_itself(desk: Workspace, workspaces: Local, origin: Path) -> None:
    before = contents(origin)
    workspaces.apply(desk.id)
    after = contents(origin)
    workspaces.undo()
    assert contents(origin) == before
    assert workspaces.diff(desk.id).changes
    redo = workspaces.operations()[0]
    assert redo.kind == "undo"
    workspaces.undo(redo.operation_id)
    assert contents(origin) == after


def test_apply_undo_and_apply_again_come_to_the_same(desk: Workspace, workspaces: Local, origin: Path) -> None:
    workspaces.apply(desk.id)
    after = contents(origin)
    workspaces.undo()
    workspaces.apply(desk.id)
    assert contents(origin) == after


def test_changes_of_both_sides_are_merged(desk: Workspace, workspaces: Local, origin: Path) -> None:
    workspaces.snapshot(desk.id)  # as every run does: what its changes began from is kept from here on
    (origin / "README.md").write_text("zero\none\ntwo\nthree\n")
    # The workspace changed the same file elsewhere: with lines between them the two go together.
    workspaces.write_file(desk.id, "work/README.md", "one\ntwo\nthree\nfour\n")
    workspaces.apply(desk.id)
    assert contents(origin)["README.md"] == b"zero\none\ntwo\nthree\nfour\n"


def test_a_file_whose_beginning_nobody_kept_is_not_merged_by_guessing(
    desk: Workspace, workspaces: Local, origin: Path
) -> None:
    (origin / "README.md").write_text("zero\none\ntwo\nthree\n")
    with pytest.raises(OriginMoved, match=r"README\.md"):
        workspaces.apply(desk.id)


def test_a_conflict_is_refused_as_a_whole_or_marked(desk: Workspace, workspaces: Local, origin: Path) -> None:
    (origin / "README.md").write_text("one\nzwei\nthree\n")
    before = contents(origin)
    with pytest.raises(OriginMoved, match=r"README\.md"):
        workspaces.apply(desk.id)
    assert contents(origin) == before
    done = workspaces.apply(desk.id, mark_conflicts=True)
    assert done.conflicts == ["README.md"]
    text = contents(origin)["README.md"].decode()
    assert "<<<<<<<" in text
    assert "zwei" in text
    assert "TWO" in text


def test_a_branch_gets_one_commit_and_the_work_tree_stays(desk: Workspace, workspaces: Local, origin: Path) -> None:
    before = contents(origin)
    done = workspaces.apply(desk.id, to="branch:agent/fix", message="Fix it")
    assert contents(origin) == before
    assert git(origin, "status", "--short") == "?? draft.txt\n"
    assert git(origin, "rev-parse", "agent/fix").strip() == done.commit
    assert git(origin, "log", "-1", "--format=%s", "agent/fix").strip() == "Fix it"
    assert git(origin, "show", "agent/fix:README.md") == "one\nTWO\nthree\n"
    assert git(origin, "ls-tree", "-r", "--name-only", "agent/fix").split() == ["README.md", "new.txt"]
    workspaces.undo()
    assert "agent/fix" not in git(origin, "branch", "--list", "--all")


def test_places_that_cannot_take_changes_are_said_so(workspaces: Local, desk: Workspace, tmp_path: Path) -> None:
    empty = workspaces.create(id="no-origin/a")
    workspaces.write_file(empty.id, "work/x", "x")
    with pytest.raises(Invalid, match="no folder to give changes back to"):
        workspaces.apply(empty.id)
    with pytest.raises(NotARepository):
        workspaces.apply(empty.id, to="branch:x")
    with pytest.raises(Invalid, match="no place to apply to"):
        workspaces.apply(desk.id, to="moon")
    target = tmp_path / "elsewhere"
    target.mkdir()
    workspaces.apply(empty.id, to=f"folder:{target}")
    assert (target / "x").read_text() == "x"


def test_unapplied_work_guards_destroy(desk: Workspace, workspaces: Local) -> None:
    with pytest.raises(UnappliedChanges):
        workspaces.destroy(desk.id)
    assert os.path.isdir(desk.path)
    before = contents(Path(desk.path, "work"))
    workspaces.destroy(desk.id, force=True)
    assert not os.path.exists(desk.path)
    workspaces.undo()
    assert contents(Path(desk.path, "work")) == before
    workspaces.apply(desk.id)
    workspaces.destroy(desk.id)  # nothing is left to lose


def test_forks_hold_everything_and_do_not_see_each_other(desk: Workspace, workspaces: Local) -> None:
    held = contents(Path(desk.path, "work"))
    workspaces.write_file(desk.id, "output/report.txt", "r")
    one, two = workspaces.fork(desk.id, count=2)
    assert contents(Path(one.path, "work")) == contents(Path(two.path, "work")) == held
    assert workspaces.read_text(one.id, "output/report.txt") == "r"
    workspaces.write_file(one.id, "work/new.txt", "by one\n")
    workspaces.write_file(desk.id, "work/new.txt", "by the parent\n")
    workspaces.delete_file(two.id, "work/README.md")
    texts = [workspaces.read_text(each.id, "work/new.txt") for each in (desk, one, two)]
    assert texts == ["by the parent\n", "by one\n", "new\n"]
    assert "README.md" in contents(Path(one.path, "work"))
    assert [change.path for change in workspaces.diff(one.id).changes] == ["README.md", "new.txt", "src/app.py"]


def test_a_fork_can_start_from_a_snapshot(desk: Workspace, workspaces: Local) -> None:
    workspaces.snapshot(desk.id, label="good")
    good = contents(Path(desk.path, "work"))
    workspaces.write_file(desk.id, "work/new.txt", "spoiled\n")
    (fork,) = workspaces.fork(desk.id, new_id="fix/again", snapshot="good")
    assert contents(Path(fork.path, "work")) == good
    other = workspaces.create(f"fork:{desk.id}@base", id="fix/base")
    assert workspaces.diff(other.id).changes == ()


def test_runs_are_kept_before_and_after(desk: Workspace, workspaces: Local) -> None:
    run = workspaces.wait(workspaces.run(desk.id, ["sh", "-c", "echo run > new.txt"]).id)
    assert run.snapshot_before
    assert run.snapshot_after
    changed = workspaces.diff(desk.id, from_=run.snapshot_before, to=run.snapshot_after).changes
    assert [change.path for change in changed] == ["new.txt"]
    workspaces.restore(desk.id, run.snapshot_before)
    assert workspaces.read_text(desk.id, "work/new.txt") == "new\n"
