"""How much a workspace may take: exact for writes through us, counted and not walked."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

import workstead
from origins import FILES, make_desk, make_origin
from situations import fork, wait
from workstead.core import quota
from workstead.errors import QuotaExceeded
from workstead.local import Local
from workstead.model.workspace import Workspace
from workstead.settings import Settings
from workstead.system.files import measure

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def desk(workspaces: Local) -> Workspace:
    return workspaces.create(id="t/a", config={"max_size_mb": 1, "max_files": 12, "max_file_mb": 1})


def quota_events(workspaces: Local) -> list[tuple[str, object]]:
    found = workspaces.events(types=["quota_warned", "quota_exceeded"])
    return [(event.event_type, event.event_data["limit"]) for event in found]


def counted(workspaces: Local, id: str = "t/a") -> tuple[int, int]:
    count = quota.find_count(workspaces._home, workspaces.get(id))
    assert count is not None
    return count.bytes, count.files


def test_the_last_byte_fits_and_the_next_does_not(workspaces: Local, desk: Workspace) -> None:
    workspaces.write_file("t/a", "work/half", bytes(512 * KIB))
    workspaces.write_file("t/a", "work/rest", bytes(512 * KIB))
    with pytest.raises(QuotaExceeded) as refused:
        workspaces.write_file("t/a", "work/one", b"x")
    assert refused.value.exit_code == 6
    assert refused.value.details == {"limit": "size", "used": MIB, "allowed": MIB, "wanted": 4096}
    assert "aw usage t/a" in refused.value.hint
    assert not Path(desk.path, "work", "one").exists()
    assert sorted(os.listdir(f"{desk.path}/work")) == ["half", "rest"]


def test_without_a_limit_the_same_write_passes(workspaces: Local, settings: Settings, tmp_path: Path) -> None:
    limits = settings.workspaces.replace(default_max_size_mb=None, default_max_files=None)
    with workstead.open(tmp_path / "other", settings=settings.replace(workspaces=limits)) as free:
        free.create(id="t/a")
        free.write_file("t/a", "work/large", bytes(3 * MIB))


def test_what_takes_the_place_of_something_needs_only_the_difference(workspaces: Local, desk: Workspace) -> None:
    workspaces.write_file("t/a", "work/f", bytes(900 * KIB))
    for size in (1000, 900, 1024):
        workspaces.write_file("t/a", "work/f", bytes(size * KIB))
    with pytest.raises(QuotaExceeded):
        workspaces.write_file("t/a", "work/g", b"x")
    workspaces.write_file("t/a", "work/f", b"small")
    workspaces.write_file("t/a", "work/g", bytes(1000 * KIB))


def test_deleting_makes_room_and_always_works(workspaces: Local, desk: Workspace) -> None:
    workspaces.write_file("t/a", "work/f", bytes(MIB))
    Path(desk.path, "work", "by-hand").write_bytes(bytes(MIB))  # over it, without us
    with pytest.raises(QuotaExceeded):
        workspaces.write_file("t/a", "work/g", b"x")
    workspaces.snapshot("t/a")
    workspaces.write_file("t/a", "work/f", bytes(10))  # what shrinks is no growth
    workspaces.delete_file("t/a", "work/by-hand")
    workspaces.write_file("t/a", "work/g", bytes(900 * KIB))
    workspaces.destroy("t/a")


def test_pieces_are_stopped_where_the_room_ends(workspaces: Local, desk: Workspace) -> None:
    workspaces.write_file("t/a", "work/f", bytes(600 * KIB))
    given = []

    def pieces() -> Any:
        for _ in range(100):
            given.append(1)
            yield bytes(64 * KIB)

    with pytest.raises(QuotaExceeded) as refused:
        workspaces.write_file("t/a", "work/g", pieces())
    assert refused.value.details["limit"] == "size"
    assert len(given) < 10
    assert os.listdir(f"{desk.path}/work") == ["f"]


def test_appending_counts_what_is_added(workspaces: Local, desk: Workspace) -> None:
    for _ in range(4):
        workspaces.write_file("t/a", "work/log", bytes(256 * KIB), append=True)
    with pytest.raises(QuotaExceeded):
        workspaces.write_file("t/a", "work/log", b"x", append=True)
    assert os.stat(f"{desk.path}/work/log").st_size == MIB


def test_files_and_directories_are_counted(workspaces: Local, desk: Workspace) -> None:
    workspaces.make_directory("t/a", "work/a/b", parents=True)
    for number in range(10):
        workspaces.write_file("t/a", f"work/a/b/{number}", b"x")
    with pytest.raises(QuotaExceeded) as refused:
        workspaces.write_file("t/a", "work/a/b/more", b"x")
    assert refused.value.details["limit"] == "files"
    with pytest.raises(QuotaExceeded):
        workspaces.make_directory("t/a", "work/c")
    workspaces.write_file("t/a", "work/a/b/0", b"changed")
    workspaces.delete_file("t/a", "work/a/b/0")
    workspaces.write_file("t/a", "work/a/b/more", b"x")


def test_one_file_has_a_limit_of_its_own(workspaces: Local) -> None:
    workspaces.create(id="t/b", config={"max_file_mb": 1})
    with pytest.raises(QuotaExceeded) as refused:
        workspaces.write_file("t/b", "work/f", bytes(MIB + 1))
    assert refused.value.details == {"limit": "file", "used": MIB + 1, "allowed": MIB}
    with pytest.raises(QuotaExceeded):
        workspaces.write_file("t/b", "work/f", iter([bytes(MIB), b"x"]))
    workspaces.write_file("t/b", "work/f", bytes(MIB))


def test_a_warning_comes_once_for_each_crossing(workspaces: Local, desk: Workspace) -> None:
    for number in range(3):
        workspaces.write_file("t/a", f"work/{number}", bytes(300 * KIB))
    workspaces.write_file("t/a", "work/small", b"x")
    assert quota_events(workspaces) == [("quota_warned", "size")]
    for _ in range(3):
        with pytest.raises(QuotaExceeded):
            workspaces.write_file("t/a", "work/large", bytes(300 * KIB))
    assert quota_events(workspaces)[1:] == [("quota_exceeded", "size")]
    for number in range(2):
        workspaces.delete_file("t/a", f"work/{number}")
    for number in range(2):
        workspaces.write_file("t/a", f"work/{number}", bytes(300 * KIB))
    assert quota_events(workspaces)[2:] == [("quota_warned", "size")]


# -- what is shared ----------------------------------------------------------------------------------------------------


def test_what_is_shared_counts_only_when_it_is_changed(workspaces: Local, tmp_path: Path) -> None:
    origin = make_origin(tmp_path / "origin")
    (origin / "huge.bin").write_bytes(os.urandom(3 * MIB))
    desk = workspaces.create(f"overlay:{origin}", id="t/a", config={"max_size_mb": 1})
    workspaces.write_file("t/a", "work/README.md", "changed\n")
    with pytest.raises(QuotaExceeded):  # the view would have to copy it
        workspaces.move_file("t/a", "work/huge.bin", "work/other.bin")
    workspaces.delete_file("t/a", "work/huge.bin")
    assert not Path(desk.path, "work", "huge.bin").exists()
    assert workspaces.usage("t/a").workspaces[0].bytes < 100 * KIB
    with pytest.raises(QuotaExceeded):
        workspaces.write_file("t/a", "work/data/new.bin", bytes(MIB))


def test_a_copy_begins_with_what_it_was_given(home_path: str, settings: Settings, tmp_path: Path) -> None:
    origin = make_origin(tmp_path / "origin")
    (origin / "huge.bin").write_bytes(os.urandom(3 * MIB))
    by_copy = settings.replace(storage=settings.storage.replace(mechanism="copy"))
    with workstead.open(home_path, settings=by_copy) as workspaces:
        desk = workspaces.create(f"overlay:{origin}", id="t/a", config={"max_size_mb": 1})
        assert desk.filled["mechanism"] == "copy"
        workspaces.write_file("t/a", "work/new", bytes(900 * KIB))
        with pytest.raises(QuotaExceeded):
            workspaces.write_file("t/a", "work/more", bytes(900 * KIB))


def test_a_folder_in_place_is_its_owners(workspaces: Local, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    workspaces.create(f"folder:{tmp_path}/folder", id="t/a", config={"max_size_mb": 1})
    workspaces.write_file("t/a", "work/large", bytes(2 * MIB))
    with pytest.raises(QuotaExceeded):
        workspaces.write_file("t/a", "output/large", bytes(2 * MIB))


# -- several workspaces ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "limit"), [("max_task_size_gb", "task"), ("max_total_size_gb", "total")])
def test_workspaces_have_a_limit_together(home_path: str, settings: Settings, key: str, limit: str) -> None:
    limits = settings.workspaces.replace(**{key: 2 / 1024})
    with workstead.open(home_path, settings=settings.replace(workspaces=limits)) as workspaces:
        for id in ("t/a", "t/b", "u/c"):
            workspaces.create(id=id)
        Path(workspaces.path("t/a"), "work", "by-hand").write_bytes(bytes(MIB))
        workspaces.write_file("t/b", "work/f", bytes(900 * KIB))
        with pytest.raises(QuotaExceeded) as refused:
            workspaces.write_file("t/b", "work/g", bytes(200 * KIB))
        assert refused.value.details["limit"] == limit
        if limit == "task":
            workspaces.write_file("u/c", "work/g", bytes(MIB))
        workspaces.destroy("t/a", force=True)
        workspaces.write_file("t/b", "work/g", bytes(100 * KIB))


def test_many_writers_at_once_never_go_over(
    workspaces: Local, desk: Workspace, home_path: str, settings: Settings
) -> None:
    def write(number: int) -> int:
        with workstead.open(home_path, settings=settings) as mine:
            done = 0
            for turn in range(6):
                try:
                    mine.write_file("t/a", f"work/{number}-{turn}", bytes(128 * KIB))
                    done += 1
                except QuotaExceeded:
                    continue
            return done

    written = sum(wait(pid) for pid in [fork(lambda number=number: write(number)) for number in range(4)])  # type: ignore[misc]
    # What lies there half written counts while somebody measures: a few may be refused too early, none too late.
    assert workspaces.usage("t/a").workspaces[0].bytes == written * 128 * KIB <= MIB
    for number in range(8 - written):
        workspaces.write_file("t/a", f"work/late-{number}", bytes(128 * KIB))
    with pytest.raises(QuotaExceeded):
        workspaces.write_file("t/a", "work/one", b"x")


# -- the count ---------------------------------------------------------------------------------------------------------


def test_the_count_is_never_less_than_the_truth(workspaces: Local, tmp_path: Path) -> None:
    make_desk(workspaces, make_origin(tmp_path / "origin"))
    for name in FILES:
        workspaces.write_file("fix/a", f"work/{name}", "x" * 5000)
    workspaces.write_file("fix/a", "work/very/deep/new", b"x", parents=True)
    workspaces.make_directory("fix/a", "work/other/deep", parents=True)
    workspaces.delete_file("fix/a", "work/README.md")
    workspaces.move_file("fix/a", "work/src", "work/lib")
    workspaces.write_file("fix/a", "output/report", b"x" * 100_000)
    now = workspaces.usage("fix/a").workspaces[0]
    size, files = counted(workspaces, "fix/a")
    assert size >= now.bytes
    assert files >= now.files


def test_an_admitted_write_does_not_walk_through_the_workspace(
    workspaces: Local, desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspaces.write_file("t/a", "work/f", b"first")
    walks = []

    def counting(*paths: str, **more: Any) -> Any:
        walks.append(paths)
        return measure.measure(*paths, **more)

    monkeypatch.setattr(quota, "measure", counting)
    for number in range(5):
        workspaces.write_file("t/a", f"work/{number}", b"x")
    assert walks == []
    with pytest.raises(QuotaExceeded):
        workspaces.write_file("t/a", "work/large", bytes(MIB))
    assert len(walks) == 1  # a refusal is sure
    found = quota.find_count(workspaces._home, desk)
    assert found
    quota.write_count(workspaces._home, desk, found.replace(measured_at=time.time(), measured_seconds=10.0))
    for _ in range(5):
        with pytest.raises(QuotaExceeded):
            workspaces.write_file("t/a", "work/large", bytes(MIB))
    assert len(walks) == 1  # what takes long is not done for every refusal


def test_a_count_that_is_torn_or_of_another_boot_is_none(workspaces: Local, desk: Workspace, home_path: str) -> None:
    workspaces.write_file("t/a", "work/f", bytes(100 * KIB))
    path = Path(home_path, "quota", desk.uid)
    whole = path.read_bytes()
    for text in (b"", whole[:40], b"[]", whole.replace(b'"of": "', b'"of": "z')):
        path.write_bytes(text)
        assert quota.find_count(workspaces._home, desk) is None
        workspaces.write_file("t/a", "work/g", b"x")
        assert counted(workspaces)[0] >= 104 * KIB
        workspaces.delete_file("t/a", "work/g")


def test_a_restore_is_counted_anew(workspaces: Local, desk: Workspace) -> None:
    workspaces.write_file("t/a", "work/f", bytes(900 * KIB))
    snapshot = workspaces.snapshot("t/a")
    workspaces.delete_file("t/a", "work/f")
    workspaces.write_file("t/a", "work/g", bytes(100 * KIB))
    workspaces.restore("t/a", snapshot.id)
    with pytest.raises(QuotaExceeded):
        workspaces.write_file("t/a", "work/h", bytes(500 * KIB))
