"""A file that a process has mapped changes without a sign: only the first write to a page moves the ctime.

Snapshots remember a file by its ctime. One that somebody can still write to is read again every time.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from people import Person

# Maps the file, closes it, and writes a letter for each line that it reads.
WRITER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
page = mmap.mmap(fd, 4096)
os.close(fd)
for letter in sys.stdin:
    page[0:1] = letter[:1].encode()
    print("written", flush=True)
"""


@pytest.fixture
def memory(person: Person) -> Iterator[None]:
    """The home on a file system in memory: there a page is never written back, so that no ctime moves by chance."""
    place = person.folder("memory")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=755", "tmpfs", str(place)], check=True)
    try:
        person.own(place)
        person.home = place / "home"
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_a_second_write_through_a_mapping_is_seen(person: Person, memory: None) -> None:
    person.aw_ok("create", "t/a")
    file = Path(person.aw_ok("path", "t/a").strip()) / "work/mapped"
    person.sh(f"printf 'x%.0s' $(seq 4096) > {file}")
    words = [person.python_program, "-c", WRITER, str(file)]
    with person.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin
        assert writer.stdout

        def write(letter: str) -> None:
            writer.stdin.write(f"{letter}\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "written\n"

        write("A")
        before = file.stat().st_ctime_ns
        for name in ("one", "two"):  # the second finds the file long settled, and would remember it
            person.aw_ok("snapshot", "t/a", "-m", name)
        write("B")
        assert file.stat().st_ctime_ns == before  # the twin: nothing shows
        person.aw_ok("snapshot", "t/a", "-m", "three")
        patch = person.aw_ok("diff", "t/a", "--from", "two", "--to", "three")
        assert "-Axxx" in patch
        assert "+Bxxx" in patch
        assert "+Bxxx" in person.aw_ok("diff", "t/a", "--from", "two")
        writer.stdin.close()
    # Nobody has it mapped any more: the next one remembers it, and the content stays what it was.
    person.aw_ok("snapshot", "t/a", "-m", "four")
    assert person.aw_ok("diff", "t/a", "--from", "three", "--to", "four") == ""


def test_looking_at_a_file_does_not_disturb_who_opens_it(person: Person) -> None:
    """The lease that asks lasts for an instant, and a conflict with it ends nobody."""
    person.aw_ok("create", "t/a")
    work = Path(person.aw_ok("path", "t/a").strip()) / "work"
    opener = "import sys\nwhile True:\n    open(sys.argv[1], 'r+b').close()"
    file = work / "busy"
    person.sh(f"echo x > {file}")
    with person.start([person.python_program, "-c", opener, str(file)]) as busy:
        try:
            for number in range(3):
                person.sh(f"touch {file}; for n in $(seq 200); do echo {number} > {work}/f$n; done")
                person.aw_ok("snapshot", "t/a")
            assert busy.poll() is None
        finally:
            busy.kill()
