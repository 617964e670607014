"""Kill while an archive is written or read, or fill the disk: it is wholly there or not at all, and nothing is left."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workstead
from situations import check_after_crash, killed_at_effect, names_in, tiny_disk
from workstead.core.snapshots import of_workspace
from workstead.core.states import open_store
from workstead.errors import DiskFull
from workstead.local import Local
from workstead.settings import Settings
from workstead.snapshots.gc import verify

STRIDE = int(os.environ.get("AW_CRASH_STRIDE", "1"))  # effects to go on by


@pytest.fixture
def homes() -> Iterator[Callable[[], str]]:
    """Fresh homes, in memory where there is some."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "."
    top = Path(shared, f"workstead-archive-{os.getpid()}-{os.urandom(4).hex()}").absolute()
    top.mkdir()
    numbers = itertools.count()
    yield lambda: str(top / str(next(numbers)))
    shutil.rmtree(top)


def fill(workspaces: Local, size: int = 1_500_000) -> None:
    """A workspace with a large file and two states."""
    desk = workspaces.create(id="fix/a")
    Path(desk.path, "work", "large").write_bytes(os.urandom(size))
    workspaces.write_file("fix/a", "work/d/x", "x", parents=True)
    workspaces.snapshot("fix/a", label="one")
    workspaces.write_file("fix/a", "work/d/x", "y")


def check_states(workspaces: Local, id: str) -> None:
    """All its states can be read in full."""
    with open_store(workspaces._home) as store:
        roots = [each.root for each in of_workspace(workspaces._home, workspaces.get(id))]
        assert verify(store, roots) == []


def test_a_kill_while_archiving_leaves_a_whole_archive_or_none(homes: Callable[[], str], settings: Settings) -> None:
    kills = 0
    for number in itertools.count(1, STRIDE):
        home = homes()
        with workstead.open(home, settings=settings) as workspaces:
            fill(workspaces)

        def act(home: str = home) -> None:
            workstead.open(home, settings=settings).archive("fix/a")

        killed = killed_at_effect(number, act)
        kills += killed
        with workstead.open(home, settings=settings) as workspaces:
            found = names_in(f"{home}/archives")
            assert len(found) <= 1
            assert killed or len(found) == 1
            assert not [name for name in names_in(home) if name.startswith("tmp")]
            for name in found:
                workspaces.verify_archive(f"{home}/archives/{name}")
            assert workspaces.read_text("fix/a", "work/d/x") == "y"
            check_states(workspaces, "fix/a")
            done = workspaces.archive("fix/a", f"{home}/again.aw.tar.zst")
            workspaces.verify_archive(done.path)
        check_after_crash(home, settings)
        shutil.rmtree(home)
        if not killed:
            break
    assert kills > 5


def test_a_kill_while_replacing_leaves_the_old_one_or_the_new_one(homes: Callable[[], str], settings: Settings) -> None:
    kills = 0
    for number in itertools.count(1, STRIDE):
        home = homes()
        target = f"{home}/one.aw.tar.zst"
        with workstead.open(home, settings=settings) as workspaces:
            workspaces.create(id="fix/a")
            old = workspaces.archive("fix/a", target).digest

        def act(home: str = home, target: str = target) -> None:
            workstead.open(home, settings=settings).archive("fix/a", target, replace=True)

        killed = killed_at_effect(number, act)
        kills += killed
        with workstead.open(home, settings=settings) as workspaces:
            assert killed or workspaces.verify_archive(target).digest != old
            workspaces.verify_archive(target)
        check_after_crash(home, settings)
        shutil.rmtree(home)
        if not killed:
            break
    assert kills > 5


def test_a_kill_while_bringing_back_leaves_a_whole_workspace_or_none(
    homes: Callable[[], str], settings: Settings
) -> None:
    source = homes()
    with workstead.open(source, settings=settings) as workspaces:
        fill(workspaces)
        archive = workspaces.archive("fix/a").path
    kills = 0
    for number in itertools.count(1, STRIDE):
        home = homes()

        def act(home: str = home) -> None:
            workstead.open(home, settings=settings).create(f"archive:{archive}", id="new/a")

        killed = killed_at_effect(number, act)
        kills += killed
        with workstead.open(home, settings=settings) as workspaces:
            workspaces.repair()
            assert workspaces.repair() == []
            uids = {each.uid for each in workspaces.list()}
            assert set(names_in(f"{home}/workspaces/.carrel/layers")) == uids
            assert killed or uids
            if not uids:
                workspaces.create(f"archive:{archive}", id="new/a")
            assert workspaces.read_text("new/a", "work/d/x") == "y"
            assert [each.label for each in workspaces.snapshots("new/a")] == ["", "one", ""]
            check_states(workspaces, "new/a")
            assert len(list(workspaces.history("new/a"))) > 4
            workspaces.restore("new/a", "one")
            assert workspaces.read_text("new/a", "work/d/x") == "x"
        check_after_crash(home, settings)
        shutil.rmtree(home)
        if not killed:
            break
    assert kills > 5


def test_a_full_disk_while_archiving_leaves_no_archive(workspaces: Local, tmp_path: Path) -> None:
    fill(workspaces, 3_000_000)
    with tiny_disk(tmp_path / "small", "1m") as disk:
        with pytest.raises(DiskFull):
            workspaces.archive("fix/a", str(disk))
        assert names_in(disk) == []
    assert "workspace_archived" not in [event.event_type for event in workspaces.events()]
    assert workspaces.archive("fix/a").files == 2


def test_a_full_disk_while_bringing_back_leaves_no_workspace(
    workspaces: Local, tmp_path: Path, settings: Settings
) -> None:
    fill(workspaces, 200_000)
    desk = workspaces.get("fix/a")
    Path(desk.path, "work", "zeros").write_bytes(b"ab" * 20_000_000)  # small in the archive, large outside
    archive = workspaces.archive("fix/a").path
    hungry = settings.replace(storage=settings.storage.replace(min_free_mb=0))
    with tiny_disk(tmp_path / "small", "24m") as disk:
        home = str(disk / "home")
        with workstead.open(home, settings=hungry) as elsewhere:
            with pytest.raises(DiskFull):
                elsewhere.create(f"archive:{archive}", id="new/a")
            assert elsewhere.list() == []
            assert names_in(f"{home}/workspaces/.carrel/staging") == []
            assert names_in(f"{home}/workspaces/.carrel/layers") == []
            assert names_in(f"{home}/snapshots/packs") == []
            assert elsewhere.repair() == []
        check_after_crash(home, hungry)
