"""What the repository's own rules ignore is kept in snapshots, counted, and given back only on request."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from people import Person
from workstead.system.git.index import tracked_in

RULES = "node_modules/\n*.log\n/dist/\n"


def repository(person: Person) -> Path:
    """A repository with a tracked file below an ignored directory, and an ignored one that git does not track."""
    origin = person.folder("origin", {".gitignore": RULES, "a.txt": "one\n", "dist/kept.js": "1\n", ".env": "key=1\n"})
    person.sh(
        """git init -q && git add . && git add -f dist/kept.js && git rm -q --cached .env
        git -c user.name=u -c user.email=u@localhost commit -qm first
        echo .env > .git/info/exclude; mkdir node_modules; echo old > node_modules/old.js""",
        cwd=origin,
    )
    return origin


# What an agent does: a change, installed packages, a rule with what it is for, and built files.
WORK = """mkdir -p node_modules/x/lib .venv/bin src
echo 1 > node_modules/x/lib/a.js; echo 2 > node_modules/x/b.js; echo new > node_modules/old.js
echo '*' > .venv/.gitignore; echo py > .venv/bin/python
echo two > a.txt; echo 2 > dist/kept.js; echo 3 > dist/built.js; echo 4 > run.log; echo key=2 > .env
echo new > src/new.py
"""
SHOWN = ["a.txt", "dist/kept.js", "src/new.py"]


def names(person: Person, *words: str) -> list[str]:
    return person.aw_ok("diff", "t/a", "--name-only", *words).splitlines()


def test_ignored_files_are_counted_and_neither_shown_nor_given_back(person: Person) -> None:
    origin = repository(person)
    person.aw_ok("create", "t/a", "--source", str(origin))
    ran = person.aw("run", "t/a", "--", "sh", "-ec", WORK)
    assert ran.returncode == 0, ran.stderr
    assert "3 files changed" in ran.stderr
    assert "plus 8 ignored files (.venv ignores itself)" in ran.stderr
    found = person.aw_json("diff", "t/a")
    assert [each["path"] for each in found["changes"]] == SHOWN
    assert found["ignored"] == 8
    assert found["self_ignoring"] == [".venv"]
    shown = person.aw("diff", "t/a")
    assert "node_modules" not in shown.stdout
    assert "plus 8 ignored files (.venv ignores itself): --ignored shows them" in shown.stderr
    everything = names(person, "--ignored")
    assert len(everything) == len(SHOWN) + 8
    assert {"node_modules/old.js", ".env", ".venv/.gitignore"} < set(everything)

    person.aw_ok("apply", "t/a", "--to", f"patch:{person.directory}/p.patch")
    assert "node_modules" not in (person.directory / "p.patch").read_text()
    done = person.aw_json("apply", "t/a", "--to", "branch:given")
    assert (done["written"], done["ignored"]) == (SHOWN, 8)
    person.aw_ok("undo")
    done = person.aw_json("apply", "t/a")
    assert (done["written"], done["ignored"]) == (SHOWN, 8)
    assert (origin / ".env").read_text() == "key=1\n"
    assert (origin / "node_modules/old.js").read_text() == "old\n"
    assert not (origin / ".venv").exists()
    assert not (origin / "node_modules/x").exists()

    # They are still not applied: counted, taken on request, and no reason to keep the workspace.
    found = person.aw_json("diff", "t/a")
    assert (found["changes"], found["ignored"]) == ([], 8)
    person.aw_ok("apply", "t/a", "--ignored", "node_modules")
    assert (origin / "node_modules/x/lib/a.js").read_text() == "1\n"
    assert (origin / "node_modules/old.js").read_text() == "new\n"
    assert person.aw_json("diff", "t/a")["ignored"] == 5
    person.aw_ok("destroy", "t/a")
    person.aw_ok("undo")
    assert person.aw_ok("cat", "t/a", "work/.venv/bin/python") == "py\n"


def test_an_agent_hides_no_change_by_a_rule_of_its_own(person: Person) -> None:
    origin = repository(person)
    person.aw_ok("create", "t/a", "--source", str(origin))
    # The twin: git itself, asked in the workspace, hides all of it.
    hide = """printf '*\\n' > .gitignore; git rm -q --cached a.txt dist/kept.js .gitignore; git commit -qm hidden
    echo evil > a.txt; echo evil > dist/kept.js; echo evil > new.py; echo '*' >> .git/info/exclude
    git status --porcelain"""
    git = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = [word for key, value in git.items() for word in ("--env", f"{key}={value}")]
    assert person.aw_ok("run", "t/a", *env, "--", "sh", "-ec", hide).strip() == ""
    assert names(person) == [".gitignore", "a.txt", "dist/kept.js", "new.py"]
    assert person.aw("destroy", "t/a").returncode == 4
    # Nor by what was applied: the origin's index decides, which an apply does not change.
    person.aw_ok("apply", "t/a", "dist", "a.txt", "new.py")
    person.aw_ok("run", "t/a", "--", "sh", "-c", "git checkout -q HEAD~ -- .gitignore; echo worse > dist/kept.js")
    person.aw_ok("apply", "t/a")
    person.aw_ok("run", "t/a", "--", "sh", "-c", "git rm -qf --cached dist/kept.js; echo worst > dist/kept.js")
    assert names(person) == ["dist/kept.js"]
    assert person.aw("destroy", "t/a").returncode == 4


@pytest.mark.parametrize("kind", ["worktree", "overlay"])
def test_a_file_that_the_agent_tracks_is_not_ignored(person: Person, kind: str) -> None:
    origin = repository(person)
    person.aw_ok("create", "t/a", "--source", f"{kind}:{origin}")
    person.aw_ok("run", "t/a", "--", "sh", "-ec", "mkdir -p dist; touch dist/a.js dist/b.js; git add -f dist/a.js")
    assert names(person) == ["dist/a.js"]
    assert person.aw_json("apply", "t/a")["written"] == ["dist/a.js"]
    assert not (origin / "dist/b.js").exists()


@pytest.mark.parametrize("version", [2, 4])
def test_names_in_an_index_are_read_as_git_reads_them(tmp_path: Path, version: int) -> None:
    paths = ["a", "a b/c", "long/" + "x" * 200, "ü", "z/1", "z/12", "z/2"]
    for path in paths:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", tmp_path, *words], check=True, capture_output=True)

    git("init")
    git("add", ".")
    (tmp_path / "later").touch()
    git("add", "-N", "later")  # an extended entry
    git("update-index", f"--index-version={version}")
    index = (tmp_path / ".git/index").read_bytes()
    assert tracked_in(index) == {*paths, "later"}
    for size in range(len(index)):
        with pytest.raises(ValueError):
            tracked_in(index[:size])
    git("update-index", "--split-index")
    with pytest.raises(ValueError, match="another file"):
        tracked_in((tmp_path / ".git/index").read_bytes())


@pytest.mark.parametrize("kind", ["worktree", "folder"])
def test_every_source_that_is_a_repository_has_rules(person: Person, kind: str) -> None:
    origin = repository(person)
    person.aw_ok("create", "t/a", "--source", f"{kind}:{origin}")
    person.aw_ok("put", "t/a", "work/node_modules/x/a", "--parents", feed="1\n")
    person.aw_ok("put", "t/a", "work/a.txt", feed="2\n")
    assert names(person) == ["a.txt"]
    assert person.aw_json("diff", "t/a")["ignored"] == 1


def test_a_folder_without_a_repository_has_no_rules(person: Person) -> None:
    origin = person.folder("origin", {".gitignore": "*\n", "a.txt": "one\n"})
    person.aw_ok("create", "t/a", "--source", str(origin))
    person.aw_ok("run", "t/a", "--", "sh", "-c", "echo 1 > new")
    assert names(person) == ["new"]
