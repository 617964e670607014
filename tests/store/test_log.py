"""The store contract: the same promises on SQLite and on PostgreSQL, both real."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from situations import fork, wait
from waiting import wait_until
from workstead.errors import Invalid, InvalidConfig, LogBroken, StoreUnavailable, VersionConflict, WrongStatus
from workstead.model.event import Caller, Event, WorkspaceCreated, WorkspaceCreating
from workstead.model.value import Value
from workstead.store import Log, open_log
from workstead.store.log import LabelTaken

ADA = Caller(actor_id="ada", correlation_id="c1", causation_id="e1")


class Store:
    """A place for a log, and a way to reach around it."""

    def __init__(self, path: Path, url: str | None) -> None:
        self.path = path
        self.url = url
        self._opened: list[Log] = []

    def open(self) -> Log:
        log = open_log(str(self.path), self.url)
        self._opened.append(log)
        return log

    def run(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Do to the database what only an intruder or a bug would do."""
        if self.url is None:
            with sqlite3.connect(self.path) as connection:
                rows = connection.execute(sql, values).fetchall()
            connection.close()
            return rows
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as server:
            server.execute("SET search_path TO carrel")
            cursor = server.execute(sql.replace("?", "%s").encode(), values)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        for log in self._opened:
            log.close()


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    store = Store(tmp_path / "log.db", url)
    yield store
    store.close()


@pytest.fixture
def log(store: Store) -> Log:
    return store.open()


@pytest.fixture
def a_told_log(log: Log) -> Log:
    """Two streams, some workspaces, eight events."""
    for name in ("a", "b"):
        log.append("t1", [creating(f"t1/{name}"), created(f"t1/{name}")], ADA)
    log.append("t2", [creating("t2/a")], ADA)
    log.append("t2", [created("t2/a")], ADA)
    note(log, "t1", "x", "y")
    return log


def creating(workspace_id: str, uid: str = "") -> Value:
    agent = workspace_id.partition("/")[2]
    return WorkspaceCreating(
        workspace_id=workspace_id,
        agent_id=agent,
        uid=uid or f"uid-{workspace_id}",
        workspace_path=f"/w/{workspace_id}",
        source="empty",
        config={},
        home="h",
    )


def created(workspace_id: str, uid: str = "") -> Value:
    return WorkspaceCreated(
        workspace_id=workspace_id,
        agent_id=workspace_id.partition("/")[2],
        uid=uid or f"uid-{workspace_id}",
        workspace_path=f"/w/{workspace_id}",
        source="empty",
        config={},
    )


def note(log: Log, stream: str, *words: str, kind: str = "file_written") -> list[Event]:
    """Events that change no record."""
    return log.append_raw(stream, [(kind, {"word": word}) for word in words], ADA)


def words(events: Iterator[Event]) -> list[object]:
    return [event.event_data["word"] for event in events]


# -- append ------------------------------------------------------------------------------------------------------------


def test_an_event_is_read_as_it_was_appended(log: Log) -> None:
    (event,) = note(log, "t", "x")
    assert list(log.read()) == [event]
    assert event.position == event.version == 1
    assert (event.stream, event.event_type, event.event_data) == ("t", "file_written", {"word": "x"})
    assert event.recorded_at.endswith("Z")
    assert len(event.hash) == 64


def test_the_ids_of_the_caller_are_in_every_event(log: Log) -> None:
    note(log, "t", "x", "y")
    for event in log.read():
        assert event.actor_id == "ada"
        assert event.metadata == {"correlation_id": "c1", "causation_id": "e1"}


def test_positions_have_no_gaps_and_versions_count_in_each_stream(log: Log) -> None:
    for stream in ("a", "b", "a", "a", "b"):
        note(log, stream, "x", "y")
    events = list(log.read())
    assert [event.position for event in events] == list(range(1, 11))
    assert [event.version for event in events if event.stream == "a"] == [1, 2, 3, 4, 5, 6]
    assert log.version("a") == 6
    assert log.version("nobody") == 0
    assert log.last_position() == 10


def test_an_append_on_another_version_than_expected_is_refused(log: Log) -> None:
    note(log, "t", "x")
    with pytest.raises(VersionConflict) as caught:
        log.append_raw("t", [("file_written", {})], ADA, expected_version=0)
    assert caught.value.retryable
    assert log.last_position() == 1
    log.append_raw("t", [("file_written", {})], ADA, expected_version=1)
    assert log.version("t") == 2


