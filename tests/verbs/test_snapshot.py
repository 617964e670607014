"""Keeping states, and finding them again by any name that people use."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import workstead
from origins import make_desk, make_origin, read, write
from situations import tiny_disk
from workstead.core.snapshots import find
from workstead.core.states import open_store
from workstead.errors import DiskFull, SnapshotNotFound
from workstead.local import Local
from workstead.model.workspace import Workspace
from workstead.settings import Settings
from workstead.snapshots.gc import verify
from workstead.snapshots.objects import StoreFull
from workstead.snapshots.walker import Walk


@pytest.fixture
def desk(workspaces: Local) -> Workspace:
    return workspaces.create(id="t/a")


def found(workspaces: Local, name: str) -> str:
    return find(workspaces._home, workspaces.get("t/a"), name).id


def test_a_snapshot_is_found_by_its_id_its_beginning_or_its_label(workspaces: Local, desk: Workspace) -> None:
    taken = workspaces.snapshot(desk.id, label="tests pass")
    assert found(workspaces, "base") == "base"
    for name in (taken.id, taken.id[:-3], taken.id.removeprefix("snap-"), taken.id[5:-2], "tests pass"):
        assert found(workspaces, name) == taken.id
    for name in ("", "tests", taken.id[:7], "snap-", "now", "BASE"):
        with pytest.raises(SnapshotNotFound, match=r"t/a has no snapshot"):
            found(workspaces, name)


def test_of_snapshots_with_one_label_the_newest_is_meant(workspaces: Local, desk: Workspace) -> None:
    first, second = (workspaces.snapshot(desk.id, label="good") for _ in range(2))
    assert found(workspaces, "good") == second.id
    workspaces.snapshot(desk.id, label=first.id)  # an id goes before a label
    assert found(workspaces, first.id) == first.id


def test_a_beginning_that_several_have_is_no_name(
    workspaces: Local, desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workstead.core.home import Home

    ids = iter(["aaaabbbbccccddd1", "aaaabbbbccccddd2"])
    monkeypatch.setattr(Home, "new_id", lambda _: next(ids))
    workspaces.snapshot(desk.id)
    workspaces.snapshot(desk.id)
    monkeypatch.undo()
    with pytest.raises(SnapshotNotFound, match="2 snapshots of t/a begin with aaaabbbbcccc"):
        found(workspaces, "aaaabbbbcccc")
    assert found(workspaces, "aaaabbbbccccddd2") == "snap-aaaabbbbccccddd2"


def test_what_cannot_be_kept_is_listed(workspaces: Local, desk: Workspace) -> None:
    os.mkfifo(f"{desk.path}/work/pipe")
    taken = workspaces.snapshot(desk.id)
    assert [(each.path, each.kind) for each in taken.left_out] == [("work/pipe", "fifo")]
    assert workspaces.snapshots(desk.id)[-1] == taken


def test_a_snapshot_is_refused_for_what_is_not_ready(workspaces: Local) -> None:
    workspaces.create(id="t/planned", lazy=True)
    assert workspaces.snapshot("t/planned").files == 0  # made at first use
    workspaces.destroy("t/planned")
    with pytest.raises(workstead.errors.WorkspaceNotFound, match="t/planned"):
        workspaces.snapshot("t/planned")


def test_a_store_has_a_size_that_it_does_not_exceed(home_path: str, settings: Settings) -> None:
    small = settings.replace(snapshots=settings.snapshots.replace(max_total_gb=0.0001))
    with workstead.open(home_path, settings=small) as workspaces:
        desk = workspaces.create(id="t/a")
        Path(desk.path, "work", "large").write_bytes(os.urandom(200_000))
        with pytest.raises(StoreFull, match="107374 bytes"):
            workspaces.snapshot(desk.id)
        assert len(workspaces.snapshots(desk.id)) == 1
        Path(desk.path, "work", "large").write_bytes(os.urandom(20_000))
        workspaces.snapshot(desk.id)


def test_a_full_disk_keeps_nothing_new_and_loses_nothing_old(tmp_path: Path, settings: Settings) -> None:
    origin = make_origin(tmp_path / "origin")
    small = tmp_path / "small"
    with tiny_disk(small, "24m"), workstead.open(str(small / "home"), settings=settings) as workspaces:
        desk = make_desk(workspaces, origin)
        work = Path(desk.path, "work")
        workspaces.snapshot(desk.id, label="good")
        good = read(work)
        (work / "large.bin").write_bytes(os.urandom(3_000_000))
        _fill(small, leaving=1_500_000)
        for _ in range(2):
            with pytest.raises(DiskFull) as caught:
                workspaces.snapshot(desk.id, label="too much")
            assert caught.value.hint
        assert [each.label for each in workspaces.snapshots(desk.id)] == ["", "good"]
        os.unlink(work / "large.bin")
        _fill(small, leaving=0, name="rest")
        before = read(work)
        for act in (
            lambda: workspaces.snapshot(desk.id, label="no room for the log"),
            lambda: workspaces.restore(desk.id, "base"),
            lambda: workspaces.apply(desk.id),
        ):
            with pytest.raises(DiskFull):
                act()
            assert workspaces.get(desk.id).state == "ready"
            assert read(work) == before == good
        os.unlink(small / "filler")
        os.unlink(small / "rest")
        with open_store(workspaces._home) as store:
            roots = [each.root for each in workspaces.snapshots(desk.id)]
            assert verify(store, roots) == []
        workspaces.snapshot(desk.id, label="room again")
        workspaces.verify()
        workspaces.destroy(desk.id, force=True)


def _fill(disk: Path, *, leaving: int, name: str = "filler") -> None:
    free = os.statvfs(disk)
    with open(disk / name, "wb", buffering=0) as file:
        left = free.f_bavail * free.f_frsize - leaving
        try:
            while left > 0:
                left -= file.write(b"x" * min(left, 65536)) or left
        except OSError:
            return


def test_the_end_of_something_is_written_down_on_a_full_disk_too(tmp_path: Path, settings: Settings) -> None:
    """The log gets its last entry from the reserve: nothing stays half done because of it."""
    from workstead.verbs import apply

    origin = make_origin(tmp_path / "origin")
    small = tmp_path / "small"
    with tiny_disk(small, "24m"), workstead.open(str(small / "home"), settings=settings) as workspaces:
        desk = make_desk(workspaces, origin)
        done = apply._do

        def fill_up_and_do(*arguments: object) -> str:
            try:
                return done(*arguments)  # type: ignore[arg-type]
            finally:
                _fill(small, leaving=0)

        apply._do = fill_up_and_do  # type: ignore[assignment]
        try:
            workspaces.apply(desk.id)
        finally:
            apply._do = done
        os.unlink(small / "filler")
        assert workspaces.get(desk.id).state == "ready"
        assert workspaces.status(desk.id) == ()
        assert [event.event_type for event in workspaces.events()][-1] == "changes_applied"
        workspaces.undo()
        write(Path(desk.path, "work"), {"more": "x"})
        workspaces.destroy(desk.id, force=True)


# -- what is not read again --------------------------------------------------------------------------------------------


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were opened and read for a state."""
    names: list[str] = []
    real = Walk._read_file

    def read_file(self: Walk, parent: int, name: str) -> object:
        names.append(name)
        return real(self, parent, name)

    monkeypatch.setattr(Walk, "_read_file", read_file)
    return names


