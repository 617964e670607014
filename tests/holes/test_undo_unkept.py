"""What no snapshot can hold is not taken away under the promise that undo brings it back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from needs import need
from people import Person

DEEP = """
import os, sys
os.chdir(sys.argv[1])
for level in range(3010):
    os.mkdir("d")
    os.chdir("d")
open("precious", "w").write("deep")
"""
# Goes down as deep as that, and says what is there.
LOOK = """
import os, sys
os.chdir(sys.argv[1])
for level in range(3010):
    os.chdir("d")
print(open("precious").read())
"""


@pytest.fixture
def work(person: Person) -> Path:
    person.aw_ok("create", "t/a")
    return Path(person.aw_ok("path", "t/a").strip()) / "work"


def refused(person: Person, *words: str) -> None:
    """The command is refused, because no snapshot could hold what it takes away."""
    found = person.aw_json(*words)
    assert found["error"]["code"] == "not_kept", found


def test_a_closed_file_is_not_replaced_moved_or_removed(person: Person, work: Path) -> None:
    person.sh(f"cd {work}; echo precious > f; mkdir d; echo inner > d/in; echo new > other; chmod 000 f d/in")
    commands = (
        ("rm", "t/a", "work/f"),
        ("rm", "-r", "t/a", "work/d"),
        ("mv", "t/a", "work/f", "work/g"),
        ("mv", "t/a", "work/other", "work/f", "--replace"),
    )
    for words in commands:
        if person.is_root:  # the twin: root can read it, so it is kept, taken away and brought back
            person.aw_ok(*words)
            person.aw_ok("undo")
        else:
            refused(person, *words)
        assert person.sh(f"cd {work}; chmod 600 f d/in; cat f d/in other; chmod 000 f d/in") == "precious\ninner\nnew\n"
    put = ("put", "t/a", "work/f")
    done = person.aw("--format", "json", *put, feed="put\n")
    assert (done.returncode == 0) == person.is_root, done.stdout
    if person.is_root:
        person.aw_ok("undo")
    assert person.sh(f"cd {work}; chmod 600 f; cat f; chmod 000 f") == "precious\n"
    # Whoever wants it gone for good can say so.
    person.aw_ok("rm", "--no-keep", "t/a", "work/f")
    assert not (work / "f").exists()


def test_what_is_too_deep_is_not_removed_with_the_directory_above_it(person: Person, work: Path) -> None:
    (work / "pit").mkdir()
    person.own(work / "pit")
    person.python(DEEP.replace("sys.argv[1]", repr(str(work / "pit"))))
    refused(person, "rm", "-r", "t/a", "work/pit")
    refused(person, "mv", "t/a", "work/pit", "work/moved")
    assert person.python(LOOK.replace("sys.argv[1]", repr(str(work / "pit")))) == "deep\n"
    # A restore goes around it, and undo too; both say so.
    person.sh(f"echo one > {work}/beside")
    done = person.aw_json("restore", "t/a", "base")
    assert [path.startswith("work/pit/d/d") for path in done["kept"]] == [True]
    assert not (work / "beside").exists()
    person.aw_ok("undo")
    assert (work / "beside").read_text() == "one\n"
    assert person.python(LOOK.replace("sys.argv[1]", repr(str(work / "pit")))) == "deep\n"


def test_what_is_too_large_is_not_removed_or_replaced(person: Person, work: Path) -> None:
    need(shutil.disk_usage(work).free > 8 << 30, "8 GB of free space")
    made = person.do("fallocate", "-l", "4400M", str(work / "large"))
    need(made.returncode == 0 and (work / "large").stat().st_blocks > 4_000_000 * 2, "a disk that reserves space")
    refused(person, "rm", "t/a", "work/large")
    refused(person, "mv", "t/a", "work/large", "work/moved")
    person.sh(f"echo small > {work}/small")
    refused(person, "mv", "t/a", "work/small", "work/large", "--replace")
    assert (work / "large").stat().st_size == 4400 << 20
    person.aw_ok("rm", "--no-keep", "t/a", "work/large")


def test_a_path_is_not_restored_over_something_that_no_snapshot_holds(person: Person, work: Path) -> None:
    person.sh(f"cd {work}; mkdir a; echo b > a/b; echo f > f")
    person.aw_ok("snapshot", "t/a", "-m", "kept")
    person.sh(f"cd {work}; rm -r a f; echo precious > a; echo precious > f; chmod 000 a f")
    for path in ("work/a/b", "work/f"):
        if person.is_root:
            person.aw_ok("restore", "t/a", "kept", path)
            person.aw_ok("undo")
        else:
            refused(person, "restore", "t/a", "kept", path)
    assert person.sh(f"cd {work}; chmod 600 a f; cat a f") == "precious\nprecious\n"


def test_undo_of_a_restored_path_brings_back_the_file_above_it(person: Person, work: Path) -> None:
    person.sh(f"cd {work}; mkdir -p a/b new/er; echo c > a/b/c; echo n > new/er/n; echo n > new/other")
    person.aw_ok("snapshot", "t/a", "-m", "kept")
    person.sh(f"cd {work}; rm -r a new; echo file > a")
    person.aw_ok("restore", "t/a", "kept", "work/a/b/c")
    assert (work / "a/b/c").read_text() == "c\n"
    person.aw_ok("undo")
    assert (work / "a").read_text() == "file\n"
    # Directories that the restore made where nothing was go as well, and come back when the undo is undone.
    person.aw_ok("restore", "t/a", "kept", "work/new/er/n")
    undone = person.aw_json("undo")
    assert undone["undone"]["left"] == []
    assert not (work / "new").exists()
    person.aw_ok("undo", undone["workspaces"][0]["operation_id"])
    assert (work / "new/er/n").read_text() == "n\n"
    # Unless somebody has put something else there since.
    person.aw_ok("undo", person.aw_json("ops")[0]["operation_id"])
    person.aw_ok("restore", "t/a", "kept", "work/new/er/n")
    person.sh(f"echo mine > {work}/new/mine")
    person.aw_ok("undo")
    assert (work / "new/mine").read_text() == "mine\n"
    assert not (work / "new/er/n").exists()


def test_undo_says_what_it_could_not_bring_back(person: Person, work: Path) -> None:
    """A pipe is in no snapshot and nothing is lost with it, so it is removed; undo does not claim to have made it."""
    person.sh(f"mkdir {work}/d; mkfifo {work}/d/pipe; echo f > {work}/d/f")
    person.aw_ok("rm", "-r", "t/a", "work/d")
    done = person.aw("undo")
    assert done.returncode == 0
    assert "work/d/pipe could not be brought back" in done.stderr
    assert (work / "d/f").read_text() == "f\n"
    person.sh(f"mkfifo {work}/d/pipe")
    person.aw_ok("rm", "-r", "t/a", "work/d")
    assert person.aw_json("undo")["undone"]["left"] == ["work/d/pipe"]
