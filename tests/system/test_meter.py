"""The meter without a control group, as an ordinary user has it: by signals and limits alone."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from workstead.system.files.measure import Measured, measure
from workstead.system.kernel import cgroups
from workstead.system.process import spawn
from workstead.system.process.quota_meter import Allowed, Meter

MIB = 1 << 20
NOBODY_THERE = cgroups.Group(name="none", directories={}, version={})

WRITER = """
import os, signal, sys, time
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def write(name):
    size = 0
    with open(name, "wb", buffering=0) as file:
        while size < 200 << 20:
            size += file.write(b"x" * (1 << 18))
            time.sleep(0.001)
if os.fork() == 0:
    os.setsid()  # what left the group and session is found too
    try:
        write("one")
    except OSError as error:
        os._exit(error.errno)
    os._exit(0)
try:
    write("two")
except OSError as error:
    print("refused", error.errno, flush=True)
print("refused", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
os.remove("one"); os.remove("two")
for _ in range(500):
    try:
        open("again", "wb", buffering=0).write(b"x")
        print("goes on", flush=True)
        break
    except OSError:
        time.sleep(0.02)
"""


class Watched:
    def __init__(self, directory: Path, program: str, **limits: int) -> None:
        self.events: list[tuple[str, int]] = []
        self.child = subprocess.Popen(
            ["sh", "-c", 'python3 -c "$0"; true', program], cwd=directory, stdout=subprocess.PIPE
        )
        allowed = Allowed(measure=lambda: measure(str(directory)), disk=str(directory), **limits)  # type: ignore[arg-type]
        self.meter = Meter(allowed, NOBODY_THERE, self.hear)
        self.meter.follow(self.child.pid)
        self.meter.measure_first()
        self.meter.start()

    def hear(self, event: bytes, found: Measured) -> None:
        self.events.append((event.decode(), found.bytes))


def test_it_says_by_what_it_holds() -> None:
    meter = Meter(Allowed(measure=measure, disk="/"), NOBODY_THERE, lambda *_: None)
    assert meter.means == ("metering", "stop signals", "rlimit")
    frozen = cgroups.Group(name="x", directories={"freezer": "/x"}, version={"freezer": 1})
    assert Meter(Allowed(measure=measure, disk="/"), frozen, lambda *_: None).means[1] == "cgroup v1 freezer"


def test_growth_is_refused_and_allowed_again_without_a_group(tmp_path: Path) -> None:
    watched = Watched(tmp_path, WRITER, max_bytes=40 * MIB)
    said, _ = watched.child.communicate(timeout=60)
    watched.meter.stop()
    assert said.decode() == "refused 27\nrefused 27\ngoes on\n"
    assert [event for event, _ in watched.events] == ["warned", "exceeded", "freed"]
    assert dict(watched.events)["exceeded"] < 80 * MIB  # of the 400 that were wanted


def test_without_the_meter_nothing_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(["python3", "-c", WRITER], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "refused 0\ngoes on\n"


def test_what_grows_on_is_ended(tmp_path: Path) -> None:
    names = "import os\nfor n in range(300000): os.close(os.open(f'n{n}', os.O_CREAT))\nprint('satisfied')"
    watched = Watched(tmp_path, names, max_files=2000)
    said, _ = watched.child.communicate(timeout=60)
    watched.meter.stop()
    assert said == b""
    assert [event for event, _ in watched.events] == ["warned", "exceeded", "over"]


def test_a_run_that_cannot_be_watched_any_more_is_ended(tmp_path: Path) -> None:
    looks = []

    def fails() -> Measured:
        looks.append(1)
        if len(looks) > 1:
            raise PermissionError(13, "no")
        return Measured(bytes=0, files=0)

    child = subprocess.Popen(["sh", "-c", "dd if=/dev/zero of=f bs=1M count=100 2>/dev/null; sleep 60"], cwd=tmp_path)
    heard: list[bytes] = []
    meter = Meter(
        Allowed(measure=fails, disk=str(tmp_path), max_bytes=10 * MIB),
        NOBODY_THERE,
        lambda event, _: heard.append(event),
    )
    meter.follow(child.pid)
    meter.measure_first()
    meter.start()
    assert child.wait(timeout=30) == -9
    meter.stop()
    assert heard == [b"lost"]


def test_stopping_the_meter_leaves_nothing_stopped(tmp_path: Path) -> None:
    child = subprocess.Popen(["sh", "-c", "sleep 60; true"], cwd=tmp_path)
    meter = Meter(
        Allowed(measure=lambda: Measured(bytes=0, files=0), disk=str(tmp_path), max_bytes=MIB),
        NOBODY_THERE,
        lambda *_: 0,
    )
    meter.follow(child.pid)
    meter.measure_first()
    meter.start()
    time.sleep(0.1)
    meter.stop()
    below = spawn.descendants(child.pid)
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in below]
    assert set(states) <= {"S", "R"}
    spawn.send([*below, child.pid], spawn.SIGKILL)
    child.wait()
