"""A run that wants more than its workspace may take: growth is refused, deleting works, and the run goes on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workstead
from needs import need, need_program, need_root
from origins import make_origin
from waiting import wait_until
from workstead.local import Local
from workstead.model.run import Run
from workstead.settings import Settings

MIB = 1 << 20
LIMIT_MB = 300
FULL = os.environ.get("AW_LOAD") == "full"

GOES_ON = """
import os, time, shutil
def goes_on():
    "Delete everything, and write again as soon as that is allowed."
    for name in os.listdir("."):
        shutil.rmtree(name) if os.path.isdir(name) else os.remove(name)
    for _ in range(500):
        try:
            with open("again", "wb", buffering=0) as file:
                file.write(b"x" * 100000)
            print("goes on")
            return
        except OSError:
            time.sleep(0.02)
"""
GREED = {
    "one file": """
piece, size = b"x" * (1 << 20), 0
with open("large", "wb", buffering=0) as file:
    try:
        while size < 600 << 20:
            size += file.write(piece)
    except OSError as error:
        print("refused", error.errno)
""",
    "many processes": """
piece = b"x" * (1 << 18)
for number in range(16):
    if os.fork() == 0:
        file, code = os.open(f"p{number}", os.O_CREAT | os.O_WRONLY), 0
        try:
            for _ in range(200):
                os.write(file, piece)
        except OSError as error:
            code = error.errno
        os._exit(code)
ends = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(16)]
print("refused", max(ends))
""",
    "sparse files": """
refused = 0
for number in range(40):
    file = os.open(f"s{number}", os.O_CREAT | os.O_RDWR)
    try:
        os.ftruncate(file, 100 << 20)
        for offset in range(0, 100 << 20, 1 << 20):
            os.pwrite(file, b"y" * (1 << 20), offset)
    except OSError as error:
        refused = error.errno
    os.close(file)
print("refused", refused)
""",
}
FALLOCATE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
got = []
for mode in (0, 1, 0x10, 0x11):  # with and without making the file longer
    for number in range(20):
        file = os.open(f"f{mode}-{number}", os.O_CREAT | os.O_RDWR)
        if libc.fallocate(file, mode, ctypes.c_long(0), ctypes.c_long(50 << 20)) == 0:
            got.append(mode)
print("got", len(got))
"""


class Disk:
    """A file system of its own: what others write does not disturb the measurement."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lowest = self.free()

    def free(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bfree * found.f_frsize

    def watch(self, is_over: threading.Event) -> None:
        while not is_over.wait(0.0005):
            self.lowest = min(self.lowest, self.free())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    need_root()
    need_program("mkfs.ext4")
    need(os.path.exists("/dev/loop-control"), "loop devices")
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(3 << 30)
    subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=1", "-N", "400000", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    try:
        yield Disk(place)
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def workspaces(disk: Disk, settings: Settings) -> Iterator[Local]:
    calm = settings.replace(snapshots=settings.snapshots.replace(around_runs=False))
    calm = calm.replace(storage=calm.storage.replace(quota="metering"))
    with workstead.open(disk.path / "home", settings=calm) as opened:
        yield opened


@pytest.fixture
def spaces(disk: Disk, settings: Settings) -> Iterator[Local]:
    """Workspaces of limited size have a file system of their own."""
    calm = settings.replace(snapshots=settings.snapshots.replace(around_runs=False))
    with workstead.open(disk.path / "home", settings=calm) as opened:
        yield opened
        for desk in opened.list():
            opened.destroy(desk.id, force=True)  # nothing of theirs is mounted any more


def run(workspaces: Local, id: str, program: str, **more: object) -> tuple[Run, str]:
    started = workspaces.run(id, ["python3", "-c", GOES_ON + program], **more)  # type: ignore[arg-type]
    ended = workspaces.wait(started.id, timeout_seconds=120)
    return ended, b"".join(data for _, _, data in workspaces.output(ended.id)).decode()


def fall(disk: Disk, workspaces: Local, id: str, program: str) -> tuple[Run, str, int]:
    """Run it, and say by how much the disk's free space fell at the worst moment."""
    before = disk.lowest = disk.free()
    over = threading.Event()
    watcher = threading.Thread(target=disk.watch, args=(over,))
    watcher.start()
    try:
        return *run(workspaces, id, program), before - disk.lowest
    finally:
        over.set()
        watcher.join()


