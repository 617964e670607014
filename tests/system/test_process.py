"""Processes start with exactly what they are given, and end when they should."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from needs import need_root
from situations import fork, wait
from waiting import wait_until
from workstead.system.process import spawn
from workstead.system.process.spawn import Launch


def run(launch: Launch, **options: object) -> tuple[bytes, int, bytes]:
    """Output, status and report of a launch."""
    read_end, write_end = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    child = spawn.spawn(launch, null, write_end, write_end, **options)  # type: ignore[arg-type]
    os.close(write_end)
    os.close(null)
    output = b""
    while chunk := os.read(read_end, 65536):
        output += chunk
    os.close(read_end)
    report = os.read(child.report, 4096)
    os.close(child.report)
    return output, os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]), report


def sh(script: str, **fields: object) -> Launch:
    return Launch(argv=("/bin/sh", "-c", script), environment={"PATH": "/usr/bin:/bin", "A": "b"}, **fields)  # type: ignore[arg-type]


def test_environment_directory_and_session_are_its_own(tmp_path: Path) -> None:
    output, code, report = run(
        sh("env | grep -v PWD | sort; pwd; ps -o sid= -p $$ | tr -d ' '; echo $$", directory=str(tmp_path))
    )
    lines = output.decode().split()
    assert lines[:3] == ["A=b", "PATH=/usr/bin:/bin", str(tmp_path)]
    assert lines[3] == lines[4]
    assert (code, report) == (0, b"")


def test_only_named_descriptors_arrive() -> None:
    kept = spawn.keep_bytes(b"for you")
    stray = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(stray, True)
    output, _, _ = run(sh(f"cat /proc/self/fd/{kept}; cd /proc/self/fd; echo; echo *", keep=(kept,)))
    os.close(stray)
    assert output == f"for you\n0 1 {kept} 2 3\n".encode()  # 3 is the listing's own
    with pytest.raises(OSError):
        os.fstat(kept)


def test_descriptors_are_passed_on_from_four() -> None:
    given = spawn.keep_bytes(b"four")
    assert run(sh("cat <&4", pass_on=(given,)))[0] == b"four"


def test_signals_are_as_new() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        output, _, _ = run(sh("grep -E 'Sig(Ign|Blk)' /proc/self/status"))
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    too_large = 1 << signal.SIGXFSZ - 1  # a write over a limit fails, and ends nobody
    assert output.split()[1::2] == [b"0" * 16, b"%016x" % too_large]


def test_limits_are_set() -> None:
    output, _, _ = run(
        sh("ulimit -n; ulimit -Hf", rlimits=((resource.RLIMIT_NOFILE, 99), (resource.RLIMIT_FSIZE, 512 * 7)))
    )
    assert output == b"99\n7\n"


def test_a_program_that_is_not_there_is_reported() -> None:
    _, code, report = run(Launch(argv=("/no/such",), environment={}))
    assert code == 125
    assert report[:8] == bytes([5, 0, 0, 0, 2, 0, 0, 0])


def test_a_directory_that_is_not_there_is_reported() -> None:
    _, code, report = run(sh("true", directory="/no/such"))
    assert code == 125
    assert report[:8] == bytes([1, 0, 0, 0, 2, 0, 0, 0])


def test_stepping_down_is_for_good() -> None:
    need_root()
    output, _, _ = run(sh("id -u; id -G; setpriv --reuid 0 true 2>&1 || echo no", uid=64042, gid=64043))
    assert output.split()[:2] == [b"64042", b"64043"]
    assert output.endswith(b"no\n")


def test_a_child_dies_with_its_parent() -> None:
    read_end, write_end = os.pipe()
    parent = os.fork()
    if parent == 0:
        child = spawn.spawn(sh("exec sleep 300"), 0, 1, 2)
        os.write(write_end, str(child.pid).encode())
        time.sleep(60)
    child_pid = int(os.read(read_end, 20))
    os.close(read_end)
    os.close(write_end)
    assert spawn.read_start_time(child_pid) is not None
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until(lambda: spawn.read_start_time(child_pid) is None)


def test_a_process_is_named_by_id_and_start() -> None:
    me = os.getpid()
    start = spawn.read_start_time(me)
    assert start is not None
    assert spawn.is_alive(me, start)
    assert not spawn.is_alive(me, start + 1)
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert spawn.read_start_time(gone.pid) is None


def test_orphans_are_adopted_and_killed() -> None:
    def body() -> int:
        spawn.adopt_orphans()
        child = spawn.spawn(
            sh("for i in 1 2 3 4; do (setsid sh -c 'sleep 300 & sleep 300' &); done; sleep 0.2"), 0, 1, 2
        )
        os.waitpid(child.pid, 0)
        if len(spawn.descendants(os.getpid())) < 8:
            return 1
        return 0 if spawn.kill_descendants() and not spawn.descendants(os.getpid()) else 2

    pid = os.fork()
    if pid == 0:
        os._exit(body())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_detached_function_survives_and_holds_nothing(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)

    def body() -> None:
        (tmp_path / "fds").write_text(" ".join(sorted(os.listdir("/proc/self/fd"), key=int)))
        (tmp_path / "done").write_text(f"{os.getpid()} {os.getsid(0)} {os.getppid()}")

    pid = spawn.fork_detached(body)
    os.close(write_end)
    assert os.read(read_end, 1) == b""  # it does not hold our pipe
    os.close(read_end)
    wait_until((tmp_path / "done").exists)
    own, _, parent = map(int, wait_until((tmp_path / "done").read_text).split())
    assert own == pid
    assert parent != os.getpid()
    assert (tmp_path / "fds").read_text().split()[:3] == ["0", "1", "2"]


def test_garbage_of_the_parents_closes_nothing_in_a_detached_child(tmp_path: Path) -> None:
    """A cycle that owns a descriptor: its number is somebody else's in the child."""

    class Owner:
        def __init__(self) -> None:
            self.me = self
            self.file = open("/dev/null", "rb")  # noqa: SIM115

    def body() -> None:
        opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(number)]
        gc.collect()
        open_still = 0
        for descriptor in opened:
            with contextlib.suppress(OSError):
                os.fstat(descriptor)
                open_still += 1
        (tmp_path / "said").write_text(f"{open_still} of {len(opened)}\n")

    gc.collect()
    gc.disable()
    try:
        number = Owner().file.fileno()
        spawn.fork_detached(body)
    finally:
        gc.enable()
    wait_until((tmp_path / "said").exists)
    assert wait_until((tmp_path / "said").read_text) == f"{number} of {number}\n"
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


