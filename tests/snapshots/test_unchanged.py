"""The compiled look at a tree: it says what the walker in Python would have found, or leaves it to the walker."""

from __future__ import annotations

import marshal
import os
import random
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from desks import Desk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from needs import need, need_program, need_root
from properties.test_snapshots_properties import join, link, make_folder, remove, rewrite_in_place, touch, write
from situations import fork, wait
from workstead.model.snapshot import Limits, Taken
from workstead.snapshots import cache, unchanged, walker
from workstead.snapshots.folders import OPEN_DIR
from workstead.snapshots.take import _cache_key, take

REPOSITORY = Path(__file__).parents[2]
LIMITS = Limits()


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask it about the smallest tree, too."""
    need(unchanged.find_library() is not None, "the compiled walker: sh requirements/compile")
    monkeypatch.setattr(unchanged, "_WORTHWHILE", 0)


def remembered(desk: Desk, cache_path: str, limits: Limits = LIMITS) -> dict[str, cache.Directory]:
    return cache.load(cache_path, _cache_key(desk.place, limits)).directories


def same(desk: Desk, top: str = "work") -> set[str]:
    """What it says is the same."""
    known = {path: each for path, each in remembered(desk, desk.cache).items() if f"{path}/".startswith(f"{top}/")}
    fd = os.open(desk.root / top, OPEN_DIR)
    try:
        return unchanged.find_unchanged(fd, top, known)
    finally:
        os.close(fd)


def settled(desk: Desk) -> None:
    """Remember everything: nothing is younger than a tick."""
    time.sleep(0.03)
    desk.take()


# -- the same as in Python ---------------------------------------------------------------------------------------------

NAMES = ["a", "b", "with space", "new\nline", "ümlaut", os.fsdecode(b"\xff\xfe odd"), "x" * 255]
names = st.sampled_from(NAMES)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
contents = st.sampled_from([b"", b"one\n", b"text\n" * 50])
modes = st.sampled_from([0o644, 0o600, 0o755])


def fifo(work: Path, path: str) -> None:
    make_folder(work, path, 0o755)
    os.mkfifo(work / path / "pipe")


def move(work: Path, path: str, other: str) -> None:
    """Another name for whatever is there."""
    if os.path.lexists(work / path) and not (other + "/").startswith(path + "/"):
        make_folder(work, other, 0o755)
        if os.path.lexists(work / path):
            (work / other).rmdir()
            os.rename(work / path, work / other)


def mark(work: Path, path: str, value: bytes) -> None:
    if (work / path).is_dir() and not any(each.is_symlink() for each in (work / path, *(work / path).parents)):
        os.setxattr(work / path, "user.note", value)


def deepen(work: Path, path: str, levels: int) -> None:
    make_folder(work, path, 0o755)
    fd = os.open(work / path, OPEN_DIR)
    for _ in range(levels):  # longer than a path can be
        os.mkdir("d" * 100, dir_fd=fd)
        below = os.open("d" * 100, OPEN_DIR, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
    os.close(fd)


Edit = tuple[Callable[..., None], *tuple[object, ...]]
edit: st.SearchStrategy[Edit] = st.one_of(
    st.tuples(st.just(write), paths, contents, modes),
    st.tuples(st.just(write), paths, contents, modes),
    st.tuples(st.just(link), paths, names),
    st.tuples(st.just(make_folder), paths, modes),
    st.tuples(st.just(remove), paths),
    st.tuples(st.just(touch), paths, st.integers(-(2**66), 2**66)),
    st.tuples(st.just(rewrite_in_place), paths),
    st.tuples(st.just(join), paths, paths),
    st.tuples(st.just(fifo), paths),
    st.tuples(st.just(move), paths, paths),
    st.tuples(st.just(mark), paths, st.sampled_from([b"1", b"2"])),
    st.tuples(st.just(deepen), paths, st.integers(1, 60)),
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as made:
        yield Path(made)


@settings(
    max_examples=int(os.environ.get("AW_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(
    rounds=st.lists(st.lists(edit, min_size=1, max_size=6), min_size=2, max_size=3),
    limits=st.sampled_from([LIMITS, LIMITS, Limits(max_entries=4), Limits(max_depth=2)]),
)
def test_it_finds_what_the_walker_finds_without_it(shared: Path, rounds: list[list[Edit]], limits: Limits) -> None:
    with TemporaryDirectory(dir=shared) as scratch:
        desk = Desk(Path(scratch))
        try:
            for edits in rounds:
                for act, *arguments in edits:
                    act(desk.work, *arguments)
                compare_both(desk, limits)
            compare_both(desk, limits)
        finally:
            desk.close()


def compare_both(desk: Desk, limits: Limits = LIMITS) -> None:
    """One walk with it, one without, each with a memory of its own, and one without memory."""

    def taken(cache_path: str) -> Taken:
        found = take(desk.store, desk.place, cache_path=cache_path, limits=limits)
        return found.replace(stored_bytes=0)

    time.sleep(0.022)  # what is younger than a tick is remembered by neither, but not at the same moment

    def held(cache_path: str) -> dict[str, tuple[object, ...]]:
        return {
            path: (*each.as_tuple()[:6], marshal.loads(each.known) if each.known else {}, each.folders)
            for path, each in remembered(desk, cache_path, limits).items()
        }

    ours = taken(desk.cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walker, "find_unchanged", lambda *_: set())
        theirs = taken(desk.cache + "-python")
        truth = taken("")
    assert ours == theirs
    if limits.max_entries == LIMITS.max_entries:  # what is remembered stays, though the tree has grown over the limit
        assert ours == truth
    assert held(desk.cache) == held(desk.cache + "-python")


def test_what_nobody_touched_is_the_same_and_is_not_looked_at_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        desk.write(f"d{number % 4}/e/f{number}", str(number))
    desk.take()
    settled(desk)
    assert same(desk) == {"work", *(f"work/d{each}{below}" for each in range(4) for below in ("", "/e"))}
    scanned: list[str] = []
    real = walker.Walk._scan
    monkeypatch.setattr(walker.Walk, "_scan", lambda self, frame: (scanned.append(frame.path), real(self, frame)))
    desk.take()
    assert scanned == []
    desk.write("d1/e/f1", "another")
    assert "work/d1/e" not in same(desk)
    taken = desk.take()
    assert scanned == ["work/d1/e"]
    assert taken.files == 40


@pytest.mark.parametrize(
    "change",
    [
        lambda work: (work / "d/f").write_text("text of another size"),
        lambda work: rewrite_in_place(work, "d/f"),
        lambda work: (work / "d/f").chmod(0o600),
        lambda work: (work / "d/f").unlink(),
        lambda work: os.replace(shutil.copy2(work / "d/f", work / "other"), work / "d/f"),
        lambda work: (work / "d/new").touch(),
        lambda work: (work / "d/new").mkdir(),
        lambda work: (work / "d/e").rmdir(),
        lambda work: (work / "d").chmod(0o700),
        lambda work: os.setxattr(work / "d", "user.note", b"1"),
        lambda work: os.utime(work / "d", ns=(5, 5)),
        lambda work: (os.unlink(work / "d/link"), os.symlink("g", work / "d/link")),
    ],
)
def test_every_kind_of_change_is_seen(desk: Desk, change: Callable[[Path], object]) -> None:
    desk.write("d/f", "text")
    desk.write("quiet/f", "text")
    (desk.work / "d/e").mkdir()
    (desk.work / "d/link").symlink_to("f")
    desk.take()
    settled(desk)
    assert {"work/d", "work/quiet"} <= same(desk)
    change(desk.work)
    assert "work/d" not in same(desk)
    assert "work/quiet" in same(desk)
    compare_both(desk)


# -- what must not lead it astray --------------------------------------------------------------------------------------


def test_a_link_on_the_way_is_not_followed(desk: Desk) -> None:
    desk.write("p/d/f", "text")
    desk.take()
    settled(desk)
    os.rename(desk.work / "p", desk.path / "outside")
    (desk.work / "p").symlink_to(desk.path / "outside")
    key = remembered(desk, desk.cache)["work/p/d"].key
    through = os.stat(desk.work / "p/d")  # whoever follows the link finds exactly what is remembered
    assert (through.st_dev, through.st_ino, through.st_ctime_ns) == key
    assert same(desk).isdisjoint({"work/p", "work/p/d"})
    compare_both(desk)


def test_a_view_of_several_directories_is_listed(desk: Desk) -> None:
    """What somebody adds below an overlay shows in it, and no time of the directory says so."""
    need_root()
    for name in ("lower/d", "upper", "scratch"):
        (desk.path / name).mkdir(parents=True)
    (desk.path / "lower/d/f").write_text("theirs")
    options = ",".join(f"{key}dir={desk.path / key}" for key in ("lower", "upper"))
    options += f",workdir={desk.path / 'scratch'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(desk.work)], check=True)
    try:
        desk.write("d/own", "mine")
        desk.take()
        settled(desk)
        assert "work/d" in same(desk)
        (desk.path / "lower/d/late").write_text("theirs too")
        status = os.stat(desk.work / "d")
        assert (status.st_dev, status.st_ino, status.st_ctime_ns) == remembered(desk, desk.cache)["work/d"].key
        assert "work/d" not in same(desk)
        compare_both(desk)
        assert desk.take().files == 3
    finally:
        subprocess.run(["umount", "-l", str(desk.work)], check=True)


def test_a_time_of_whole_seconds_is_believed_later() -> None:
    now = 1_000_000_000 * 1_700_000_000
    assert cache.is_settled(now - 21_000_001, now)
    assert not cache.is_settled(now - 19_000_000, now)
    assert not cache.is_settled(now - 1_000_000_000, now)
    assert not cache.is_settled(now - 2_000_000_000, now)
    assert cache.is_settled(now - 3_000_000_000, now)


def test_no_memory_however_spoilt_makes_it_say_what_is_not_so(desk: Desk) -> None:
    for number in range(20):
        desk.write(f"d/f{number}", str(number))
    desk.take()
    settled(desk)
    known = remembered(desk, desk.cache)["work/d"]
    fd = os.open(desk.work, OPEN_DIR)
    spoil = random.Random(1)
    good = known.seen
    try:
        for _ in range(3000):
            bad = bytearray(good[: spoil.randrange(len(good) + 1)] if spoil.random() < 0.5 else good)
            for _ in range(spoil.randrange(3)):
                if bad:
                    bad[spoil.randrange(len(bad))] ^= 1 << spoil.randrange(8)
            bad += bytes(spoil.randrange(256) for _ in range(spoil.choice([0, 0, 1, 50])))
            known.seen = bytes(bad)
            assert unchanged.find_unchanged(fd, "work", {"work/d": known}) == ({"work/d"} if bad == good else set())
        known.seen = good
        for path in ("work/../work/d", "work/d/", "work/./d", "work/" + "x" * 300, "work/d/f1"):
            assert unchanged.find_unchanged(fd, "work", {path: known}) == set()
    finally:
        os.close(fd)


def test_it_leaves_no_descriptor_open(desk: Desk) -> None:
    for number in range(300):
        desk.write(f"d{number % 7}/e{number}/f", "x")
    desk.take()
    settled(desk)
    before = sorted(os.listdir("/proc/self/fd"))
    assert len(same(desk)) == 308
    shutil.rmtree(desk.work / "d3")
    assert len(same(desk)) == 308 - 1 - 1 - sum(number % 7 == 3 for number in range(300))
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_what_changes_while_it_looks_is_never_missed_afterwards(in_memory: Path) -> None:
    desk = Desk(in_memory)
    for number in range(200):
        desk.write(f"d{number % 10}/e{number % 3}/f{number}", str(number))
    desk.take()
    settled(desk)
    script = f"""
