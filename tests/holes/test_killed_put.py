"""A write that is killed leaves nothing in `work/`: a later apply would give it to the user's folder."""

from __future__ import annotations

import os
import subprocess

from people import Person

WRITE = """
import sys, time
import workstead
def pieces():
    yield b"x" * 100_000
    print("half", flush=True)
    time.sleep(600)
workstead.open().write_file(sys.argv[1], "work/big.txt", pieces())
"""
LIST = """
import os
import workstead
for each in workstead.open().list_directory(os.environ["AW_WORKSPACE"], "work"):
    print(each.name)
"""
PLAIN = """
import sys, time
with open(sys.argv[1] + "/.aw-temporary", "wb") as file:
    file.write(b"x")
    print("half", flush=True)
    time.sleep(600)
"""


def kill_at_half(person: Person, script: str, argument: str) -> None:
    words = [person.python_program, "-B", "-c", script, argument]
    with person.start(words, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == "half\n"
        process.kill()


def test_a_killed_write_leaves_no_file_behind(person: Person) -> None:
    folder = person.folder("project", {"a.txt": "a", "big.txt": "old"})
    person.aw_ok("create", "t/a", "--source", str(folder))
    person.aw_ok("create", "t/b")
    for workspace, names in (("t/a", {"a.txt", "big.txt"}), ("t/b", set())):
        kill_at_half(person, WRITE, workspace)
        assert set(person.python(LIST, AW_WORKSPACE=workspace).split()) == names
    kill_at_half(person, PLAIN, str(folder))  # the twin: a file with a name stays
    assert ".aw-temporary" in os.listdir(folder)
