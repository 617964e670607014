"""What the policy says: a total function, in which the first rule that fits decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workstead.errors import InvalidConfig
from workstead.model.policy import (
    AGENT,
    CAREFUL,
    MAX_RULES,
    OPERATIONS,
    OUTCOMES,
    OWNER,
    PRESETS,
    WITH_PATHS,
    Policy,
    Rule,
    decide,
    differs_below,
    from_log,
    matches,
    narrowed,
    parse_policy,
    with_rule,
)

names = st.sampled_from(["work", "build", "src", "a.py", "b.key", ".github", "x y", "ü"])
paths = st.lists(names, min_size=1, max_size=5).map("/".join)
patterns = st.lists(st.one_of(names, st.sampled_from(["*", "**", "*.py", "b*"])), min_size=1, max_size=4).map("/".join)
operations = st.sampled_from(OPERATIONS)
outcomes = st.sampled_from(OUTCOMES)
rules = st.builds(
    Rule,
    outcome=outcomes,
    operations=st.lists(st.sampled_from(WITH_PATHS), max_size=3),
    paths=st.lists(patterns, max_size=3),
    min_bytes=st.none() | st.integers(0, 100),
    max_bytes=st.none() | st.integers(0, 100),
    binary=st.none() | st.booleans(),
    run=st.sampled_from(["", "run-1"]),
)
policies = st.builds(
    Policy, defaults=st.fixed_dictionaries(dict.fromkeys(OPERATIONS, outcomes)), rules=st.lists(rules, max_size=6)
)
sizes = st.none() | st.integers(0, 120)


@given(policies, operations, paths, sizes, st.none() | st.booleans(), st.sampled_from(["", "run-1"]))
def test_every_request_gets_an_answer_and_the_owner_a_yes(
    policy: Policy, operation: str, path: str, size: int | None, binary: bool | None, run: str
) -> None:
    decision = decide(policy, AGENT, operation, path, size=size, binary=binary, run=run)
    assert decision.outcome in OUTCOMES
    assert decision.rule
    assert decide(policy, OWNER, operation, path, size=size, binary=binary, run=run).outcome == "allow"


@given(policies, operations, paths, st.integers(0, 120), st.booleans(), st.sampled_from(["", "run-1"]))
def test_the_first_rule_that_fits_decides(
    policy: Policy, operation: str, path: str, size: int, binary: bool, run: str
) -> None:
    """Against a second description of what fits: a policy with that rule alone, whose default nobody could mistake."""

    def fits(rule: Rule) -> bool:
        other = next(outcome for outcome in OUTCOMES if outcome != rule.outcome)
        alone = Policy(defaults=dict.fromkeys(OPERATIONS, other), rules=[rule])
        return decide(alone, AGENT, operation, path, size=size, binary=binary, run=run).outcome == rule.outcome

    decision = decide(policy, AGENT, operation, path, size=size, binary=binary, run=run)
    first = next((number for number, rule in enumerate(policy.rules, 1) if fits(rule)), None)
    assert decision.number == first
    expected = policy.rules[first - 1].outcome if first else policy.defaults[operation]
    assert decision.outcome == expected


@given(policies, operations, paths, st.integers(0, 120), st.booleans())
def test_what_is_not_known_is_never_judged_more_mildly(
    policy: Policy, operation: str, path: str, size: int, binary: bool
) -> None:
    known = decide(policy, AGENT, operation, path, size=size, binary=binary).outcome
    for facts in ({"size": size}, {"binary": binary}, {}):
        unknown = decide(policy, AGENT, operation, path, **facts).outcome  # type: ignore[arg-type]
        assert OUTCOMES.index(unknown) >= OUTCOMES.index(known)


@given(policies, operations, paths, paths, sizes)
def test_nothing_inside_is_stricter_unless_it_was_announced(
    policy: Policy, operation: str, path: str, inner: str, size: int | None
) -> None:
    outcome = decide(policy, AGENT, operation, path, size=0, binary=False).outcome
    below = decide(policy, AGENT, operation, f"{path}/{inner}", size=size).outcome
    if OUTCOMES.index(below) > OUTCOMES.index(outcome):
        assert differs_below(policy, operation, outcome)


@given(policies)
def test_a_policy_survives_the_log(policy: Policy) -> None:
    assert parse_policy(policy.stated()).replace(preset="") == policy
    assert from_log(policy.stated()) == policy


@given(policies, st.lists(operations, unique=True), operations, paths)
def test_allowed_operations_only_ever_tighten(policy: Policy, allowed: list[str], operation: str, path: str) -> None:
    narrow = narrowed(policy, allowed)
    before = decide(policy, AGENT, operation, path, size=1, binary=False).outcome
    after = decide(narrow, AGENT, operation, path, size=1, binary=False).outcome
    assert after == (before if operation in allowed else "deny")


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("build/**", "work/build/a", True),
        ("build/**", "work/build/a/b", True),
        ("build/**", "work/build", False),
        ("build/**", "build/a", True),
        ("build/**", "output/build/a", False),
        ("build", "work/build", True),
        ("build", "work/a/build/b", True),
        ("build", "work/builder", False),
        ("/output/**", "output/a", True),
        ("/output/**", "work/output/a", False),
        ("output/**", "work/output/a", True),
        ("*.key", "work/a/b.key", True),
        ("*.key", "work/a/b.keys", False),
        ("src/*.py", "work/src/a.py", True),
        ("src/*.py", "work/src/b/a.py", False),
        ("src/**/*.py", "work/src/b/c/a.py", True),
        ("src/**/*.py", "work/src/a.py", True),
        ("**", "work/a", True),
        ("**/.env", "work/.env", True),
        ("[ab].py", "work/b.py", True),
        ("a.py", "work/A.py", False),
        ("src/", "work/src/a", True),
        ("work", "work", True),
        ("line\nbreak", "work/line\nbreak", True),
    ],
)
def test_patterns_are_those_of_gitignore(pattern: str, path: str, fits: bool) -> None:
    assert matches(pattern, path) is fits


def test_no_pattern_takes_long() -> None:
    """A regular expression made of this one would go back and forth for ever."""
    assert not matches("/".join(["**", "a*a*a*b"] * 20), "/".join(["a" * 30] * 120))


def test_presets_are_what_their_names_say() -> None:
    assert {name for name, outcome in PRESETS["careful"].items() if outcome == "allow"} == {"read", "write", "move"}
    assert {PRESETS["trusting"][name] for name in ("apply", "destroy", "network")} == {"ask"}
    assert [name for name, outcome in PRESETS["read-only"].items() if outcome != "deny"] == ["read"]
    assert "deny" not in PRESETS["careful"].values()


def test_a_policy_is_a_preset_with_what_differs() -> None:
    found = parse_policy({"preset": "trusting", "delete": "deny", "rules": [{"outcome": "ask", "paths": ["*.lock"]}]})
    assert decide(found, AGENT, "delete", "work/a").outcome == "deny"
    assert decide(found, AGENT, "write", "work/a.lock").rule == "rule 1: ask everything in *.lock"
    assert found.preset == ""
    assert parse_policy("read-only").preset == "read-only"
    later = parse_policy({"write": "ask"}, found)
    assert (later.defaults["write"], later.defaults["delete"], later.rules) == ("ask", "deny", found.rules)


def test_a_rule_for_one_run_is_for_no_other() -> None:
    policy = with_rule(CAREFUL, Rule(outcome="allow", operations=["delete"], paths=["build/**"], run="run-1"))
    assert decide(policy, AGENT, "delete", "work/build/a", run="run-1").outcome == "allow"
    assert decide(policy, AGENT, "delete", "work/build/a", run="run-2").outcome == "ask"
    assert decide(policy, AGENT, "delete", "work/build/a").outcome == "ask"


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("wild", "policy.preset"),
        (7, "policy"),
        ({"preset": ["careful"]}, "policy.preset"),
        ({"fly": "allow"}, "policy.fly"),
        ({"read": "maybe"}, "policy.read"),
        ({"rules": {}}, "policy.rules"),
        ({"rules": [3]}, "policy.rules[0]"),
        ({"rules": [{}]}, "policy.rules[0].outcome"),
        ({"rules": [{"outcome": "allow", "path": ["a"]}]}, "policy.rules[0].path"),
        ({"rules": [{"outcome": "allow", "operations": ["fly"]}]}, "policy.rules[0].operations"),
        ({"rules": [{"outcome": "allow", "paths": ["../a"]}]}, "policy.rules[0].paths"),
        ({"rules": [{"outcome": "allow", "paths": [""]}]}, "policy.rules[0].paths"),
        ({"rules": [{"outcome": "allow", "paths": "build"}]}, "policy.rules[0].paths"),
        ({"rules": [{"outcome": "deny", "operations": ["execute"], "paths": ["a"]}]}, "policy.rules[0].paths"),
        ({"rules": [{"outcome": "deny", "min_bytes": -1}]}, "policy.rules[0].min_bytes"),
        ({"rules": [{"outcome": "deny", "binary": "yes"}]}, "policy.rules[0].binary"),
        ({"rules": [{"outcome": "deny"}] * (MAX_RULES + 1)}, "policy.rules"),
        ({"approval_timeout_seconds": 0}, "policy.approval_timeout_seconds"),
        ({"approval_timeout_seconds": float("nan")}, "policy.approval_timeout_seconds"),
    ],
)
def test_what_makes_no_sense_is_named(given: object, key: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse_policy(given)
    assert refused.value.details == {"key": key}