@pytest.mark.parametrize("how", ["in place", "copied"])
def test_what_was_read_once_is_not_read_again(
    home_path: str, settings: Settings, tmp_path: Path, read_files: list[str], how: str
) -> None:
    folder = tmp_path / "project"
    write(folder, {f"d{number % 3}/f{number}": str(number) for number in range(30)})
    time.sleep(0.05)  # what is younger than a tick of the clock is read once more
    copying = settings.replace(storage=settings.storage.replace(mechanism="copy"))
    with workstead.open(home_path, settings=copying) as workspaces:
        desk = workspaces.create(f"{'folder' if how == 'in place' else 'overlay'}:{folder}", id="t/a")
        assert len(read_files) == 30  # for the base
        time.sleep(0.05)
        workspaces.snapshot(desk.id)
        if how == "in place":
            assert len(read_files) == 30
        read_files.clear()
        for look in (workspaces.snapshot, workspaces.status, workspaces.diff, workspaces.snapshot):
            look(desk.id)
        assert workspaces.wait(workspaces.run(desk.id, ["true"]).id).exit_code == 0
        workspaces.archive(desk.id, str(tmp_path / "kept.tar"))
        assert read_files == []
        write(folder if how == "in place" else Path(desk.path, "work"), {"d1/f1": "changed"})
        assert [change.path for change in workspaces.status(desk.id)] == ["d1/f1"]
        workspaces.snapshot(desk.id)
        assert read_files == ["f1", "f1"]
