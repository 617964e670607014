"""Disks that lose power: run the workload on recorded disks, then rebuild what any moment would have left of them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from needs import need_program
from people import Person
from powercut.recorder import FLUSH, HEADER, WRITE

HERE = Path(__file__).parent
SIZES = {"ext4": "64M", "xfs": "300M", "btrfs": "160M"}
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q"], "btrfs": ["mkfs.btrfs", "-q"]}
BLOCK = 4096  # what a disk writes at once
# Everything that is started in here ends with it, and so do its mounts.
ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")


class Lab:
    """One person's disks, the record of what was written to them, and what was acknowledged when."""

    def __init__(self, person: Person, top: Path, fs: str, disks: int) -> None:
        self._person, self._top, self._fs = person, top, fs
        self._record = person.directory.parent / "record"  # which the person may look at
        self._images = [top / f"disk{number}" for number in range(disks)]
        self._places = [person.folder(f"disk{number}") for number in range(disks)]
        person.home = self._places[0] / "home"
        self._origins = self._places[-1] / "origins"
        self._lines: list[dict[str, Any]] = []
        for image in self._images:
            self._make_disk(image)

    def _make_disk(self, image: Path) -> None:
        need_program(MAKE[self._fs][0])
        subprocess.run(["truncate", "-s", SIZES[self._fs], image], check=True)
        subprocess.run([*MAKE[self._fs], image], check=True, capture_output=True)
        mine = f"mount -o loop {image} /mnt && chown {self._person.uid}:{self._person.uid} /mnt"
        subprocess.run([*ALONE, "sh", "-ec", f"{mine}; umount /mnt"], check=True)
        subprocess.run(["cp", "--sparse=always", image, f"{image}.empty"], check=True)

    def work(self, *parts: str, no_syncs: bool = False) -> None:
        """Run the workload to its end on the recorded disks."""
        with self._recorder() as files:
            script = [HERE / "workload.py", self._person.home, self._origins, self._record, *parts]
            done = self._alone(files, script, "", no_syncs=no_syncs)
        assert done.returncode == 0, done.stderr
        self._lines = [json.loads(line) for line in done.stdout.splitlines()]

    @contextmanager
    def _recorder(self) -> Iterator[list[Path]]:
        mountpoint = self._top / "recorder"
        mountpoint.mkdir()
        argv = [sys.executable, HERE / "recorder.py", mountpoint, self._record, *self._images]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout
                assert process.stdout.readline() == b"ready\n"
                yield [mountpoint / str(number) for number in range(len(self._images))]
            finally:
                subprocess.run(["umount", mountpoint], check=True)

    def _alone(
        self, images: Sequence[Path], script: Sequence[object], asked: str, *, no_syncs: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a script of ours as the person, with the disks mounted, and end everything that it leaves behind."""
        mounts = [f"mount -o loop {image} {place}" for image, place in zip(images, self._places, strict=True)]
        mounts.insert(0, "sleep 1000 &")  # bubblewrap wants a process 2 in /proc, as every machine has
        words = self._person.command([self._person.python_program, "-B", *map(str, script)])
        packages = [str(HERE / "no_syncs")] if no_syncs else []
        environment = self._person.environment()
        environment["PYTHONPATH"] = os.pathsep.join([*packages, environment["PYTHONPATH"]])
        return subprocess.run(
            [*ALONE, "sh", "-ec", "\n".join([*mounts, 'exec "$@"']), "sh", *words],
            input=asked,
            capture_output=True,
            text=True,
            env=environment,
            cwd="/",
            check=False,
            timeout=300,
        )

    # -- cuts ----------------------------------------------------------------------------------------------------------

    def moments(self, count: int, seed: int) -> list[int]:
        """Where to cut: right after acknowledgements, where least is left to chance, and between any two writes."""
        chance = random.Random(seed)
        done = [line["at"] for line in self._lines if "done" in line]
        between = [at for at, *_ in self._writes() if done[0] < at < done[-1]]
        few = chance.sample(done, min(len(done), (count * 2 + 2) // 3))
        return sorted({*few, *chance.sample(between, min(len(between), count - len(few)))})

    def acknowledgements(self) -> list[int]:
        return [line["at"] for line in self._lines if "done" in line]

    def cut(self, moment: int, seed: int) -> list[str]:
        """What is wrong after a cut at this moment; chance decides how much of what was not flushed is lost."""
        chance = random.Random(seed)
        keep = chance.choice((0.0, 0.5, 0.9))
        images = [Path(f"{image}.cut") for image in self._images]
        for number, image in enumerate(images):
            # A new file each time: the mounts of the last cut may still be on their way out, and write to theirs.
            image.unlink(missing_ok=True)
            subprocess.run(["cp", "--sparse=always", f"{self._images[number]}.empty", image], check=True)
            self._replay(number, image, moment, chance, keep)
        holds: dict[str, Any] = {}
        may: dict[str, Any] = {}
        step = ""
        for line in self._lines:
            if "step" in line:
                may, step = line["claims"], line["step"]
            elif line["at"] <= moment:
                holds, may = {**holds, **line["claims"]}, {}
            else:
                break
        holds |= {key: None for key in may if key not in holds and key.startswith(("state ", "work "))}
        done = self._alone(images, [HERE / "check.py", self._person.home], json.dumps({"holds": holds, "may": may}))
        where = f"{self._fs}: cut at {moment}, {'in' if may else 'after'} “{step}”, {keep:.0%} of the rest kept"
        if done.returncode:
            return [f"{where}: {done.stdout}{done.stderr}"]
        return [f"{where}: {problem}" for problem in json.loads(done.stdout.splitlines()[-1])]

    def _replay(self, number: int, image: Path, moment: int, chance: random.Random, keep: float) -> None:
        """Write what was flushed, and of the rest what chance keeps, block by block."""
        records = [(at, *rest) for at, *rest in self._writes() if at <= moment and rest[0] == number]
        flushed = max((at for at, _, kind, *_ in records if kind == FLUSH), default=0)
        source, target = os.open(self._record, os.O_RDONLY), os.open(image, os.O_WRONLY)
        try:
            for at, _, kind, offset, start, length in records:
                if kind != WRITE:
                    continue
                data = os.pread(source, length, start)
                if at <= flushed:
                    os.pwrite(target, data, offset)
                    continue
                for block in range(0, length, BLOCK):
                    if chance.random() < keep:
                        os.pwrite(target, data[block : block + BLOCK], offset + block)
        finally:
            os.close(source)
            os.close(target)

    def _writes(self) -> list[tuple[int, int, int, int, int, int]]:
        """Each record: where it ends, its disk, its kind, the offset on the disk, where its bytes are, and how many."""
        if not hasattr(self, "_all"):
            self._all = []
            with open(self._record, "rb") as file:
                while header := file.read(HEADER.size):
                    offset, length, disk, kind = HEADER.unpack(header)
                    start = file.tell()
                    file.seek(length, os.SEEK_CUR)
                    self._all.append((file.tell(), disk, kind, offset, start, length))
        return self._all
