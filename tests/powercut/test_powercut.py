"""What was acknowledged is there after a power cut, nothing is stuck, and `repair` says nothing of what is unharmed.

On every kind of disk, for root and for an ordinary user; `AW_POWER_CUTS=N` makes N cuts on each of the twelve, and
`AW_POWER_SEED` other ones.
"""

from __future__ import annotations

import os

import pytest

from people import a_person
from powercut.lab import Lab

CUTS = int(os.environ.get("AW_POWER_CUTS", "25"))
SEED = int(os.environ.get("AW_POWER_SEED", "1"))
DISKS = [(who, fs, disks) for who in ("ordinary", "root") for fs in ("ext4", "xfs", "btrfs") for disks in (1, 2)]


@pytest.mark.parametrize(("who", "fs", "disks"), DISKS)
def test_what_was_acknowledged_survives(who: str, fs: str, disks: int) -> None:
    seed = SEED * len(DISKS) + DISKS.index((who, fs, disks))  # other moments on each
    problems = []
    with a_person(who) as person, Lab(person, fs, disks) as lab:
        lab.work()
        for number, moment in enumerate(lab.moments(CUTS, seed)):
            problems += lab.cut(moment, seed + number)
            if number % 10 == 5:
                problems += lab.cut_recovery(moment, seed + number)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("who", ["ordinary", "root"])
def test_without_syncs_it_does_not(who: str) -> None:
    with a_person(who) as person, Lab(person, "ext4", 1) as lab:
        lab.work("files", no_syncs=True)
        last = lab.acknowledgements()[-1]
        problems = lab.cut(last, 0)
    assert any("work files/a" in each for each in problems), problems