def test_all_facts_of_an_append_are_written_or_none(log: Log) -> None:
    log.append("t", [creating("t/a")], ADA)
    with pytest.raises(WrongStatus):
        log.append("t", [creating("t/b"), created("t/a"), created("t/a")], ADA)
    assert log.last_position() == log.version("t") == 1
    assert log.find_live("workspace", "t/b") is None
    assert log.get("workspace", "uid-t/a")["state"] == "creating"  # type: ignore[index]
    log.append("t", [created("t/a")], ADA)  # no gap is left where the refused ones would have been
    assert log.verify().broken is None


def test_a_live_label_is_held_by_one_record_alone(log: Log) -> None:
    log.append("t", [creating("t/a", "u1")], ADA)
    with pytest.raises(LabelTaken) as caught:
        log.append("t", [creating("t/a", "u2")], ADA)
    assert caught.value.args == ("workspace", "t/a")
    assert log.last_position() == 1
    assert log.get("workspace", "u2") is None
    note(log, "t", "and it goes on")
    assert log.verify().broken is None


def test_an_intent_may_be_less_durable_but_is_there(store: Store, log: Log) -> None:
    log.append("t", [creating("t/a")], ADA, durable=False)
    assert store.open().find_live("workspace", "t/a")
    log.append("t", [created("t/a")], ADA)
    assert log.verify().events == 2


@pytest.mark.parametrize("text", ["\udcff name", "lone \ud800", "NUL \0", "line\nü \U0001f600", "?%s'\"\\"])
def test_any_text_survives_inside_an_event(log: Log, text: str) -> None:
    log.append_raw("t", [("file_written", {"path": text, text: [text]})], ADA)
    log.append("t", [creating("t/a").replace(source=text, config={text: {text: None}})], ADA)
    assert next(log.read()).event_data == {"path": text, text: [text]}
    assert log.get("workspace", "uid-t/a")["config"] == {text: {text: None}}  # type: ignore[index]
    assert log.verify().broken is None
    log.rebuild_views()
    assert log.verify().broken is None


@pytest.mark.parametrize("text", ["\udcff", "a\0b"])
def test_a_stream_or_actor_that_no_database_can_hold_is_refused(log: Log, text: str) -> None:
    with pytest.raises(Invalid):
        note(log, text, "x")
    with pytest.raises(Invalid):
        log.append_raw("t", [("file_written", {})], Caller(actor_id=text))
    assert log.last_position() == 0


@pytest.mark.parametrize("stream", ["ü", "a b", "?", "%s", "'; DROP TABLE events; --", "x" * 200])
def test_any_other_text_names_a_stream(log: Log, stream: str) -> None:
    note(log, stream, "x")
    assert words(log.read(stream=stream)) == ["x"]
    assert log.verify().broken is None


# -- read --------------------------------------------------------------------------------------------------------------


def test_reading_can_be_narrowed_down(log: Log) -> None:
    note(log, "a", "1", "2")
    note(log, "b", "3")
    note(log, "a", "4", kind="file_deleted")
    note(log, "b", "5", kind="file_moved")
    assert words(log.read()) == ["1", "2", "3", "4", "5"]
    assert words(log.read(after=2)) == ["3", "4", "5"]
    assert words(log.read(after=99)) == []
    assert words(log.read(stream="a")) == ["1", "2", "4"]
    assert words(log.read(stream="nobody")) == []
    assert words(log.read(types=["file_deleted", "file_moved"])) == ["4", "5"]
    assert words(log.read(stream="a", types=["file_written"], after=1)) == ["2"]
    assert words(log.read(limit=2)) == ["1", "2"]
    assert words(log.read(after=1, limit=3)) == ["2", "3", "4"]
    assert words(log.read(limit=0)) == []


def test_a_long_log_is_read_whole_and_to_the_limit(log: Log) -> None:
    for start in range(0, 1300, 100):
        note(log, f"s{start % 3}", *(str(number) for number in range(start, start + 100)))
    assert words(log.read()) == [str(number) for number in range(1300)]
    assert len(list(log.read(limit=501))) == 501
    assert len(list(log.read(limit=1000))) == 1000
    assert [event.position for event in log.read(after=700)] == list(range(701, 1301))


# -- follow ------------------------------------------------------------------------------------------------------------


def test_a_follower_gets_the_past_and_then_the_present(store: Store, log: Log) -> None:
    note(log, "t", "1")
    following = store.open().follow(after=0, timeout_seconds=10)
    assert next(following).event_data == {"word": "1"}
    note(log, "t", "2")
    assert next(following).event_data == {"word": "2"}


