"""Kill while a backup is made or restored: the last complete backup stays, and no half home appears."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

import workstead
from situations import check_after_crash, killed_at_effect
from workstead.errors import BackupNotFound
from workstead.settings import Settings

STRIDE = int(os.environ.get("AW_CRASH_STRIDE", "1"))  # effects to go on by


def fill(home: str, settings: Settings) -> None:
    with workstead.open(home, settings=settings) as workspaces:
        workspaces.create(id="fix/a")
        workspaces.write_file("fix/a", "work/x", "old")
        workspaces.snapshot("fix/a", label="one")


def content(place: str, to: Path, settings: Settings) -> str:
    workstead.verify_backup(place)
    workstead.restore_backup(place, str(to), settings=settings)
    with workstead.open(str(to), settings=settings) as workspaces:
        found = workspaces.read_text("fix/a", "work/x")
        workspaces.verify()
    shutil.rmtree(to)
    return found


def test_a_kill_during_a_backup_leaves_the_last_complete_one(tmp_path: Path, settings: Settings) -> None:
    home, place, untouched = str(tmp_path / "home"), str(tmp_path / "backups"), str(tmp_path / "untouched")
    fill(home, settings)
    with workstead.open(home, settings=settings) as workspaces:
        workspaces.backup(untouched)
        workspaces.write_file("fix/a", "work/x", "new")
    kills = 0
    for number in itertools.count(1, STRIDE):
        shutil.copytree(untouched, place)

        def act() -> None:
            workstead.open(home, settings=settings).backup(place)

        killed = killed_at_effect(number, act)
        kills += killed
        done = [each.number for each in workstead.list_backups(place)]
        assert done in ([1], [1, 2])
        assert content(place, tmp_path / "restored", settings) == ("old" if done == [1] else "new")
        with workstead.open(home, settings=settings) as workspaces:
            again = workspaces.backup(place)
        assert again.written_bytes == 0 or done == [1]
        assert content(place, tmp_path / "restored", settings) == "new"
        shutil.rmtree(place)
        if not killed:
            break
    check_after_crash(home, settings)
    assert kills > 5


def test_a_first_backup_that_was_killed_is_none_and_is_resumed(tmp_path: Path, settings: Settings) -> None:
    home, place = str(tmp_path / "home"), str(tmp_path / "backups")
    fill(home, settings)
    Path(home, "workspaces/fix/a/work/large").write_bytes(os.urandom(40 << 20))
    packs = Path(place, "packs")
    for number in itertools.count(1, 2):

        def act() -> None:
            workstead.open(home, settings=settings).backup(place)

        assert killed_at_effect(number, act)
        if packs.exists() and any(packs.iterdir()):
            break
        shutil.rmtree(place, ignore_errors=True)
    with pytest.raises(BackupNotFound):
        workstead.verify_backup(place)
    with workstead.open(home, settings=settings) as workspaces:
        done = workspaces.backup(place)
    assert done.written_bytes < 15 << 20  # the first pack of 32 MiB was used
    assert content(place, tmp_path / "restored", settings) == "old"


def test_a_kill_during_a_restore_leaves_no_home_or_a_whole_one(tmp_path: Path, settings: Settings) -> None:
    home, place = str(tmp_path / "home"), str(tmp_path / "backups")
    fill(home, settings)
    with workstead.open(home, settings=settings) as workspaces:
        workspaces.backup(place)
    kills = 0
    for number in itertools.count(1, STRIDE):
        to = tmp_path / "restored"

        def act(to: Path = to) -> None:
            workstead.restore_backup(place, str(to), settings=settings)

        killed = killed_at_effect(number, act)
        kills += killed
        if to.exists():  # it was renamed into place; adopting it may have been cut short
            with workstead.open(str(to), settings=settings) as workspaces:
                workspaces.repair(adopt=True)
        else:
            assert killed
            workstead.restore_backup(place, str(to), settings=settings)
        with workstead.open(str(to), settings=settings) as workspaces:
            assert workspaces.read_text("fix/a", "work/x") == "old"
            workspaces.verify()
            workspaces.write_file("fix/a", "work/x", "again")
        check_after_crash(str(to), settings)
        shutil.rmtree(to)
        if not killed:
            break
    assert kills > 20
