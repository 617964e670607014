"""The warm path: a box that is built once, with the same walls, for one command after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from attempts import ATTEMPTS, Attempt
from scene import Scene

from waiting import wait_until
from workstead.errors import Invalid, SandboxUnavailable
from workstead.model.enforcement import Enforcement, Limits
from workstead.sandboxes import Confinement, driver
from workstead.system.process import command_server, spawn, supervisor, supervisor_client
from workstead.system.process.command_server import Box
from workstead.system.process.supervisor import Hooks, Order

WORK = "/mnt/workspace/work"


def start_box(host: Scene, **limits: object) -> tuple[str, int]:
    host.runs += 1
    directory = os.path.join(host.base, "runs", f"box-{os.getpid()}-{host.runs}")
    os.makedirs(directory, 0o700)
    for path in (os.path.dirname(directory), directory):
        os.chown(path, host.uid, -1)

    def body() -> None:
        if host.uid != os.geteuid():
            spawn.step_down(host.uid, host.uid)
        listener = command_server.listen(directory)
        with driver("bubblewrap").enter(Confinement(workspace=host.workspace)) as cell:
            supervisor.supervise(
                lambda rlimits: cell.launch(
                    command_server.server_command(30), rlimits=rlimits, first=True, pass_on=(listener,)
                ),
                Order(directory=directory, name=f"aw-test-box-{os.getpid()}", limits=Limits(**limits)),  # type: ignore[arg-type]
                Enforcement(sandbox="bubblewrap"),
                Hooks(),
            )

    pid = spawn.fork_detached(body)
    wait_until(lambda: os.path.exists(os.path.join(directory, "box")))
    return directory, pid


@pytest.fixture(scope="module")
def warm(host: Scene) -> Iterator[Box]:
    directory, _ = start_box(host)
    yield Box(directory, host.agent)
    assert supervisor_client.request_stop(directory, at_once=True)
    while supervisor_client.find_supervisor(directory) is not None:
        time.sleep(0.01)


def sh(warm: Box, script: str, **options: object) -> command_server.Answer:
    return warm.run(["/bin/bash", "-c", script], directory=WORK, **options)  # type: ignore[arg-type]


def test_a_command_and_its_answer(warm: Box) -> None:
    answer = sh(warm, "pwd; echo err >&2; echo $EXTRA; exit 3", environment={"EXTRA": "more"})
    assert answer == command_server.Answer(
        exit_code=3, stdout=f"{WORK}\nmore\n".encode(), stderr=b"err\n", output_bytes=29
    )


def test_one_after_the_other_sees_what_was_written(warm: Box) -> None:
    assert sh(warm, "echo x > kept; echo y > /tmp/kept").exit_code == 0
    assert sh(warm, "cat kept /tmp/kept; rm kept").stdout == b"x\ny\n"


def test_processes_do_not_stay_between_commands(warm: Box) -> None:
    sh(warm, "setsid sleep 300 & sleep 300 & exit 0")
    listing = sh(warm, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
    assert b"sleep 300" not in listing


def test_a_signal_and_a_missing_program(warm: Box) -> None:
    answer = sh(warm, "kill -9 $$")
    assert (answer.exit_code, answer.signal) == (137, 9)
    with pytest.raises(Invalid):
        warm.run(["/no/such/program"], directory=WORK)
    with pytest.raises(Invalid):
        warm.run(["true"], directory="/no/such/directory")
    assert warm.run(["true"], directory=WORK).exit_code == 0


def test_time_and_output_are_kept(warm: Box) -> None:
    started = time.monotonic()
    answer = sh(warm, "echo before; trap '' TERM; sleep 60 & sleep 60", timeout_seconds=1, grace_seconds=0.2)
    assert (answer.exit_code, answer.timed_out, answer.stdout) == (124, True, b"before\n")
    assert time.monotonic() - started < 30
    answer = sh(warm, "head -c 3000000 /dev/zero", output_bytes=1000)
    assert (len(answer.stdout), answer.dropped_bytes) == (1000, 2_999_000)


def test_standard_input(warm: Box) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"typed")
    os.close(write_end)
    assert warm.run(["cat"], directory=WORK, stdin=read_end).stdout == b"typed"
    os.close(read_end)


def test_the_server_cannot_be_killed_read_or_impersonated_from_inside(warm: Box) -> None:
    answer = sh(
        warm,
        "kill -9 1; kill -TERM 1; kill -INT 1; kill -STOP 1; cat /proc/1/environ; ls -l /proc/1/fd; cat /proc/1/maps",
    )
    assert answer.stdout == b""
    assert sh(warm, "echo still here").stdout == b"still here\n"
    assert sh(warm, "cd /proc/$$/fd; for f in *; do [ $f -gt 3 ] && [ $f != 255 ] && echo $f; done; true").stdout == b""


@pytest.mark.parametrize("attempt", [pytest.param(attempt, id=attempt.name) for attempt in ATTEMPTS])
def test_the_same_walls_hold(host: Scene, warm: Box, attempt: Attempt) -> None:
    answer = sh(warm, host.fill(attempt.script), timeout_seconds=20)
    text = answer.stdout + answer.stderr
    assert b"ESCAPED" not in text, text
    assert host.damage() == []
    if "set-uid" in attempt.name or "records" in attempt.name:
        assert sh(warm, "rm -rf su su2 m dev lnk hard mine").exit_code == 0


def test_a_box_that_is_gone_says_so(host: Scene) -> None:
    directory, pid = start_box(host)
    one = Box(directory, host.agent)
    assert one.run(["true"], directory=WORK).exit_code == 0
    os.kill(pid, 9)
    time.sleep(0.1)
    with pytest.raises(SandboxUnavailable):
        one.run(["true"], directory=WORK)
    assert supervisor_client.forget(f"aw-test-box-{pid}")


def test_many_commands_leak_nothing(warm: Box) -> None:
    warm.run(["true"], directory=WORK)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(300):
        assert warm.run(["true"], directory=WORK).exit_code == 0
    assert len(os.listdir("/proc/self/fd")) == before
    inside = sh(warm, "ls /proc/self/fd | wc -l; ls /proc | grep -c '^[0-9]'").stdout.split()
    assert int(inside[1]) < 8
