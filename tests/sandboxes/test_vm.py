"""A machine: the same walls as any sandbox, more behind them, and an end to everything that can go wrong with one.

Emulated, because that works everywhere. One machine is kept for all tests of a user, as the product keeps it.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time

import pytest
from attempts import ATTEMPTS, IN_ONE_GO
from scene import Attendant, Outcome, Scene
from test_work import test_a_mount_that_a_process_of_the_user_holds_appears as holds

from workstead.model.enforcement import Limits
from workstead.sandboxes.vm import machines
from workstead.system.process import frames, spawn

PLAIN = Limits(wall_seconds=60, grace_seconds=0.5)


def check(machine: Scene, script: str, **options: object) -> str:
    outcome = machine.inside(script, **{"limits": PLAIN, **options})  # type: ignore[arg-type]
    assert outcome.result.state == "completed", (outcome.result, outcome.text[-2000:])
    return outcome.stdout.decode()


# -- the walls ---------------------------------------------------------------------------------------------------------


def test_no_attempt_gets_out(machine: Scene) -> None:
    """That each of them succeeds without a wall is shown in test_escapes.py."""
    filled = [(attempt.name, machine.fill(attempt.script)) for attempt in ATTEMPTS]
    _write(machine, attempt=IN_ONE_GO, attempts=json.dumps(filled))
    command = ["/usr/bin/python3", "-I", "attempt", "attempts"]
    outcome = machine.inside(command, limits=Limits(wall_seconds=400), timeout=420)
    assert outcome.result.state == "completed", (outcome.result, outcome.text[-2000:])
    found = json.loads(outcome.stdout)
    assert list(found) == [attempt.name for attempt in ATTEMPTS]
    assert {name: text for name, text in found.items() if "ESCAPED" in text} == {}
    assert machine.damage() == []
    machine.reset()


def _write(machine: Scene, **texts: str) -> None:
    for name, text in texts.items():
        with open(os.path.join(machine.work, name), "w") as file:
            file.write(text)
        os.chown(os.path.join(machine.work, name), machine.agent, -1)


def test_the_attempts_in_one_go_succeed_without_a_wall(machine: Scene) -> None:
    """The harness itself does not stop what it runs."""
    if machine.uid == 0:
        return  # outside it would be root, to whom all is allowed
    names = ("read a secret by its path", "be traced", "read a process's memory by system call", "add a key")
    filled = [(attempt.name, machine.fill(attempt.script)) for attempt in ATTEMPTS if attempt.name in names]
    _write(machine, attempt=IN_ONE_GO, attempts=json.dumps(filled))
    output = machine.outside("/usr/bin/python3 -I attempt attempts")
    assert {name for name, text in json.loads(output).items() if "ESCAPED" in text} == set(names)
    machine.reset()


def test_no_descriptor_and_no_variable_of_the_host_is_inside(machine: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_TEST_SECRET", Scene.ENV_TEXT)
    script = "ls -l /proc/self/fd | wc -l; env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'"
    outcome = machine.inside(script, environment={"GIVEN": "yes"})
    assert outcome.stdout.startswith(b"5\n"), outcome.text  # a total, three, and the listing's own
    assert "GIVEN=yes" in outcome.text
    assert Scene.ENV_TEXT not in outcome.text
    assert machine.base not in outcome.text


def test_what_root_in_the_guest_could_leave_does_no_harm(machine: Scene) -> None:
    """QEMU is nobody special: what it makes for a guest, whoever is root in there, belongs to the agent's user."""
    (found,) = machines.find_all(machine.machines, "mine") or _start(machine)
    (pid,) = [pid for pid in spawn.descendants(found.pid) if _name(pid) == "qemu-system-x86"]
    with open(f"/proc/{pid}/status") as file:
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    assert status["Uid"].split() == [str(machine.agent)] * 4
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    with open(f"/proc/{pid}/mountinfo") as file:
        writable = [line.split()[4] for line in file if line.split()[5].startswith("rw") and " - 9p" not in line]
    assert "/x/work/workspace" in writable
    assert {path for path in writable if path.startswith("/x/")} == {"/x/work/workspace"}
    assert os.listdir(f"/proc/{pid}/root/x/system") != []
    with open(f"/proc/{pid}/net/dev") as file:
        assert [line.split(":")[0].strip() for line in file if ":" in line] == ["lo"]


def _start(machine: Scene) -> list[machines.Found]:
    check(machine, "true")
    return machines.find_all(machine.machines, "mine")


