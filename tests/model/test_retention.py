"""What may go, as a function of what is known: each reason to stay is one by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workstead.model.retention import (
    STILL,
    Cached,
    Live,
    Rules,
    Trashed,
    judge_cached,
    judge_live,
    judge_trashed,
    least_recent,
)

DAYS = st.floats(0, 1000, allow_nan=False)
MAYBE = st.sampled_from([True, False, None])
DESKS = st.builds(
    Live,
    state=st.sampled_from([*STILL, "creating", "destroying", "restoring", "reverting", "applying"]),
    idle_days=DAYS,
    is_here=st.booleans(),
    pinned=st.booleans(),
    active_runs=st.integers(0, 3),
    is_held=st.booleans(),
    unapplied=MAYBE,
    results=MAYBE,
)
RULES = st.builds(
    Rules,
    retention_days=st.none() | DAYS,
    trash_days=DAYS,
    archive_first=st.booleans(),
    pressed=st.booleans(),
)


@given(DESKS, RULES)
def test_nothing_goes_that_anybody_could_miss(facts: Live, rules: Rules) -> None:
    verdict = judge_live(facts, rules)
    assert verdict.why
    if verdict.goes:
        assert facts.is_here
        assert facts.state in STILL
        assert (facts.pinned, facts.active_runs, facts.is_held) == (False, 0, False)
        assert facts.unapplied is False
        assert facts.results is False or (facts.results and rules.archive_first)
        assert rules.pressed or (rules.retention_days is not None and facts.idle_days >= rules.retention_days)


@given(DAYS, RULES)
def test_what_nobody_could_miss_goes_in_its_time(idle: float, rules: Rules) -> None:
    due = rules.pressed or (rules.retention_days is not None and idle >= rules.retention_days)
    assert judge_live(Live(state="ready", idle_days=idle), rules).goes == due


@given(DESKS, RULES)
def test_what_a_first_look_keeps_a_closer_one_does_not_take(facts: Live, rules: Rules) -> None:
    """The sweep looks closer only at what the first look lets go."""
    first = judge_live(facts.replace(is_held=False, unapplied=False, results=False), rules)
    assert first.goes or not judge_live(facts, rules).goes


@given(st.builds(Trashed, days=DAYS, is_here=st.booleans(), pinned=st.booleans(), asked_for=st.booleans()), RULES)
def test_the_trash_keeps_its_time_however_much_space_is_wanted(trashed: Trashed, rules: Rules) -> None:
    verdict = judge_trashed(trashed, rules)
    assert verdict == judge_trashed(trashed, rules.replace(pressed=not rules.pressed))
    due = trashed.asked_for or (not trashed.pinned and trashed.days >= rules.trash_days)
    assert verdict.goes == (trashed.is_here and due)


@given(st.builds(Cached, idle_days=DAYS, used_by=st.integers(0, 2)), RULES)
def test_a_cache_goes_only_if_nothing_stands_on_it_and_space_is_wanted(cached: Cached, rules: Rules) -> None:
    expected = rules.pressed and not cached.used_by and cached.idle_days >= rules.cache_days
    assert judge_cached(cached, rules).goes == expected


@given(st.dictionaries(st.text(max_size=3), st.tuples(DAYS, st.integers(0, 100))), st.integers(-10, 500))
def test_the_longest_unused_go_first_and_no_more_than_needed(items: dict[str, tuple[float, int]], wanted: int) -> None:
    taken = least_recent([(name, *rest) for name, rest in items.items()], wanted)
    sizes = [items[name][1] for name in taken]
    assert all(sizes)
    if taken:
        assert sum(sizes[:-1]) < wanted
        idlest = min(items[name][0] for name in taken)
        assert all(idle <= idlest or not size for name, (idle, size) in items.items() if name not in taken)
    left = sum(size for name, (_, size) in items.items() if name not in taken)
    assert sum(sizes) >= wanted or left == 0
