"""Disks that lose power: run the workload on recorded disks, then open what any moment would have left of them."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from needs import need_program
from people import Person
from powercut.replay import Record

HERE = Path(__file__).parent
SIZE = "640M"  # a run is stopped where less than 256 MiB are free; the images are sparse
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F", "-N", "8192"], "xfs": ["mkfs.xfs", "-q"], "btrfs": ["mkfs.btrfs", "-q"]}
# Everything that is started in here ends with it, and so do its mounts.
ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
KEEP = (0.0, 0.0, 0.5, 0.9, 1.0)  # how much of what was not flushed a cut leaves


class Lab:
    """One person's disks, the record of what was written to them, and what was acknowledged when."""

    def __init__(self, person: Person, fs: str, disks: int) -> None:
        # In memory: the disks of the lab are told to flush thousands of times, and no real one has to.
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._person, self._top, self._fs = person, Path(tempfile.mkdtemp(prefix="aw-power-", dir=shared)), fs
        self._top.chmod(0o755)  # the person looks at the record
        self._images = [self._top / f"disk{number}" for number in range(disks)]
        self._places = [person.folder(f"disk{number}") for number in range(disks)]
        person.home = self._places[0] / "home"
        self._origins = self._places[-1] / "origins"
        self._lines: list[dict[str, Any]] = []
        self._checker: subprocess.Popen[str] | None = None
        for image in self._images:
            self._make_disk(image)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._checker is not None:
            self._checker.communicate()
        shutil.rmtree(self._top)

    def _make_disk(self, image: Path) -> None:
        need_program(MAKE[self._fs][0])
        subprocess.run(["truncate", "-s", SIZE, image], check=True)
        subprocess.run([*MAKE[self._fs], image], check=True, capture_output=True)
        mine = f"mount -o loop {image} /mnt && chown {self._person.uid}:{self._person.uid} /mnt"
        subprocess.run([*ALONE, "sh", "-ec", f"{mine}; umount /mnt"], check=True)
        subprocess.run(["cp", "--sparse=always", image, f"{image}.empty"], check=True)

    def work(self, *parts: str, no_syncs: bool = False) -> None:
        """Run the workload to its end on the recorded disks."""
        record = self._top / "record"
        with self._recorder(self._images, record) as files:
            script = [HERE / "workload.py", self._person.home, self._origins, record, *parts]
            done = self._alone(files, script, no_syncs=no_syncs)
        assert done.returncode == 0, done.stderr
        self._lines = [json.loads(line) for line in done.stdout.splitlines()]
        self._record = Record(record, [Path(f"{image}.empty") for image in self._images])

    @contextmanager
    def _recorder(self, images: Sequence[Path], record: Path) -> Iterator[list[Path]]:
        mountpoint = Path(tempfile.mkdtemp(dir=self._top))
        argv: list[str | Path] = [sys.executable, HERE / "recorder.py", mountpoint, record, *images]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout
                assert process.stdout.readline() == b"ready\n"
                yield [mountpoint / str(number) for number in range(len(images))]
            finally:
                subprocess.run(["umount", mountpoint], check=True)
        mountpoint.rmdir()

    def _alone(
        self, images: Sequence[Path], script: Sequence[object], *, no_syncs: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a script of ours as the person, with the disks mounted, and end everything that it leaves behind."""
        mounts = [f"mount -o loop {image} {place}" for image, place in zip(images, self._places, strict=True)]
        mounts.insert(0, "sleep 1000 &")  # bubblewrap wants a process 2 in /proc, as every machine has
        words = self._person.command([self._person.python_program, "-B", *map(str, script)])
        environment = self._environment(*([HERE / "no_syncs"] if no_syncs else []))
        return subprocess.run(
            [*ALONE, "sh", "-ec", "\n".join([*mounts, 'exec "$@"']), "sh", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            cwd="/",
            check=False,
            timeout=300,
        )

    def _environment(self, *packages: Path) -> dict[str, str]:
        environment = self._person.environment()
        environment["PYTHONPATH"] = os.pathsep.join([*map(str, packages), environment["PYTHONPATH"]])
        return environment

    # -- cuts ----------------------------------------------------------------------------------------------------------

    def moments(self, count: int, seed: int) -> list[int]:
        """Where to cut, in order: half right after acknowledgements, a quarter before flushes, the rest anywhere.

        Acknowledgements are taken in equal steps that begin at the seed, so that a few seeds together hit all of them.
        """
        chance = random.Random(seed)
        done = self.acknowledgements()
        step = max(1, -(-len(done) * 2 // count))
        chosen = set(done[seed % step :: step])
        flushes = [at for at in self._record.before_flushes() if done[0] < at < done[-1]]
        chosen |= set(chance.sample(flushes, min(len(flushes), count // 4)))
        rest = [each.at for each in self._record.entries if done[0] < each.at < done[-1] and each.at not in chosen]
        return sorted({*chosen, *chance.sample(rest, max(0, min(len(rest), count - len(chosen))))})

    def acknowledgements(self) -> list[int]:
        return [line["at"] for line in self._lines if "done" in line]

    def cut(self, moment: int, seed: int) -> list[str]:
        """What is wrong after a cut at this moment; chance decides how much of what was not flushed is lost."""
        chance = random.Random(seed)
        keep = chance.choice(KEEP)
        images = [Path(f"{image}.cut") for image in self._images]
        self._record.rebuild(moment, images, chance, keep)
        claims, where = self._acknowledged(moment)
        found = self._ask(images, boot="after the cut", **claims)
        return [f"{self._fs}: cut at {moment}, {where}, {keep:.0%} of the rest kept: {each}" for each in found]

    def cut_recovery(self, moment: int, seed: int) -> list[str]:
        """The same with a second cut, in the middle of what the first one made necessary."""
        chance = random.Random(seed)
        keep = chance.choice(KEEP)
        first = [Path(f"{image}.first") for image in self._images]
        self._record.rebuild(moment, first, chance, keep)
        begun = [Path(f"{image}.begun") for image in self._images]
        for image, copy in zip(first, begun, strict=True):
            subprocess.run(["cp", "--sparse=auto", image, copy], check=True)
        claims, where = self._acknowledged(moment)
        with self._recorder(first, self._top / "second") as files:
            found = self._ask(files, boot="after the cut", only_recover=True, **claims)
        second = Record(self._top / "second", begun)
        again = chance.choice([each.at for each in second.entries])
        images = [Path(f"{image}.cut") for image in self._images]
        second.rebuild(again, images, chance, chance.choice(KEEP))
        second.remove()
        found += self._ask(images, boot="after the second cut", **claims)
        return [f"{self._fs}: cut at {moment}, {where}, {keep:.0%} kept, again at {again}: {each}" for each in found]

    def _acknowledged(self, moment: int) -> tuple[dict[str, Any], str]:
        """The claims that hold at a moment, those of the step that was under way, and where that is in words."""
        holds: dict[str, Any] = {}
        may: dict[str, Any] = {}
        step, atomic = "", True
        for line in self._lines:
            if "step" in line:
                may, step, atomic = line["claims"], line["step"], line["atomic"]
            elif line["at"] <= moment:
                holds, may = {**holds, **line["claims"]}, {}
            else:
                break
        holds |= {key: None for key in may if key not in holds and key.startswith(("state ", "work ", "branch "))}
        return {"holds": holds, "may": may, "atomic": atomic}, f"{'in' if may else 'after'} “{step}”"

    def _ask(self, images: Sequence[Path], *, only_recover: bool = False, **claims: Any) -> list[str]:
        """Have the checker mount the images and look."""
        if self._checker is None:
            self._checker = subprocess.Popen(
                [self._person.python_program, "-B", "-m", "powercut.checker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self._environment(HERE.parent),
                cwd="/",
            )
        assert self._checker.stdin
        assert self._checker.stdout
        mounts = [(str(image), str(place)) for image, place in zip(images, self._places, strict=True)]
        where = {"mounts": mounts, "uid": self._person.uid, "home": str(self._person.home)}
        self._checker.stdin.write(json.dumps({**where, **claims, "only_recover": only_recover}) + "\n")
        self._checker.stdin.flush()
        found: list[str] = json.loads(self._checker.stdout.readline())
        return found
