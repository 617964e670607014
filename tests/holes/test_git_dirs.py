"""What a folder's `.git` leads to: a stranger packed it, or an agent in `folder:` wrote it for its own fork.

Links in it, a `.git` file, and `objects/info/alternates` used to bring other files of the user's into the workspace.
Each attack has a twin: the same tree, read by git or by a plain open, shows the secret.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from people import Person

SECRET = "the-secret-of-the-host"
GIT = "git -c init.defaultBranch=main -c user.name=t -c user.email=t@example.com -c safe.directory='*'"
LOOK = f"cat .git .git/* .git/*/* .git/*/*/* 2>/dev/null | grep -a -o {SECRET}; true"


@pytest.fixture
def private(person: Person) -> Path:
    """A repository of the user's that nobody named, with a password in its config and a secret in its history."""
    folder = person.folder("private", {"f": f"{SECRET}\n"})
    person.sh(
        f"cd private; {GIT} init -q; {GIT} add f; {GIT} commit -qm {SECRET};"
        f" git config remote.origin.url https://u:{SECRET}@example.com/x"
    )
    return folder


@pytest.fixture
def project(person: Person, private: Path) -> Path:
    """The folder that a stranger packed: a repository with one commit."""
    folder = person.folder("project", {"f": "1\n"})
    person.sh(f"cd project; {GIT} init -q; {GIT} add f; {GIT} commit -qm one")
    return folder


def created(person: Person, project: Path, *more: str) -> str:
    """Make a workspace of the folder; what was said about it."""
    person.aw_ok("create", "--source", str(project), "--id", "t/a", *more, timeout=60)
    return str(person.aw_json("show", "t/a"))


@pytest.mark.parametrize("part", ["config", "packed-refs", "index", "HEAD", "shallow", "info/exclude"])
def test_a_linked_file_in_git_is_not_read(person: Person, project: Path, private: Path, part: str) -> None:
    person.sh(f"mkdir -p .git/info; ln -sf {private}/f .git/{part}", cwd=project)
    assert SECRET in (project / ".git" / part).read_text()  # the twin: an open follows
    said = created(person, project)
    assert "without git" in said
    assert f"{part} in it is a symbolic link" in said
    assert SECRET not in said + person.aw_ok("run", "t/a", "--", "sh", "-c", f"cat f; {LOOK}; ls -a")


@pytest.mark.parametrize("part", ["refs", "objects", "objects/pack", "objects/info", "info", "worktrees"])
def test_a_linked_directory_in_git_is_not_mounted_or_copied(
    person: Person, project: Path, private: Path, part: str
) -> None:
    person.sh(f"rm -rf .git/{part}; ln -s {private} .git/{part}", cwd=project)
    assert SECRET in (project / ".git" / part / "f").read_text()
    assert f"{part} in it is a symbolic link" in created(person, project)
    shown = person.aw_ok("run", "t/a", "--", "sh", "-c", f"{LOOK}; ls {private} 2>&1 || true")
    assert SECRET not in shown
    assert "No such file" in shown


def test_a_linked_git_directory_is_not_followed(person: Person, project: Path, private: Path) -> None:
    person.sh(f"rm -rf .git; ln -s {private}/.git .git", cwd=project)
    assert SECRET in person.sh(f"{GIT} log", cwd=project)
    assert "it is a symbolic link" in created(person, project)
    assert SECRET not in person.aw_ok("run", "t/a", "--", "sh", "-c", f"{LOOK}; git log -p 2>&1 || true")


