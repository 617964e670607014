"""Mounts by system calls, the old way and the new."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from itertools import pairwise

import pytest

from needs import need_root
from sources.yard import AGENT, Yard, mounts_in, yard_fixture
from workstead.system.kernel import mount_table, mounts

yard = yard_fixture

OVERLAY_MAGIC = 0x794C7630
OPTIONS: dict[str, str | None] = {"redirect_dir": "nofollow", "metacopy": "off", "index": "off"}


@pytest.fixture(autouse=True)
def _root() -> None:
    need_root()


def _parts(yard: Yard) -> tuple[str, str, str, str]:
    names = tuple(yard.folder(name) for name in ("lower", "upper", "aside", "point"))
    with open(f"{names[0]}/file", "w") as file:
        file.write("lower")
    os.chmod(f"{names[0]}/file", 0o600)
    os.chmod(names[0], 0o700)
    return names  # type: ignore[return-value]


@pytest.mark.parametrize("modern", [True, False])
def test_an_overlay_is_detached_then_attached_then_gone(yard: Yard, modern: bool) -> None:
    lower, upper, aside, point = _parts(yard)
    before = mounts_in(yard.directory)
    mount = mounts.overlay(
        [mounts.Lower(lower)], upper=upper, work=aside, options=OPTIONS, scratch=f"{yard.directory}/s", modern=modern
    )
    assert mounts_in(yard.directory) == before == []
    mounts.attach(mount, point)
    os.close(mount)
    assert mounts_in(yard.directory) == [point]
    assert mounts.file_system(point) == OVERLAY_MAGIC
    assert mounts.file_system(lower) != OVERLAY_MAGIC
    with open(f"{point}/file") as file:
        assert file.read() == "lower"
    mounts.unmount(point)
    assert os.listdir(point) == []


@pytest.mark.parametrize("modern", [True, False])
def test_a_lower_of_roots_is_the_agents_through_a_mapped_mount(yard: Yard, modern: bool) -> None:
    lower, upper, aside, point = _parts(yard)
    os.chown(upper, AGENT, AGENT)
    namespace = mounts.user_namespace(mounts.map_one(0, AGENT), mounts.map_one(0, AGENT))
    mount = mounts.overlay(
        [mounts.Lower(lower, namespace)],
        upper=upper,
        work=aside,
        options=OPTIONS,
        scratch=f"{yard.directory}/s",
        modern=modern,
    )
    mounts.attach(mount, point)
    os.close(mount)
    os.close(namespace)
    assert mounts_in(yard.directory) == [point]  # nothing parked is left
    assert os.stat(f"{point}/file").st_uid == AGENT
    script = "cat file && echo more >> file && cat file && chmod u+s file"
    run = ["setpriv", f"--reuid={AGENT}", f"--regid={AGENT}", "--clear-groups", "sh", "-ec", script]
    assert subprocess.run(run, cwd=point, capture_output=True, text=True, check=True).stdout == "lowerlowermore\n"
    assert os.stat(f"{lower}/file").st_uid == 0
    assert os.stat(f"{lower}/file").st_size == 5
    assert os.stat(f"{upper}/file").st_uid == AGENT  # a set-uid bit of the agent's is never one of root's
    mounts.unmount(point)


def test_a_map_is_one_to_one_and_complete() -> None:
    for inside, outside in ((0, 64042), (1000, 64042), (64042, 1000), (0, 1)):
        entries = [tuple(map(int, line.split())) for line in mounts.map_one(inside, outside).splitlines()]
        assert (inside, outside, 1) in entries
        for side in (0, 1):
            spans = sorted((entry[side], entry[side] + entry[2]) for entry in entries)
            assert all(first[1] <= second[0] for first, second in pairwise(spans))
        assert sum(entry[2] for entry in entries) == 0xFFFFFFFF - 1  # all but the one that would be two


def test_a_namespace_is_made_in_a_program_with_threads_and_leaves_no_process() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        children = set(_children())
        for _ in range(20):
            os.close(mounts.user_namespace(mounts.map_one(0, 5), mounts.map_one(0, 5)))
        assert set(_children()) == children
    finally:
        stop.set()
        thread.join()


def _children() -> list[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()


def test_a_link_is_no_place_to_mount_on(yard: Yard) -> None:
    lower, upper, aside, point = _parts(yard)
    os.rmdir(point)
    os.symlink(lower, point)
    mount = mounts.overlay([mounts.Lower(lower)], upper=upper, work=aside, options=OPTIONS, scratch="/nonexistent")
    with pytest.raises(OSError, match=r"directory|links"):
        mounts.attach(mount, point)
    os.close(mount)
    assert mounts_in(yard.directory) == []


def test_the_kernels_reason_is_in_the_error(yard: Yard) -> None:
    lower, upper, aside, _ = _parts(yard)
    with pytest.raises(OSError) as caught:
        mounts.overlay(
            [mounts.Lower(lower)],
            upper=upper,
            work=aside,
            options={"no_such_option": "1"},
            scratch=f"{yard.directory}/s",
        )
    assert "no_such_option" in str(caught.value)


def test_unmounting_what_is_busy_is_refused_unless_lazily(yard: Yard) -> None:
    lower, upper, aside, point = _parts(yard)
    mount = mounts.overlay([mounts.Lower(lower)], upper=upper, work=aside, options=OPTIONS, scratch="/nonexistent")
    mounts.attach(mount, point)
    os.close(mount)
    inside = os.open(point, os.O_PATH)
    try:
        with pytest.raises(OSError, match="busy"):
            mounts.unmount(point)
        mounts.unmount(point, lazily=True)
        assert mounts_in(yard.directory) == []
    finally:
        os.close(inside)


@pytest.mark.parametrize("by_number", [True, False])
def test_mounts_inside_a_folder_are_found_whatever_their_names(
    yard: Yard, by_number: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_number:
        monkeypatch.setattr(mount_table, "syscall", _missing)
    memory = f"{yard.directory}/mounts"
    folder = yard.folder("a folder\nwith lines")
    lower, upper, aside, _ = _parts(yard)
    os.mkdir(f"{folder}/in side")
    mount = mounts.overlay([mounts.Lower(lower)], upper=upper, work=aside, options=OPTIONS, scratch="/nonexistent")
    assert mount_table.mounts_below(folder, memory=memory) == []
    mounts.attach(mount, f"{folder}/in side")
    os.close(mount)
    try:
        for _ in range(2):
            assert mount_table.mounts_below(folder, memory=memory) == [f"{folder}/in side"]
            assert mount_table.mounts_below(f"{folder}/in side", memory=memory) == []
        assert mount_table.mounts_below(folder, memory=memory, besides=[f"{folder}/in side"]) == [f"{folder}/in side"]
    finally:
        mounts.unmount(f"{folder}/in side")
    assert mount_table.mounts_below(folder, memory=memory) == []


def _missing(*_: object) -> int:
    raise OSError(errno.ENOSYS, "no such call")


def test_every_mount_is_looked_at_once(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, folder = f"{yard.directory}/mounts", yard.folder("folder")
    asked: list[int] = []
    real = mount_table._point_of
    monkeypatch.setattr(mount_table, "_point_of", lambda number: asked.append(number) or real(number))
    points = [yard.folder(f"folder/{number:03}") for number in range(100)]
    for point in points[:60]:
        subprocess.run(["mount", "--bind", folder, point], check=True)
    try:
        assert mount_table.mounts_below(folder, memory=memory) == points[:60]
        assert len(asked) >= 60
        asked.clear()
        assert mount_table.mounts_below(folder, memory=memory) == points[:60]
        assert len(asked) < 60  # whatever others on this machine mounted meanwhile
        for point in points[60:]:
            subprocess.run(["mount", "--bind", folder, point], check=True)
        for point in points[:50]:
            subprocess.run(["umount", point], check=True)
        asked.clear()
        assert mount_table.mounts_below(folder, memory=memory) == points[50:]
        assert 40 <= len(asked) < 100
        with open(memory, "rb") as file:
            about = file.read()
        with open(memory, "wb") as file:
            file.write(b"another boot " + about)
        assert mount_table.mounts_below(folder, memory=memory) == points[50:]
    finally:
        for point in mounts_in(folder):
            subprocess.run(["umount", point], check=True)


@pytest.mark.parametrize("by_number", [True, False])
def test_a_mount_in_another_namespace_is_seen(yard: Yard, by_number: bool) -> None:
    lower, upper, aside, point = _parts(yard)
    mount = mounts.overlay([mounts.Lower(lower)], upper=upper, work=aside, options=OPTIONS, scratch="/nonexistent")
    mounts.attach(mount, point)
    os.close(mount)
    mounted = mount_table.mounted_at(point)
    if not by_number:
        mounted = mounted.replace(number=0)
    assert mount_table.seen_elsewhere(mounted, besides=os.getpid()) == []
    other = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdin
    assert other.stdout
    try:
        other.stdout.readline()
        mounts.unmount(point)  # no complaint, although the file system lives on over there
        assert mount_table.seen_elsewhere(mounted, besides=os.getpid()) == [other.pid]
        assert mount_table.bound_elsewhere([point]) == []
    finally:
        other.communicate(b"\n")


def test_a_directory_bound_in_another_namespace_and_its_users_are_seen(yard: Yard) -> None:
    folder, elsewhere = yard.folder("folder"), yard.folder("elsewhere")
    script = f"mount --bind {folder} {elsewhere}; cd {elsewhere}; echo; read x"
    other = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdin
    assert other.stdout
    try:
        other.stdout.readline()
        assert mount_table.bound_elsewhere([folder]) == [other.pid]
    finally:
        other.communicate(b"\n")
    sleeper = subprocess.Popen(["sleep", "60"], cwd=folder)
    try:
        assert mount_table.users_of(folder) == [sleeper.pid]
    finally:
        sleeper.kill()
        sleeper.wait()
    assert mount_table.users_of(folder) == []
