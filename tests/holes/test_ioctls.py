"""Requests to a file system that change what a file holds behind its ctime, or take space that nobody counts.

Snapshots read a file again when its ctime moved. EXT4_IOC_MOVE_EXT swaps the blocks of two files and moves neither
ctime, so that a snapshot, a diff and a restore would go on showing the old content.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from people import Person, own_disk

EXCHANGE = """
import ctypes, errno, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
for name, letter in (("good", b"G"), ("evil", b"E")):
    with open(name, "wb") as file:
        file.write(letter * 16384)
        os.fsync(file.fileno())
before = os.stat("good").st_ctime_ns
evil, good = os.open("evil", os.O_RDWR), os.open("good", os.O_RDWR)
for each in (evil, good):
    os.posix_fadvise(each, 0, 0, os.POSIX_FADV_DONTNEED)
EXT4_IOC_MOVE_EXT = int(sys.argv[1], 16)
if libc.ioctl(evil, ctypes.c_ulong(EXT4_IOC_MOVE_EXT), struct.pack("=IIQQQQ", 0, good, 0, 0, 4, 0)):
    print(errno.errorcode[ctypes.get_errno()])
else:
    same = os.stat("good").st_ctime_ns == before
    print("changed behind ctime" if os.pread(good, 16384, 0) != b"G" * 16384 and same else "no effect")
"""
REQUESTS = ("C028660F", "DEAD0000C028660F")  # the kernel drops the upper half

# fallocate by another name: a quota that is metered lets nobody have space before it is written
RESERVE = """
import errno, fcntl, os, struct
with open("reserved", "wb") as file:
    try:
        fcntl.ioctl(file, 0x4030582A, struct.pack("hhqqiI4i", 0, 0, 0, 8 << 20, 0, 0, 0, 0, 0, 0))
    except OSError as error:
        print(errno.errorcode[error.errno])
    else:
        print("took", os.fstat(file.fileno()).st_blocks // 2048, "MB")
os.unlink("reserved")
"""


@pytest.fixture
def disk(person: Person, tmp_path: Path) -> Iterator[Path]:
    """An ext4 file system of the person's own, with the program's home on it."""
    with own_disk(person, tmp_path / "image", "64M") as place:
        yield place


def test_the_blocks_of_two_files_cannot_be_exchanged_behind_a_snapshot(person: Person, disk: Path) -> None:
    python = ("/usr/bin/python3", "-c")
    plain = person.folder("disk/plain")
    person.aw_ok("create", "t/a")
    for request in REQUESTS:
        assert person.do(*python, EXCHANGE, request, cwd=plain).stdout == "changed behind ctime\n"
        assert person.aw_ok("run", "t/a", "--", *python, EXCHANGE, request) == "ENOTTY\n"
    assert person.aw_ok("run", "t/a", "--", "sh", "-c", "tr -d G < good | wc -c") == "0\n"
    assert person.do(*python, RESERVE, cwd=plain).stdout == "took 8 MB\n"
    assert person.aw_ok("run", "t/a", "--", *python, RESERVE) == "ENOTTY\n"


PROGRAMS = r"""
set -e
script -qec 'stty -a | grep -q rows && tty && test -t 0' /dev/null | grep -q /dev/pts/
script -qec 'bash -ic "sleep 0 & fg >/dev/null; echo jobs work"' /dev/null 2>&1 | grep -q 'jobs work'
git init -q g && cd g && echo a > f && git add f && git -c user.name=a -c user.email=a@b commit -qm one && cd ..
cp --reflink=auto g/f copy && cmp g/f copy
tar cf g.tar g && tar tf g.tar > /dev/null
python3 -c 'import pty, sys; sys.exit(pty.spawn(["true"]))' < /dev/null
python3 -c 'import socket, sqlite3; socket.if_nameindex(); sqlite3.connect("d.db").execute("create table t(x)")'
python3 -c 'import asyncio; asyncio.run(asyncio.create_subprocess_exec("true"))'
lsattr copy > /dev/null || true
echo every program works
"""


def test_programs_find_the_requests_that_they_need(person: Person) -> None:
    person.aw_ok("create", "t/a")
    assert person.aw_ok("run", "t/a", "--", "bash", "-c", PROGRAMS).endswith("every program works\n")
