"""A clock that is wrong for a while takes nothing away and puts nothing out of order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from needs import need, need_program
from people import Person


def aw_at(person: Person, by: str, *words: str) -> Any:
    """What `aw --format json WORDS` prints while its clock is wrong by that much: `+365d`, `-30d`."""
    need_program("faketime")
    libraries = list(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    need(bool(libraries), "libfaketime")
    # Set by `env`, so that it is loaded only after the process has become this person.
    clock = ("env", f"LD_PRELOAD={libraries[0]}", f"FAKETIME={by}")
    done = person.do(*clock, *person.aw_words("--format", "json", *words))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout or "null")


def leaving(person: Person, by: str) -> list[str]:
    """What a sweep at that time would delete from the trash."""
    found = aw_at(person, by, "sweep", "--dry-run")
    return [each["workspace_id"] for each in found if each["kind"] == "trash" and each["goes"]]


def in_trash(person: Person) -> list[str]:
    return [each["workspace_id"] for each in person.aw_json("trash", "list")]


def test_a_sweep_with_the_clock_a_year_ahead_deletes_nothing(person: Person) -> None:
    person.aw_ok("create", "t/a")
    person.aw_ok("destroy", "t/a")
    assert leaving(person, "+8d") == ["t/a"]  # the twin: eight days are more than trash_days, so it would go
    assert leaving(person, "+365d") == []
    aw_at(person, "+365d", "sweep")
    aw_at(person, "+365d", "create", "t/b")  # now the newest event of the log is as wrong as the clock
    aw_at(person, "+365d", "sweep")
    assert in_trash(person) == ["t/a"]
    reasons = [each["why"] for each in aw_at(person, "+365d", "sweep", "--dry-run") if each["workspace_id"] == "t/a"]
    assert reasons[0].startswith("the clock leapt by 365 days at 20")
    # The clock is right again, and the log holds a year that never was.
    person.aw_ok("create", "t/c")
    assert leaving(person, "+8d") == ["t/a"]
    person.aw_ok("undo")
    assert in_trash(person) == []


def test_undo_takes_back_the_last_operation_though_the_clock_was_set_back(person: Person) -> None:
    for name in ("t/a", "t/b"):
        person.aw_ok("create", name)
    person.aw_ok("destroy", "t/a")
    aw_at(person, "-30d", "destroy", "t/b")
    newest, older = person.aw_json("ops")[:2]
    assert newest["workspaces"] == ["t/b"]
    assert newest["at"] < older["at"]  # the clock was really set back
    person.aw_ok("undo")
    assert in_trash(person) == ["t/a"]


def test_snapshots_stay_in_order_though_the_clock_was_set_back(person: Person) -> None:
    person.aw_ok("create", "t/a")
    taken = []
    for number, by in enumerate(("+0d", "-2d", "-1d")):
        person.aw_ok("put", "t/a", "work/n", feed=str(number))
        taken.append(aw_at(person, by, "snapshot", "t/a")["id"])
    listed = [each["id"] for each in person.aw_json("snapshots", "t/a")]
    assert [each for each in listed if each in taken] == taken