def hold(attempt: Callable[[str], float], most: float) -> None:
    """What an attempt in a workspace of this name takes is no more than that.

    A meter holds a run as closely as it is given a processor in time, and a machine that is somebody's guest may stand
    still for a moment while the run goes on beside it. Of some attempts one is not disturbed."""
    taken = []
    for number in range(6):
        taken.append(attempt(f"a{number}"))
        if taken[-1] <= most:
            return
    pytest.fail(f"{taken} is more than {most} each time")


@pytest.mark.parametrize("how", GREED)
def test_growth_is_refused_and_the_run_deletes_and_goes_on(disk: Disk, workspaces: Local, how: str) -> None:
    def attempt(name: str) -> int:
        id = f"{name}/a"
        workspaces.create(id=id, config={"max_size_mb": LIMIT_MB})
        ended, said, fell = fall(disk, workspaces, id, GREED[how] + "goes_on()")
        assert said.split("\n") == ["refused 27", "goes on", ""]
        assert ended.state == "completed"
        assert workspaces.usage(id).workspaces[0].bytes < MIB
        events = [event.event_type for event in workspaces.events(task=name, types=["quota_warned", "quota_exceeded"])]
        assert events == ["quota_warned", "quota_exceeded"] or how == "one file"  # whose largest size is the limit
        held: dict[str, list[str]] = ended.enforcement["limits"]  # type: ignore[assignment]
        assert held["quota_bytes"][0] == "metering"
        return fell

    hold(attempt, LIMIT_MB * MIB * 1.05)


@pytest.mark.parametrize("how", ["one file", "many processes"])
def test_without_the_limit_the_same_greed_is_satisfied(disk: Disk, workspaces: Local, how: str) -> None:
    limits = workspaces._home.settings.workspaces.replace(default_max_size_mb=None, default_max_files=None)
    free = workspaces._home.settings.replace(workspaces=limits)
    with workstead.open(workspaces._home.path, settings=free) as unlimited:
        unlimited.create(id="t/a")
        _, said, fell = fall(disk, unlimited, "t/a", GREED[how])
    assert said in ("", "refused 0\n")
    assert fell > LIMIT_MB * MIB * 1.5


def test_small_files_are_stopped_by_their_size_and_by_their_number(disk: Disk, workspaces: Local) -> None:
    many = 1_000_000 if FULL else 100_000
    small = f"""
os.mkdir("d")
try:
    for number in range({many}):
        with open(f"d/{{number}}", "wb", buffering=0) as file:
            file.write(b"x")
except OSError as error:
    print("refused", error.errno, number)
goes_on()
"""

    def attempt_bytes(name: str) -> int:
        workspaces.create(id=f"{name}/size", config={"max_size_mb": 100})
        _, said, fell = fall(disk, workspaces, f"{name}/size", small)
        assert said.startswith("refused 27")
        assert said.endswith("goes on\n")
        return fell

    def attempt_files(name: str) -> int:
        workspaces.create(id=f"{name}/files", config={"max_files": 20_000})
        _, said, _ = fall(disk, workspaces, f"{name}/files", small)
        assert said.startswith("refused 27")
        exceeded = [event.event_data for event in workspaces.events(task=name, types=["quota_exceeded"])]
        assert [fact["limit"] for fact in exceeded if fact["agent_id"] == "files"] == ["files"]
        return int(said.split()[2])

    hold(attempt_bytes, 100 * MIB * 1.05)
    hold(attempt_files, 20_000 * 1.05)


def test_space_cannot_be_reserved_without_being_written(disk: Disk, workspaces: Local) -> None:
    workspaces.create(id="t/a", config={"max_size_mb": LIMIT_MB})
    _, said, fell = fall(disk, workspaces, "t/a", FALLOCATE)
    assert said == "got 0\n"
    assert fell < 10 * MIB
    ended, said = run(workspaces, "t/a", "os.posix_fallocate(os.open('f', os.O_CREAT | os.O_RDWR), 0, 1 << 20)")
    assert ended.exit_code == 0  # the C library writes zeros instead
    limits = workspaces._home.settings.workspaces.replace(default_max_size_mb=None, default_max_files=None)
    with workstead.open(
        workspaces._home.path, settings=workspaces._home.settings.replace(workspaces=limits)
    ) as unlimited:
        unlimited.create(id="t/b")
        _, said, fell = fall(disk, unlimited, "t/b", FALLOCATE)
    assert said.startswith("got ")
    assert fell > LIMIT_MB * MIB


