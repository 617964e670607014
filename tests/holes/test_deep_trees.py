"""Trees of thousands of levels are kept, copied, restored and removed with few descriptors.

A process may have 1,024 open files. Removal through an overlay cannot move directories of a lower layer up, so a walk
that keeps every level open ends half way, and with it `restore`: an agent could switch it off.
"""

from __future__ import annotations

import subprocess

import pytest

from people import Person

LEVELS = 2500
DEEPER = """
import os, sys
os.makedirs("top", exist_ok=True)
os.chdir("top")
for level in range(int(sys.argv[1])):
    if level % 100 == 0:
        open("file", "w").write(str(level))
    os.mkdir("d")
    os.chdir("d")
open("last", "w").write("the last\\n")
"""
# What holds a descriptor for each level of a tree.
HOLDS_EACH_LEVEL = """
import os
here, held = os.open(".", os.O_RDONLY), []
while "d" in os.listdir(here) or "top" in os.listdir(here):
    held.append(here)
    here = os.open("top" if "top" in os.listdir(here) else "d", os.O_RDONLY, dir_fd=here)
"""


def with_few(person: Person, descriptors: int, *words: str) -> subprocess.CompletedProcess[str]:
    """`aw WORDS` in a process that may have so many descriptors; it has to succeed."""
    limited = ("sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh")
    done = person.do(*limited, *person.aw_words(*words), timeout=300)
    assert done.returncode == 0, f"aw {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


@pytest.mark.parametrize("descriptors", [1024, 256])
def test_a_deep_tree_is_kept_forked_restored_and_removed(person: Person, descriptors: int) -> None:
    plain = person.folder("plain")
    person.do("/usr/bin/python3", "-c", DEEPER, str(LEVELS), cwd=plain)
    limited = ("sh", "-c", f"ulimit -n {descriptors}; exec python3 -c '{HOLDS_EACH_LEVEL}'")
    assert "Too many open files" in person.do(*limited, cwd=plain).stderr

    def few(*words: str) -> str:
        return with_few(person, descriptors, *words).stdout

    person.aw_ok("create", "t/a")
    person.aw_ok("run", "t/a", "--", "python3", "-c", DEEPER, str(LEVELS))
    few("snapshot", "t/a", "-m", "deep")
    few("fork", "t/a", "--as", "t/b")  # the tree is a lower layer now
    few("template", "add", "deep", "--from", "t/b")
    few("restore", "t/b", "base")
    assert few("ls", "t/b", "work") == ""
    few("undo")
    assert "top" in few("ls", "t/b", "work")
    few("rm", "t/b", "work/top", "-r")
    few("diff", "t/b")
    few("destroy", "t/a", "t/b", "--force")
    few("trash", "empty")
    few("sweep")
    few("template", "remove", "deep")
