"""Two people who use the program as a whole, each in a directory of their own: an ordinary user, and root.

`person` (a fixture in conftest.py) runs a test once as each. The program is a copy that both can read, started as a
process with an environment built from nothing, so that nothing of the test's own process helps it along.
"""

from __future__ import annotations

import atexit
import compileall
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

from needs import need, need_program, need_root
from sources.yard import ordinary_python
from waiting import wait_until

SOURCE = Path(__file__).resolve().parents[1] / "src"
LIGHT_PACKAGES = ("msgspec", "backports", "yaml")  # everything that `aw` needs without a server


class Person:
    """A user of the machine with a directory, a home of the program's below it, and the program."""

    def __init__(self, name: str, uid: int, directory: Path, python: str, packages: Sequence[Path]) -> None:
        self.name = name
        self.uid = uid
        self.directory = directory
        self.python_program = python
        self.packages = list(packages)
        self.home = directory / "home"

    @property
    def is_root(self) -> bool:
        return self.uid == 0

    def environment(self, **more: str) -> dict[str, str]:
        """Built from nothing."""
        paths = os.pathsep.join(map(str, self.packages))
        return {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONPATH": paths,
            "HOME": str(self.directory),
            "AW_HOME": str(self.home),
            "LANG": "C.UTF-8",
            **more,
        }

    def command(self, argv: Sequence[str]) -> list[str]:
        """The words that start `argv` as this person."""
        if self.is_root:
            return list(argv)
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", *argv]

    def start(self, argv: Sequence[str], *, cwd: Path | None = None, **options: Any) -> subprocess.Popen[str]:
        """Start any program as this person; the caller ends it."""
        options.setdefault("env", self.environment())
        return subprocess.Popen(self.command(argv), cwd=cwd or self.directory, text=True, **options)

    def do(
        self, *argv: str, cwd: Path | None = None, timeout: float = 120, feed: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run any program as this person and return how it ended."""
        return subprocess.run(
            self.command(argv),
            cwd=cwd or self.directory,
            env=self.environment(**environment),
            input=feed if feed is not None else "",
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            timeout=timeout,
        )

    def sh(self, script: str, **options: Any) -> str:
        """Run a shell script that has to succeed; its output."""
        done = self.do("sh", "-ec", script, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def aw_words(self, *words: str) -> list[str]:
        return [self.python_program, "-B", "-c", "from workstead.cli import command; command()", *words]

    def aw(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """`aw WORDS` as a process. A traceback is never an answer."""
        done = self.do(*self.aw_words(*words), **options)
        assert "Traceback (most recent call last)" not in done.stderr, done.stderr
        return done

    def aw_ok(self, *words: str, **options: Any) -> str:
        """`aw WORDS`, which has to succeed; its output."""
        done = self.aw(*words, **options)
        assert done.returncode == 0, f"aw {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def aw_json(self, *words: str, **options: Any) -> Any:
        """The document that `aw --format json WORDS` prints, an error too."""
        return json.loads(self.aw("--format", "json", *words, **options).stdout)

    def python(self, script: str, **options: Any) -> str:
        """Run a Python script with `workstead` importable; its output."""
        done = self.do(self.python_program, "-B", "-c", script, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def folder(self, name: str, files: dict[str, str] | None = None) -> Path:
        """A new directory of this person's with these files."""
        path = self.directory / name
        for each, text in {**(files or {})}.items():
            (path / each).parent.mkdir(parents=True, exist_ok=True)
            (path / each).write_text(text)
        path.mkdir(parents=True, exist_ok=True)
        self.own(path)
        return path

    def own(self, path: Path) -> None:
        """Give a tree that the test wrote to this person."""
        for each in [path, *path.rglob("*")]:
            os.chown(each, self.uid, self.uid, follow_symlinks=False)


@cache
def shared_packages() -> Path:
    """The program and what it needs, as a tree that everybody can read and only root can change, compiled once."""
    directory = Path(tempfile.mkdtemp(prefix="aw-packages-"))
    atexit.register(_remove_in, os.getpid(), directory)
    directory.chmod(0o755)
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCE, directory, ignore=skip, dirs_exist_ok=True)
    for package in LIGHT_PACKAGES:
        found = importlib.util.find_spec(package)
        assert found
        for where in found.submodule_search_locations or ():
            shutil.copytree(where, directory / package, dirs_exist_ok=True, ignore=skip)
    compileall.compile_dir(directory, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    return directory


def _remove_in(process: int, directory: Path) -> None:
    if os.getpid() == process:  # not in its forks
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def a_person(name: str) -> Iterator[Person]:
    """`ordinary` or `root`, with everything that the person started ended afterwards."""
    need_root()  # to become somebody else, and to be root
    need_program("bwrap")
    directory = Path(tempfile.mkdtemp(prefix="aw-person-"))
    directory.chmod(0o755)
    try:
        python, uid = sys.executable, 0
        if name == "ordinary":
            usable = ordinary_python()
            need(usable is not None, "a Python 3.11 that an ordinary user can start")
            python = str(usable)
            uid = 100_000 + os.getpid() % 100_000  # nobody else's: its processes are this test's
        mine = directory / "place"
        mine.mkdir(mode=0o755)
        os.chown(mine, uid, uid)
        yield Person(name, uid, mine, python, [shared_packages()])
    finally:
        _end_everything(0 if name == "root" else 100_000 + os.getpid() % 100_000)
        remove_tree(directory)


def remove_tree(directory: Path) -> None:
    """Unmount what is mounted below a directory and remove it, however deep it is (shutil.rmtree is recursive)."""
    with open("/proc/self/mountinfo") as table:
        targets = [line.split()[4] for line in table]
    for target in sorted((each for each in targets if each.startswith(f"{directory}/")), reverse=True):
        subprocess.run(["umount", "-l", target], check=False)
    subprocess.run(["rm", "-rf", "--one-file-system", str(directory)], check=False)


@contextmanager
def own_disk(person: Person, image: Path, size: str, *options: str) -> Iterator[Path]:
    """An ext4 file system of a person's own, with the program's home on it; `options` are for mkfs.ext4."""
    need_program("mkfs.ext4")
    place = person.folder("disk")
    subprocess.run(["truncate", "-s", size, str(image)], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-F", *options, str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    person.own(place)
    person.home = place / "home"
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _end_everything(uid: int) -> None:
    """End the processes of a user that only this test has."""
    if uid:
        for process in _processes_of(uid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        wait_until(lambda: not _processes_of(uid))


def _processes_of(uid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                status = Path(f"/proc/{name}/status").read_text()
                if f"\nUid:\t{uid}\t" in status and "\nState:\tZ" not in status:
                    found.append(int(name))
    return found