def test_growth_that_no_file_size_stops_ends_the_run(disk: Disk, workspaces: Local) -> None:
    """Stores into the holes of mapped files, and names without content."""
    holes = """
import mmap
maps = []
for number in range(30):
    file = os.open(f"m{number}", os.O_CREAT | os.O_RDWR)
    os.ftruncate(file, 40 << 20)
    maps.append(mmap.mmap(file, 40 << 20))
for each in maps:
    for offset in range(0, 40 << 20, 4096):
        each[offset] = 1
print("satisfied")
"""

    def attempt(name: str) -> int:
        workspaces.create(id=f"{name}/holes", config={"max_size_mb": LIMIT_MB})
        ended, said, fell = fall(disk, workspaces, f"{name}/holes", holes)
        assert (ended.state, said) == ("failed", "")
        assert ended.reason.startswith("quota_exceeded")
        workspaces.destroy(f"{name}/holes", force=True)
        workspaces.sweep(everything=True)
        return fell

    hold(attempt, LIMIT_MB * MIB * 1.1)
    workspaces.create(id="t/names", config={"max_files": 5000})
    ended, _ = run(workspaces, "t/names", "for n in range(200000): os.close(os.open(f'n{n}', os.O_CREAT))")
    assert ended.reason.startswith("quota_exceeded")
    assert workspaces.usage("t/names").workspaces[0].files < 20_000
    workspaces.delete_file("t/names", "work/n0")  # and it is no state that cannot be left
    workspaces.destroy("t/names", force=True)


def test_the_limit_cannot_be_lifted_from_inside(disk: Disk, workspaces: Local) -> None:
    lift = """
import ctypes, resource
libc = ctypes.CDLL(None, use_errno=True)
pair = (ctypes.c_ulong * 2)(1 << 40, 1 << 40)
for call in (lambda: libc.syscall(160, 1, pair), lambda: libc.syscall(302, 0, 1, pair, None)):
    print(call(), ctypes.get_errno())
print(resource.getrlimit(resource.RLIMIT_FSIZE)[0], resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
"""
    need(os.uname().machine == "x86_64", "the numbers of system calls on x86_64")
    workspaces.create(id="t/a", config={"max_size_mb": 50})
    _, said = run(workspaces, "t/a", lift)
    assert said == f"-1 1\n-1 1\n{50 * MIB} None\n"
    limits = workspaces._home.settings.workspaces.replace(default_max_size_mb=None, default_max_files=None)
    with workstead.open(
        workspaces._home.path, settings=workspaces._home.settings.replace(workspaces=limits)
    ) as unlimited:
        unlimited.create(id="t/b")
        assert run(unlimited, "t/b", lift.replace("1 << 40", "1 << 20"))[1].startswith("0 ")


def test_a_workspace_that_is_full_already_can_only_shrink(disk: Disk, workspaces: Local) -> None:
    desk = workspaces.create(id="t/a", config={"max_size_mb": 1})
    Path(desk.path, "work", "by-hand").write_bytes(bytes(2 * MIB))
    waits = """
for _ in range(500):
    try:
        open("new", "wb", buffering=0).write(b"x")
        time.sleep(0.01)
    except OSError as error:
        print("refused", error.errno)
        break
goes_on()
"""
    ended, said = run(workspaces, "t/a", waits)
    assert said == "refused 27\ngoes on\n"
    assert ended.usage["quota_stops"] == 1
    assert [denial.kind for denial in workspaces.why(ended.id).denials] == ["quota"]


CHANGE_THE_HUGE_FILE = """
try:
    open("huge.bin", "r+b").write(b"x")  # the view has to copy it
except OSError as error:
    print("refused", error.errno)
"""


def make_view_of_a_huge_file(workspaces: Local, tmp_path: Path) -> None:
    """`t/a`, which may take less than a file that shows through it."""
    origin = make_origin(tmp_path / "origin")
    (origin / "huge.bin").write_bytes(os.urandom(30 * MIB))
    workspaces.create(f"overlay:{origin}", id="t/a", config={"max_size_mb": 20})


def test_a_view_counts_what_is_changed_in_it_and_beside_it(disk: Disk, workspaces: Local, tmp_path: Path) -> None:
    make_view_of_a_huge_file(workspaces, tmp_path)
    ended, said = run(
        workspaces,
        "t/a",
        CHANGE_THE_HUGE_FILE
        + """
try:
    with open("../beside", "wb", buffering=0) as file:
        for _ in range(100): file.write(b"x" * (1 << 20))
except OSError as error:
    print("refused", error.errno)
os.remove("../beside")
""",
    )
    assert said == "refused 27\nrefused 27\n"
    assert ended.state == "completed"
    assert workspaces.usage("t/a").workspaces[0].bytes < 2 * MIB


