"""Many runs at once, many in a row, and kills at any moment: nothing is left behind, and the log ends right.

Bounded here; AW_LOAD=full makes it 200 at once, 2,000 in a row and 300 kills.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from needs import need_program
from waiting import wait_until
from workstead.local import Local
from workstead.system.process import spawn

FULL = os.environ.get("AW_LOAD") == "full"
AT_ONCE = 200 if FULL else 60
IN_A_ROW = 2000 if FULL else 120
KILLS = 300 if FULL else 24
PROGRAM = str(Path(__file__).resolve().parents[2] / "aw")

pytestmark = pytest.mark.timeout(3600 if FULL else 300)


@pytest.fixture(autouse=True)
def _bubblewrap() -> None:
    need_program("bwrap")


def groups_of(run_ids: list[str]) -> list[str]:
    names = {f"aw-{run_id}" for run_id in run_ids}
    return [path for path, folders, _ in os.walk("/sys/fs/cgroup") if names.intersection(folders)]


def processes_with(text: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if text in command and int(pid) != os.getpid():
            found.append(f"{pid} {command[:200]}")
    return found


def mounts_below(path: str) -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {path}/" in line]


def memory_kb() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_many_runs_at_once_each_keep_to_themselves(workspaces: Local, home_path: str) -> None:
    desks = [workspaces.create(id=f"many/{number}") for number in range(AT_ONCE)]
    for desk in desks:
        os.mkfifo(f"{desk.path}/work/gate")
        os.chmod(f"{desk.path}/work/gate", 0o666)
    before = descriptors()
    runs = [
        workspaces.run(desk.id, ["sh", "-c", "read go < gate; echo $AW_WORKSPACE_ID; ls /mnt; exit 3"])
        for desk in desks
    ]
    wait_until(lambda: all(run.state == "running" for run in workspaces.runs()), 60)
    for desk in desks:
        descriptor = os.open(f"{desk.path}/work/gate", os.O_RDWR)
        os.write(descriptor, b"go\n")
        wait_until(lambda desk=desk: workspaces.runs(desk.id)[0].state != "running")  # type: ignore[misc]
        os.close(descriptor)
    for desk, run in zip(desks, runs, strict=True):
        ended = workspaces.wait(run.id, timeout_seconds=60)
        assert (ended.state, ended.exit_code) == ("failed", 3)
        printed = b"".join(data for _, _, data in workspaces.output(run.id))
        assert printed.decode() == f"{desk.id}\nworkspace\n"
    wait_until(lambda: not processes_with(home_path))
    assert descriptors() <= before  # connections of threads that ended may have gone meanwhile
    assert groups_of([run.id for run in runs]) == []
    assert mounts_below(home_path) == []
    workspaces.verify()


def test_many_runs_in_a_row_leak_nothing(workspaces: Local, home_path: str) -> None:
    desk = workspaces.create(id="t/a")
    runs = []
    warm = IN_A_ROW // 4
    for number in range(IN_A_ROW):
        run = workspaces.wait(workspaces.run(desk.id, ["true"]).id)
        assert run.state == "completed", run.reason
        runs.append(run.id)
        if number == warm:
            wait_until(lambda: not processes_with(home_path))
            before = (descriptors(), memory_kb())
    wait_until(lambda: not processes_with(home_path))
    assert descriptors() == before[0]
    assert memory_kb() - before[1] < 8192
    assert groups_of(runs) == []
    assert mounts_below(home_path) == []
    workspaces.verify()


def test_many_kept_commands_leak_nothing(workspaces: Local) -> None:
    desk = workspaces.create(id="t/a")
    workspaces.run_kept(desk.id, ["true"])
    before = descriptors()
    for _ in range(IN_A_ROW):
        assert workspaces.run_kept(desk.id, ["true"]).exit_code == 0
    inside = workspaces.run_kept(desk.id, ["sh", "-c", "ls /proc/self/fd | wc -l; ls /proc | grep -c '^[0-9]'"])
    files, alive = map(int, inside.stdout.split())
    assert files <= 5
    assert alive <= 6
    assert descriptors() <= before  # connections of threads that ended may have gone meanwhile
    (box,) = workspaces.runs(desk.id)
    assert box.commands == IN_A_ROW + 2
    workspaces.stop(box.id)
    workspaces.verify()


def find_runner(home_path: str, run_id: str) -> int | None:
    try:
        return int(Path(home_path, "runs", run_id, "lock").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return None


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.mark.parametrize("whom", ["command line", "runner", "child", "all"])
def test_a_kill_at_any_moment_leaves_an_end_in_the_log_and_no_process(
    workspaces: Local, home_path: str, tmp_path: Path, whom: str
) -> None:
    desk = workspaces.create(id="t/a")
    dice = random.Random(f"{whom} {KILLS}")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AW_HOME": home_path}
    for round_ in range(KILLS // 4):
        mark = f"0.{os.getpid()}{round_:04d}"
        script = f"echo up; setsid sleep 2{mark} & sleep 0{mark}; kill %1; echo down"
        door = subprocess.Popen(
            [PROGRAM, "run", "-q", "t/a", "--", "bash", "-c", script],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(dice.uniform(0, 0.3))
        known = [run.id for run in workspaces.runs(desk.id)]
        runner = find_runner(home_path, known[-1]) if known else None
        below = spawn.descendants(runner) if runner else []
        victims = {
            "command line": [door.pid],
            "runner": [runner] if runner else [],
            "child": below[-1:],
            "all": [door.pid, *([runner] if runner else []), *below],
        }[whom]
        kill(victims)
        door.wait(timeout=60)
        for run in workspaces.runs(desk.id):
            ended = workspaces.wait(run.id, timeout_seconds=30)
            assert ended.state in ("completed", "failed"), (whom, ended)
        wait_until(lambda mark=mark: not processes_with(mark))  # type: ignore[misc]
    wait_until(lambda: not processes_with(home_path))
    assert groups_of([run.id for run in workspaces.runs(desk.id)]) == []
    assert workspaces.wait(workspaces.run(desk.id, ["true"]).id).state == "completed"
    assert workspaces.repair() == []
    workspaces.verify()
