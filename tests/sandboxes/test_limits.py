"""What a run may use is bounded, and the same greed without the bound is satisfied."""

from __future__ import annotations

import os
import time

import pytest
from scene import Scene, find_processes

from needs import need
from workstead.model.enforcement import Limits
from workstead.system.kernel import cgroups

PLAIN = Limits(wall_seconds=20, grace_seconds=0.3)


def need_groups(host: Scene) -> None:
    need(host.uid == 0 and {"memory", "pids"} <= set(cgroups.find_parents()), "control groups that root can make")


FORKS = """
import os, time
n = 0
try:
    while n < 200:
        if os.fork() == 0:
            time.sleep(9)
            os._exit(0)
        n += 1
except BlockingIOError:
    pass
print(n)
"""


def test_processes(host: Scene) -> None:
    command = ["/usr/bin/python3", "-c", FORKS]
    limited = host.inside(command, limits=PLAIN.replace(processes=64, needs_cgroup=host.uid == 0))
    assert int(limited.stdout) < 64
    assert int(host.inside(command, limits=PLAIN).stdout) == 200


def test_a_fork_bomb_is_held_and_leaves_nothing(host: Scene) -> None:
    mark = f"bomb-{os.getpid()}"
    limits = PLAIN.replace(processes=100, wall_seconds=1.5, needs_cgroup=host.uid == 0)
    outcome = host.inside(f":(){{ :|:& }};: ; sleep 30; : {mark}", limits=limits)
    assert outcome.result.state in ("timed_out", "failed")
    assert find_processes(mark) == []


def test_a_thread_bomb_is_held(host: Scene) -> None:
    body = (
        "import threading, time, os\nn = 0\ntry:\n  while n < 600:\n"
        "    threading.Thread(target=time.sleep, args=(9,), daemon=True).start(); n += 1\n"
        "except RuntimeError: pass\nprint(n, flush=True); os._exit(0)"
    )
    command = ["/usr/bin/python3", "-c", body]
    held = host.inside(command, limits=PLAIN.replace(processes=100, needs_cgroup=host.uid == 0))
    assert int(held.stdout) < 100
    assert int(host.inside(command, limits=PLAIN).stdout) == 600


HUNGER = ["/usr/bin/python3", "-c", "b = bytearray(300 << 20); b[::4096] = b'x' * len(b[::4096]); print('fed')"]


def test_memory(host: Scene) -> None:
    if host.uid == 0:
        need_groups(host)
        held = host.inside(HUNGER, limits=PLAIN.replace(memory_bytes=150 << 20))
        assert held.result.state == "failed"
        assert "memory limit" in held.result.reason
    else:
        held = host.inside(HUNGER, limits=PLAIN.replace(memory_bytes=150 << 20, needs_cgroup=False))
        assert b"MemoryError" in held.stderr
    assert host.inside(HUNGER, limits=PLAIN).stdout == b"fed\n"


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/home/agent"])
def test_files_in_memory_count_as_memory(host: Scene, place: str) -> None:
    script = f"head -c 300M /dev/zero > {place}/fill; stat -c %s {place}/fill; rm {place}/fill"
    if host.uid == 0:
        need_groups(host)
        held = host.inside(script, limits=PLAIN.replace(memory_bytes=150 << 20))
    else:
        held = host.inside(script, limits=PLAIN, tmp_bytes=150 << 20)
    assert str(300 << 20) not in held.text
    assert host.inside(script, limits=PLAIN).stdout == f"{300 << 20}\n".encode()


def test_other_places_cannot_be_filled(host: Scene) -> None:
    outcome = host.inside(
        "for d in / /run /var /etc /dev /usr /home; do head -c 1M /dev/zero > $d/fill; done", limits=PLAIN
    )
    assert outcome.stderr.count(b"Read-only file system") == 7


def test_file_size(host: Scene) -> None:
    script = "head -c 50M /dev/zero > big; stat -c %s big; rm big"
    held = host.inside(script, limits=PLAIN.replace(file_bytes=10 << 20))
    assert held.stdout == f"{10 << 20}\n".encode()
    assert host.inside(script, limits=PLAIN).stdout == f"{50 << 20}\n".encode()


def test_the_disk_is_watched(host: Scene) -> None:
    script = "for i in $(seq 40); do head -c 20M /dev/zero > f$i; sleep 0.02; done; echo wrote all"
    held = host.inside(script, limits=PLAIN.replace(disk_bytes=100 << 20))
    host.reset()
    assert held.result.state == "failed"
    assert "disk limit" in held.result.reason
    assert held.stdout == b""


