"""What a user has closed with mode 000 is never taken for deleted, never lost, and never ends a command with a bug.

For root nothing is unreadable: there the same commands show, keep and restore everything, which is the twin.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from people import Person


@pytest.fixture(params=["empty", "overlay"])
def desk(person: Person, request: pytest.FixtureRequest) -> tuple[Person, str]:
    """A workspace with a snapshot `open`, in which a file and a directory are closed afterwards."""
    folder = person.folder("origin", {"a.txt": "one\n", "theirs.txt": "t\n", "their/in.txt": "x\n"})
    source = [] if request.param == "empty" else ["--source", f"{request.param}:{folder}"]
    person.aw_ok("create", "t/a", *source)
    run(person, "echo hi > plain.txt; echo secret > closed.txt; mkdir closed; echo inner > closed/in.txt")
    run(person, "cd ../output; mkdir closed; echo o > closed/in; echo o > closed.txt; echo k > k")
    person.aw_ok("snapshot", "t/a", "-m", "open")
    run(person, "echo changed > plain.txt; chmod 000 closed.txt closed ../output/closed ../output/closed.txt")
    return person, request.param


def run(person: Person, script: str) -> str:
    return person.aw_ok("run", "t/a", "--", "sh", "-ec", script)


def test_looking_says_what_could_not_be_read(desk: tuple[Person, str]) -> None:
    person, _ = desk
    person.aw_ok("show", "t/a")
    person.aw_ok("list", "--changes")
    patch = person.aw_ok("diff", "t/a", "--from", "open")
    assert "+changed" in patch
    assert "deleted file" not in patch
    changes = {each["path"]: each for each in person.aw_json("diff", "t/a", "--from", "open")["changes"]}
    assert set(changes) == {"plain.txt", "closed.txt", "closed"}
    notes = "Not in this patch: closed (unreadable)\nNot in this patch: closed.txt (unreadable)\n"
    assert (notes in patch) == (not person.is_root)
    assert (changes["closed"]["kind"], changes["closed.txt"]["kind"]) == (
        ("dir", "file") if person.is_root else ("other", "other")
    )


def test_a_patch_with_such_a_note_is_applied_and_deletes_nothing(desk: tuple[Person, str]) -> None:
    person, _ = desk
    files = {"plain.txt": "hi\n", "closed.txt": "secret\n", "closed/in.txt": "inner\n"}
    target = person.folder("target", files)
    patch = person.aw_ok("diff", "t/a", "--from", "open")
    done = person.do("git", "apply", "-", cwd=target, feed=patch)
    assert done.returncode == 0, done.stderr
    assert {name: (target / name).read_text() for name in files} == {**files, "plain.txt": "changed\n"}


def test_restore_leaves_it_in_place_and_says_so(desk: tuple[Person, str]) -> None:
    person, _ = desk
    done = person.aw_json("restore", "t/a", "open")
    kept = ["output/closed", "output/closed.txt", "work/closed", "work/closed.txt"]
    assert done["kept"] == ([] if person.is_root else kept)
    assert run(person, "cat plain.txt").strip() == "hi"
    person.aw_ok("undo")
    assert run(person, "cat plain.txt").strip() == "changed"
    # Opened again, everything is what it was.
    opened = run(person, "chmod 755 closed ../output/closed; chmod 644 closed.txt ../output/closed.txt; cat closed.txt")
    assert opened.strip() == "secret"
    assert run(person, "cat closed/in.txt ../output/closed/in ../output/closed.txt").split() == ["inner", "o", "o"]


def test_a_fork_says_what_it_lacks_and_both_go_on(desk: tuple[Person, str]) -> None:
    """The parent's files become a layer: a closed directory in one ended every command of the home with a bug."""
    person, _ = desk
    made = person.aw_json("fork", "t/a", "--as", "t/b")
    notes = " ".join((made[0] if isinstance(made, list) else made)["filled"]["notes"])
    for name in ("output/closed", "output/closed.txt"):
        assert (name in notes) == (not person.is_root)
    output = Path(person.aw_ok("path", "t/b").strip()) / "output"
    assert (output / "k").read_text() == "k\n"
    assert (output / "closed/in").exists() == person.is_root
    for workspace in ("t/a", "t/b"):
        person.aw_ok("show", workspace)
        patch = person.aw_ok("diff", workspace)
        assert "+changed" in patch
        assert "deleted file" not in patch
        person.aw_ok("snapshot", workspace, "-m", "after")
    restored = person.aw_json("restore", "t/a", "open")
    assert ("work/closed" in restored["kept"]) == (not person.is_root)
    person.aw_ok("destroy", "--force", "t/a", "t/b")


def test_a_restore_in_a_read_only_directory_leaves_it_read_only(person: Person) -> None:
    """To change the mode of a file a directory is opened for us, an ordinary user; it stayed open."""
    person.aw_ok("create", "t/a")
    work = Path(person.aw_ok("path", "t/a").strip()) / "work"
    person.sh(f"cd {work}; mkdir -p a/b; echo x > a/b/f; chmod 644 a/b/f; chmod 500 a/b a")
    person.aw_ok("snapshot", "t/a", "-m", "kept")
    person.sh(f"chmod 600 {work}/a/b/f")
    person.aw_ok("restore", "t/a", "kept")
    assert person.sh(f"cd {work}; stat -c %a a a/b a/b/f").split() == ["500", "500", "644"]


def test_closed_files_of_the_origin_are_no_changes(person: Person) -> None:
    folder = person.folder("origin", {"a.txt": "one\n", "shut.txt": "s\n", "shut/in.txt": "x\n"})
    (folder / "shut.txt").chmod(0)
    (folder / "shut").chmod(0)
    person.aw_ok("create", "t/a", "--source", f"overlay:{folder}")
    run(person, "echo two > a.txt")
    assert person.aw_ok("diff", "t/a", "--name-only").split() == ["a.txt"]
    # Replaced without having been read: the change is there, and what was below it is not made up.
    run(person, "rm -f shut.txt; echo mine > shut.txt")
    found = {each["path"] for each in person.aw_json("diff", "t/a")["changes"]}
    assert found == {"a.txt", "shut.txt"}
    patch = person.aw_ok("diff", "t/a")
    assert ("Not in this patch: shut.txt (unreadable)" in patch) == (not person.is_root)
    person.aw_ok("show", "t/a")
    assert (folder / "shut.txt").stat().st_mode & 0o777 == 0


@pytest.mark.parametrize("mechanism", ["present", "present of a fork", "snapshot"])
def test_a_fork_has_the_notes_as_they_are_now(person: Person, mechanism: str) -> None:
    person.aw_ok("create", "t/a", "--config", '{"claude_md": "as made\\n", "agents_md": "agents\\n"}')
    path = Path(person.aw_ok("path", "t/a").strip())
    parent = "t/a"
    person.sh(f"cd {path} && echo changed > CLAUDE.md && rm AGENTS.md && ln -s CLAUDE.md AGENTS.md")
    if mechanism == "present of a fork":
        person.aw_ok("fork", "t/a", "--as", "t/between")
        parent = "t/between"
    at = ["--at", "kept"] if mechanism == "snapshot" else []
    person.aw_ok("snapshot", parent, "-m", "kept")
    person.aw_ok("fork", parent, "--as", "t/b", *at)
    forked = Path(person.aw_ok("path", "t/b").strip())
    assert (forked / "CLAUDE.md").read_text() == "changed\n"
    assert (forked / "AGENTS.md").readlink() == Path("CLAUDE.md")
    assert (forked / "CLAUDE.md").stat().st_uid == (path / "CLAUDE.md").stat().st_uid
