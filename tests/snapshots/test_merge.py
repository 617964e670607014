"""Giving changes back: planned as values, then done as a whole or not at all, and taken back again."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from desks import Desk, describe

from needs import need_root
from workstead.errors import Invalid, OriginMoved, Refused, WorksteadError
from workstead.model.change import Plan
from workstead.snapshots import apply
from workstead.snapshots.apply import Outcome, reverse
from workstead.snapshots.commit import GitCommitTree, make_commit
from workstead.snapshots.gc import collect
from workstead.snapshots.journal import PREFIX
from workstead.snapshots.merge import Folder, Since, plan_merge
from workstead.snapshots.objects import Store

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@t",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@t",
}


def run_git(args: list[str], *, git_dir: str, stdin: bytes | None) -> bytes:
    done = subprocess.run(
        ["git", f"--git-dir={git_dir}", *args], input=stdin, env=ENVIRONMENT, cwd="/", capture_output=True, check=True
    )
    return done.stdout


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=folder, env=ENVIRONMENT, capture_output=True, check=True)
    return done.stdout.decode()


def plan(desk: Desk, origin: Path, base: str | None = None, **options: object) -> Plan:
    stack = desk.place.overlay.stack if desk.place.overlay is not None else None
    fixed_ns = stack.fixed_ns if stack is not None and str(origin) in stack.layers else 0
    theirs = desk.take().root
    with (
        desk.tree(base or desk.base) as before,
        desk.tree(theirs) as after,
        Folder(str(origin)) as ours,
        desk.store.writer() as writer,
    ):
        made = plan_merge(before, ours, after, writer, since=Since(desk.store, fixed_ns=fixed_ns), **options)
        writer.commit()
        return made


def apply_plan(store: Store, made: Plan, folder: str) -> Outcome:
    """Do a plan; its journal lies beside the store."""
    return apply.apply_plan(store, made, folder, f"{store.path}.journal")


def actions(made: Plan) -> dict[str, str]:
    return {step.path: step.action for step in made.steps}


@pytest.fixture
def copy_desk(desk: Desk, origin: Path) -> Desk:
    """A workspace that has its own copy of the origin."""
    shutil.copytree(origin, desk.work, symlinks=True, dirs_exist_ok=True)
    desk.base = desk.take().root
    return desk


@pytest.fixture(params=["copy", "overlay"])
def desk_of_origin(request: pytest.FixtureRequest) -> Desk:
    made: Desk = request.getfixturevalue("copy_desk" if request.param == "copy" else "overlay_desk")
    return made


def change_everything(desk: Desk) -> None:
    desk.write("src/app.py", (desk.work / "src/app.py").read_text().replace("line 5\n", "LINE FIVE\n"), 0o755)
    (desk.work / "docs/guide.md").unlink()
    (desk.work / "docs").rmdir()
    desk.write("docs", "a file now\n")
    desk.write("new/deep/file.txt", "new\n")
    (desk.work / "README.md").unlink()
    desk.write("README.md/index", "a directory now\n")
    (desk.work / "link").unlink()
    (desk.work / "link").symlink_to("elsewhere")
    desk.write("data/blob.bin", b"\0\1" + os.urandom(3 << 20))
    desk.write("run.sh", "#!/bin/sh\n", 0o755)
    (desk.work / "hollow").mkdir()


def test_all_changes_arrive_and_go_away_again(desk_of_origin: Desk, origin: Path) -> None:
    desk = desk_of_origin
    before = describe(origin)
    change_everything(desk)
    done = apply_plan(desk.store, plan(desk, origin), str(origin))
    assert describe(origin, times=False) == describe(desk.work, times=False)
    assert not [name for name in os.listdir(origin) if name.startswith(PREFIX)]
    undone = apply_plan(desk.store, reverse(done.plan), str(origin))
    now = describe(origin)
    assert {name: entry for name, entry in now.items() if entry[0] == "file"} == {
        name: entry for name, entry in before.items() if entry[0] == "file"
    }
    assert describe(origin, times=False) == {
        name: (
            entry[0],
            *(0 if number == 2 and entry[0] != "link" else part for number, part in enumerate(entry) if number),
        )
        if entry[0] != "link"
        else ("link", 0, entry[2])
        for name, entry in before.items()
    }
    apply_plan(desk.store, reverse(undone.plan), str(origin))
    if desk.place.overlay is None:
        assert describe(origin, times=False) == describe(desk.work, times=False)


def test_a_second_apply_gives_only_what_is_new(desk_of_origin: Desk, origin: Path) -> None:
    desk = desk_of_origin
    desk.write("new.txt", "one\n")
    desk.write("src/app.py", "rewritten\n", 0o755)
    first = plan(desk, origin)
    apply_plan(desk.store, first, str(origin))
    moved_base = desk.take().root
    assert plan(desk, origin, moved_base).steps == ()
    desk.write("new.txt", "two\n")
    assert actions(plan(desk, origin, moved_base)) == {"new.txt": "write"}


def test_edits_in_different_places_of_one_file_are_merged(desk_of_origin: Desk, origin: Path) -> None:
    desk = desk_of_origin
    text = (origin / "src/app.py").read_text()
    desk.write("src/app.py", text.replace("line 5\n", "agent\n"), 0o755)
    desk.take()
    time.sleep(0.03)
    (origin / "src/app.py").write_text(text.replace("line 30\n", "user\n"))
    made = plan(desk, origin)
    assert made.clashes == ()
    (step,) = made.steps
    assert step.merged
    apply_plan(desk.store, made, str(origin))
    assert (origin / "src/app.py").read_text() == text.replace("line 5\n", "agent\n").replace("line 30\n", "user\n")


def test_the_version_to_merge_from_outlives_a_collection(overlay_desk: Desk, origin: Path) -> None:
    desk = overlay_desk
    text = (origin / "src/app.py").read_text()
    desk.write("src/app.py", text.replace("line 5\n", "agent\n"), 0o755)
    taken = desk.take()
    time.sleep(0.03)
    (origin / "src/app.py").write_text(text.replace("line 30\n", "user\n"))
    collect(desk.store, lambda: [taken.root])
    made = plan(desk, origin)
    assert made.clashes == ()
    assert made.steps[0].merged


def test_edits_in_the_same_place_are_refused_or_marked(desk_of_origin: Desk, origin: Path) -> None:
    desk = desk_of_origin
    text = (origin / "src/app.py").read_text()
    desk.write("src/app.py", text.replace("line 5\n", "agent\n"), 0o755)
    desk.write("fine.txt", "fine\n")
    desk.take()
    time.sleep(0.03)
    (origin / "src/app.py").write_text(text.replace("line 5\n", "user\n"))
    before = describe(origin)
    made = plan(desk, origin)
    assert [clash.path for clash in made.clashes] == ["src/app.py"]
    with pytest.raises(OriginMoved):
        apply_plan(desk.store, made, str(origin))
    assert describe(origin) == before
    marked = plan(desk, origin, mark_conflicts=True)
    apply_plan(desk.store, marked, str(origin))
    assert "<<<<<<< origin\nuser\n=======\nagent\n>>>>>>> workspace\n" in (origin / "src/app.py").read_text()
    assert (origin / "fine.txt").exists()


def test_what_one_side_deleted_and_the_other_changed_clashes(desk_of_origin: Desk, origin: Path) -> None:
    desk = desk_of_origin
    desk.write("README.md", "agent\n")
    (desk.work / "docs/guide.md").unlink()
    desk.write("data/blob.bin", b"\0agent")
    desk.take()
    time.sleep(0.03)
    (origin / "README.md").unlink()
    (origin / "docs/guide.md").write_text("user\n")
    (origin / "data/blob.bin").write_bytes(b"\0user")
    made = plan(desk, origin, mark_conflicts=True)
    assert {clash.path for clash in made.clashes} == {"README.md", "docs/guide.md", "data/blob.bin"}
    assert made.steps == ()


def test_what_both_sides_did_is_no_change(desk_of_origin: Desk, origin: Path) -> None:
    desk = desk_of_origin
    desk.write("README.md", "same\n")
    (desk.work / "docs/guide.md").unlink()
    desk.write("both.txt", "same\n")
    desk.take()
    time.sleep(0.03)
    (origin / "README.md").write_text("same\n")
    (origin / "docs/guide.md").unlink()
    (origin / "both.txt").write_text("same\n")
    made = plan(desk, origin)
    assert (made.steps, made.clashes) == ((), ())


def test_an_edit_of_the_user_is_never_overwritten_without_a_version_to_merge_from(
    overlay_desk: Desk, origin: Path
) -> None:
    """The folder is the lower layer itself: after the user's edit nothing says what the agent started from."""
    desk = overlay_desk
    desk.write("README.md", "agent\n")
    time.sleep(0.03)
    (origin / "README.md").write_text("user\n")
    made = plan(desk, origin)
    assert [clash.path for clash in made.clashes] == ["README.md"]