@pytest.mark.parametrize("target", ["{private}/.git", "../private/.git", "evil"])
def test_a_git_file_does_not_take_in_another_repository(
    person: Person, project: Path, private: Path, target: str
) -> None:
    """The last of them is a directory of the stranger's own that claims to be a linked work tree of the user's."""
    person.sh(
        f"rm -rf .git; echo 'gitdir: {target.format(private=private)}' > .git; mkdir evil;"
        f" echo {private}/.git > evil/commondir; echo {project}/.git > evil/gitdir;"
        " echo ref: refs/heads/main > evil/HEAD",
        cwd=project,
    )
    assert SECRET in person.sh(f"{GIT} log -p; {GIT} config -l", cwd=project)
    said = created(person, project)
    assert "does not point back here" in said
    assert SECRET not in person.aw_ok(
        "run", "t/a", "--", "sh", "-c", f"{LOOK}; git log -p 2>&1 || true; git config -l 2>&1 || true"
    )
    for kind in ("worktree", "clone"):
        done = person.aw("create", "--source", f"{kind}:{project}", "--id", f"t/{kind}")
        assert done.returncode == 2, done.stderr
        assert "does not point back here" in done.stderr


@pytest.mark.parametrize("path", ["{private}/.git/objects", "../../../private/.git/objects", "{private}"])
def test_alternates_do_not_mount_another_place(person: Person, project: Path, private: Path, path: str) -> None:
    person.sh(f"echo '{path.format(private=private)}' > .git/objects/info/alternates", cwd=project)
    commit = person.sh("git rev-parse HEAD", cwd=private).strip()
    if not path.endswith("}"):
        assert SECRET in person.sh(f"{GIT} cat-file commit {commit}", cwd=project)
    said = created(person, project)
    assert "without git" in said
    assert "it borrows objects from" in said
    shown = person.aw_ok(
        "run", "t/a", "--", "sh", "-c", f"ls {private} 2>&1; {GIT} cat-file commit {commit} 2>&1; true"
    )
    assert SECRET not in shown
    assert "No such file" in shown


def test_an_agent_in_a_folder_plants_nothing_for_its_fork(person: Person, project: Path, private: Path) -> None:
    if person.is_root:
        person.sh("chmod -R a+rwX . ", cwd=project)
    person.aw_ok("create", "--source", f"folder:{project}", "--id", "t/a")
    person.aw_ok("run", "t/a", "--", "sh", "-c", f"cd {project}; rm -rf .git; echo 'gitdir: {private}/.git' > .git")
    person.aw_ok("fork", "t/a", "--as", "t/b")
    assert "does not point back here" in str(person.aw_json("show", "t/b"))
    assert SECRET not in person.aw_ok("run", "t/b", "--", "sh", "-c", f"{LOOK}; git log -p 2>&1 || true")


def test_a_lender_that_becomes_something_else_is_not_mounted(person: Person, private: Path) -> None:
    person.sh(f"{GIT} clone -q --shared private shared; {GIT} clone -q --bare private bare")
    person.sh(f"echo {person.directory}/bare/objects > shared/.git/objects/info/alternates")
    person.aw_ok("create", "--source", str(person.directory / "shared"), "--id", "t/a")
    assert SECRET in person.aw_ok("run", "t/a", "--", "git", "log")
    person.sh("mv bare/objects bare/o; ln -s ../private bare/objects")
    done = person.aw("run", "t/a", "--", "cat", f"{person.directory}/bare/objects/f")
    assert done.returncode != 0
    assert SECRET not in done.stdout
    assert "borrows git objects" in done.stderr


PIPES = [".awignore", ".git/config", ".git/HEAD", ".git/objects/info/alternates", ".git/packed-refs", ".git/commondir"]


@pytest.mark.parametrize("name", [*PIPES, ".git"])
def test_a_named_pipe_hangs_nobody(person: Person, project: Path, name: str) -> None:
    person.sh(f"mkdir -p .git/objects/info; rm -rf {name}; mkfifo {name}", cwd=project)
    done = person.aw("create", "--source", str(project), "--id", "t/a", timeout=60)
    if name == ".awignore":  # what it says must stay behind is not known, so nothing is made
        assert done.returncode == 2
        assert ".awignore is not a regular file" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert "without git" in str(person.aw_json("show", "t/a"))
    if name in ("commondir", ".git"):
        return
    if person.is_root:
        person.sh("chmod -R a+rwX . ", cwd=project)
    person.aw_ok("create", "--source", f"folder:{project}", "--id", "t/in")
    assert person.aw("fork", "t/in", "--as", "t/out", timeout=60).returncode == (2 if name == ".awignore" else 0)


