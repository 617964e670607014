"""Names of branches that lead to other files, and refs that hold what git never wrote there.

A ref is a file below the git directory. Whoever may name one, or write one, must not get another file read: the
error of `apply --to branch:../../FILE` used to show it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from people import Person
from workstead.model.source import is_branch_name
from workstead.system.git.repository import Repository, find_ref, head_of

SECRET = "the-secret-of-the-host"
GIT = "git -c init.defaultBranch=main -c user.name=t -c user.email=t@example.com"


@pytest.fixture
def project(person: Person) -> Path:
    """A repository with one commit, in a workspace `t/a` that changed a file; and a secret beside it."""
    folder = person.folder("project", {"f": "1\n"})
    person.sh(f"cd project; {GIT} init -q; {GIT} add f; {GIT} commit -qm one; echo {SECRET} > ../secret")
    person.aw_ok("create", "--source", str(folder), "--id", "t/a")
    person.aw_ok("run", "t/a", "--", "sh", "-c", "echo 2 > f")
    return folder


def said(person: Person, to: str) -> str:
    """What `aw apply --to` says, in both formats; it has to be a refusal of what was asked for."""
    plain = person.aw("apply", "t/a", "--to", to)
    assert plain.returncode == 2, plain.stdout + plain.stderr
    error = person.aw_json("apply", "t/a", "--to", to)
    assert error["error"]["code"] == "invalid"
    return plain.stdout + plain.stderr + str(error)


def test_a_branch_name_does_not_lead_to_a_file(person: Person, project: Path) -> None:
    up = "../" * 3
    assert (project / ".git/refs/heads" / up / "../secret").resolve().read_text().strip() == SECRET  # the twin
    for to in (f"branch:{up}../secret", f"branch:x/{up}../../secret", f"branch:{project.parent}/secret"):
        assert SECRET not in said(person, to)


@pytest.mark.parametrize("name", ["a\u202eb", "x" * 5000, "-d", "a..b", "a b", "HEAD", "a.lock", "@{-1}", "a\x1b[2J"])
def test_a_branch_name_that_is_none_is_invalid(person: Person, project: Path, name: str) -> None:
    text = said(person, f"branch:{name}")
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert len(text) < 3000
    assert "refs/heads/main" in person.sh("git for-each-ref", cwd=project)
    assert person.sh("git for-each-ref | wc -l", cwd=project).strip() == "1"


def test_a_good_branch_name_still_is_one(person: Person, project: Path) -> None:
    person.aw_ok("apply", "t/a", "--to", "branch:fix/ünï-1")
    assert person.sh("git show fix/ünï-1:f", cwd=project) == "2\n"


def test_a_nul_in_a_branch_name_is_invalid(person: Person, project: Path) -> None:
    script = (
        f"import workstead; from workstead.errors import Invalid\nw = workstead.open({str(person.home)!r})\n"
        "for to in ('branch:a\\0b', 'branch:a\\ud800', 'patch:/tmp/a\\0b', 'folder:/tmp/a\\0b'):\n"
        "    try: w.apply('t/a', to=to)\n"
        "    except Invalid as error: print(error.code)\n"
    )
    assert len(person.python(script).split()) == 4


def test_an_agent_of_its_own_learns_nothing_by_a_name(person: Person, project: Path) -> None:
    script = (
        f"import workstead; from workstead.errors import WorksteadError\nw = workstead.open({str(person.home)!r})\n"
        "try: w.acting_as('run', agent_of='t/a').apply('t/a', to='branch:../../../../secret')\n"
        "except WorksteadError as error: print(error.code, error.message)\n"
    )
    said = person.python(script)
    assert said.startswith("invalid ")
    assert SECRET not in said


@pytest.mark.parametrize(
    "plant",
    [
        "echo 'ref: ../../secret' > .git/HEAD",
        "echo 'ref: refs/heads/../../../secret' > .git/HEAD",
        "ln -sf ../../secret .git/HEAD",
        "cp ../secret .git/HEAD",
        "ln -sf ../../../../secret .git/refs/heads/main",
        "cp ../secret .git/refs/heads/main",
        "echo 'ref: ../../secret' > .git/refs/heads/main",
        "echo 'ref: refs/heads/main' > .git/refs/heads/main",
        "rm .git/refs/heads/main; mkfifo .git/refs/heads/main",
        "rm .git/refs/heads/main; mkdir -p .git/refs/heads/main/x",
        "rm .git/refs/heads/main; ln -s ../../secret .git/packed-refs",
        "rm .git/refs/heads/main; mkfifo .git/packed-refs",
        "rm .git/refs/heads/main; mv .git/refs/heads ../heads; ln -s ../../../heads .git/refs/heads;"
        " cp ../secret ../heads/main",
    ],
)
def test_a_planted_ref_shows_nothing_of_the_host(person: Person, project: Path, plant: str) -> None:
    person.sh(plant, cwd=project)
    done = person.aw("apply", "t/a", "--to", "branch:fix", timeout=60)
    assert done.returncode != 0
    assert SECRET not in done.stdout + done.stderr


def test_refs_are_read_beneath_the_git_directory_only(tmp_path: Path) -> None:
    commit = "1" * 40
    secret = tmp_path / "secret"
    secret.write_text(commit)  # even what looks like a commit is not taken from outside
    git_dir = tmp_path / "p/.git"
    (git_dir / "refs/heads").mkdir(parents=True)
    (git_dir / "refs/heads/main").write_text(f"{commit}\n")
    (git_dir / "refs/heads/link").symlink_to(secret)
    (git_dir / "refs/linked").symlink_to(tmp_path)
    (git_dir / "refs/heads/symbolic").write_text("ref: refs/heads/main\n")
    (git_dir / "refs/heads/out").write_text("ref: refs/../../../secret\n")
    (git_dir / "refs/heads/loop").write_text("ref: refs/heads/loop\n")
    os.mkfifo(git_dir / "refs/heads/pipe")
    assert find_ref(str(git_dir), "refs/heads/main") == find_ref(str(git_dir), "refs/heads/symbolic") == commit
    assert (git_dir / "refs/heads/link").read_text() == (git_dir / "refs/linked/secret").read_text() == commit  # twins
    assert (git_dir / "refs/../../../secret").read_text() == commit
    for name in (
        "refs/heads/link",
        "refs/linked/secret",
        "refs/heads/out",
        "refs/heads/loop",
        "refs/heads/pipe",
        "refs/../../../secret",
        "../../secret",
        str(secret),
    ):
        assert find_ref(str(git_dir), name) is None, name
    (git_dir / "HEAD").write_text("ref: ../../secret\n")
    assert head_of(Repository(work=str(tmp_path / "p"), git_dir=str(git_dir), common=str(git_dir))) == (None, None)


@pytest.mark.parametrize("name", ["main", "a/b", "ünï", "@x", "a-", "x.y", "a..b", "a.lock", "a/.b", "a//b", "-x", "@"])
def test_the_rule_for_branches_is_that_of_git(name: str) -> None:
    asked = subprocess.run(["git", "check-ref-format", "--branch", name], check=False, capture_output=True)
    assert is_branch_name(name) == (asked.returncode == 0 and name != "@")
