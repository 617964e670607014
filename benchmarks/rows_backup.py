"""Backups of a home against copies of the same directory: `cp -a`, and `rsync -a` where it is installed.

The first backup is against a whole copy with a sync, the second one (nothing changed) against a second copy over the
first. Ours also copies the log consistently, and reads back and compares every byte that it wrote.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness import Row
from rows_snapshots import make_tree

import workstead
from workstead.settings import load_settings


class Bench:
    """A home with one workspace of many files, and backups of it."""

    def __init__(self, path: str, files: int) -> None:
        self.path = path
        self._files = files
        self._numbers = itertools.count()

    @contextmanager
    def hold(self) -> Iterator[None]:
        os.makedirs(self.path)
        settings = load_settings({"HOME": self.path}, self.path, system_directory=f"{self.path}/none")
        with workstead.open(f"{self.path}/home", settings=settings) as self._workspaces:
            make_tree(f"{self._workspaces.create(id='b/a').path}/work", self._files)
            self._workspaces.snapshot("b/a")
            self._workspaces.backup(f"{self.path}/ours")
            for tool in (self.copy, self.rsync):
                tool("theirs")
            yield
        shutil.rmtree(self.path)

    def fresh(self) -> str:
        return f"new-{next(self._numbers)}"

    def backup(self, name: str) -> None:
        self._workspaces.backup(f"{self.path}/{name}")

    def copy(self, name: str) -> None:
        os.makedirs(f"{self.path}/cp-{name}", exist_ok=True)
        subprocess.run(["cp", "-a", f"{self.path}/home/.", f"{self.path}/cp-{name}"], check=True)
        subprocess.run(["sync", "-f", self.path], check=True)

    def rsync(self, name: str) -> None:
        if shutil.which("rsync"):
            subprocess.run(["rsync", "-a", f"{self.path}/home/", f"{self.path}/rsync-{name}"], check=True)
            subprocess.run(["sync", "-f", self.path], check=True)


def rows(scratch: str) -> Iterator[Row]:
    for files, rounds in ((2_000, 5), (20_000, 3)):
        bench = Bench(f"{scratch}/backup-{files}", files)
        first: dict[str, Callable[[], object]] = {
            "ours": lambda b=bench: b.backup(b.fresh()),
            "cp": lambda b=bench: b.copy(b.fresh()),
        }
        second: dict[str, Callable[[], object]] = {
            "ours": lambda b=bench: b.backup("ours"),
            "cp": lambda b=bench: b.copy("theirs"),
        }
        if shutil.which("rsync"):
            first["rsync"] = lambda b=bench: b.rsync(b.fresh())
            second["rsync"] = lambda b=bench: b.rsync("theirs")
        for name, arms in (("first backup", first), ("backup with nothing new", second)):
            yield Row(f"{name} of a home with {files:,} files", arms, rounds=rounds, hold=bench.hold)
