"""Quota and retention: what a limit costs a write and a run, and how long it takes to say what takes space."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from harness import Row

import workstead
from workstead.core.quota import Room
from workstead.local import Local
from workstead.model.workspace import Workspace
from workstead.settings import Settings, load_settings

WRITES = """
import os
for number in range(2000):
    with open(f"f{number % 50}", "wb") as file:
        file.write(b"x" * 65536)
"""


def rows(scratch: str) -> Iterator[Row]:
    os.makedirs(scratch)
    settings = load_settings({"HOME": scratch}, scratch, system_directory=scratch)
    calm = settings.replace(snapshots=settings.snapshots.replace(around_runs=False))
    free = calm.replace(workspaces=calm.workspaces.replace(default_max_size_mb=None))
    yield from _gate(scratch, calm)
    yield _run(scratch, calm, free)
    yield from _usage(scratch, calm)


def _gate(scratch: str, settings: Settings) -> Iterator[Row]:
    """The whole of the question, for a file of 2 kB: three looks, two locks, one small record."""
    for files in (10, 20_000):
        workspaces = workstead.open(f"{scratch}/gate-{files}", settings=settings)
        desk = workspaces.create(id="bench/a")
        for number in range(files):
            Path(desk.path, "work", str(number)).touch()
        raw = f"{scratch}/raw-{files}"

        def ours(workspaces: Local = workspaces, desk: Workspace = desk) -> None:
            with Room(workspaces._home, desk, "work/f") as room, room.limiting(1 << 30, size=2000):
                room.admit_file(2000, is_new=False)

        def plain(raw: str = raw) -> None:
            with open(raw, "wb") as file:
                file.write(b"x" * 2000)

        aim = "the same at any size" if files > 10 else ""
        yield Row(f"the quota asked for one write, {files} files", {"ours": ours, "a write of 2 kB": plain}, aim=aim)


def _run(scratch: str, limited: Settings, free: Settings) -> Row:
    """A run that writes 130 MB over and over, with and without a limit that it does not reach."""
    arms = {}
    for name, settings in (("metered", limited), ("no limit", free)):
        workspaces = workstead.open(f"{scratch}/run-{name}", settings=settings)
        workspaces.create(id="bench/a")

        def run(workspaces: Local = workspaces) -> None:
            started = workspaces.run("bench/a", ["python3", "-c", WRITES])
            assert workspaces.wait(started.id).state == "completed"

        arms[name] = run
    return Row("a run that writes 2000 files of 64 kB", arms, aim="no limit <= 1.1x", rounds=10)


def _usage(scratch: str, settings: Settings) -> Iterator[Row]:
    """Many workspaces with a few own files each, over one large origin: the origin is not walked."""
    origin = Path(scratch, "origin")
    for number in range(5000):
        path = origin / str(number // 100) / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    workspaces = workstead.open(f"{scratch}/usage", settings=settings)
    paths = []
    for number in range(50):
        desk = workspaces.create(f"overlay:{origin}", id=f"bench/{number}")
        Path(desk.path, "work", "new.txt").write_text("x" * 5000)
        paths.append(f"{desk.path}/work")

    def walk() -> None:
        for path in paths:
            for top, _, names in os.walk(path):
                for name in names:
                    os.lstat(f"{top}/{name}")

    yield Row("usage of 50 workspaces over 5000 files", {"ours": workspaces.usage, "walking all": walk}, rounds=5)
    yield Row(
        "sweep --dry-run of them", {"ours": lambda: workspaces.sweep(dry_run=True), "walking all": walk}, rounds=5
    )
