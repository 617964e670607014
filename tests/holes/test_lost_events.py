"""A damaged write-ahead log loses events without an error. Nothing that the log forgot is deleted as garbage.

SQLite drops everything from the first frame with a bad checksum on: one bad bit empties the log of a young home.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from people import Person

# Makes a workspace with a snapshot and dies, so that everything is in the write-ahead log.
MAKE = """
import os, workstead
opened = workstead.open()
opened.create(task="t", agent="a")
opened.write_file("t/a", "work/f", b"precious")
opened.snapshot("t/a")
os._exit(0)
"""
HEAD = "log.db.head"


def make(person: Person) -> tuple[Path, Path]:
    """A home that a killed process left, and its write-ahead log."""
    person.python(MAKE)
    wal = person.home / "log.db-wal"
    assert wal.stat().st_size > 0
    return person.home, wal


def flip_a_bit(wal: Path) -> None:
    with wal.open("r+b") as file:
        file.seek(32 + 24 + 100)  # in the page of the first frame
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def cut_after_the_intent(person: Person) -> None:
    """Remove what came after `workspace_creating`, as a write-ahead log does that is damaged in its middle."""
    database = sqlite3.connect(person.home / "log.db")
    with database:
        database.execute("DELETE FROM events WHERE position > 1")
        database.execute("UPDATE views SET pending = 1, data = json_set(data, '$.state', 'creating')")
        database.execute("DELETE FROM views WHERE kind != 'workspace'")
    database.close()


def copy_of_log(person: Person) -> dict[str, bytes]:
    paths = [path for name in ("log.db", "log.db-wal") if (path := person.home / name).exists()]
    return {path.name: path.read_bytes() for path in paths}


def bring_back_log(person: Person, files: dict[str, bytes]) -> None:
    for name in ("log.db", "log.db-wal", "log.db-shm"):
        (person.home / name).unlink(missing_ok=True)
    for name, content in files.items():
        (person.home / name).write_bytes(content)
        person.own(person.home / name)


def packs(home: Path) -> list[str]:
    return sorted(os.listdir(home / "snapshots/packs"))


def test_a_sweep_deletes_nothing_when_one_bad_bit_emptied_the_log(person: Person) -> None:
    home, wal = make(person)
    kept = packs(home)
    assert kept
    whole = copy_of_log(person)
    flip_a_bit(wal)
    assert person.aw_json("list") == []  # the loss itself is silent
    for command in (["sweep"], ["sweep", "--dry-run"], ["trash", "empty"], ["verify"]):
        refused = person.aw_json(*command)
        assert refused["error"]["code"] == "events_lost", (command, refused)
        assert "ends at position 0" in refused["error"]["message"]
        assert str(home / HEAD) in refused["error"]["message"]
        assert "aw repair --accept-log" in refused["error"]["hint"]
    assert person.aw("verify").returncode != 0
    assert str(home / "workspaces/t/a") in person.aw("verify").stderr
    assert any("ends at position 0" in each["what"] for each in person.aw_json("repair"))
    # Events that are appended after the loss do not hide it.
    for number in range(6):
        person.aw_ok("create", f"new/{number}")
    assert person.aw_json("sweep")["error"]["code"] == "events_lost"
    assert set(kept) <= set(packs(home))

    # The remedy: the log comes back, and all is as it was.
    bring_back_log(person, whole)
    person.aw_ok("verify")
    person.aw_ok("sweep")
    assert person.aw_ok("cat", "t/a", "work/f") == "precious"


def test_twin_without_a_head_a_sweep_after_a_lost_log_deletes_every_snapshot(person: Person) -> None:
    home, wal = make(person)
    kept = packs(home)
    flip_a_bit(wal)
    (home / HEAD).unlink()
    assert person.aw_json("sweep")["error"]["code"] == "events_lost"  # empty, and there are snapshots
    person.aw_ok("create", "new/a")  # now it is not empty, and the head of today is all that is known
    person.aw_ok("sweep")
    assert not set(kept) & set(packs(home))


def test_a_log_from_an_older_backup_is_taken_when_somebody_says_so(person: Person) -> None:
    person.aw_ok("create", "t/a")
    backup = copy_of_log(person)
    person.aw_ok("create", "t/b")
    bring_back_log(person, backup)
    assert person.aw_json("sweep")["error"]["code"] == "events_lost"
    done = person.aw_json("repair", "--accept-log")
    assert done[0]["done"].startswith("accepted as it is")
    person.aw_ok("sweep")
    person.aw_ok("verify")
    person.aw_ok("create", "t/c")
    person.aw_ok("verify")


@pytest.mark.parametrize("has_head", [True, False])
def test_opening_a_home_whose_log_lost_the_end_of_a_create_deletes_no_workspace(person: Person, has_head: bool) -> None:
    person.aw_ok("create", "t/a")
    path = Path(person.aw_ok("path", "t/a").strip())
    cut_after_the_intent(person)
    if not has_head:
        (person.home / HEAD).unlink()
    person.aw_ok("list")
    # Without a head this looks like a `create` that died, which is cleared away.
    assert path.exists() == has_head
    if has_head:
        assert person.aw_json("sweep")["error"]["code"] == "events_lost"


def test_a_home_without_a_head_gets_one_at_the_next_event_and_a_damaged_one_is_replaced(person: Person) -> None:
    person.aw_ok("create", "t/a")
    head = person.home / HEAD
    for damage in (b"", b"\0" * 94, head.read_bytes().replace(b"0", b"1", 1)):
        head.write_bytes(damage)
        assert "log.db.head is damaged" in person.aw("verify").stdout
        person.aw_ok("sweep")
        person.aw_ok("snapshot", "t/a")
        person.aw_ok("verify")
        position, digest, _ = head.read_text().split()
        newest = sqlite3.connect(person.home / "log.db").execute("SELECT max(position) FROM events").fetchone()[0]
        assert 0 < int(position) <= newest
        assert len(digest) == 64


def test_a_killed_home_is_whole(person: Person) -> None:
    make(person)
    person.aw_ok("verify")
    person.aw_ok("sweep")
    assert person.aw_ok("cat", "t/a", "work/f") == "precious"
