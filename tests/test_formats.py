"""Home, log, snapshot store and archive carry a format version: a newer one is refused, an older one opens."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import workstead
from people import Person
from workstead.errors import FormatUnknown, StoreUnavailable
from workstead.settings import Settings
from workstead.store.sqlite import MIGRATIONS
from workstead.system.files import format_version


def fill(home: str, settings: Settings) -> None:
    with workstead.open(home, settings=settings) as workspaces:
        workspaces.create(id="t/a")
        workspaces.write_file("t/a", "work/x", "one\n")
        workspaces.snapshot("t/a")


def test_a_newer_home_is_refused(person: Person) -> None:
    person.aw_ok("create", "t/a")
    format_version.write(str(person.home), 9)
    person.own(person.home / "format")
    for words in (["list"], ["create", "t/b"], ["repair"], ["backup", "there"]):
        error = person.aw_json(*words)["error"]
        assert error["code"] == "format_unknown"
        assert "format version 9, and this Workstead knows versions up to 1" in error["message"]
        assert "upgrade" in error["hint"]
    (person.home / "format").unlink()  # as homes of older versions have none
    person.aw_ok("destroy", "t/a")


def test_a_newer_log_is_refused(tmp_path: Path, settings: Settings) -> None:
    home = str(tmp_path / "home")
    fill(home, settings)
    known = len(MIGRATIONS)
    with sqlite3.connect(f"{home}/log.db") as database:
        database.execute(f"PRAGMA user_version = {known + 1}")
    with pytest.raises(StoreUnavailable, match=f"schema {known + 1}, and this version of Workstead knows {known}"):
        workstead.open(home, settings=settings)


def test_a_newer_snapshot_store_is_refused_and_nothing_in_it_changes(tmp_path: Path, settings: Settings) -> None:
    home = str(tmp_path / "home")
    fill(home, settings)
    path = Path(home, "snapshots/format")
    assert format_version.read(f"{home}/snapshots") == 1
    format_version.write(f"{home}/snapshots", 2)
    packs = sorted(Path(home, "snapshots/packs").iterdir())
    with workstead.open(home, settings=settings) as workspaces:
        with pytest.raises(FormatUnknown, match="format version 2, and this Workstead knows versions up to 1"):
            workspaces.snapshot("t/a")
        with pytest.raises(FormatUnknown):
            workspaces.sweep()
        assert sorted(Path(home, "snapshots/packs").iterdir()) == packs
        path.unlink()  # as stores of older versions have none
        workspaces.snapshot("t/a")
    assert format_version.read(f"{home}/snapshots") == 1
