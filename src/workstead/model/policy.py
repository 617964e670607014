"""What an agent may do: from a request to allow, ask or deny, and the rule that says so.

A policy has an outcome for each class of operation, and rules before them. The first rule that fits decides; if none
does, the class does. A rule names operations and paths, and may be for some sizes, for binary or text content, or for
one run only. The owner is never judged: a command of the owner's is its own approval.

Patterns are those of .gitignore: `*` stays within a name, `**` goes over any number of directories, a backslash takes
the meaning from the letter after it, a name without a slash is found at any depth, and what is below a directory that
fits is meant too. A pattern with a slash is counted from the workspace and from `work/`, where agents start; with a
slash in front, from the workspace alone.
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
WITH_PATHS = ("read", "write", "overwrite", "delete", "move", "apply")  # the others are about a workspace as a whole
OUTCOMES = ("allow", "ask", "deny")  # each stricter than the one before
OWNER, AGENT = "owner", "agent"
MAX_RULES = 200


class Rule(Value):
    """What holds for some operations, in some places, on some conditions; what is left empty is every one."""

    outcome: str
    operations: list[str] = []
    paths: list[str] = []
    min_bytes: int | None = None  # only for content of at least this size
    max_bytes: int | None = None  # only for content of at most this size
    binary: bool | None = None  # only for content that is binary, or only for content that is not
    run: str = ""  # only for requests of this run

    def text(self) -> str:
        """The rule as a person would say it."""
        words = [self.outcome, ", ".join(self.operations) or "everything"]
        words += [f"in {', '.join(self.paths)}"] if self.paths else []
        words += [f"from {self.min_bytes} bytes"] if self.min_bytes is not None else []
        words += [f"up to {self.max_bytes} bytes"] if self.max_bytes is not None else []
        words += ["if binary" if self.binary else "if not binary"] if self.binary is not None else []
        words += [f"for {self.run}"] if self.run else []
        return " ".join(words)

    @property
    def has_condition(self) -> bool:
        """Whether it depends on the content."""
        return (self.min_bytes, self.max_bytes, self.binary) != (None, None, None)

    def stated(self) -> dict[str, Any]:
        """Only what was said, as JSON."""
        return {key: value for key, value in self.as_dict().items() if value not in (None, [], "")}


class Policy(Value):
    """What agents may do in one workspace."""

    defaults: dict[str, str]  # an outcome for each operation
    rules: list[Rule] = []
    preset: str = ""  # what the defaults were taken from; "" if somebody chose them
    approval_timeout_seconds: float = 300

    def stated(self) -> dict[str, Any]:
        """As JSON, in the form that `parse_policy` reads: this goes into the log."""
        return {
            "preset": self.preset,
            **self.defaults,
            "rules": [rule.stated() for rule in self.rules],
            "approval_timeout_seconds": self.approval_timeout_seconds,
        }


class Decision(Value):
    """What the policy says to one request."""

    outcome: str
    rule: str  # in words
    number: int | None = None  # of the rule, counted from 1; None if it is the class's outcome, or the owner's right


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
    """What the policy says; `path` is relative to the workspace, and None is what is not known about the content.

    Where a rule depends on what is not known, the stricter of the two possibilities holds.
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
    """The one that counts when several have to be kept; of equal ones the first."""
    return max(decisions, key=lambda decision: OUTCOMES.index(decision.outcome))


def _fits(rule: Rule, operation: str, steps: list[str], size: int | None, binary: bool | None, run: str) -> bool | None:
    """Whether the rule is about this; None if that depends on what is not known."""
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
    """Whether it matters to some rule if the content is binary."""
    return any(rule.binary is not None for rule in policy.rules if not rule.operations or operation in rule.operations)


def differs_below(policy: Policy, operation: str, outcome: str) -> bool:
    """Whether something inside a directory may be judged more strictly than the directory itself was.

    By its path only a stricter rule can: a pattern that fits a directory fits all that is in it."""
    least = OUTCOMES.index(outcome)
    return any(
        rule.has_condition or (rule.paths and OUTCOMES.index(rule.outcome) > least)
        for rule in policy.rules
        if not rule.operations or operation in rule.operations
    )


def matches(pattern: str, path: str) -> bool:
    """Whether a path fits a pattern, itself or by a directory above it."""
    return _matches(pattern, _steps(path))


def literal(path: str) -> str:
    """The pattern that only this path of the workspace fits, and what is below it, whatever letters its names have."""
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
        parts.append("*")  # what is inside, not the directory itself
    return tuple(parts)


def _covers(parts: tuple[str, ...], steps: list[str]) -> bool:
    """Whether the pattern fits the first steps, however many."""
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
    """A part of a pattern in the language of fnmatch, which has no backslash."""
    return re.sub(r"\\(.)", lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], part)


def _covers_anywhere(parts: tuple[str, ...], steps: list[str]) -> bool:
    """The same for a pattern with `**`: all its possibilities are tried side by side, so that none takes long."""
    end = len(parts)

    def reached(states: set[int]) -> set[int]:
        """`**` may also stand for nothing."""
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
    """A policy from the name of a preset, or from an object with `preset`, operations, `rules` and a time-out; what it
    does not say is taken from the base."""
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
    """A policy as `stated` wrote it down: it was checked then, and is not again for every request."""
    return Policy(
        defaults={operation: stated.get(operation, PRESETS["careful"][operation]) for operation in OPERATIONS},
        rules=[Rule(**rule) for rule in stated["rules"]],
        preset=stated["preset"],
        approval_timeout_seconds=stated["approval_timeout_seconds"],
    )


def narrowed(policy: Policy, allowed_operations: Sequence[str] | None) -> Policy:
    """The policy under which only these operations are possible at all."""
    if allowed_operations is None:
        return policy
    others = [operation for operation in OPERATIONS if operation not in allowed_operations]
    return policy.replace(rules=[Rule(outcome="deny", operations=others), *policy.rules]) if others else policy


def with_rule(policy: Policy, rule: Rule) -> Policy:
    """The policy with one more rule, before all others."""
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
    """The policy that the settings' section `policy` describes."""
    return parse_policy(dict(section))
