"""A system call that fails, at the steps of every verb: an error of ours, nothing lost, and the verb works afterwards.

By default every fourth step fails with one of four errors in turn, half of them for root and half for an ordinary user.
`AW_FAULTS=1` fails every step, and `AW_FAULTS=full` every single call with each of the errors for both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from faults.acts import Scene
from faults.stage import Stage
from people import a_person

ERRORS = ("ENOSPC", "EIO", "EROFS", "EDQUOT")
CHOSEN = os.environ.get("AW_FAULTS", "4")
PEOPLE = ("ordinary", "root")


@pytest.fixture(scope="module", params=PEOPLE)
def played(request: pytest.FixtureRequest) -> Iterator[tuple[str, Stage]]:
    with a_person(request.param) as person, Stage(person) as stage:
        yield request.param, stage


@pytest.mark.parametrize("act", Scene("").acts())
def test_a_call_that_fails_is_an_error_and_loses_nothing(act: str, played: tuple[str, Stage]) -> None:
    who, stage = played
    problems = [
        f"{error} at {call} {when} ({arguments[:100]}): {each}"
        for call, when, arguments, error in faults(act, who, stage)
        for each in stage.fail(act, call, when, error)
    ]
    assert not problems, "\n".join(problems)


def faults(act: str, who: str, stage: Stage) -> Iterator[tuple[str, int, str, str]]:
    """The calls of an act that fail for one person, and how."""
    if CHOSEN == "full":
        for call, when, arguments in stage.calls(act):
            for error in ERRORS:
                yield call, when, arguments, error
        return
    first = len(act) % int(CHOSEN)  # not the same for each act: many begin alike
    steps: list[list[Any]] = stage.steps(act)[first :: int(CHOSEN)]
    for number, (call, when, arguments) in enumerate(steps):
        if number % len(PEOPLE) == PEOPLE.index(who):
            yield call, when, arguments, ERRORS[(number // len(PEOPLE) + len(act)) % len(ERRORS)]
