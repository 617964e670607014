"""Bytes that a run hides from the quota: files without a name, paths that are too long, directories that are closed.

Each attack writes until it is refused, or until it has four times the quota on the disk. Then it says how much of that
a walk through its directory by path finds.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from errno import EFBIG, ENOSYS
from pathlib import Path

import pytest

from people import Person, own_disk

MIB = 1 << 20
QUOTA_MB = 16
START = """
import ctypes, mmap, os, signal, socket, struct, threading, time
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
held, taken, top = [], 0, os.getcwd()
free = os.statvfs(".").f_bfree
def fill(fd):
    "Write 4 MB, slowly enough for a meter that looks every few milliseconds."
    global taken
    for _ in range(32):
        taken += os.write(fd, b"x" * (1 << 17))
        time.sleep(0.002)
def unlinked():
    fd = os.open("f", os.O_RDWR | os.O_CREAT)
    os.unlink("f")
    fill(fd)
    return fd
def main():
    try:
        for number in range(16):
            %s
    except OSError as error:
        print("refused", error.errno, flush=True)
    else:
        disk = os.statvfs(top)
        assert (free - disk.f_bfree) * disk.f_frsize > taken * 0.95, "it is not on the disk"
        paths = [os.path.join(at, name) for at, _, names in os.walk(top) for name in names]
        seen = sum(os.lstat(path).st_blocks for path in paths if len(path) < 4096) * 512
        print("took", taken >> 20, "seen", seen >> 20, flush=True)
    os._exit(0)
main()
"""
ATTACKS = {
    "unlinked": "held.append(unlinked())",
    "temporary": "held.append(os.open('.', os.O_TMPFILE | os.O_RDWR)); fill(held[-1])",
    # PR_SET_DUMPABLE: others of the same user may not look at the process
    "undumpable": "ctypes.CDLL(None).prctl(4, 0); held.append(unlinked())",
    "mapped": "fd = unlinked(); held.append(mmap.mmap(fd, 4096)); os.close(fd)",
    "queued": """
            if not held:
                held.extend(socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
            fd = unlinked()
            socket.send_fds(held[0], [b"x"], [fd])
            os.close(fd)""",
    "waiting to be accepted": """
            if not held:
                held.append(socket.socket(socket.AF_UNIX))
                held[0].bind("socket")
                held[0].listen(100)
            fd = unlinked()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect("socket")
                socket.send_fds(client, [b"x"], [fd])
            os.close(fd)""",
    # landlock_create_ruleset, landlock_add_rule: a ruleset keeps the inodes that it names
    "ruled": """
            calls, access = ctypes.CDLL(None, use_errno=True).syscall, struct.pack("=Q", 1 << 2)
            held.append(calls(444, access, len(access), 0))
            if held[-1] < 0:
                raise OSError(ctypes.get_errno(), "no landlock")
            fd = unlinked()
            assert calls(445, held[-1], 1, access + struct.pack("=i", fd), 0) == 0
            os.close(fd)""",
    # a thread with descriptors of its own
    "thread": """
            done = threading.Event()
            def keep():
                ctypes.CDLL(None).unshare(0x400)
                try:
                    held.append(unlinked())
                except OSError as error:
                    held.append(error)
                done.set()
                threading.Event().wait()
            threading.Thread(target=keep, daemon=True).start()
            done.wait()
            if isinstance(held[-1], OSError):
                raise held[-1]""",
    # a process whose first thread has ended
    "leaderless": """
            if threading.current_thread() is threading.main_thread():
                threading.Thread(target=main).start()
                ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
            held.append(unlinked())""",
    "long": """
            for _ in range(0 if number else 20):
                os.mkdir("n" * 250)
                os.chdir("n" * 250)
            fill(os.open(str(number), os.O_WRONLY | os.O_CREAT))""",
    "closed": """
            os.chmod("d", 0o700) if number else os.mkdir("d")
            fd = os.open(f"d/{number}", os.O_WRONLY | os.O_CREAT)
            os.chmod("d", 0)
            fill(fd)
            os.close(fd)""",
}


@pytest.fixture
def disk(person: Person, tmp_path: Path) -> Iterator[Path]:
    """A disk of the person's own: what others write does not count."""
    with own_disk(person, tmp_path / "image", "512M") as place:
        yield place


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_hidden_counts(person: Person, disk: Path, attack: str) -> None:
    program = START % ATTACKS[attack]
    person.sh("mkdir -p disk/plain/work disk/plain/tmp")
    python = ("/usr/bin/python3", "-c")
    seen = 64 if attack == "closed" and person.is_root else 0
    done = person.do(*python, program, cwd=disk / "plain/work")
    assert done.stdout == f"took 64 seen {seen}\n", done.stdout + done.stderr
    shutil.rmtree(disk / "plain")
    person.aw_ok("create", "t/a", "--config", f'{{"max_size_mb": {QUOTA_MB}}}', AW_STORAGE__QUOTA="metering")
    said = person.aw("run", "t/a", "--", *python, program)
    error = ENOSYS if attack == "ruled" else EFBIG  # the one is refused before anything is written
    assert said.stdout == f"refused {error}\n", said.stdout + said.stderr


HOLD = """
import os, sys
fd = os.open(".", os.O_TMPFILE | os.O_RDWR)
os.write(fd, b"x" * (8 << 20))
print("held", flush=True)
sys.stdin.read()
"""


def test_usage_counts_what_a_run_holds_without_a_name(person: Person) -> None:
    person.aw_ok("create", "t/a")
    words = person.aw_words("run", "t/a", "--", "/usr/bin/python3", "-c", HOLD)
    run = person.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdout
    assert run.stdout.readline() == "held\n"
    assert person.sh("find home -size +1M -type f") == ""
    [used] = person.aw_json("usage", "t/a")["workspaces"]
    assert used["bytes"] >= 8 * MIB
    run.communicate("")
    [used] = person.aw_json("usage", "t/a")["workspaces"]
    assert used["bytes"] < MIB


@pytest.mark.parametrize("person", ["root"], indirect=True)  # only root can mount a file system of a file
def test_a_file_system_of_limited_size_counts_everything_by_itself(person: Person, disk: Path) -> None:
    for number, attack in enumerate(("unlinked", "mapped", "queued", "long")):
        name = f"t/a{number}"
        person.aw_ok("create", name, "--config", f'{{"max_size_mb": {QUOTA_MB}}}')
        said = person.aw("run", name, "--", "/usr/bin/python3", "-c", START % ATTACKS[attack])
        assert said.stdout == "refused 28\n", said.stdout + said.stderr
