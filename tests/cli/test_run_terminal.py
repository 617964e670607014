"""aw run --tty and aw attach, at a terminal: size, resizing, typing, leaving."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from needs import need_program

PROGRAM = str(Path(__file__).resolve().parents[2] / "aw")


class Terminal:
    """A person at a terminal of a given size, on one home."""

    def __init__(self, home: str, directory: Path) -> None:
        self.ours, self.theirs = pty.openpty()
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "AW_HOME": home, "TERM": "xterm"}
        self.seen = b""
        self.process: subprocess.Popen[bytes] | None = None
        self.resize(30, 100)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if self.process:
            self.process.send_signal(signal.SIGWINCH)

    def start(self, *arguments: str) -> None:
        self.seen = b""
        self.process = subprocess.Popen(
            [PROGRAM, *arguments],
            env=self.environment,
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            start_new_session=True,
        )

    def type(self, text: bytes) -> None:
        os.write(self.ours, text)

    def expect(self, text: bytes, seconds: float = 15) -> None:
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.ours], [], [], 0.1)[0]:
                self.seen += os.read(self.ours, 65536)

    def end(self) -> int:
        assert self.process
        deadline = time.monotonic() + 20
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.ours], [], [], 0.05)[0]:
                self.seen += os.read(self.ours, 65536)
        return self.process.returncode

    def run(self, *arguments: str) -> str:
        command = [PROGRAM, *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def person(home_path: str, tmp_path: Path) -> Iterator[Terminal]:
    need_program("bwrap")
    at = Terminal(home_path, tmp_path)
    at.run("create", "--id", "t/a")
    yield at
    os.close(at.ours)
    os.close(at.theirs)


SCRIPT = (
    "[ -t 0 ] && echo a-terminal; stty size; trap 'stty size; echo resized' WINCH; echo ready; "
    'read x; read x; echo "got $x"; exit 5'
)


def test_a_terminal_has_our_size_follows_it_and_passes_on_what_is_typed(person: Terminal) -> None:
    person.start("run", "--tty", "t/a", "--", "bash", "-c", SCRIPT)
    person.expect(b"a-terminal")
    person.expect(b"30 100")
    person.expect(b"ready")
    person.resize(40, 120)
    person.type(b"\r")
    person.expect(b"40 120")
    person.type(b"hello\r")
    person.expect(b"got hello")
    assert person.end() == 5


def test_attach_joins_a_run_and_leaves_it_alone_again(person: Terminal) -> None:
    script = 'while read x; do echo "got $x"; [ $x = end ] && exit 6; done'
    run = person.run("run", "--tty", "--detach", "t/a", "--", "bash", "-c", script).strip()
    person.start("attach", run)
    time.sleep(0.5)
    person.type(b"one\r")
    person.expect(b"got one")
    person.type(b"\x1d")
    assert person.end() == 0
    assert " running " in person.run("runs", "t/a")
    person.start("attach", run)
    time.sleep(0.5)
    person.type(b"end\r")
    person.expect(b"got end")
    assert person.end() == 6


def test_control_c_goes_to_the_command_and_not_to_us(person: Terminal) -> None:
    person.start("run", "--tty", "t/a", "--", "bash", "-c", "trap 'echo caught; exit 9' INT; echo up; sleep 60 & wait")
    person.expect(b"up")
    person.type(b"\x03")
    person.expect(b"caught")
    assert person.end() == 9