def test_output_is_capped_and_the_command_goes_on(host: Scene) -> None:
    script = "yes 0123456789 | head -c 30M; echo done > finished"
    held = host.inside(script, limits=PLAIN.replace(output_bytes=1 << 20))
    assert held.result.state == "completed"
    assert len(held.stdout) == held.result.output_bytes == 1 << 20
    assert held.result.dropped_bytes == 29 << 20
    assert [frame.stream for frame in held.frames[-2:]] == [3, 4]
    assert os.path.exists(os.path.join(host.work, "finished"))
    assert len(host.inside("yes 0123456789 | head -c 3M", limits=PLAIN.replace(output_bytes=None)).stdout) == 3 << 20
    host.reset()


def test_an_endless_flood_ends_with_its_time(host: Scene) -> None:
    held = host.inside("yes", limits=PLAIN.replace(output_bytes=1 << 20, wall_seconds=1.5))
    assert held.result.state == "timed_out"
    assert len(held.stdout) == 1 << 20


@pytest.mark.parametrize(
    "script",
    ["sleep 30", "kill -STOP $$", "trap '' TERM; while :; do sleep 30; done", "setsid sleep 30 & setsid sleep 40"],
)
def test_time(host: Scene, script: str) -> None:
    started = time.monotonic()
    outcome = host.inside(script, limits=Limits(wall_seconds=0.3, grace_seconds=0.3))
    assert outcome.result.state == "timed_out"
    assert outcome.result.exit_code == 124
    assert time.monotonic() - started < 20


def test_a_command_may_tidy_up_when_time_is_over(host: Scene) -> None:
    script = "trap 'echo tidied > tidy; exit 0' TERM; sleep 30 & wait"
    outcome = host.inside(script, limits=Limits(wall_seconds=2, grace_seconds=20))
    assert outcome.result.state == "timed_out"
    assert os.path.exists(os.path.join(host.work, "tidy"))
    host.reset()


def test_a_share_of_the_processor(host: Scene) -> None:
    if host.uid != 0:
        outcome = host.inside("true", limits=PLAIN.replace(cpus=0.5))
        assert outcome.result.exit_code == 125
        assert outcome.result.error["code"] == "sandbox_unavailable"  # type: ignore[index]
        return
    need("cpu" in cgroups.find_parents(), "the cpu controller")
    body = "import time\ne = time.monotonic() + 0.8\nwhile time.monotonic() < e: pass\nprint(time.process_time())"
    spin = ["/usr/bin/python3", "-c", body]
    held = host.inside(spin, limits=PLAIN.replace(cpus=0.05))
    assert held.result.usage["throttled_periods"] > 0
    assert float(held.stdout) < 0.2
    assert float(host.inside(spin, limits=PLAIN.replace(cpus=2)).stdout) > 0.1


def test_a_limit_that_cannot_be_held_is_refused(host: Scene) -> None:
    if host.uid == 0:
        need_groups(host)
        assert host.inside("true", limits=PLAIN.replace(memory_bytes=1 << 30)).result.state == "completed"
        return
    outcome = host.inside("echo ran", limits=PLAIN.replace(memory_bytes=1 << 30))
    assert outcome.result.state == "failed"
    assert outcome.result.exit_code == 125
    assert outcome.result.error["code"] == "sandbox_unavailable"  # type: ignore[index]
    assert outcome.stdout == b""


def test_the_statement_names_what_held(host: Scene) -> None:
    asked = PLAIN.replace(memory_bytes=1 << 30, processes=500, file_bytes=1 << 30, needs_cgroup=False)
    outcome = host.inside("true", limits=asked)
    stated = outcome.events[0][3]
    assert stated["sandbox"] == "bubblewrap"  # type: ignore[index,call-overload]
    assert stated["files"][0] == "mount namespace"  # type: ignore[index,call-overload]
    assert stated["network"] == ["network namespace"]  # type: ignore[index,call-overload]
    assert stated["uid"] == host.agent  # type: ignore[index,call-overload]
    limits = stated["limits"]  # type: ignore[index,call-overload]
    assert set(limits) == {"memory_bytes", "processes", "wall_seconds", "file_bytes", "output_bytes"}
    assert limits["processes"][-1] == "rlimit"
    assert limits["memory_bytes"][0].startswith("cgroup v" if host.uid == 0 else "rlimit")