def _name(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


# -- commands ----------------------------------------------------------------------------------------------------------


def test_streams_stay_apart_and_every_byte_arrives(machine: Scene) -> None:
    body = "import os, sys\nd = bytes(range(256)) * 4000\nos.write(1, b'x')\nos.write(1, d)\nos.write(2, d[::-1])"
    outcome = machine.inside(["/usr/bin/python3", "-c", body])
    data = bytes(range(256)) * 4000
    assert outcome.stdout == b"x" + data
    assert outcome.stderr == data[::-1]


def test_output_comes_while_the_command_runs(machine: Scene) -> None:
    outcome = machine.inside("echo one; sleep 1; echo two")
    times = [frame.time_ns for frame in outcome.frames if frame.stream == 1]
    assert times[-1] - times[0] > 500_000_000


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("nonsense", 127)],
)
def test_exit_codes(machine: Scene, script: str, code: int) -> None:
    outcome = machine.inside(script)
    assert (outcome.result.state, outcome.result.exit_code) == ("failed", code)


def test_a_command_that_cannot_be_started(machine: Scene) -> None:
    outcome = machine.inside(["/no/such/program"])
    assert outcome.result.exit_code == 125
    assert outcome.result.error["message"] == "the command could not be started: no such file or directory"  # type: ignore[index]


def test_standard_input(machine: Scene) -> None:
    sent = random.Random(1).randbytes(700_000)

    def feed(attendant: Attendant) -> None:
        for start in range(0, len(sent), 50_000):
            attendant.send(frames.STDIN, sent[start : start + 50_000])
        attendant.send(frames.EOF)

    assert machine.inside(["cat"], stdin=True, attended=feed).stdout == sent


def test_a_terminal_and_its_size(machine: Scene) -> None:
    def sit_there(attendant: Attendant) -> None:
        attendant.wait_for(b"ready\r\n")
        attendant.send(frames.RESIZE, _size(31, 99))
        attendant.wait_for(b"31 99\r\n")
        attendant.send(frames.STDIN, b"typed\n")
        attendant.wait_for(b"got typed\r\n")
        attendant.send(frames.STDIN, b"\x03")

    script = (
        "stty size; tty; echo ready; until [ \"$(stty size)\" = '31 99' ]; do sleep 0.1; done; stty size; "
        "read -r word; echo got $word; sleep 60"
    )
    outcome = machine.inside(script, terminal=True, attended=sit_there)
    assert b"24 80\r\n/dev/pts/" in outcome.stdout
    assert outcome.result.exit_code == 130  # Ctrl-C reached the command


def test_a_terminal_that_changes_its_size_before_it_is_there(machine: Scene) -> None:
    """The last size counts, whether the machine was up when it was told or not."""

    def drag(attendant: Attendant) -> None:
        for columns in range(80, 121):
            attendant.send(frames.RESIZE, _size(40, columns))

    script = "until [ \"$(stty size)\" = '40 120' ]; do sleep 0.1; done; echo arrived"
    for _ in range(3):
        assert b"arrived\r\n" in machine.inside(script, terminal=True, attended=drag).stdout
    machines.forget(machine.machines, "mine")  # and while it comes up
    assert b"arrived\r\n" in machine.inside(script, terminal=True, attended=drag).stdout


def _size(rows: int, columns: int) -> bytes:
    return rows.to_bytes(2, "little") + columns.to_bytes(2, "little")


def test_time_is_over(machine: Scene) -> None:
    for script in ("sleep 60", "trap '' TERM; while :; do sleep 1; done", "kill -STOP $$"):
        outcome = machine.inside(script, limits=Limits(wall_seconds=1.5, grace_seconds=0.3))
        assert (outcome.result.state, outcome.result.exit_code) == ("timed_out", 124)
    tidy = "trap 'echo tidied > tidy; exit 0' TERM; sleep 60 & wait"
    assert machine.inside(tidy, limits=Limits(wall_seconds=4, grace_seconds=20)).result.state == "timed_out"
    assert os.path.exists(os.path.join(machine.work, "tidy"))
    machine.reset()


def test_nothing_of_a_command_stays(machine: Scene) -> None:
    check(
        machine, "setsid sleep 300 & (setsid sh -c 'sleep 1; echo alive > late' &); echo x > /tmp/left; echo y > ~/left"
    )
    time.sleep(1.5)
    assert not os.path.exists(os.path.join(machine.work, "late"))
    assert (
        check(machine, "cat /proc/*/cmdline | tr '\\0' ' ' | grep -c 'sleep 30[0]'; ls /tmp ~; true")
        == "0\n/home/agent:\n\n/tmp:\n"
    )


