"""What was acknowledged is there after a power cut, nothing is stuck, and `repair` says nothing of what is unharmed.

A few cuts on each kind of disk; `AW_POWER_CUTS=N` makes it N, on every kind of disk for root and for an ordinary user.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from people import a_person
from powercut.lab import Lab

CUTS = int(os.environ.get("AW_POWER_CUTS", "0"))
SEED = int(os.environ.get("AW_POWER_SEED", "1"))
FEW = 7
DISKS = (
    [(who, fs, disks) for who in ("ordinary", "root") for fs in ("ext4", "xfs", "btrfs") for disks in (1, 2)]
    if CUTS
    else [("root", "ext4", 1), ("ordinary", "ext4", 2), ("root", "btrfs", 2), ("ordinary", "xfs", 2)]
)


@pytest.mark.parametrize(("who", "fs", "disks"), DISKS)
def test_what_was_acknowledged_survives(who: str, fs: str, disks: int, tmp_path: Path) -> None:
    with a_person(who) as person:
        lab = Lab(person, tmp_path, fs, disks)
        lab.work()
        problems = [
            each
            for number, moment in enumerate(lab.moments(CUTS or FEW, SEED))
            for each in lab.cut(moment, SEED + number)
        ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("who", ["ordinary", "root"])
def test_without_syncs_it_does_not(who: str, tmp_path: Path) -> None:
    with a_person(who) as person:
        lab = Lab(person, tmp_path, "ext4", 1)
        lab.work("files", no_syncs=True)
        last = lab.acknowledgements()[-1]
        problems = lab.cut(last, 0)
    assert any("work files/a" in each for each in problems), problems
