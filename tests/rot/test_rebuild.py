"""`aw repair --rebuild-log`, and the verification in the background."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import workstead
from people import Person
from workstead.errors import HomeDamaged
from workstead.local import Local
from workstead.settings import Settings


def _uid(person: Person, workspace_id: str) -> str:
    return str(person.aw_json("show", workspace_id)["uid"])


def test_a_lost_log_is_rebuilt_from_the_records(person: Person) -> None:
    folder = person.folder("folder", {"a.txt": "one\n"})
    person.aw_ok("create", "one/main", "--source", f"overlay:{folder}")
    person.aw_ok("create", "two/main")
    person.aw_ok("run", "one/main", "--", "sh", "-c", "echo two > a.txt")
    kept = person.aw_ok("snapshot", "one/main").strip()
    person.aw_ok("destroy", "two/main")
    for path in person.home.glob("log.db*"):
        path.unlink()
    person.aw_ok("repair", "--rebuild-log")
    assert "+two" in person.aw_ok("diff", "one/main")
    assert kept in person.aw_ok("snapshots", "one/main")
    person.aw_ok("run", "one/main", "--", "sh", "-c", "echo three > a.txt")
    person.aw_ok("restore", "one/main", kept)
    assert "+two" in person.aw_ok("diff", "one/main")
    person.aw_ok("trash", "restore", "two/main")
    person.aw_ok("show", "two/main")
    person.aw_ok("repair", "--accept-log")
    person.aw_ok("verify")
    person.aw_ok("apply", "one/main")
    assert (folder / "a.txt").read_text() == "two\n"
    person.aw_ok("destroy", "one/main")


def test_without_records_a_workspace_is_taken_from_its_own_directory(person: Person) -> None:
    folder = person.folder("folder", {"a.txt": "one\n"})
    person.aw_ok("create", "one/main", "--source", f"overlay:{folder}")
    person.aw_ok("run", "one/main", "--", "sh", "-c", "echo two > a.txt")
    for path in [*person.home.glob("log.db*"), *person.home.glob("records/*")]:
        path.unlink()
    told = person.aw_ok("repair", "--rebuild-log")
    assert "cannot be applied" in told
    assert "aw repair --accept-log" in told
    assert "+two" in person.aw_ok("diff", "one/main")
    person.aw_ok("snapshot", "one/main")
    assert person.aw("apply", "one/main").returncode != 0  # `.aw` is the agent's to change: it leads nowhere
    assert (folder / "a.txt").read_text() == "one\n"
    person.aw_ok("destroy", "--force", "one/main")
    person.aw_ok("undo")


def test_a_flipped_bit_in_the_id_parts_no_workspace_from_its_home(person: Person) -> None:
    person.aw_ok("create", "one/main")
    identity = person.home / "id"
    whole = identity.read_text()
    for number in (0, 5, 15, 20):
        damaged = bytearray(whole.encode())
        damaged[number] ^= 1
        identity.write_bytes(damaged)
        person.aw_ok("snapshot", "one/main")
        assert identity.read_text() == whole
    identity.write_text(f"{whole[:16]}\n")  # as an older version wrote it
    person.aw_ok("snapshot", "one/main")
    assert identity.read_text() == whole


def test_the_verification_in_the_background_finds_what_rots_and_goes_on(
    workspaces: Local, home_path: str, settings: Settings, tmp_path: Path
) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "a.txt").write_text("one\n" * 100)
    workspaces.add_template("made", folder=str(origin))
    workspaces.create("template:made", task="one", agent="main")
    assert workspaces.verify_if_due(lambda: False)
    assert workspaces.damage() == []
    rotten = Path(home_path) / "templates" / "made" / "a.txt"
    rotten.write_text("oNe\n" * 100)
    workspaces.verify_if_due(lambda: False)
    assert workspaces.damage() == []  # it is not due again
    always = settings.replace(storage=settings.storage.replace(verify_every_days=1e-9))
    with workstead.open(home_path, settings=always) as again:
        again.verify_if_due(lambda: False)
        (found,) = again.damage()
        assert "one/main" in found.affects
        assert next(probe for probe in again.doctor() if probe.name == "verification").ok is False
        with pytest.raises(HomeDamaged):
            again.verify(deep=True)
        rotten.write_text("one\n" * 100)
        again.verify_if_due(lambda: False)
        assert again.damage() == []


def test_the_verification_in_the_background_goes_on_where_it_was_stopped(
    workspaces: Local, home_path: str, settings: Settings
) -> None:
    for number in range(3):
        workspaces.create("empty", task=f"t{number}", agent="main")
        workspaces.write_file(f"t{number}/main", "work/a.bin", os.urandom(5_000_000))
        workspaces.snapshot(f"t{number}/main")
    slow = settings.replace(storage=settings.storage.replace(verify_mb_per_second=100.0))
    with workstead.open(home_path, settings=slow) as again:
        asked = 0

        def stop_soon() -> bool:
            nonlocal asked
            asked += 1
            return True

        again.verify_if_due(stop_soon)
        state = json.loads((Path(home_path) / "verification").read_bytes()[9:])
        assert asked
        assert not state["ended_at"]
        again.verify_if_due(lambda: False)
        state = json.loads((Path(home_path) / "verification").read_bytes()[9:])
        assert state["ended_at"]