def test_a_mode_that_the_workspace_changed_arrives_and_others_stay(copy_desk: Desk, origin: Path) -> None:
    desk = copy_desk
    (origin / "docs/guide.md").chmod(0o600)
    desk.write("docs/guide.md", "changed\n")
    (desk.work / "README.md").chmod(0o755)
    made = plan(desk, origin)
    apply_plan(desk.store, made, str(origin))
    assert (origin / "docs/guide.md").stat().st_mode & 0o777 == 0o600
    assert (origin / "README.md").stat().st_mode & 0o777 == 0o755


def test_nothing_is_ever_written_into_a_git_directory(copy_desk: Desk, origin: Path) -> None:
    desk = copy_desk
    git(origin, "init", "-q")
    before = describe(origin / ".git")
    desk.write(".git/hooks/pre-commit", "evil", 0o755)
    desk.write("sub/.Git/config", "evil")
    desk.write("fine", "x")
    os.mkfifo(desk.work / "pipe")
    made = plan(desk, origin)
    assert made.refused == (".git", "pipe", "sub/.Git")
    apply_plan(desk.store, made, str(origin))
    assert describe(origin / ".git") == before
    assert not (origin / "sub/.Git").exists()
    assert (origin / "fine").exists()


def test_a_link_in_the_origin_is_not_followed(copy_desk: Desk, origin: Path, tmp_path: Path) -> None:
    desk = copy_desk
    outside = tmp_path / "outside"
    outside.mkdir()
    desk.write("docs/planted", "evil\n")
    shutil.rmtree(origin / "docs")
    (origin / "docs").symlink_to(outside)
    made = plan(desk, origin)
    assert [clash.path for clash in made.clashes] == ["docs"]
    with pytest.raises(OriginMoved):
        apply_plan(desk.store, made, str(origin))
    assert os.listdir(outside) == []


