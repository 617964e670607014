"""An agent that takes the owner's rights away from `work`, `output` or the top switches nothing off.

An ordinary user's agent owns the same files, so `chmod 000 .` also concerns the host. For root there is no difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from people import Person


@pytest.mark.parametrize("source", ["overlay", "empty"])
@pytest.mark.parametrize("place", [".", "../output", ".."])
def test_modes_of_the_parts_do_not_switch_off_a_verb(person: Person, source: str, place: str) -> None:
    origin = person.folder("origin", {"a": "1\n"})
    person.aw_ok("create", "t/a", "--source", f"overlay:{origin}" if source == "overlay" else "empty")
    kept = person.aw_ok("snapshot", "t/a").strip()
    script = f"echo mine > new; echo result > ../output/r; chmod 000 {place}; cat {place}/. 2>/dev/null; true"
    done = person.aw("run", "t/a", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert "1 file changed" in done.stderr
    after = person.aw_ok("snapshot", "t/a").strip()
    assert "+mine" in person.aw_ok("diff", "t/a")
    person.aw_ok("fork", "t/a", "--as", "t/b")
    look = "chmod u+rwx . ../output; cat new ../output/r"  # root's agent has an owner of its own, who did it
    assert person.aw_ok("run", "t/b", "--", "sh", "-c", look) == "mine\nresult\n"
    person.aw_ok("archive", "t/a", "-o", str(person.directory / "kept.aw.tar.zst"))
    person.aw_ok("restore", "t/a", kept)
    assert "new" not in person.aw_ok("tree", "t/a", "work")
    person.aw_ok("restore", "t/a", after)
    assert person.aw_ok("cat", "t/a", "output/r") == "result\n"
    person.aw_ok("destroy", "t/a", "--force")
    person.aw_ok("undo")
    assert person.aw_ok("cat", "t/a", "work/new") == "mine\n"


def test_without_the_owners_rights_a_directory_cannot_be_opened(person: Person) -> None:
    """The twin: what the kernel says to a program that does not care."""
    folder: Path = person.folder("closed", {"f": "1"})
    folder.chmod(0)
    done = person.do("cat", str(folder / "f"))
    assert done.returncode == (0 if person.is_root else 1)


@pytest.mark.parametrize("kind", ["overlay", "folder"])
def test_no_verb_changes_the_mode_of_the_users_own_folder(person: Person, kind: str) -> None:
    """Only what the agent was given is opened up: the folder itself and the directory around it are the user's."""
    folder = person.folder("around/origin", {"a": "1\n", "d/b": "1\n"})
    around = (folder.parent, folder)
    for path in around:
        path.chmod(0o555)
    try:
        person.aw_ok("create", "t/a", "--source", f"{kind}:{folder}")
        person.aw("put", "t/a", "work/d/b", feed="2\n")
        kept = person.aw_ok("snapshot", "t/a").strip()
        for words in (("diff", "t/a"), ("fork", "t/a", "--as", "t/b"), ("restore", "t/a", kept), ("apply", "t/a")):
            person.aw(*words)
        assert [path.stat().st_mode & 0o777 for path in around] == [0o555, 0o555]
    finally:
        for path in around:
            path.chmod(0o755)
