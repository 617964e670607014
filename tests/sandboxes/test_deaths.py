"""Kill anything at any moment: nothing of the run stays, and the next one works. Many runs leave nothing either."""

from __future__ import annotations

import functools
import os
import random
import signal
import time

import pytest
from scene import Scene, find_processes, in_child, supervise

from waiting import wait_until
from workstead.model.enforcement import Limits
from workstead.sandboxes import Confinement
from workstead.system.kernel import cgroups
from workstead.system.process import spawn, supervisor_client
from workstead.system.process.supervisor_client import find_result

SLEEP = f"sleep 300.{os.getpid()}"  # to be found again
BUSY = f"echo up; (setsid {SLEEP} &); for i in 1 2 3; do {SLEEP} & done; wait"


def start(host: Scene, script: str) -> tuple[str, int]:
    """A run in the background: its directory and its supervisor."""
    host.runs += 1
    directory = os.path.join(host.base, "runs", f"{os.getpid()}-{host.runs}")
    os.makedirs(directory, 0o700, exist_ok=True)
    for path in (os.path.dirname(directory), directory):
        os.chown(path, host.uid, -1)
    asked = Confinement(workspace=host.workspace)

    def body() -> None:
        if host.uid != os.geteuid():
            spawn.step_down(host.uid, host.uid)
        supervise(directory, asked, ["/bin/bash", "-c", script], limits=Limits(grace_seconds=0.2))

    return directory, spawn.fork_detached(body)


def wait_until_gone() -> None:
    wait_until(lambda: find_processes(SLEEP) == [])


def wait_up(directory: str) -> None:
    output = os.path.join(directory, "output")
    wait_until(lambda: os.path.exists(output) and os.path.getsize(output) > 0, pause=0.005)


def test_the_start_is_told_at_once(host: Scene) -> None:
    """Not when the pipe breaks at the end: nothing in front of the command may hold it open."""
    outcome = host.inside("sleep 0.5")
    assert outcome.result.started_at is not None
    assert outcome.result.finished_at - outcome.result.started_at > 0.4


def test_killing_the_supervisor_ends_the_sandbox(host: Scene) -> None:
    directory, pid = start(host, BUSY)
    wait_up(directory)
    assert find_processes(SLEEP)
    os.kill(pid, signal.SIGKILL)
    wait_until_gone()
    assert supervisor_client.find_supervisor(directory) is None
    assert find_result(directory) is None
    assert in_child(host.uid, lambda: supervisor_client.forget(f"aw-test-{os.path.basename(directory)}-{pid}"))
    assert host.inside("true").result.state == "completed"


def test_killing_the_launcher_ends_the_run_with_a_result(host: Scene) -> None:
    directory, pid = start(host, BUSY)
    wait_up(directory)
    os.kill(spawn.descendants(pid)[0], signal.SIGKILL)
    wait_until_gone()
    while supervisor_client.find_supervisor(directory) is not None:
        time.sleep(0.01)
    result = find_result(directory)
    assert result is not None
    assert result.state == "failed"


def test_killing_the_command_is_told(host: Scene) -> None:
    outcome = host.inside("kill -9 $$")
    assert (outcome.result.state, outcome.result.exit_code) == ("failed", 137)


def test_killing_everything_at_once_at_any_moment(host: Scene) -> None:
    chance = random.Random(4711)
    for _ in range(40):
        directory, pid = start(host, BUSY)
        time.sleep(chance.uniform(0, 0.04))
        victims = [pid, *spawn.descendants(pid)]
        chance.shuffle(victims)
        spawn.send(victims[: chance.randint(1, len(victims))], signal.SIGKILL)
        spawn.send([pid], signal.SIGKILL)
        wait_until_gone()
        wait_until(lambda: supervisor_client.find_supervisor(directory) is None)  # noqa: B023
        name = f"aw-test-{os.path.basename(directory)}-{pid}"
        in_child(host.uid, functools.partial(supervisor_client.forget, name))
    assert host.inside("echo fine").stdout == b"fine\n"


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.timeout(120)
def test_many_runs_leave_nothing(host: Scene) -> None:
    """In one supervising process, which is harder than a process for each run."""
    base = os.path.join(host.base, "runs")
    os.makedirs(base, exist_ok=True)
    os.chown(base, host.uid, -1)
    asked = Confinement(workspace=host.workspace)

    def body() -> object:
        import resource

        groups_before = _groups()
        sizes, descriptors = [], []
        for number in range(150):
            directory = os.path.join(base, f"many-{os.getpid()}-{number}")
            os.mkdir(directory, 0o700)
            result, *_ = supervise(directory, asked, ["true"])  # type: ignore[misc]
            assert result["state"] == "completed", result
            if number in (20, 149):
                descriptors.append(_open_descriptors())
                sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        with open("/proc/self/mountinfo") as file:
            mounts = [line for line in file if host.base in line]
        return descriptors, sizes, spawn.descendants(os.getpid()), _groups() - groups_before, mounts

    descriptors, sizes, children, groups, mounts = in_child(host.uid, body, timeout=100)  # type: ignore[misc]
    assert descriptors[0] == descriptors[1]
    assert sizes[1] - sizes[0] < 3000, "kilobytes"
    assert children == []
    assert groups == 0
    assert mounts == []


def _groups() -> int:
    return sum(
        f"many-{os.getpid()}-" in name for _, parent in cgroups.find_parents().values() for name in os.listdir(parent)
    )


def test_many_runs_at_once(host: Scene) -> None:
    started = [start(host, f"echo {number}; : {SLEEP}; sleep 0.2; echo {number} > f{number}") for number in range(40)]
    for number, (directory, _) in enumerate(started):
        result = wait_until(lambda: find_result(directory))  # noqa: B023
        assert result.state == "completed", result
        assert os.path.exists(os.path.join(host.work, f"f{number}"))
    wait_until_gone()
    host.reset()