def test_several_at_once(machine: Scene) -> None:
    outcomes: list[Outcome] = []
    threads = [
        threading.Thread(
            target=lambda n=n: outcomes.append(machine.inside(f"echo {n}; sleep 2; echo {n} > f{n}; exit {n}"))
        )
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome.result.exit_code for outcome in outcomes) == [0, 1, 2]
    assert all(int(outcome.stdout) == outcome.result.exit_code for outcome in outcomes)
    started = max(outcome.result.started_at or 0 for outcome in outcomes)
    assert started < min(outcome.result.finished_at for outcome in outcomes)
    assert len(machines.find_all(machine.machines, "mine")) == 1
    machine.reset()


# -- limits ------------------------------------------------------------------------------------------------------------


def test_limits_hold(machine: Scene) -> None:
    forks = (
        "import os, time\nn = 0\ntry:\n  while n < 80:\n    if os.fork() == 0: time.sleep(9); os._exit(0)\n"
        "    n += 1\nexcept BlockingIOError: pass\nprint(n)"
    )
    hunger = "b = bytearray(150 << 20); b[::4096] = b'x' * len(b[::4096]); print('fed')"
    run = ["/usr/bin/python3", "-c"]
    assert int(machine.inside([*run, forks], limits=PLAIN.replace(processes=32)).stdout) < 32
    assert int(machine.inside([*run, forks], limits=PLAIN).stdout) == 80
    held = machine.inside([*run, hunger], limits=PLAIN.replace(memory_bytes=80 << 20))
    assert held.result.state == "failed"
    assert "memory limit" in held.result.reason
    assert machine.inside([*run, hunger], limits=PLAIN).stdout == b"fed\n"
    greedy = "b = bytearray(930 << 20); b[::4096] = b'x' * len(b[::4096])"  # all that the machine has
    assert "memory limit" in machine.inside([*run, greedy], limits=PLAIN).result.reason
    file = "head -c 20M /dev/zero > big; stat -c %s big; rm big"
    assert machine.inside(file, limits=PLAIN.replace(file_bytes=10 << 20)).stdout == f"{10 << 20}\n".encode()
    stuffed = "head -c 150M /dev/zero > /tmp/fill; stat -c %s /tmp/fill"
    assert str(150 << 20).encode() not in machine.inside(stuffed, limits=PLAIN.replace(memory_bytes=80 << 20)).stdout


def test_output_is_capped(machine: Scene) -> None:
    held = machine.inside("yes | head -c 3M; echo done > finished", limits=PLAIN.replace(output_bytes=1 << 20))
    assert (len(held.stdout), held.result.dropped_bytes) == (1 << 20, 2 << 20)
    assert os.path.exists(os.path.join(machine.work, "finished"))
    machine.reset()


def test_a_share_of_the_processor(machine: Scene) -> None:
    spin = "import time\ne = time.monotonic() + 2\nwhile time.monotonic() < e: pass"
    held = machine.inside(["/usr/bin/python3", "-c", spin], limits=PLAIN.replace(cpus=0.2))
    assert held.result.usage["throttled_periods"] > 0
    assert held.events[0][3]["limits"]["cpus"][0] == "guest's cgroup v2"  # type: ignore[index,call-overload]


def test_other_places_cannot_be_filled(machine: Scene) -> None:
    outcome = machine.inside("for d in / /run /var /etc /dev /usr /home; do head -c 1M /dev/zero > $d/fill; done")
    assert outcome.stderr.count(b"Read-only file system") == 7


def test_the_statement_says_what_stood(machine: Scene) -> None:
    outcome = machine.inside("true", limits=PLAIN.replace(memory_bytes=1 << 28, processes=50))
    stated: dict[str, object] = outcome.events[0][3]  # type: ignore[assignment]
    assert stated["sandbox"] == "vm/tcg"
    assert stated["network"] == ["no network device"]
    assert stated["uid"] == machine.agent
    assert any("emulated" in note for note in stated["notes"])  # type: ignore[attr-defined]
    assert stated["limits"]["memory_bytes"] == ["guest's cgroup v2", "machine of 1024 MB"]  # type: ignore[index]


def test_a_mount_that_a_process_of_the_user_holds_appears(machine: Scene) -> None:
    """As an overlay of an ordinary user's does: the machine's process enters the namespaces of its holder."""
    holds(machine)