@pytest.mark.parametrize(
    "closes", [spawn.close_above, lambda last: os.closerange(last + 1, 1024)], ids=["ours", "plain"]
)
def test_what_a_library_opens_anew_in_every_fork_is_not_ours(closes: Callable[[int], None]) -> None:
    """As libuv does with a pipe: in a forked child it closes the numbers that it remembers, and opens others."""
    own: list[int] = []

    def open_anew() -> None:
        for descriptor in own:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        own[:] = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]

    def count_lost() -> int:
        opened = [os.open("/etc/hostname", os.O_RDONLY) for _ in range(20)]
        return wait(fork(lambda: sum(os.readlink(f"/proc/self/fd/{each}") != "/etc/hostname" for each in opened)))

    def program() -> int:
        open_anew()
        os.register_at_fork(after_in_child=open_anew)
        return wait(fork(lambda: (closes(2), count_lost())[1]))

    lost = wait(fork(program))
    assert lost == 0 if closes is spawn.close_above else lost > 0


def test_a_detached_program_is_started_without_a_fork_of_ours(tmp_path: Path) -> None:
    pid = spawn.start_detached(["/bin/sh", "-c", f"echo $HOME > {tmp_path}/out"], {"HOME": "given", "PATH": "/bin"})
    os.waitpid(pid, 0)
    assert (tmp_path / "out").read_text() == "given\n"


def test_a_terminal_has_a_size_and_is_the_controlling_one() -> None:
    ours, theirs = spawn.open_terminal(31, 97)
    child = spawn.spawn(sh("stty size < /dev/tty; tty"), theirs, theirs, theirs, terminal=True)
    os.close(theirs)
    text = b""
    try:
        while chunk := os.read(ours, 4096):
            text += chunk
    except OSError:
        pass
    os.waitpid(child.pid, 0)
    os.close(child.report)
    os.close(ours)
    assert text.startswith(b"31 97\r\n/dev/pts/")


def test_spawning_leaks_nothing() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(50):
        run(sh("true"))
    assert sorted(os.listdir("/proc/self/fd")) == before