def test_what_a_run_left_counts_for_what_is_written_through_us(disk: Disk, workspaces: Local) -> None:
    workspaces.create(id="t/a", config={"max_size_mb": 3})
    workspaces.write_file("t/a", "work/f", bytes(MIB))
    run(workspaces, "t/a", "open('g', 'wb').write(bytes(1 << 20))")
    with pytest.raises(workstead.errors.QuotaExceeded):
        workspaces.write_file("t/a", "work/h", bytes(2 * MIB))
    workspaces.write_file("t/a", "work/h", bytes(MIB))


def test_a_run_has_what_its_task_has_left(disk: Disk, settings: Settings) -> None:
    limits = settings.workspaces.replace(max_task_size_gb=100 / 1024)
    with workstead.open(disk.path / "home", settings=settings.replace(workspaces=limits)) as workspaces:
        other = workspaces.create(id="t/other")
        Path(other.path, "work", "f").write_bytes(bytes(70 * MIB))
        workspaces.create(id="t/a")
        _, said = run(workspaces, "t/a", GREED["one file"] + "print(os.path.getsize('large') >> 20)")
        assert said.split() == ["refused", "27", "30"]


def test_a_supervisor_that_dies_while_all_is_frozen_leaves_nothing(disk: Disk, workspaces: Local) -> None:
    from workstead.system.kernel import cgroups

    desk = workspaces.create(id="t/a")
    started = workspaces.run(desk.id, ["sleep", "600"])
    while workspaces.get_run(started.id).state != "running":
        time.sleep(0.01)
    group = cgroups.find(f"aw-{started.id}")
    need(cgroups.can_freeze(group), "a control group that freezes")
    cgroups.start_freezing(group)
    inside = cgroups.processes(group)
    assert inside
    lock = Path(workspaces._home.path, "runs", started.id, "lock").read_text().split()[0]
    os.kill(int(lock), 9)
    ended = workspaces.wait(started.id, timeout_seconds=30)
    assert ended.state == "failed"
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in inside))


# -- a file system of the workspace's own ------------------------------------------------------------------------------

HOLES = """
import mmap, signal
for number in range(8):
    if os.fork() == 0:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        file = os.open(f"m{number}", os.O_CREAT | os.O_RDWR)
        os.ftruncate(file, 40 << 20)
        each = mmap.mmap(file, 40 << 20)
        for offset in range(0, 40 << 20, 1024):
            each[offset] = 1
        os._exit(0)
ends = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(8)]
print("refused", 28 if -signal.SIGBUS in ends else ends)
"""
SMALL = """
os.mkdir("d")
try:
    for number in range(1000000):
        with open(f"d/{number}", "wb", buffering=0) as file:
            file.write(b"x")
except OSError as error:
    print("refused", error.errno)
"""
RESERVED = """
try:
    for number in range(100):
        with open(f"f{number}", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 5 << 20)
except OSError as error:
    print("refused", error.errno)
"""
BESIDE = """
for folder in ("../output", "../tmp", ".."):
    try:
        with open(f"{folder}/large", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * (1 << 20))
    except OSError as error:
        last = error.errno
time.sleep(1)
for folder in ("../output", "../tmp", ".."):
    os.remove(f"{folder}/large")
print("refused", last)
"""
EVERY = {**GREED, "mapped holes": HOLES, "small files": SMALL, "reserved": RESERVED, "beside": BESIDE}


@pytest.mark.parametrize("how", EVERY)
def test_a_file_system_of_its_own_refuses_everything_that_does_not_go_in(disk: Disk, spaces: Local, how: str) -> None:
    size = 20
    spaces.create(id="t/a", config={"max_size_mb": size})
    ended, said, fell = fall(disk, spaces, "t/a", EVERY[how] + "time.sleep(1)\ngoes_on()")  # for who looks now and then
    assert said == "refused 28\ngoes on\n"
    assert ended.state == "completed"
    assert fell <= size * MIB * 1.05
    events = [event.event_type for event in spaces.events(types=["quota_warned", "quota_exceeded"])]
    assert events[:2] == ["quota_warned", "quota_exceeded"]
    held: dict[str, list[str]] = ended.enforcement["limits"]  # type: ignore[assignment]
    assert held["quota_bytes"] == ["file system of limited size"]
    assert spaces.usage("t/a").workspaces[0].bytes < MIB


def test_without_its_own_file_system_and_without_a_limit_the_holes_are_filled(disk: Disk, spaces: Local) -> None:
    spaces.create(id="t/a", config={"max_size_mb": 1000})
    _, said, fell = fall(disk, spaces, "t/a", HOLES)
    assert said == "refused [0, 0, 0, 0, 0, 0, 0, 0]\n"
    assert fell > 300 * MIB


