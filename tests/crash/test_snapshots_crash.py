"""Kill at every effect of snapshot, restore, collect and apply; fill the disk during each. Nothing is lost.

A child process does the work and ends itself, without any clean-up, right before its n-th effect on the file system (an
audit event of the interpreter) or after its n-th line of our code. The parent then looks at what is left.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from needs import need_root

sys.path.insert(0, str(Path(__file__).parent.parent / "snapshots"))

from desks import Desk, describe

from workstead.errors import DiskFull
from workstead.model.change import Plan
from workstead.snapshots import apply as applying
from workstead.snapshots.apply import apply_plan, finish_apply
from workstead.snapshots.gc import collect, verify
from workstead.snapshots.journal import drop_journal
from workstead.snapshots.merge import Folder, plan_merge
from workstead.snapshots.objects import Store

EFFECTS = {
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.utime",
    "os.chmod",
    "os.chown",
    "os.truncate",
    "os.setxattr",
    "os.removexattr",
    "fcntl.flock",
    "sqlite3.connect",
}
KILLED = 9


def killed_at(number: int, action: Callable[[], object], *, lines: bool = False) -> bool:
    """Do it in a child that dies at its n-th effect or line; False if it came to its end before."""
    child = os.fork()
    if child == 0:
        left = [number]

        def on_effect(event: str, _: object) -> None:
            if event in EFFECTS:
                left[0] -= 1
                if left[0] == 0:
                    os._exit(KILLED)

        def on_line(frame: object, event: str, _: object) -> object:
            code = getattr(frame, "f_code").co_filename  # noqa: B009
            if "workstead/snapshots" not in code:
                return None
            left[0] -= 1
            if left[0] <= 0:
                os._exit(KILLED)
            return on_line

        try:
            if lines:
                sys.settrace(on_line)  # type: ignore[arg-type]
            else:
                sys.addaudithook(on_effect)
            action()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED), "the child failed by itself"
    return code == KILLED


def every_kill(action: Callable[[], object]) -> Iterator[int]:
    """Kill it at the first effect, the second, and so on, until it comes to its end; then at random lines."""
    number = 1
    while killed_at(number, action):
        yield number
        number += 1
    yield number
    chance = random.Random(5)
    for _ in range(25):
        killed_at(chance.randrange(1, 4000), action, lines=True)
        yield -1


@pytest.fixture
def scratch() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as made:
        yield Path(made)


def fill(desk: Desk) -> None:
    desk.write("a.txt", "a\n" * 50)
    desk.write("dir/b.txt", "b\n" * 50, 0o755)
    desk.write("dir/sub/c.bin", os.urandom(2000))
    desk.write("gone/x", "x")
    (desk.work / "ln").symlink_to("a.txt")
    (desk.work / "empty").mkdir()


def change(desk: Desk) -> None:
    desk.write("a.txt", "changed\n")
    (desk.work / "dir/b.txt").chmod(0o644)
    (desk.work / "dir/sub/c.bin").unlink()
    shutil.rmtree(desk.work / "gone")
    desk.write("gone", "a file now")
    desk.write("new/deep/file", "new\n")
    (desk.work / "ln").unlink()
    (desk.work / "ln").symlink_to("dir")
    os.setxattr(desk.work / "dir", "user.x", b"1")


def no_leaks(desk: Desk) -> None:
    desk.store.close()


def test_a_snapshot_that_is_killed_anywhere_leaves_all_others_whole(scratch: Path) -> None:
    desk = Desk(scratch)
    fill(desk)
    roots = [desk.take().root]
    kills = 0
    for number in every_kill(lambda: _reopened(desk).take()):
        kills += 1
        with Store(desk.store.path) as store:
            assert verify(store, roots) == []
        if number % 5 == 0:
            desk.write("a.txt", f"version {number}")
            roots.append(_reopened(desk).take().root)
    assert kills > 20
    with Store(desk.store.path) as store:
        assert verify(store, roots) == []


def _reopened(desk: Desk) -> Desk:
    """The same workspace with nothing open: a connection must not cross a fork."""
    desk.store.close()
    desk.store = Store(desk.store.path)
    desk.write("random", os.urandom(500))
    return desk


@pytest.mark.parametrize("kind", ["plain", "overlay"])
def test_a_restore_that_is_killed_anywhere_is_finished_by_the_next(scratch: Path, kind: str) -> None:
    lower = scratch / "lower"
    if kind == "overlay":
        need_root()
        lower.mkdir()
        for name in ("below", "dir/below"):
            (lower / name).parent.mkdir(exist_ok=True)
            (lower / name).write_text("below")
        # An upper layer needs a file system with its xattrs.
    desk = Desk(scratch, lower=lower if kind == "overlay" else None)
    try:
        fill(desk)
        first, before = desk.take().root, describe(desk.root)
        change(desk)
        second, after = desk.take().root, describe(desk.root)
        kills = 0
        states = [(first, before), (second, after)]

        def go(root: str) -> None:
            desk.store = Store(desk.store.path)
            desk.restore(root)

        desk.store.close()
        target, expected = states[0]
        for _ in every_kill(lambda: go(target)):
            kills += 1
            with Store(desk.store.path) as store:
                assert verify(store, [first, second]) == []
            # Old or new: both are one call away, also for somebody who gives up.
            go(target)
            assert describe(desk.root) == expected
            desk.restore(second)
            assert describe(desk.root) == after
            desk.store.close()
        assert kills > 40
    finally:
        desk.close()


def test_a_collection_that_is_killed_anywhere_keeps_every_live_snapshot(scratch: Path) -> None:
    desk = Desk(scratch)
    roots = []
    for number in range(24):
        desk.write("file", f"{number}\n" * 200)
        desk.write(f"f{number % 3}", os.urandom(3000))
        roots.append(desk.take().root)
    desk.store.close()
    shutil.copytree(desk.store.path, scratch / "kept")
    live = roots[::5]
    kills = 0

    def run() -> None:
        with Store(desk.store.path) as store:
            collect(store, lambda: live)

    for _ in every_kill(run):
        kills += 1
        with Store(desk.store.path) as store:
            assert verify(store, live) == []
            collect(store, lambda: live)
            assert verify(store, live) == []
        shutil.rmtree(desk.store.path)
        shutil.copytree(scratch / "kept", desk.store.path)
    assert kills > 25


def _plan(desk: Desk, base: str, theirs: str, folder: Path) -> Plan:
    with desk.tree(base) as one, desk.tree(theirs) as other, Folder(str(folder)) as ours, desk.store.writer() as writer:
        made = plan_merge(one, ours, other, writer)
        writer.commit()
        return made


def _cannot(*_: object) -> None:
    raise OSError(errno.EINVAL, "Invalid argument")


LACKS: dict[str, tuple[str, ...]] = {
    "a modern file system": (),
    "one that cannot exchange": ("rename_exchange",),
    "one that can only rename": ("rename_exchange", "rename_no_replace"),
}


@pytest.mark.parametrize("lacks", LACKS)
def test_an_apply_that_is_killed_anywhere_is_old_or_new_after_the_next(
    scratch: Path, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LACKS[lacks]:
        monkeypatch.setattr(applying, name, _cannot)
    desk = Desk(scratch)
    fill(desk)
    base = desk.take().root
    pristine = scratch / "pristine"
    shutil.copytree(desk.work, pristine, symlinks=True)
    change(desk)
    theirs = desk.take().root
    origin = scratch / "origin"
    shutil.copytree(pristine, origin, symlinks=True)
    made = _plan(desk, base, theirs, origin)
    desk.store.close()
    old = describe(origin, times=False)
    journal = str(scratch / "journal")

    def apply() -> None:
        with Store(desk.store.path) as store:
            apply_plan(store, made, str(origin), journal)

    reference = scratch / "reference"
    shutil.copytree(pristine, reference, symlinks=True)
    with Store(desk.store.path) as store:
        apply_plan(store, made, str(reference), str(scratch / "other.journal"))
    new = describe(reference, times=False)
    seen = set()
    kills = 0
    for _ in every_kill(apply):
        kills += 1
        # The one that finishes may be killed too.
        killed_at(kills % 13 + 1, lambda: finish_apply(made, journal))
        finish_apply(made, journal)
        now = describe(origin, times=False)
        assert now in (old, new)
        seen.add(now == new)
        assert not [name for name in os.listdir(origin) if "aw-" in name]
        drop_journal(journal)
        shutil.rmtree(origin)
        shutil.copytree(pristine, origin, symlinks=True)
    assert kills > 60
    assert seen == {True, False}


# -- a full disk -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    need_root()
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def stuff(folder: Path) -> Path:
    """Take all the room that is left."""
    path = folder / "stuffing"
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return path


def test_a_snapshot_on_a_full_disk_is_a_clear_error_and_the_old_ones_stay(small_disk: Path, tmp_path: Path) -> None:
    desk = Desk(tmp_path, store=Store(str(small_disk / "snapshots")))
    fill(desk)
    taken = desk.take()
    desk.write("large", os.urandom(2 << 20))
    stuffing = stuff(small_disk)
    with pytest.raises(DiskFull):
        desk.take()
    desk.store.close()
    assert verify(desk.store, [taken.root]) == []
    stuffing.unlink()
    again = desk.take()
    assert verify(desk.store, [taken.root, again.root]) == []
    desk.close()


def test_a_collection_on_a_full_disk_loses_nothing(small_disk: Path, tmp_path: Path) -> None:
    desk = Desk(tmp_path, store=Store(str(small_disk / "snapshots")))
    roots = []
    for number in range(20):
        desk.write("file", os.urandom(5000))
        desk.write("other", f"{number}")
        roots.append(desk.take().root)
    stuffing = stuff(small_disk)
    live = roots[::3]
    collect(desk.store, lambda: live)  # that is when it is needed most: a little room was put aside for it
    desk.store.close()
    assert verify(desk.store, live) == []
    stuffing.unlink()
    collect(desk.store, lambda: live)
    assert verify(desk.store, live) == []
    desk.close()


def test_a_restore_on_a_full_disk_is_a_clear_error_and_the_present_comes_back(small_disk: Path, tmp_path: Path) -> None:
    desk = Desk(small_disk, store=Store(str(tmp_path / "snapshots")))
    fill(desk)
    for number in range(10):
        desk.write(f"much/{number}", os.urandom(100_000))
    full = desk.take().root
    desk.restore("empty")
    change_free = desk.write("present", os.urandom(200_000))
    present, before = desk.take(), describe(desk.root)
    stuffing = stuff(small_disk)
    with pytest.raises(DiskFull):
        desk.restore(full, back_to=present.root)
    assert describe(desk.root) == before
    stuffing.unlink()
    desk.restore(full)
    assert not change_free.exists()
    assert desk.take().root == full
    desk.close()


def test_an_apply_on_a_full_disk_is_a_clear_error_and_the_origin_is_as_it_was(small_disk: Path, tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    fill(desk)
    base = desk.take().root
    origin = small_disk / "origin"
    shutil.copytree(desk.work, origin, symlinks=True)
    change(desk)
    desk.write("large", os.urandom(1 << 20))
    made = _plan(desk, base, desk.take().root, origin)
    stuffing = stuff(small_disk)
    before = describe(origin)
    with pytest.raises(DiskFull):
        apply_plan(desk.store, made, str(origin), str(tmp_path / "journal"))
    after = describe(origin)
    assert after == before
    stuffing.unlink()
    apply_plan(desk.store, made, str(origin), str(tmp_path / "journal"))
    assert (origin / "large").exists()
    desk.close()
