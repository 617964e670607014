"""Old snapshots thin out; those that somebody may come back for do not."""

from __future__ import annotations

from workstead.model.snapshot import Snapshot
from workstead.snapshots.retain import thin

NOW = 1_000_000_000.0
HOUR = 3600.0
DAY = 24 * HOUR


def snapshot(age: float, **fields: str) -> Snapshot:
    return Snapshot(id=f"s{age}", root="empty", taken_at=NOW - age, **fields)


def test_the_base_the_last_and_labelled_ones_stay_however_old() -> None:
    base = snapshot(900 * DAY, cause="base")
    labelled = snapshot(800 * DAY, label="before the big change")
    old = snapshot(700 * DAY)
    last = snapshot(600 * DAY)
    assert thin([base, labelled, old, last], NOW) == (old,)


def test_young_ones_stay_then_one_an_hour_then_one_a_day_then_none() -> None:
    every_ten_minutes = [snapshot(number * 600.0) for number in range(1, 6 * 24 * 120)]
    dropped = set(thin(every_ten_minutes, NOW))
    kept = [each for each in every_ten_minutes if each not in dropped]
    ages = [NOW - each.taken_at for each in kept]
    assert sum(age < DAY for age in ages) == 6 * 24 - 1
    assert sum(DAY <= age < 7 * DAY for age in ages) in range(6 * 24 - 1, 6 * 24 + 3)
    assert sum(age >= 7 * DAY for age in ages) in range(81, 87)
    assert max(ages) < 91 * DAY


def test_thinning_again_drops_nothing_more() -> None:
    some = [snapshot(number * 1000.0) for number in range(2000)]
    dropped = set(thin(some, NOW))
    assert thin([each for each in some if each not in dropped], NOW) == ()


def test_a_clock_that_was_set_back_drops_nothing() -> None:
    assert thin([snapshot(-5 * DAY), snapshot(-6 * DAY), snapshot(-6 * DAY - 1)], NOW) == ()


def test_nothing_to_thin() -> None:
    assert thin([], NOW) == ()