import os, random
os.chdir({str(desk.work)!r})
dice = random.Random(1)
while True:
    d, e, f = dice.randrange(10), dice.randrange(3), dice.randrange(200)
    try:
        match dice.randrange(5):
            case 0: open(f"d{{d}}/e{{e}}/f{{f}}", "w").write(str(dice.random()))
            case 1: os.rename(f"d{{d}}", f"d{{dice.randrange(10)}}")
            case 2: os.unlink(f"d{{d}}/e{{e}}/f{{f}}")
            case 3:
                os.rename(f"d{{d}}/e{{e}}", f"e{{e}}")
                os.symlink("/", f"d{{d}}/e{{e}}")
                os.unlink(f"d{{d}}/e{{e}}")
                os.rename(f"e{{e}}", f"d{{d}}/e{{e}}")
            case 4: os.makedirs(f"d{{d}}/e{{e}}", exist_ok=True)
    except OSError:
        pass
"""
    for _ in range(3):
        busy = subprocess.Popen([sys.executable, "-c", script])
        try:
            time.sleep(0.15)
            for _ in range(5):
                desk.take()
        finally:
            busy.kill()
            busy.wait()
        assert desk.take().root == desk.take(cached=False).root
    desk.close()


def test_what_it_may_not_read_is_left_to_the_walker(in_memory: Path) -> None:
    need_root()
    in_memory.chmod(0o755)
    nobody = 65534

    def as_nobody() -> int:
        os.setgroups([])
        os.setgid(nobody)
        os.setuid(nobody)
        desk = Desk(in_memory / "theirs")
        desk.write("d/open/f", "1")
        desk.write("d/closed/f", "1")
        desk.take()
        settled(desk)
        (desk.work / "d/closed").chmod(0)
        for _ in range(2):
            compare_both(desk)
        assert [(each.path, each.kind) for each in desk.take().left_out] == [("work/d/closed", "unreadable")]
        assert same(desk) == {"work", "work/d/open"}
        (desk.work / "d/closed").chmod(0o755)
        compare_both(desk)
        assert desk.take().left_out == ()
        desk.close()
        return 0

    (in_memory / "theirs").mkdir()
    os.chown(in_memory / "theirs", nobody, nobody)
    assert wait(fork(as_nobody)) == 0


# -- with and without a compiler ---------------------------------------------------------------------------------------


def test_a_library_of_another_version_or_machine_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = need_program("cc")
    source = (REPOSITORY / "src/workstead/snapshots/unchanged.c").read_text()
    (tmp_path / "other.c").write_text(source.replace(unchanged._ENTRY, "workstead_unchanged_0"))
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", "other.so", "other.c"], cwd=tmp_path, check=True)
    (tmp_path / "junk.so").write_bytes(b"\x7fELF" + os.urandom(200))
    for name in ("other.so", "junk.so", "missing.so"):
        monkeypatch.setattr(unchanged, "_loaded", [])
        monkeypatch.setattr(unchanged, "LIBRARY", str(tmp_path / name))
        assert unchanged.find_library() is None


def test_the_wheel_brings_it(tmp_path: Path) -> None:
    need_program("cc")
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(REPOSITORY / name, tmp_path)
    shutil.copytree(REPOSITORY / "requirements", tmp_path / "requirements")
    shutil.copytree(REPOSITORY / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))

    def build(**environment: str) -> zipfile.ZipFile:
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
            cwd=tmp_path,
            check=True,
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        (wheel,) = (tmp_path / "dist").iterdir()
        return zipfile.ZipFile(wheel.rename(tmp_path / wheel.name))

    library = "workstead/snapshots/libunchanged.so"
    with build() as wheel:
        assert "-py3-none-linux_" in str(wheel.filename)
        assert wheel.read(library)[:4] == b"\x7fELF"
        assert stat.S_IMODE(wheel.getinfo(library).external_attr >> 16) & 0o444
    (tmp_path / "src" / library).unlink()
    tools = tmp_path / "tools"
    tools.mkdir()
    for program in ("sh", "dirname", "rm"):
        (tools / program).symlink_to(need_program(program))
    with build(PATH=str(tools), CC="") as wheel:
        assert "-py3-none-any" in str(wheel.filename)
        assert library not in wheel.namelist()
