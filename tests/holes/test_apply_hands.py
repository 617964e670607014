"""What the user does in the folder between the beginning of a workspace and an apply, by hand and with git."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from people import Person


def run(person: Person, folder: Path, script: str, *, workspace: str = "c1/a") -> None:
    person.aw_ok("run", "--id", workspace, "--source", str(folder), "--", "sh", "-ec", script)


def change_unseen(person: Person, folder: Path, script: str) -> None:
    """The agent changes something, and no snapshot is taken."""
    words = ("run", "--id", "c1/a", "--source", str(folder), "--", "sh", "-ec", script)
    person.aw_ok(*words, AW_SNAPSHOTS__AROUND_RUNS="false")


def refused(person: Person, *words: str) -> str:
    done = person.aw(*words)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "origin" in done.stderr
    return done.stderr


# -- a directory in the place of another -------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["echo agent > d/a", "rm d/a", "rm -r d", "rm -r d && echo agent > d"])
def test_a_directory_that_the_user_exchanged_is_a_moved_origin(person: Person, script: str) -> None:
    """The files in it are older than the workspace: nothing about themselves tells that they are others."""
    folder = person.folder("p", {"d/a": "mine\n", "other/a": "precious\n"})
    run(person, folder, script)
    person.sh("mv d away && mv other d", cwd=folder)
    refused(person, "apply", "c1/a")
    assert (folder / "d/a").read_text() == "precious\n"
    assert (folder / "away/a").read_text() == "mine\n"


def test_a_directory_that_was_exchanged_before_the_snapshot_is_one_too(person: Person) -> None:
    folder = person.folder("p", {"d/s/a": "mine\n", "other/s/a": "precious\n"})
    change_unseen(person, folder, "echo agent > d/s/a")
    person.sh("mv d away && mv other d", cwd=folder)
    person.aw_ok("snapshot", "c1/a")
    refused(person, "apply", "c1/a")
    assert (folder / "d/s/a").read_text() == "precious\n"


def test_files_that_the_user_adds_beside_are_in_nobodys_way(person: Person) -> None:
    """The twin: directories whose times changed for other reasons are the same directories."""
    folder = person.folder("p", {"d/a": "mine\n", "d/b": "mine\n"})
    run(person, folder, "echo agent > d/a")
    person.sh("echo new > top; echo new > d/new; rm d/b", cwd=folder)
    person.aw_ok("apply", "c1/a")
    assert (folder / "d/a").read_text() == "agent\n"
    assert (folder / "d/new").read_text() == "new\n"
    assert not (folder / "d/b").exists()


# -- what cannot be read -----------------------------------------------------------------------------------------------


def test_a_directory_that_the_agent_closed_is_not_a_deletion(person: Person) -> None:
    folder = person.folder("p", {"d/a": "1\n", "d/s/b": "1\n", "x": "1\n"})
    run(person, folder, "echo 2 > x; chmod 000 d")
    done = person.aw("apply", "c1/a")
    assert done.returncode in (0, 4), done.stderr
    os.chmod(folder / "d", 0o755)
    assert (folder / "d/a").read_text() == "1\n"
    assert (folder / "d/s/b").read_text() == "1\n"


def test_a_directory_that_the_user_closed_is_not_a_deletion(person: Person) -> None:
    folder = person.folder("p", {"d/a": "1\n", "d/s/b": "1\n", "x": "1\n"})
    run(person, folder, "echo 2 > d/a; rm -r d/s; echo 2 > x")
    os.chmod(folder / "d", 0o000)
    done = person.aw("apply", "c1/a")
    os.chmod(folder / "d", 0o755)
    if person.is_root:  # whom no mode keeps out
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        assert (folder / "d/a").read_text() == "1\n"
        assert (folder / "d/s/b").read_text() == "1\n"
        assert (folder / "x").read_text() == "1\n"


# -- what the user deleted ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["d/a", "d"])
def test_a_file_that_the_user_deleted_does_not_come_back(person: Person, gone: str) -> None:
    folder = person.folder("p", {"d/a": "1\n", "x": "1\n"})
    change_unseen(person, folder, "echo agent > d/a; echo agent > d/new")
    person.sh(f"rm -r {gone}", cwd=folder)  # before any snapshot
    refused(person, "apply", "c1/a")
    assert not (folder / "d/a").exists()
    if gone == "d/a":  # what is new may come
        person.aw_ok("apply", "c1/a", "d/new")
        assert (folder / "d/new").read_text() == "agent\n"


@pytest.mark.parametrize("gone", ["d/a", "d"])
@pytest.mark.parametrize("script", ["echo agent > d/t; mv d/t d/a", "rm d/a; echo agent > d/a", "ln -sfn x d/a"])
def test_a_file_that_the_agent_replaced_and_the_user_deleted_does_not_come_back(
    person: Person, script: str, gone: str
) -> None:
    """The overlay keeps no trace of the file below one that was renamed to its place."""
    folder = person.folder("p", {"d/a": "1\n", "x": "1\n"})
    change_unseen(person, folder, f"{script}; echo agent > d/new")
    person.sh(f"rm -r {gone}", cwd=folder)  # before any snapshot
    refused(person, "apply", "c1/a")
    assert not os.path.lexists(folder / "d/a")


def test_a_file_that_is_new_on_both_sides_is_not_taken_for_a_deleted_one(person: Person) -> None:
    """The twin: the agent's own new file may come, whatever the user did beside it."""
    folder = person.folder("p", {"d/a": "1\n", "d/b": "1\n"})
    change_unseen(person, folder, "echo agent > d/t; mv d/t d/new")
    person.sh("rm d/b; echo more > d/more", cwd=folder)
    person.aw_ok("apply", "c1/a")
    assert (folder / "d/new").read_text() == "agent\n"