def test_an_origin_that_moved_after_the_plan_is_refused_as_a_whole(copy_desk: Desk, origin: Path) -> None:
    desk = copy_desk
    change_everything(desk)
    made = plan(desk, origin)
    (origin / "src/app.py").write_text("meanwhile")
    before = describe(origin)
    with pytest.raises(OriginMoved):
        apply_plan(desk.store, made, str(origin))
    assert describe(origin) == before


def test_an_error_on_the_way_takes_everything_back(copy_desk: Desk, origin: Path) -> None:
    desk = copy_desk
    change_everything(desk)
    made = plan(desk, origin)
    before = describe(origin, times=False)
    # A step at the end that cannot be done: something that the check cannot see is in the way.
    broken = made.replace(steps=(*made.steps, made.steps[0].replace(path="data/blob.bin/x", action="mkdir", before="")))
    with pytest.raises(WorksteadError):
        apply_plan(desk.store, broken, str(origin))
    assert describe(origin, times=False) == before


def test_new_files_belong_to_the_owner_of_the_origin(copy_desk: Desk, origin: Path) -> None:
    need_root()
    desk = copy_desk
    subprocess.run(["chown", "-R", "-h", "1234:1234", str(origin)], check=True)
    os.chown(origin / "README.md", 4321, 4321)
    desk.write("README.md", "changed\n")
    desk.write("new/file", "x\n")
    (desk.work / "ln").symlink_to("new")
    apply_plan(desk.store, plan(desk, origin), str(origin))
    assert (origin / "README.md").stat().st_uid == 4321
    for name in ("new", "new/file", "ln"):
        assert os.lstat(origin / name).st_uid == 1234


