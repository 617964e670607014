"""Measure arms of a row side by side: interleaved, so that a noisy moment hits all of them alike.

A row file exposes `rows(scratch)`, a generator of `Row`. Each arm is a function that does the thing once. The first
arm is ours; every other is a raw mechanism or a peer, and the table shows ours as a ratio of it.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field


@dataclass
class Row:
    """One line of the table."""

    name: str
    arms: dict[str, Callable[[], object]]
    aim: str = ""  # what we want of the ratio, for the reader: "raw <= 3", "git >= 100x faster"
    rounds: int = 15
    inner: int = 1  # calls per timing, for arms that are too short for the clock
    before: dict[str, Callable[[], object]] = field(default_factory=dict)  # by arm: done before each timing, untimed
    hold: Callable[[], AbstractContextManager[object]] = field(default=nullcontext)  # set up before, tear down after


@dataclass
class Sizes:
    """One line of the table that is no time: `measure` gives the megabytes of every arm, ours first."""

    name: str
    measure: Callable[[], dict[str, float]]
    aim: str = ""


@dataclass
class Result:
    name: str
    aim: str
    arms: dict[str, dict[str, float]]  # arm -> median_ms, low_ms, high_ms or mb, and ratio (ours / arm)


def _nothing() -> None:
    pass


def measure(row: Row | Sizes) -> Result:
    """Time every arm `rounds` times in turn and give medians, quartiles and the ratio of ours to each."""
    if isinstance(row, Sizes):
        sizes = row.measure()
        first = next(iter(sizes.values()))
        return Result(row.name, row.aim, {name: {"mb": size, "ratio": first / size} for name, size in sizes.items()})
    samples: dict[str, list[float]] = {name: [] for name in row.arms}
    with row.hold():
        for name, arm in row.arms.items():
            row.before.get(name, _nothing)()
            arm()  # warm caches and imports, unmeasured
        gc.collect()
        for _ in range(row.rounds):
            for name, arm in row.arms.items():
                row.before.get(name, _nothing)()
                start = time.perf_counter()
                for _ in range(row.inner):
                    arm()
                samples[name].append((time.perf_counter() - start) * 1000 / row.inner)
    medians = {name: statistics.median(times) for name, times in samples.items()}
    ours = next(iter(medians.values()))
    return Result(
        row.name,
        row.aim,
        {
            name: {
                "median_ms": medians[name],
                "low_ms": min(times),
                "high_ms": sorted(times)[int(len(times) * 0.9)],
                "ratio": ours / medians[name] if medians[name] else 0.0,
            }
            for name, times in samples.items()
        },
    )