@pytest.mark.parametrize("script", ["echo agent > d/a", "echo agent > d/t; mv d/t d/a"])
def test_a_directory_that_was_exchanged_and_then_written_to_is_a_moved_origin(person: Person, script: str) -> None:
    """Its times are those of any directory in which a file was made: nothing shows that it was renamed."""
    folder = person.folder("p", {"d/a": "mine\n", "other/a": "precious\n"})
    change_unseen(person, folder, script)
    person.sh("mv d away && mv other d && touch d/made", cwd=folder)
    refused(person, "apply", "c1/a")
    assert (folder / "d/a").read_text() == "precious\n"


# -- undo, and forks ---------------------------------------------------------------------------------------------------


def test_a_fork_sees_that_an_apply_was_undone(person: Person) -> None:
    folder = person.folder("p", {"a": "1\n"})
    run(person, folder, "echo 2 > a; echo new > b")
    person.aw_ok("apply", "c1/a")
    person.aw_ok("fork", "c1/a", "--as", "c1/b")
    person.aw_ok("undo")
    assert (folder / "a").read_text() == "1\n"
    changed = {change["path"] for change in person.aw_json("diff", "c1/b")["changes"]}
    assert changed == {"a", "b"}
    assert person.aw("destroy", "c1/b").returncode == 4
    person.aw_ok("apply", "c1/b")
    assert (folder / "a").read_text() == "2\n"
    assert (folder / "b").read_text() == "new\n"


# -- branches and patches ----------------------------------------------------------------------------------------------

LINES = [f"line {number}" for number in range(30)]
GIT = "git -c user.name=u -c user.email=u@localhost"


def text(*changes: tuple[int, str]) -> str:
    lines = list(LINES)
    for at, new in changes:
        lines[at] = new
    return "\n".join(lines) + "\n"


@pytest.fixture
def repository(person: Person) -> Path:
    folder = person.folder("p", {"f": text(), "gone": "1\n"})
    person.sh(f"git init -q -b main && git add -A && {GIT} commit -qm one", cwd=folder)
    return folder


def test_a_branch_keeps_lines_that_the_user_committed_meanwhile(person: Person, repository: Path) -> None:
    run(person, repository, "sed -i 's/^line 1$/agent/' f")
    (repository / "f").write_text(text((25, "user")))
    person.sh(f"{GIT} commit -qam two", cwd=repository)
    person.aw_ok("apply", "c1/a", "--to", "branch:agent")
    assert person.sh("git show agent:f", cwd=repository) == text((1, "agent"), (25, "user"))


def test_a_branch_is_refused_where_it_moved_itself(person: Person, repository: Path) -> None:
    run(person, repository, "sed -i 's/^line 1$/agent/' f")
    (repository / "f").write_text(text((1, "user")))
    person.sh(f"{GIT} commit -qam two", cwd=repository)
    refused(person, "apply", "c1/a", "--to", "branch:agent")
    # Not committed: then the branch has nothing that is in the way.
    person.sh("git reset -q --hard HEAD^", cwd=repository)
    (repository / "f").write_text(text((1, "user")))
    person.aw_ok("apply", "c1/a", "--to", "branch:agent")
    assert person.sh("git show agent:f", cwd=repository) == text((1, "agent"))


def test_a_patch_has_the_agents_changes_alone(person: Person, repository: Path) -> None:
    run(person, repository, "sed -i 's/^line 1$/agent/' f; echo 2 > gone")
    (repository / "f").write_text(text((25, "user")))
    (repository / "gone").unlink()
    patch = person.directory / "x.patch"
    person.aw_ok("apply", "c1/a", "--to", f"patch:{patch}")
    assert "user" not in patch.read_text()
    assert "deleted" not in patch.read_text()
    clone = person.directory / "clone"
    person.sh(f"git clone -q {repository} {clone}", cwd=person.directory)
    shutil.copy(patch, clone / "x.patch")
    person.sh("git apply x.patch", cwd=clone)
    assert (clone / "f").read_text() == text((1, "agent"))
    assert (clone / "gone").read_text() == "2\n"
    person.sh(f"git apply --include=f {patch}", cwd=repository)
    assert (repository / "f").read_text() == text((1, "agent"), (25, "user"))


def test_a_patch_of_what_the_user_changed_before_any_snapshot_is_refused(person: Person, repository: Path) -> None:
    """Nobody knows any more what the agent began with: better none than one that takes the user's lines away."""
    change_unseen(person, repository, "sed -i 's/^line 1$/agent/' f")
    (repository / "f").write_text(text((25, "user")))
    patch = person.directory / "x.patch"
    refused(person, "apply", "c1/a", "--to", f"patch:{patch}")
    assert not patch.exists()