def test_chosen_paths_only(desk_of_origin: Desk, origin: Path) -> None:
    desk = desk_of_origin
    desk.write("a/one", "1\n")
    desk.write("b/two", "2\n")
    made = plan(desk, origin, paths=["a"])
    assert actions(made) == {"a": "mkdir", "a/one": "write"}


# -- a branch ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(origin: Path) -> Path:
    git(origin, "init", "-q", "-b", "main")
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "first")
    return origin


def commit_plan(desk: Desk, repository: Path, branch: str, **options: object) -> str:
    git_dir = str(repository / ".git")
    parent = git(repository, "rev-parse", "HEAD").strip()
    with (
        desk.tree(desk.base) as before,
        desk.tree(desk.take().root) as after,
        desk.store.writer() as writer,
    ):
        target = GitCommitTree(run_git, git_dir, parent)
        made = plan_merge(before, target, after, writer, **options)
        writer.commit()
    commit = make_commit(
        run_git,
        git_dir,
        desk.store,
        made,
        parent=parent,
        branch=branch,
        message="by an agent\n",
        author="A <a@a>",
        when=1,
    )
    assert commit.parent == parent
    return commit.commit


def test_changes_become_one_commit_and_the_work_tree_stays(copy_desk: Desk, repository: Path, tmp_path: Path) -> None:
    desk = copy_desk
    before = describe(repository)
    change_everything(desk)
    desk.write(os.fsdecode(b'odd "n\xc3\xa4me"\n\xff'), "odd\n")
    desk.write(".git/hooks/evil", "evil")
    made = commit_plan(desk, repository, "agent/work")
    after = describe(repository)
    assert {name: entry for name, entry in after.items() if not name.startswith(".git")} == {
        name: entry for name, entry in before.items() if not name.startswith(".git")
    }
    assert after[".git/index"] == before[".git/index"]
    assert git(repository, "rev-parse", "agent/work").strip() == made
    assert git(repository, "log", "-1", "--format=%an %s", "agent/work") == "A by an agent\n"
    git(repository, "fsck", "--strict")
    checkout = tmp_path / "checkout"
    git(repository, "worktree", "add", "-q", str(checkout), "agent/work")
    (checkout / ".git").unlink()
    shutil.rmtree(desk.work / ".git")
    (desk.work / "hollow").rmdir()  # git has no word for these
    (desk.work / "empty").rmdir()
    assert describe(checkout, times=False) == describe(desk.work, times=False)


def test_a_commit_merges_with_what_the_parent_has_and_the_work_tree_had_not(copy_desk: Desk, repository: Path) -> None:
    desk = copy_desk
    text = (repository / "src/app.py").read_text()
    (repository / "src/app.py").write_text(text.replace("line 30\n", "committed\n"))
    git(repository, "commit", "-qam", "second")
    desk.write("src/app.py", text.replace("line 5\n", "agent\n"), 0o755)
    commit_plan(desk, repository, "merged")
    shown = git(repository, "show", "merged:src/app.py")
    assert "committed\n" in shown
    assert "agent\n" in shown


def test_a_branch_that_is_checked_out_or_has_other_commits_is_refused(copy_desk: Desk, repository: Path) -> None:
    desk = copy_desk
    desk.write("new", "x\n")
    with pytest.raises(Refused):
        commit_plan(desk, repository, "main")
    git(repository, "branch", "other")
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    with pytest.raises(OriginMoved):
        commit_plan(desk, repository, "other")
    for name in ("-x", "a..b", "a b", "x.lock", "/a", "a/", "HEAD", "a\n", "refs/../x", ""):
        with pytest.raises(Invalid):
            commit_plan(desk, repository, name)


def test_a_plan_with_a_git_name_cannot_be_committed(copy_desk: Desk, repository: Path) -> None:
    from workstead.model.change import Step

    parent = git(repository, "rev-parse", "HEAD").strip()
    evil = Plan(steps=(Step(path="a/.GIT/config", action="link", target="x"),))
    with pytest.raises(Refused):
        make_commit(
            run_git,
            str(repository / ".git"),
            copy_desk.store,
            evil,
            parent=parent,
            branch="evil",
            message="m",
            author="A <a@a>",
            when=1,
        )