def test_an_ignore_file_is_not_read_through_a_link(person: Person, project: Path) -> None:
    person.sh(f"echo '!{SECRET}' > ../secret; ln -s ../secret .awignore", cwd=project)
    done = person.aw("create", "--source", str(project), "--id", "t/a")
    assert done.returncode == 2
    assert SECRET not in done.stdout + done.stderr
    person.sh("rm .awignore; cp ../secret .awignore", cwd=project)
    assert SECRET in person.aw("create", "--source", str(project), "--id", "t/a").stderr  # the twin


def test_what_a_worktree_includes_is_not_reached_through_a_link(person: Person, project: Path) -> None:
    person.sh(
        f"mkdir -p ../out/deep; echo {SECRET} > ../out/deep/key; mkdir a; ln -s ../../out a/link;"
        f" echo a/link/deep/key > .worktreeinclude",
        cwd=project,
    )
    assert SECRET in (project / "a/link/deep/key").read_text()
    person.aw_ok("create", "--source", f"worktree:{project}", "--id", "t/a")
    assert SECRET not in person.aw_ok("run", "t/a", "--", "sh", "-c", "find . -type f | xargs cat")


# -- what has to work --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "folder"),
    [
        ("true", "private"),
        (f"cd private; {GIT} worktree add -q ../work -b other", "work"),
        (f"{GIT} clone -q --shared private work", "work"),
        (f"{GIT} clone -q --reference private file://$PWD/private work", "work"),
        (f"{GIT} clone -q --shared private middle; {GIT} clone -q --shared middle work", "work"),
        (
            f"{GIT} clone -q --shared private work; cd work; echo 2 > g; {GIT} add g; {GIT} commit -qm two;"
            f" {GIT} branch -q -D -r origin/main || true; rm -rf .git/logs",
            "work",
        ),
        (
            f"{GIT} clone -q private super; cd super; {GIT} -c protocol.file.allow=always submodule -q add"
            f" file://$PWD/../private sub; {GIT} commit -qm sub",
            "super/sub",
        ),
    ],
    ids=["plain", "linked", "shared", "reference", "chain", "shared-moved-on", "submodule"],
)
def test_repositories_that_git_makes_work(person: Person, private: Path, make: str, folder: str) -> None:
    person.sh(make)
    person.aw_ok("create", "--source", str(person.directory / folder), "--id", "t/a")
    assert "without git" not in str(person.aw_json("show", "t/a"))
    shown = person.aw_ok("run", "t/a", "--", "sh", "-c", "git log -p && git status --porcelain; git fsck 2>&1; true")
    assert SECRET in shown
    assert "missing" not in shown
    person.aw_ok("run", "t/a", "--", "sh", "-c", f"echo mine > mine; {GIT} add mine; {GIT} commit -qm mine")
    person.aw_ok("fork", "t/a", "--as", "t/b")
    assert "mine" in person.aw_ok("run", "t/b", "--", "git", "log", "--format=%s")


def test_a_repository_with_missing_objects_is_an_error_that_says_so(person: Person, private: Path) -> None:
    person.sh(f"{GIT} clone -q --bare private gone; rm -rf gone/objects/*/*")
    for kind in ("clone", "worktree"):
        done = person.aw("create", "--source", f"{kind}:{person.directory}/gone", "--id", f"t/{kind}")
        assert done.returncode in (2, 8), done.stderr
        assert "git" in done.stderr
    for name in os.listdir(private / ".git/objects"):
        if len(name) == 2:
            person.sh(f"rm -rf .git/objects/{name}", cwd=private)
    person.aw_ok("create", "--source", str(private), "--id", "t/b")
    person.aw_ok("run", "t/b", "--", "sh", "-c", "echo 2 > f")
    done = person.aw("apply", "t/b", "--to", "branch:x")
    assert done.returncode != 0
