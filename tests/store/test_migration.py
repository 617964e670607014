"""Schemas grow: an older log is brought up to date, a newer one is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from situations import fork, wait, wait_all
from workstead.errors import StoreUnavailable
from workstead.model.event import Caller
from workstead.store.log import Log
from workstead.store.sqlite import Sqlite

Migrations = tuple[tuple[str, ...], ...]
LATER: tuple[str, ...] = ("CREATE TABLE {schema}extra (x integer)", "INSERT INTO {schema}extra VALUES (1)")


class Place:
    """A kind of store, its schema as it is, and one step that may come later."""

    def __init__(self, open_at: Callable[[Migrations], Any], now: Migrations, schema: str) -> None:
        self.open_at = open_at
        self.now = now
        self.later: Migrations = (*now, tuple(statement.format(schema=schema) for statement in LATER))


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    opened: list[Any] = []

    def kept(database: Any) -> Any:
        opened.append(database)
        return database

    if request.param == "sqlite":
        from workstead.store.sqlite import MIGRATIONS

        yield Place(lambda steps: kept(Sqlite(str(tmp_path / "log.db"), steps)), MIGRATIONS, "")
    else:
        from workstead.store.postgres import MIGRATIONS as SERVER_MIGRATIONS
        from workstead.store.postgres import Postgres

        url = request.getfixturevalue("postgres_url")
        yield Place(lambda steps: kept(Postgres(url, steps)), SERVER_MIGRATIONS, "carrel.")
    for database in opened:
        database.close()


def test_an_older_log_is_brought_up_to_date_with_all_that_is_in_it(place: Place) -> None:
    old = Log(place.open_at(place.now))
    old.append_raw("t", [("file_written", {"word": "x"})], Caller())
    new = place.open_at(place.later)
    assert new.execute("SELECT x FROM extra") == [(1,)]
    assert [event.event_data for event in Log(new).read()] == [{"word": "x"}]
    assert Log(new).verify().broken is None


def test_an_empty_schema_takes_every_step(place: Place) -> None:
    place.open_at(())
    assert place.open_at(place.later).execute("SELECT x FROM extra") == [(1,)]


def test_a_migration_is_done_once(place: Place) -> None:
    for _ in range(3):
        assert place.open_at(place.later).execute("SELECT x FROM extra") == [(1,)]


def test_a_newer_log_is_refused_and_left_alone(place: Place) -> None:
    newer = place.open_at(place.later)
    known = len(place.now)
    with pytest.raises(
        StoreUnavailable, match=f"schema {known + 1}, and this version of Workstead knows {known}"
    ) as caught:
        place.open_at(place.now)
    assert "upgrade" in caught.value.hint
    assert newer.execute("SELECT x FROM extra") == [(1,)]


def test_a_migration_that_fails_changes_nothing(place: Place) -> None:
    place.open_at(place.now)
    broken = (*place.now, (place.later[-1][0], "SELECT nonsense FROM nowhere"))
    with pytest.raises(Exception, match="nowhere"):
        place.open_at(broken)
    assert place.open_at(place.later).execute("SELECT x FROM extra") == [(1,)]


def test_several_first_openers_make_one_schema(place: Place) -> None:
    for _ in range(5):
        wait_all([fork(lambda: place.open_at(place.later)) for _ in range(4)])
    assert place.open_at(place.later).execute("SELECT x FROM extra") == [(1,)]


def test_a_child_that_opens_what_its_parent_has_open_does_no_harm(place: Place) -> None:
    log = Log(place.open_at(place.now))
    assert wait(fork(lambda: Log(place.open_at(place.now)).append_raw("t", [("file_read", {})], Caller()))) == 0
    assert log.version("t") == 1
