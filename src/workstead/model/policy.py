"""Policy evaluation: decide whether an agent's request is allowed, asked or denied, and by which rule.

A policy has a default outcome for each class of operation, and rules that come before the defaults. The first matching
rule decides; without one, the default does. A rule names operations and paths, and may be limited to a range of sizes,
to binary or text content, or to one run. The owner is never judged: a command of the owner is its own approval.

Patterns are those of .gitignore: `*` matches within a name, `**` matches any number of directories, a backslash escapes
the next character, a name without a slash matches at any depth, and a pattern that matches a directory matches
everything below it. A pattern with a slash is relative to the workspace and to `work/`, where agents start; with a
leading slash, to the workspace only.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache

from workstead.errors import InvalidConfig
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

OPERATIONS = ("read", "write", "overwrite", "delete", "move", "execute", "network", "apply", "destroy")
WITH_PATHS = ("read", "write", "overwrite", "delete", "move", "apply")  # the others concern a workspace as a whole
OUTCOMES = ("allow", "ask", "deny")  # in order of strictness
OWNER, AGENT = "owner", "agent"
MAX_RULES = 200


class Rule(Value):
    """An outcome for some operations, paths and conditions; an empty field matches everything."""

    outcome: str
    operations: list[str] = []
    paths: list[str] = []
    min_bytes: int | None = None  # only for content of at least this size
    max_bytes: int | None = None  # only for content of at most this size
    binary: bool | None = None  # True: only binary content; False: only text
    run: str = ""  # only for requests of this run

    def text(self) -> str:
        """Return the rule in words."""
        words = [self.outcome, ", ".join(self.operations) or "everything"]
        words += [f"in {', '.join(self.paths)}"] if self.paths else []
        words += [f"from {self.min_bytes} bytes"] if self.min_bytes is not None else []
        words += [f"up to {self.max_bytes} bytes"] if self.max_bytes is not None else []
        words += ["if binary" if self.binary else "if not binary"] if self.binary is not None else []
        words += [f"for {self.run}"] if self.run else []
        return " ".join(words)

    @property
    def has_condition(self) -> bool:
        """Return whether it depends on the content."""
        return (self.min_bytes, self.max_bytes, self.binary) != (None, None, None)

    def stated(self) -> dict[str, Any]:
        """Return only the fields that were set, as JSON."""
        return {key: value for key, value in self.as_dict().items() if value not in (None, [], "")}


class Policy(Value):
    """The permissions of agents in one workspace."""

    defaults: dict[str, str]  # an outcome for each operation
    rules: list[Rule] = []
    preset: str = ""  # the preset of the defaults; "" if they were set individually
    approval_timeout_seconds: float = 300

    def stated(self) -> dict[str, Any]:
        """Return the policy as JSON for the log, in the form that `parse_policy` reads."""
        return {
            "preset": self.preset,
            **self.defaults,
            "rules": [rule.stated() for rule in self.rules],
            "approval_timeout_seconds": self.approval_timeout_seconds,
        }


class Decision(Value):
    """The outcome for one request."""

    outcome: str
    rule: str  # in words
    number: int | None = None  # of the rule, counted from 1; None for a default outcome or the owner's right


def _preset(**stricter: str) -> dict[str, str]:
    return {operation: stricter.get(operation, "allow") for operation in OPERATIONS}


PRESETS: dict[str, dict[str, str]] = {
    "careful": _preset(overwrite="ask", delete="ask", execute="ask", network="ask", apply="ask", destroy="ask"),
    "trusting": _preset(network="ask", apply="ask", destroy="ask"),
    "read-only": {operation: "allow" if operation == "read" else "deny" for operation in OPERATIONS},
}
CAREFUL = Policy(defaults=PRESETS["careful"], preset="careful")


# -- deciding ----------------------------------------------------------------------------------------------------------


def decide(
    policy: Policy,
    actor: str,
    operation: str,
    path: str = "",
    *,
    size: int | None = None,
    binary: bool | None = None,
    run: str = "",
) -> Decision:
    """Return the decision; `path` is relative to the workspace, and None means unknown (size or kind of the content).

    Where a rule depends on an unknown value, the stricter of the two outcomes applies.
    """
    if actor == OWNER:
        return Decision(outcome="allow", rule="the owner's own commands are their own approval")
    unsure: list[Decision] = []
    steps = _steps(path)
    for number, rule in enumerate(policy.rules, 1):
        fits = _fits(rule, operation, steps, size, binary, run)
        if fits is False:
            continue
        decision = Decision(outcome=rule.outcome, rule=f"rule {number}: {rule.text()}", number=number)
        if fits is True:
            return strictest([decision, *unsure])
        unsure.append(decision)
    named = f" ({policy.preset})" if policy.preset else ""
    default = policy.defaults[operation]
    return strictest([Decision(outcome=default, rule=f"{operation}: {default}{named}"), *unsure])


def strictest(decisions: Iterable[Decision]) -> Decision:
    """Return the strictest of several decisions; of equal ones the first."""
    return max(decisions, key=lambda decision: OUTCOMES.index(decision.outcome))


def _fits(rule: Rule, operation: str, steps: list[str], size: int | None, binary: bool | None, run: str) -> bool | None:
    """Return whether the rule matches the request; None if that depends on an unknown value."""
    if rule.operations and operation not in rule.operations:
        return False
    if rule.run and rule.run != run:
        return False
    if rule.paths and (operation not in WITH_PATHS or not any(_matches(pattern, steps) for pattern in rule.paths)):
        return False
    conditions = []
    if rule.min_bytes is not None:
        conditions.append(None if size is None else size >= rule.min_bytes)
    if rule.max_bytes is not None:
        conditions.append(None if size is None else size <= rule.max_bytes)
    if rule.binary is not None:
        conditions.append(None if binary is None else binary is rule.binary)
    if False in conditions:
        return False
    return None if None in conditions else True


def asks_for_content(policy: Policy, operation: str) -> bool:
    """Return whether a rule depends on the content being binary."""
    return any(rule.binary is not None for rule in policy.rules if not rule.operations or operation in rule.operations)


def differs_below(policy: Policy, operation: str, outcome: str) -> bool:
    """Return whether an entry inside a directory may be judged more strictly than the directory itself was.

    By its path only a stricter rule can: a pattern that matches a directory matches everything in it.
    """
    least = OUTCOMES.index(outcome)
    return any(
        rule.has_condition or (rule.paths and OUTCOMES.index(rule.outcome) > least)
        for rule in policy.rules
        if not rule.operations or operation in rule.operations
    )


def matches(pattern: str, path: str) -> bool:
    """Return whether a path, or a directory above it, matches a pattern."""
    return _matches(pattern, _steps(path))


def literal(path: str) -> str:
    """Return the pattern that matches only this path of the workspace and everything below it, with special characters
    escaped."""
    return "/" + re.sub(r"([*?\[\\])", r"\\\1", path)


def _steps(path: str) -> list[str]:
    return [step for step in path.split("/") if step not in ("", ".")]


def _matches(pattern: str, steps: list[str]) -> bool:
    parts = _parts(pattern)
    if _covers(parts, steps):
        return True
    return steps[:1] == ["work"] and parts[0] != "**" and not pattern.startswith("/") and _covers(parts, steps[1:])


@lru_cache(maxsize=1000)
def _parts(pattern: str) -> tuple[str, ...]:
    parts = [part for part in pattern.split("/") if part]
    if "/" not in pattern.strip("/") and not pattern.startswith("/"):
        parts.insert(0, "**")
    if len(parts) > 1 and parts[-1] == "**":
        parts.append("*")  # matches the entries inside, not the directory itself
    return tuple(parts)


def _covers(parts: tuple[str, ...], steps: list[str]) -> bool:
    """Return whether the pattern matches any number of leading path components."""
    for at, part in enumerate(parts):
        if part == "**":
            return _covers_anywhere(parts[at:], steps[at:])
        if at >= len(steps) or not _fits_name(part, steps[at]):
            return False
    return True


def _fits_name(part: str, name: str) -> bool:
    if "\\" in part:
        return fnmatchcase(name, _unescaped(part))
    return part == name or fnmatchcase(name, part)


@lru_cache(maxsize=1000)
def _unescaped(part: str) -> str:
    """Translate a part of a pattern to fnmatch syntax, which has no backslash."""
    return re.sub(r"\\(.)", lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], part)


def _covers_anywhere(parts: tuple[str, ...], steps: list[str]) -> bool:
    """The same for a pattern with `**`: all alternatives are tried in parallel, so that matching takes no exponential
    time."""
    end = len(parts)

    def reached(states: set[int]) -> set[int]:
        """Add the states reachable because `**` also matches nothing."""
        found = set(states)
        for state in states:
            while state < end and parts[state] == "**":
                state += 1
                found.add(state)
        return found

    states = reached({0})
    for step in steps:
        if end in states:
            return True
        states = reached(
            {
                state if parts[state] == "**" else state + 1
                for state in states
                if parts[state] == "**" or _fits_name(parts[state], step)
            }
        )
    return end in states


# -- reading -----------------------------------------------------------------------------------------------------------


def parse_policy(given: Any, base: Policy = CAREFUL) -> Policy:
    """Return a policy from the name of a preset, or from an object with `preset`, operations, `rules` and a timeout;
    missing keys are taken from the base."""
    if isinstance(given, str):
        given = {"preset": given}
    if not isinstance(given, dict):
        raise _wrong("policy", given, f"one of {', '.join(PRESETS)}, or an object")
    for key in given:
        if key not in ("preset", "rules", "approval_timeout_seconds", *OPERATIONS):
            raise InvalidConfig(
                f"unknown key policy.{key} in the configuration",
                hint=f"known keys: preset, {', '.join(OPERATIONS)}, rules, approval_timeout_seconds",
                details={"key": f"policy.{key}"},
            )
    preset = given.get("preset") or ""
    if not isinstance(preset, str) or (preset and preset not in PRESETS):
        raise _wrong("policy.preset", preset, f"one of {', '.join(PRESETS)}")
    defaults = dict(PRESETS[preset] if preset else base.defaults)
    for operation in OPERATIONS:
        if operation in given:
            defaults[operation] = _outcome(f"policy.{operation}", given[operation])
    rules = _rules(given["rules"]) if "rules" in given else [] if preset else base.rules
    timeout = given.get("approval_timeout_seconds", base.approval_timeout_seconds)
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout <= 10**9:
        raise _wrong("policy.approval_timeout_seconds", timeout, "a number of seconds above 0")
    name = preset or base.preset
    named = name if name and defaults == PRESETS[name] else ""
    return Policy(defaults=defaults, rules=rules, preset=named, approval_timeout_seconds=timeout)


def from_log(stated: Mapping[str, Any]) -> Policy:
    """Return a policy as `stated` recorded it; it was validated then, and is not validated again for every request."""
    return Policy(
        defaults={operation: stated.get(operation, PRESETS["careful"][operation]) for operation in OPERATIONS},
        rules=[Rule(**rule) for rule in stated["rules"]],
        preset=stated["preset"],
        approval_timeout_seconds=stated["approval_timeout_seconds"],
    )


def narrowed(policy: Policy, allowed_operations: Sequence[str] | None) -> Policy:
    """Return the policy with every operation denied except these."""
    if allowed_operations is None:
        return policy
    others = [operation for operation in OPERATIONS if operation not in allowed_operations]
    return policy.replace(rules=[Rule(outcome="deny", operations=others), *policy.rules]) if others else policy


def with_rule(policy: Policy, rule: Rule) -> Policy:
    """Return the policy with one more rule, before all others."""
    return policy.replace(rules=_rules([rule.stated(), *(each.stated() for each in policy.rules)]))


def _rules(given: Any) -> list[Rule]:
    if not isinstance(given, list):
        raise _wrong("policy.rules", given, "a list of objects")
    if len(given) > MAX_RULES:
        raise _wrong("policy.rules", f"{len(given)} rules", f"at most {MAX_RULES} rules")
    return [_rule(f"policy.rules[{number}]", each) for number, each in enumerate(given)]


def _rule(key: str, given: Any) -> Rule:
    if not isinstance(given, dict):
        raise _wrong(key, given, "an object")
    for name in given:
        if name not in Rule.__types__:
            raise InvalidConfig(
                f"unknown key {key}.{name} in the configuration",
                hint=f"known keys: {', '.join(Rule.__types__)}",
                details={"key": f"{key}.{name}"},
            )
    rule = Rule(
        outcome=_outcome(f"{key}.outcome", given.get("outcome")),
        operations=_operations(f"{key}.operations", given.get("operations", [])),
        paths=_patterns(f"{key}.paths", given.get("paths", [])),
        min_bytes=_count(f"{key}.min_bytes", given.get("min_bytes")),
        max_bytes=_count(f"{key}.max_bytes", given.get("max_bytes")),
        binary=_truth(f"{key}.binary", given.get("binary")),
        run=_text(f"{key}.run", given.get("run", "")),
    )
    whole = [operation for operation in rule.operations if operation not in WITH_PATHS]
    if whole and rule.paths:
        raise InvalidConfig(
            f"{key} has paths, and {whole[0]} is about a workspace as a whole",
            hint=f"leave out paths, or {', '.join(whole)}",
            details={"key": f"{key}.paths"},
        )
    return rule


def _outcome(key: str, value: Any) -> str:
    if value not in OUTCOMES:
        raise _wrong(key, value, f"one of {', '.join(OUTCOMES)}")
    return str(value)


def _operations(key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(item in OPERATIONS for item in value):
        raise _wrong(key, value, f"a list of {', '.join(OPERATIONS)}")
    return value


def _patterns(key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip("/") for item in value):
        raise _wrong(key, value, "a list of patterns, such as build/**")
    for item in value:
        if ".." in item.split("/") or "\0" in item:
            raise _wrong(key, item, "without a component '..'")
    return value


def _count(key: str, value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise _wrong(key, value, "a number of bytes")
    return value


def _truth(key: str, value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise _wrong(key, value, "true or false")
    return value


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(key, value, "text")
    return value


def _wrong(key: str, value: Any, wanted: str) -> InvalidConfig:
    return InvalidConfig(
        f"{key} in the configuration is {value!r:.60}", hint=f"it has to be {wanted}", details={"key": key}
    )


def of_settings(section: Mapping[str, Any]) -> Policy:
    """Return the policy of the settings' section `policy`."""
    return parse_policy(dict(section))
