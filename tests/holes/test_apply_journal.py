"""What lies in a folder is data. `aw apply` used to obey a journal that it found there, also outside of the folder."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path

import pytest

from people import Person

ASIDE = ".aw-apply-x"


def plant(person: Person, folder: Path, path: str) -> None:
    """A directory as an interrupted apply leaves it, with a journal that names another place."""
    aside = folder / ASIDE
    (aside / "new").mkdir(parents=True)
    (aside / "old").mkdir()
    (aside / "new/0").write_text("mine")
    (aside / "journal").write_text(json.dumps([{"path": path, "action": "write"}]))
    person.own(aside)


@pytest.mark.parametrize("path", ["../victim", ".git/hooks/post-commit"])
def test_a_journal_in_the_folder_is_not_obeyed(person: Person, path: str) -> None:
    folder = person.folder("p", {"a": "1\n", ".git/hooks/README": "\n"})
    plant(person, folder, path)
    person.aw_ok("run", "--id", "c1/a", "--source", str(folder), "--", "sh", "-c", "echo 1 > f")
    person.aw_ok("apply", "c1/a")
    person.aw_ok("repair")
    assert (folder / "f").read_text() == "1\n"
    assert not (folder / path).exists()
    assert (folder / ASIDE / "new/0").read_text() == "mine"  # nobody's but the user's
    person.aw_ok("undo")
    assert not (folder / "f").exists()
    assert (folder / ASIDE / "new/0").read_text() == "mine"
    # The twin: whoever does what the journal says writes there.
    (step,) = json.loads((folder / ASIDE / "journal").read_text())
    os.rename(folder / ASIDE / "new/0", folder / step["path"])
    assert (folder / path).read_text() == "mine"


def test_a_directory_of_that_name_never_comes_from_a_workspace(person: Person) -> None:
    folder = person.folder("p", {"a": "1\n"})
    left = ".aw-0123456789abcdef"  # as a killed `aw put` leaves it
    script = f"mkdir -p {ASIDE}/new sub/{ASIDE} && echo x > {ASIDE}/journal && echo x > sub/{ASIDE}/y && echo x > f"
    script += f" && touch {left} sub/{left} .aw-mine"
    person.aw_ok("run", "--id", "c1/a", "--source", str(folder), "--", "sh", "-c", script)
    done = person.aw_json("apply", "c1/a")
    assert done["written"] == [".aw-mine", "f"]
    assert sorted(done["refused"]) == [left, ASIDE, f"sub/{left}", f"sub/{ASIDE}"]
    assert sorted(os.listdir(folder)) == [".aw-mine", "a", "f", "sub"]
    assert os.listdir(folder / "sub") == []


STOPPED = """
import os, sys
left = int(sys.argv.pop(1))
def hook(event, arguments):
    global left
    if event == "os.rename" and str(arguments[0]).isdigit():
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
sys.addaudithook(hook)
from workstead.cli import command
command()
"""


def kill_apply(person: Person, workspace: str, renames: int = 1) -> None:
    """Kill an apply after so many of its renames in the folder."""
    done = person.do(person.python_program, "-B", "-c", STOPPED, str(renames), "apply", workspace)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_journal_in_the_home_with_a_path_that_leads_out_is_refused(person: Person) -> None:
    folder = person.folder("p", {"a": "1\n", "b": "1\n"})
    person.aw_ok("run", "--id", "c1/a", "--source", str(folder), "--", "sh", "-c", "echo 2 > a; echo 2 > b")
    kill_apply(person, "c1/a")
    (job,) = (person.home / "applied").glob("*.json")
    (journal,) = (person.home / "applied").glob("*.journal")
    whole, honest = job.read_text(), journal.read_text()
    steps = json.loads(whole)
    for path in ("../victim", "/victim", "x/../../victim", ".git/config", f"{ASIDE}/y"):
        steps["plan"]["steps"][0]["path"] = path
        job.write_text(json.dumps(steps))
        found = person.aw("repair")
        assert "nothing yet" in found.stdout, found.stdout + found.stderr
        assert sorted(each for each in os.listdir(folder) if not each.startswith(".aw-apply-")) == ["a", "b"]
        assert not (person.directory / "victim").exists()
    job.write_text(whole)
    for change in ({"aside": "../p"}, {"aside": ".aw-apply-/../.."}, {"state": "new"}):
        journal.write_text(json.dumps({**json.loads(honest), **change}))
        assert "nothing yet" in person.aw("repair").stdout
    journal.write_text(honest)
    person.aw_ok("repair")
    assert [(folder / name).read_text() for name in "ab"] == ["2\n", "2\n"]
    assert sorted(os.listdir(folder)) == ["a", "b"]


def test_a_killed_apply_is_not_finished_over_what_was_done_since(person: Person) -> None:
    folder = person.folder("p", dict.fromkeys("abcd", "1\n"))
    script = "for f in a b c d; do echo agent > $f; done; echo agent > new"
    person.aw_ok("run", "--id", "c1/a", "--source", str(folder), "--", "sh", "-c", script)
    kill_apply(person, "c1/a", 2)
    assert (folder / "a").read_text() == "agent\n"
    for name in ("a", "d", "new"):  # days later: one that was done, and two that were not
        (folder / name).write_text("user\n")
    person.own(folder)
    person.aw_ok("list")
    assert [(folder / name).read_text() for name in ("a", "d", "new")] == ["user\n"] * 3
    assert [(folder / name).read_text() for name in ("b", "c")] == ["1\n"] * 2
    assert not list(folder.glob(".aw-apply-*"))
    assert [each.read_text() for each in folder.glob("aw-kept-*/a")] == ["1\n"]  # what the agent's version replaced
    failed = person.aw_json("events", "--type", "changes_apply_failed")
    assert [each.partition("/")[2] for each in failed["event_data"]["kept"]] == ["a"]


def test_a_journal_that_comes_back_after_the_end_is_not_obeyed(person: Person) -> None:
    """As after a power cut that the removal of the journal did not survive, or from a backup."""
    folder = person.folder("p", {"a": "1\n", "b": "1\n"})
    person.aw_ok("run", "--id", "c1/a", "--source", str(folder), "--", "sh", "-c", "echo 2 > a; echo 2 > b")
    kill_apply(person, "c1/a")
    (aside,) = folder.glob(".aw-apply-*")
    kept = person.directory / "kept"
    person.sh(f"mkdir kept && cp -a {person.home}/applied kept/ && cp -a {aside} kept/aside")
    person.aw_ok("list")
    assert (folder / "b").read_text() == "2\n"
    person.aw_ok("undo")
    person.sh(f"cp -a {kept}/applied/. {person.home}/applied/ && cp -a {kept}/aside {aside}")
    person.aw_ok("repair")
    person.aw_ok("list")
    assert [(folder / name).read_text() for name in "ab"] == ["1\n", "1\n"]


def test_an_aside_directory_that_was_exchanged_for_a_link_is_not_followed(person: Person) -> None:
    folder = person.folder("p", {"a": "1\n", "b": "1\n"})
    outside = person.folder("outside", {"new/0": "evil", "new/1": "evil", "old/0": "evil", "old/1": "evil"})
    person.aw_ok("run", "--id", "c1/a", "--source", str(folder), "--", "sh", "-c", "echo 2 > a; echo 2 > b")
    kill_apply(person, "c1/a")
    (aside,) = folder.glob(".aw-apply-*")
    os.rename(aside, folder / "moved")
    aside.symlink_to(outside)
    person.aw_ok("repair")
    assert "evil" not in (folder / "a").read_text() + (folder / "b").read_text()
    assert len([each for each in outside.rglob("*") if each.is_file()]) == 4
    assert (aside / "new/0").read_text() == "evil"  # the twin: by its path it leads there


DEEP = """
import os, sys
for _ in range(int(sys.argv[1])):
    os.mkdir("d")
    os.chdir("d")
with open("f", "w") as file:
    file.write("x")
"""


def test_three_thousand_levels_come_back_with_1024_descriptors(person: Person) -> None:
    """It took five minutes when every level was reached from the top again: more than this test may take."""
    folder = person.folder("p", {"a": "1\n"})
    person.aw_ok("create", "c1/a", "--source", str(folder))
    person.aw_ok("run", "c1/a", "--", "/usr/bin/python3", "-c", DEEP, "3000")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        person.aw_ok("apply", "c1/a")
        assert (folder / ("d/" * 1000) / "d").is_dir()
        person.aw_ok("undo")
        assert os.listdir(folder) == ["a"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        person.aw_ok("destroy", "c1/a", "--force")
        person.sh("rm -rf p home/* home/.[a-z]*")  # too deep for Python to remove
