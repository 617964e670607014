"""Archives against `tar --zstd` on the same files: writing, proving and bringing back, 2,000 and 50,000 files.

Ours takes a snapshot first, keeps states and history, and proves every byte before a workspace stands.
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
    """A workspace with files, and a directory for what tar makes."""

    def __init__(self, path: str, files: int) -> None:
        self.path = path
        self.files = files
        self._numbers = itertools.count()

    @contextmanager
    def hold(self) -> Iterator[None]:
        os.makedirs(self.path)
        settings = load_settings({"HOME": self.path}, self.path, system_directory=f"{self.path}/none")
        with workstead.open(f"{self.path}/home", settings=settings) as self.workspaces:
            work = f"{self.workspaces.create(id='b/a').path}/work"
            make_tree(work, self.files)
            self.workspaces.snapshot("b/a")
            self.tar = f"{self.path}/t.tar.zst"
            self.ours = self.workspaces.archive("b/a", f"{self.path}/o.aw.tar.zst").path
            self._work = work
            self.write_tar()
            yield
        shutil.rmtree(self.path)

    def write_ours(self) -> None:
        self.workspaces.archive("b/a", self.ours, replace=True)

    def write_tar(self) -> None:
        subprocess.run(["tar", "--zstd", "-cf", self.tar, "-C", self._work, "."], check=True)

    def prove_ours(self) -> None:
        self.workspaces.verify_archive(self.ours)

    def prove_tar(self) -> None:
        subprocess.run(["tar", "--zstd", "-tf", self.tar], check=True, stdout=subprocess.DEVNULL)

    def read_ours(self) -> None:
        self.workspaces.create(f"archive:{self.ours}", id=f"b/{next(self._numbers)}")

    def read_tar(self) -> None:
        into = f"{self.path}/into-{next(self._numbers)}"
        os.mkdir(into)
        subprocess.run(["tar", "--zstd", "-xf", self.tar, "-C", into], check=True)


def rows(scratch: str) -> Iterator[Row]:
    for files, rounds in ((2_000, 9), (50_000, 3)):
        acts: dict[str, tuple[Callable[[Bench], None], Callable[[Bench], None], str]] = {
            "written": (Bench.write_ours, Bench.write_tar, "tar <= 10x"),
            "proven, against listing with tar": (Bench.prove_ours, Bench.prove_tar, ""),
            "brought back": (Bench.read_ours, Bench.read_tar, "tar <= 5x"),
        }
        for name, (ours, tar, aim) in acts.items():
            bench = Bench(f"{scratch}/{files}-{name.split()[0].strip(',')}", files)
            arms = {"ours": lambda b=bench, act=ours: act(b), "tar": lambda b=bench, act=tar: act(b)}
            yield Row(f"{files:,} files {name}", arms, aim=aim, rounds=rounds, hold=bench.hold)