def test_a_follower_starts_at_the_present_if_it_says_nothing(store: Store, log: Log) -> None:
    note(log, "t", "old")
    seen: list[Event] = []
    started, done = threading.Event(), threading.Event()

    def until() -> bool:
        started.set()
        return done.is_set()

    def watch() -> None:
        for event in store.open().follow(until=until):
            seen.append(event)

    thread = threading.Thread(target=watch)
    thread.start()
    started.wait(60)
    note(log, "t", "new")
    wait_until(lambda: seen)
    done.set()
    thread.join(60)
    assert not thread.is_alive()
    assert words(iter(seen)) == ["new"]


def test_a_follower_wakes_soon_after_each_commit(store: Store, log: Log) -> None:
    delays: list[float] = []

    def watch(follower: Log) -> None:
        for event in follower.follow(after=0, timeout_seconds=10):
            delays.append(time.monotonic() - float(str(event.event_data["word"])))
            if len(delays) == 20:
                return

    thread = threading.Thread(target=watch, args=(store.open(),))
    thread.start()
    for _ in range(20):
        time.sleep(0.03)
        note(log, "t", repr(time.monotonic()))
    thread.join(20)
    assert len(delays) == 20
    assert sorted(delays)[10] < 0.15  # polling at its slowest would be 0.2


def test_a_follower_wakes_again_after_a_fork(store: Store, log: Log) -> None:
    """A connection does not cross a fork, and neither may the belief that one is listening."""
    list(log.follow(after=0, timeout_seconds=0.05))

    def child() -> None:
        delays = []
        for event in log.follow(after=0, timeout_seconds=10):
            delays.append(time.monotonic() - float(str(event.event_data["word"])))
            if len(delays) == 10:
                break
        assert sorted(delays)[5] < 0.08

    pid = fork(child)
    writer = store.open()
    for _ in range(10):
        time.sleep(0.25)
        note(writer, "t", repr(time.monotonic()))
    assert wait(pid) == 0


