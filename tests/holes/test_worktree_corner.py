"""The agent's corner of a `worktree:`: its private git directory, in which a run may write anything.

A fork read it through links, and a bad entry in it ended every verb, also for other workspaces, in a traceback.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from people import Person

SECRET = "the-secret-of-the-host"
GIT = "git -c init.defaultBranch=main -c user.name=t -c user.email=t@example.com"
CORNER = "D=$(git rev-parse --absolute-git-dir)"


@pytest.fixture
def origin(person: Person) -> Path:
    """A repository with one commit, a work tree of it as workspace `t/a`, another workspace, and a secret."""
    folder = person.folder("project", {"f": "1\n"})
    person.sh(
        f"cd project; {GIT} init -q; {GIT} add f; {GIT} commit -qm one; echo {SECRET} > ../secret; chmod 600 ../secret"
    )
    person.aw_ok("create", "--source", f"worktree:{folder}", "--id", "t/a")
    person.aw_ok("create", "--source", str(folder), "--id", "t/other")
    return folder


def corner(person: Person, origin: Path) -> Path:
    (entry,) = (origin / ".git/worktrees").iterdir()
    return entry


@pytest.mark.parametrize("part", ["index", "HEAD", "objects", "commondir"])
def test_a_fork_does_not_read_through_links(person: Person, origin: Path, part: str) -> None:
    target = f"{person.directory}/secret" if part != "objects" else str(person.directory)
    person.aw_ok("run", "t/a", "--", "sh", "-c", f"{CORNER}; rm -rf $D/{part}; ln -s {target} $D/{part}")
    entry = corner(person, origin)
    assert SECRET in (entry / part / ("secret" if part == "objects" else "")).read_text()  # the twin: an open follows
    done = person.aw("fork", "t/a", "--as", "t/b")
    if done.returncode == 0:
        shown = person.aw("run", "t/b", "--", "sh", "-c", "cat .git/* .git/objects/* .git/*/*/* 2>/dev/null; true")
        assert SECRET not in shown.stdout
    assert SECRET not in done.stdout + done.stderr
    assert person.aw("list").returncode == 0


@pytest.mark.parametrize(
    "plant",
    [
        "rm $D/gitdir; mkdir -p $D/gitdir/x",
        "rm $D/gitdir; mkfifo $D/gitdir",
        "ln -sf {secret} $D/gitdir",
        "printf '\\0\\377' > $D/gitdir",
        "mkdir $D/gitdir.new; echo x > $D/gitdir",
        "ln -s {secret} $D/gitdir.new; echo x > $D/gitdir",
        "rm $D/workstead; mkfifo $D/workstead; echo x > $D/gitdir",
        "rm -rf $D/*; ln -s {secret} $D/gitdir",
        "echo x > $D/gitdir; chmod 000 $D",
        "rm $D/HEAD; mkdir $D/HEAD; rm $D/index; mkfifo $D/index; rm $D/gitdir; mkdir $D/gitdir",
    ],
)
def test_a_bad_entry_is_one_workspaces_trouble(person: Person, origin: Path, plant: str) -> None:
    secret = person.directory / "secret"
    person.aw_ok("run", "t/a", "--", "sh", "-c", f"{CORNER}; {plant.format(secret=secret)}")
    before = secret.stat()
    for words in (
        ["list", "--changes"],
        ["show", "t/a"],
        ["diff", "t/a"],
        ["snapshot", "t/a"],
        ["fork", "t/a", "--as", "t/b"],
        ["create", "--source", f"worktree:{origin}", "--id", "t/second"],
        ["repair"],
    ):
        done = person.aw(*words, timeout=60)  # a traceback fails here
        assert done.returncode == 0 or words[0] in ("fork", "diff"), (words, done.stderr)
        assert SECRET not in done.stdout + done.stderr
    assert "t/other" in person.aw_ok("list", "--changes")
    person.aw_ok("destroy", "t/a", "--force")
    assert "\nt/a " not in person.aw_ok("list")
    after = secret.stat()
    assert (after.st_uid, after.st_mode, after.st_ctime_ns) == (before.st_uid, before.st_mode, before.st_ctime_ns)


def test_the_twin_a_chown_by_path_follows(person: Person, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    (tmp_path / "gitdir.new").symlink_to(secret)
    os.chown(tmp_path / "gitdir.new", 12345, 12345)
    assert secret.stat().st_uid == 12345