def test_what_is_written_through_us_meets_the_same_limit(spaces: Local) -> None:
    spaces.create(id="t/a", config={"max_size_mb": 20})
    run(spaces, "t/a", GREED["one file"])
    with pytest.raises(workstead.errors.QuotaExceeded) as caught:
        spaces.write_file("t/a", "work/more", bytes(MIB))
    assert caught.value.details["limit"] == "size"
    spaces.delete_file("t/a", "work/large")
    spaces.write_file("t/a", "work/more", bytes(MIB))
    assert spaces.read_file("t/a", "work/more") == bytes(MIB)


def test_a_view_a_fork_and_a_machine_that_was_switched_off(disk: Disk, spaces: Local, tmp_path: Path) -> None:
    make_view_of_a_huge_file(spaces, tmp_path)
    _, said = run(
        spaces,
        "t/a",
        CHANGE_THE_HUGE_FILE
        + """
open("own", "w").write("own")
""",
    )
    assert said == "refused 28\n"
    kept = spaces.snapshot("t/a")
    (fork,) = spaces.fork("t/a", new_id="t/b")
    for each in (spaces.get("t/a"), fork):
        assert Path(each.path, "work", "own").read_text() == "own"
        assert Path(each.path, "work", "huge.bin").stat().st_size == 30 * MIB
    spaces.write_file("t/b", "work/own", b"of the fork")
    assert spaces.read_file("t/a", "work/own") == b"own"
    with open("/proc/self/mountinfo") as table:
        mounted = [line.split()[4] for line in table if f" {disk.path}/home/" in line]
    for target in reversed(mounted):
        subprocess.run(["umount", "-l", target], check=False)  # some go with others
    with workstead.open(spaces._home.path, settings=spaces._home.settings) as again:
        assert again.read_file("t/a", "work/own") == b"own"
        assert again.read_file("t/b", "work/own") == b"of the fork"
        again.write_file("t/a", "work/own", b"changed")
        again.restore("t/a", kept.id)
        assert again.read_file("t/a", "work/own") == b"own"
        assert [change.path for change in again.status("t/a")] == ["own"]


def test_a_full_disk_below_it_is_no_state_that_cannot_be_left(disk: Disk, spaces: Local, tmp_path: Path) -> None:
    origin = make_origin(tmp_path / "origin")
    spaces.create(f"overlay:{origin}", id="t/a", config={"max_size_mb": 100})
    spaces.write_file("t/a", "work/kept", b"kept")
    os.sync()
    path = spaces.path("t/a")
    with open(disk.path / "others", "wb") as file:  # somebody else takes all that there is
        found = os.statvfs(disk.path)
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - 6 * MIB)
    with contextlib.suppress(OSError), open(f"{path}/work/new", "wb") as file:
        file.write(bytes(30 * MIB))
        os.fsync(file.fileno())
    os.unlink(disk.path / "others")
    os.sync()
    spaces.write_file("t/a", "work/again", b"again")
    assert spaces.read_file("t/a", "work/kept") == b"kept"
    ended, said = run(spaces, "t/a", "print(open('kept').read(), open('again').read())")
    assert (ended.exit_code, said) == (0, "kept again\n")


def test_a_space_that_the_kernel_stopped_writing_to_is_mounted_anew(spaces: Local) -> None:
    desk = spaces.create(id="t/a", config={"max_size_mb": 20})
    spaces.write_file("t/a", "work/kept", b"kept")
    layers = f"{spaces._home.private}/layers/{desk.uid}"
    subprocess.run(["mount", "-o", "remount,ro", f"{layers}/space"], check=True)
    spaces.write_file("t/a", "work/again", b"again")
    assert spaces.read_file("t/a", "work/kept") == b"kept"


def test_a_size_that_no_file_system_can_be_made_for_is_refused_or_metered(disk: Disk, settings: Settings) -> None:
    only = settings.replace(storage=settings.storage.replace(quota="image"))
    with workstead.open(disk.path / "home", settings=only) as workspaces:
        with pytest.raises(workstead.errors.Unavailable, match="limited size"):
            workspaces.create(id="t/a", config={"max_size_mb": 1})
        assert workspaces.list() == []
        assert os.listdir(f"{workspaces._home.private}/layers") == []
    with workstead.open(disk.path / "home", settings=settings) as workspaces:
        workspaces.create(id="t/a", config={"max_size_mb": 1})
        ended, _ = run(workspaces, "t/a", "pass")
        held: dict[str, list[str]] = ended.enforcement["limits"]  # type: ignore[assignment]
        assert held["quota_bytes"][0] == "metering"