def test_a_follower_with_filters_misses_nothing_and_repeats_nothing(store: Store, log: Log) -> None:
    follower = store.open()
    seen: list[object] = []

    def watch() -> None:
        for event in follower.follow(after=0, stream="s1", types=["file_moved"], timeout_seconds=20):
            seen.append(event.event_data["word"])
            if event.event_data["word"] == "last":
                return

    thread = threading.Thread(target=watch)
    thread.start()
    writers = [threading.Thread(target=_write_some, args=(store.open(), number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    note(log, "s1", "last", kind="file_moved")
    thread.join(30)
    expected = words(log.read(stream="s1", types=["file_moved"]))
    assert len(expected) == 3 * 12 + 1
    assert seen == expected


def _write_some(log: Log, writer: int) -> None:
    for number in range(72):
        stream, kind = f"s{number % 3}", ("file_moved", "file_written")[number % 2]
        note(log, stream, f"{writer}-{number}", kind=kind)


def test_a_follower_ends_when_it_is_told_to_or_when_nothing_comes(log: Log) -> None:
    note(log, "t", "1")
    assert words(log.follow(after=0, timeout_seconds=0.01)) == ["1"]
    assert list(log.follow(after=0, until=lambda: True)) == []


# -- several at once ---------------------------------------------------------------------------------------------------


def test_threads_share_a_log(log: Log) -> None:
    def write(number: int) -> None:
        for index in range(25):
            note(log, f"s{number % 2}", f"{number}-{index}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    events = list(log.read())
    assert [event.position for event in events] == list(range(1, 151))
    for number in range(6):
        own = [word for word in words(iter(events)) if str(word).startswith(f"{number}-")]
        assert own == [f"{number}-{index}" for index in range(25)]
    assert log.verify().broken is None


def test_a_log_may_be_used_after_a_fork(log: Log) -> None:
    note(log, "t", "parent")
    assert wait(fork(lambda: note(log, "t", "child"))) == 0
    note(log, "t", "parent")
    assert words(log.read()) == ["parent", "child", "parent"]
    assert log.verify().broken is None


def test_a_log_can_be_verified_while_others_write(store: Store, log: Log) -> None:
    stop = threading.Event()

    def write() -> None:
        number = 0
        writer = store.open()
        while not stop.is_set():
            number += 1
            writer.append("t", [creating(f"t/{number}"), created(f"t/{number}")], ADA)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        looks = 0
        while looks < 20 or (log.last_position() < 200 and thread.is_alive()):
            looks += 1
            assert log.verify().broken is None
    finally:
        stop.set()
        thread.join(30)


# -- proof -------------------------------------------------------------------------------------------------------------


def test_a_log_that_nobody_touched_is_whole(a_told_log: Log) -> None:
    found = a_told_log.verify()
    found.check()
    assert (found.events, found.streams, found.records) == (8, 2, 3)


def _swap(store: Store) -> None:
    store.run("UPDATE events SET position = 99 WHERE position = 1")
    store.run("UPDATE events SET position = 1 WHERE position = 3")
    store.run("UPDATE events SET position = 3 WHERE position = 99")


def _swap_contents(store: Store) -> None:
    for column in ("event_data", "event_type", "hash", "recorded_at"):
        (one,), (other,) = store.run(f"SELECT {column} FROM events WHERE position IN (1, 3) ORDER BY position")
        store.run(f"UPDATE events SET {column} = ? WHERE position = 1", (other,))
        store.run(f"UPDATE events SET {column} = ? WHERE position = 3", (one,))


def _insert(store: Store) -> None:
    store.run(
        "INSERT INTO events SELECT 9, stream, 9, event_type, event_data, actor_id, metadata, recorded_at, hash "
        "FROM events WHERE position = 8"
    )


def _insert_in_the_middle(store: Store) -> None:
    for position in range(8, 4, -1):
        store.run("UPDATE events SET position = ? WHERE position = ?", (position + 1, position))
    store.run(
        "INSERT INTO events SELECT 5, 't3', 1, event_type, event_data, actor_id, metadata, recorded_at, hash "
        "FROM events WHERE position = 4"
    )


TAMPERING: dict[str, tuple[str | Callable[[Store], None], int | None, str]] = {
    "data": ("UPDATE events SET event_data = replace(event_data, '/w/', '/x/') WHERE position = 3", 3, "hash"),
    "type": ("UPDATE events SET event_type = 'file_read' WHERE position = 7", 7, "hash"),
    "actor": ("UPDATE events SET actor_id = 'eve' WHERE position = 5", 5, "hash"),
    "metadata": ("UPDATE events SET metadata = '{}' WHERE position = 2", 2, "hash"),
    "time": ("UPDATE events SET recorded_at = '2020-01-01T00:00:00.000000Z' WHERE position = 4", 4, "hash"),
    "hash": (f"UPDATE events SET hash = '{'0' * 64}' WHERE position = 1", 1, "hash"),
    "stream": ("UPDATE events SET stream = 't2' WHERE position = 8", 8, "version 3"),
    "version": ("UPDATE events SET version = 7 WHERE position = 8", 8, "version 6"),
    "deleted first": ("DELETE FROM events WHERE position = 1", 2, "position 1 is missing"),
    "deleted": ("DELETE FROM events WHERE position = 6", 7, "position 6 is missing"),
    "deleted tail": ("DELETE FROM events WHERE position = 8", None, "head says version 6, its events end at 5"),
    "swapped": (_swap, 1, "version 1 of the stream is missing"),
    "swapped contents": (_swap_contents, 1, "hash"),
    "inserted": (_insert, 9, "version 7"),
    "inserted in the middle": (_insert_in_the_middle, 5, "hash"),
    "head version": ("UPDATE streams SET version = 7 WHERE stream = 't1'", None, "head says version 7"),
    "head hash": (f"UPDATE streams SET hash = '{'0' * 64}' WHERE stream = 't2'", None, "head"),
    "head deleted": ("DELETE FROM streams WHERE stream = 't2'", None, "head says version 0"),
    "head invented": (f"INSERT INTO streams VALUES ('t9', 0, '{'0' * 64}')", None, "head"),
    "view": (
        "UPDATE views SET data = replace(data, 'ready', 'failed') WHERE label = 't1/a'",
        None,
        "view of workspace",
    ),
    "view label": ("UPDATE views SET label = 'x/y' WHERE label = 't1/a'", None, "view of workspace uid-t1/a"),
    "view mark": ("UPDATE views SET live = 0 WHERE label = 't1/a'", None, "view of workspace uid-t1/a"),
    "view deleted": ("DELETE FROM views WHERE label = 't2/a'", None, "view of workspace uid-t2/a"),
    "view invented": (
        "INSERT INTO views SELECT kind, 'new', task, 'n/n', 0, pending, data FROM views WHERE label = 't2/a'",
        None,
        "view of workspace new",
    ),
}


@pytest.mark.parametrize("kind", TAMPERING)
def test_tampering_is_found_and_the_first_broken_event_named(store: Store, a_told_log: Log, kind: str) -> None:
    how, position, problem = TAMPERING[kind]
    how(store) if callable(how) else store.run(how)
    found = a_told_log.verify()
    assert found.broken
    assert found.broken["position"] == position
    assert problem in found.broken["problem"]
    with pytest.raises(LogBroken) as caught:
        found.check()
    assert caught.value.details == found.broken
    assert "None" not in caught.value.message


def test_an_impossible_event_with_a_good_hash_is_found_too(store: Store, a_told_log: Log) -> None:
    """As a bug would write it: chained as it should be, and yet it cannot have happened."""
    note(a_told_log, "t1", "z")
    store.run("UPDATE events SET event_type = 'workspace_purged' WHERE position = 9")
    row = store.run("SELECT * FROM events WHERE position = 9")[0]
    last = store.run("SELECT hash FROM events WHERE position = 8")[0][0]
    data = row[4].replace('"word"', '"uid"')
    fields = (row[1], str(row[2]), row[3], data, row[5], row[6], row[7])
    link = hashlib.sha256("\0".join(fields).encode()).hexdigest()
    digest = hashlib.sha256(f"{last}\0{link}".encode()).hexdigest()
    store.run("UPDATE events SET event_data = ?, hash = ? WHERE position = 9", (data, digest))
    store.run("UPDATE streams SET hash = ? WHERE stream = 't1'", (digest,))
    found = a_told_log.verify()
    assert found.broken
    assert found.broken["position"] == 9
    assert "cannot happen now" in found.broken["problem"]


def test_views_are_what_the_events_say_and_can_be_made_anew(store: Store, a_told_log: Log) -> None:
    before = store.run("SELECT * FROM views ORDER BY kind, key")
    store.run("DELETE FROM views WHERE label = 't1/a'")
    store.run("UPDATE views SET data = '{}', live = 0, pending = 1")
    assert a_told_log.rebuild_views() == 3
    assert store.run("SELECT * FROM views ORDER BY kind, key") == before
    assert a_told_log.verify().broken is None


# -- views -------------------------------------------------------------------------------------------------------------


def test_records_are_found_by_task_label_and_life(a_told_log: Log) -> None:
    log = a_told_log
    assert log.find_live("workspace", "t1/a")["uid"] == "uid-t1/a"  # type: ignore[index]
    assert log.find_live("workspace", "t1/z") is None
    assert [record["uid"] for record in log.find_all("workspace")] == ["uid-t1/a", "uid-t1/b", "uid-t2/a"]
    assert [record["uid"] for record in log.find_all("workspace", task="t2")] == ["uid-t2/a"]
    assert [record["uid"] for record in log.find_all("workspace", label="t1/b")] == ["uid-t1/b"]
    assert log.find_all("operation") == []
    assert [record["uid"] for record in log.find_one_each("workspace", task="t1")] == ["uid-t1/a", "uid-t1/b"]
    assert len(log.find_one_each("workspace", oldest=True)) == 3  # each has a label of its own
    assert log.find_pending() == []
    log.append("t3", [creating("t3/a")], ADA)
    assert [(kind, record["uid"]) for kind, record in log.find_pending()] == [("workspace", "uid-t3/a")]


# -- opening -----------------------------------------------------------------------------------------------------------


def test_a_second_opener_sees_everything(store: Store, a_told_log: Log) -> None:
    assert list(store.open().read()) == list(a_told_log.read())


def test_a_log_can_be_closed_twice_and_its_file_is_private(tmp_path: Path) -> None:
    log = open_log(str(tmp_path / "log.db"))
    note(log, "t", "x")
    log.close()
    log.close()
    assert os.stat(tmp_path / "log.db").st_mode & 0o077 == 0


def test_an_unknown_kind_of_store_is_refused_without_its_secret() -> None:
    with pytest.raises(InvalidConfig) as caught:
        open_log("x", "mysql://ada:secret@host/db")
    assert "secret" not in caught.value.message


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        open_log("x", "postgresql://ada:secret@127.0.0.1:1/db")
    assert "secret" not in caught.value.message


def test_a_file_that_is_no_database_is_unavailable_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(b"not a database, but somebody's file" * 100)
    with pytest.raises(StoreUnavailable, match="not a database"):
        open_log(str(path))
    assert path.read_bytes().startswith(b"not a database")
