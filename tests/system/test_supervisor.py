"""A run is supervised to its end, whatever happens to those who watch it. No sandbox: plain commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from waiting import wait_until
from workstead.errors import Conflict, SandboxUnavailable
from workstead.model.enforcement import Enforcement, Limits
from workstead.system.process import frames, spawn, supervisor, supervisor_client
from workstead.system.process.spawn import Launch
from workstead.system.process.supervisor import Hooks, Order, Result
from workstead.system.process.supervisor_client import find_result

PATH = {"PATH": "/usr/bin:/bin"}


class Recorder(Hooks):
    def __init__(self, path: Path) -> None:
        self.path = path

    def _note(self, *words: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(words) + "\n")

    def on_started(self, pid: int, start_time: int, enforcement: Enforcement) -> None:
        self._note("started", pid, start_time)

    def on_finished(self, result: Result) -> None:
        self._note("finished", result.state)


class Run:
    """A run that a process of its own supervises."""

    def __init__(self, directory: Path, script: str, **order: object) -> None:
        self.directory = str(directory)
        self.log = directory / "log"
        limits = order.pop("limits", Limits(grace_seconds=0.3))
        argv = order.pop("argv", ("/bin/sh", "-c", script))

        def body() -> None:
            supervisor.supervise(
                lambda rlimits: Launch(argv=argv, environment=PATH, rlimits=tuple(rlimits[:1])),  # type: ignore[arg-type]
                Order(directory=self.directory, name=f"aw-test-{os.getpid()}", limits=limits, **order),  # type: ignore[arg-type]
                Enforcement(sandbox="none"),
                Recorder(self.log),
            )

        self.pid = spawn.fork_detached(body)
        wait_until(lambda: (directory / "lock").exists() and (directory / "output").exists(), pause=0.002)

    def wait(self) -> Result:
        wait_until(lambda: supervisor_client.find_supervisor(self.directory) is None, pause=0.005)
        result = find_result(self.directory)
        assert result is not None
        return result

    def events(self) -> list[list[object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def wait_started(self) -> int:
        event = wait_until(lambda: [event for event in self.events() if event[0] == "started"], pause=0.005)[0]
        assert isinstance(event[1], int)
        return event[1]

    def output(self, stream: int = frames.STDOUT) -> bytes:
        path = os.path.join(self.directory, "output")
        return b"".join(frame.data for frame in frames.read(path) if frame.stream == stream)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[object]:
    made: list[Run] = []

    def start(script: str = "", **order: object) -> Run:
        directory = tmp_path / f"run{len(made)}"
        directory.mkdir(mode=0o700)
        made.append(Run(directory, script, **order))
        return made[-1]

    yield start
    for one in made:
        with contextlib.suppress(ProcessLookupError):
            if spawn.read_start_time(one.pid) is not None:
                os.kill(one.pid, signal.SIGKILL)
        supervisor_client.forget(f"aw-test-{one.pid}")


def test_both_streams_are_kept_byte_for_byte_in_order(run: object) -> None:
    body = "import os\nfor n in range(50):\n os.write(1 + n % 2, bytes([n, 0, 255, 10]))"
    one = run(argv=("/usr/bin/python3", "-c", body))  # type: ignore[operator]
    result = one.wait()
    assert (result.state, result.exit_code, result.output_bytes) == ("completed", 0, 200)
    assert one.output(frames.STDOUT) == b"".join(bytes([n, 0, 255, 10]) for n in range(0, 50, 2))
    assert one.output(frames.STDERR) == b"".join(bytes([n, 0, 255, 10]) for n in range(1, 50, 2))
    times = [frame.time_ns for frame in frames.read(os.path.join(one.directory, "output"))]
    assert times == sorted(times)
    assert [event[0] for event in one.events()] == ["started", "finished"]


def test_the_last_frame_is_the_result(run: object) -> None:
    one = run("exit 7")  # type: ignore[operator]
    result = one.wait()
    last = list(frames.read(os.path.join(one.directory, "output")))[-1]
    assert last.stream == frames.END
    assert json.loads(last.data) == result.as_dict()
    assert (result.state, result.exit_code, result.reason) == ("failed", 7, "exit code 7")


def test_a_signal_is_told(run: object) -> None:
    result = run("kill -SEGV $$").wait()  # type: ignore[operator]
    assert (result.state, result.exit_code, result.signal) == ("failed", 139, 11)


def test_a_command_that_cannot_start(run: object) -> None:
    one = run(argv=("/nonexistent/program",))  # type: ignore[operator]
    result = one.wait()
    assert (result.state, result.exit_code, result.started_at) == ("failed", 125, None)
    assert result.error["code"] == "invalid"
    assert "no such file" in result.reason
    assert [event[0] for event in one.events()] == ["finished"]


def test_an_error_before_the_start_is_a_result_too(tmp_path: Path) -> None:
    def refuse(_: object) -> Launch:
        raise SandboxUnavailable("no wall today")

    def body() -> None:
        order = Order(directory=str(tmp_path), name=f"aw-test-{os.getpid()}")
        supervisor.supervise(refuse, order, Enforcement(sandbox="none"), Hooks())

    spawn.fork_detached(body)
    result = wait_until(lambda: find_result(str(tmp_path)))
    assert (result.state, result.exit_code, result.reason) == ("failed", 125, "no wall today")
    assert result.error is not None
    assert result.error["code"] == "sandbox_unavailable"


def test_output_is_followed_live_to_its_end(run: object) -> None:
    one = run("for i in 1 2 3 4 5; do echo $i; sleep 0.4; done")  # type: ignore[operator]
    seen = []
    for frame in supervisor_client.follow(one.directory):
        seen.append((frame.stream, frame.data, time.time_ns() - frame.time_ns))
    assert b"".join(data for stream, data, _ in seen if stream == frames.STDOUT) == b"1\n2\n3\n4\n5\n"
    assert seen[-1][0] == frames.END
    assert sum(late for _, _, late in seen[:-1]) / len(seen) < 500_000_000  # at the end it would be twice that


def test_following_ends_when_the_supervisor_dies(run: object) -> None:
    one = run("echo x; exec sleep 600")  # type: ignore[operator]
    child = one.wait_started()
    os.kill(one.pid, signal.SIGKILL)
    assert [frame.stream for frame in supervisor_client.follow(one.directory)] in ([], [frames.STDOUT])
    assert supervisor_client.find_supervisor(one.directory) is None
    assert find_result(one.directory) is None
    wait_until(lambda: spawn.read_start_time(child) is None)  # the command does not outlive its supervisor


def test_time_is_kept(run: object) -> None:
    result = run("sleep 600", limits=Limits(wall_seconds=0.2, grace_seconds=0.2)).wait()  # type: ignore[operator]
    assert (result.state, result.exit_code) == ("timed_out", 124)


def test_stop_asks_first(run: object) -> None:
    one = run("trap 'echo bye; exit 3' TERM; echo up; sleep 600 & wait")  # type: ignore[operator]
    one.wait_started()
    while one.output() != b"up\n":
        time.sleep(0.01)
    assert supervisor_client.request_stop(one.directory)
    result = one.wait()
    assert (result.state, result.exit_code) == ("cancelled", 3)
    assert one.output() == b"up\nbye\n"


def test_stop_insists(run: object) -> None:
    one = run("trap '' TERM; echo up; while :; do sleep 1; done")  # type: ignore[operator]
    while one.output() != b"up\n":
        time.sleep(0.01)
    started = time.monotonic()
    os.kill(one.pid, signal.SIGTERM)
    assert one.wait().state == "cancelled"
    assert 0.2 < time.monotonic() - started < 30


def test_stop_at_once(run: object) -> None:
    one = run("trap '' TERM; sleep 600", limits=Limits(grace_seconds=600))  # type: ignore[operator]
    one.wait_started()
    assert supervisor_client.request_stop(one.directory, at_once=True)
    assert one.wait().state == "cancelled"
    assert not supervisor_client.request_stop(one.directory)


def test_children_that_were_left_behind_are_killed(run: object) -> None:
    one = run("for i in 1 2 3; do setsid sh -c 'sleep 600 & setsid sleep 600' & done; sleep 0.2")  # type: ignore[operator]
    assert one.wait().state == "completed"
    assert spawn.descendants(one.pid) == []


def test_closed_output_does_not_end_the_run(run: object) -> None:
    result = run("exec >&- 2>&-; sleep 0.2; exit 5").wait()  # type: ignore[operator]
    assert result.exit_code == 5


def test_stdin_is_passed_through_and_ends(run: object) -> None:
    one = run("cat", stdin=True)  # type: ignore[operator]
    text = os.urandom(700_000)
    with supervisor_client.connect(one.directory) as client:
        client.sendall(frames.pack(frames.HELLO, b"i"))
        for start in range(0, len(text), 50_000):
            client.sendall(frames.pack(frames.STDIN, text[start : start + 50_000]))
        client.sendall(frames.pack(frames.EOF))
        assert one.wait().state == "completed"
    assert one.output() == text


def test_stdin_ends_when_its_writer_dies(run: object) -> None:
    one = run("cat; echo over", stdin=True)  # type: ignore[operator]
    with supervisor_client.connect(one.directory) as client:
        client.sendall(frames.pack(frames.HELLO, b"i") + frames.pack(frames.STDIN, b"half"))
    assert one.wait().state == "completed"
    assert one.output() == b"halfover\n"


def test_without_stdin_there_is_nothing_to_read(run: object) -> None:
    one = run("cat; echo empty")  # type: ignore[operator]
    one.wait()
    assert one.output() == b"empty\n"


def test_a_terminal_is_attached_to_resized_and_left(run: object) -> None:
    one = run("stty size; read line; stty size; echo got $line", terminal=True, rows=30, columns=100)  # type: ignore[operator]
    one.wait_started()
    while b"30 100" not in one.output():
        time.sleep(0.01)
    with supervisor_client.connect(one.directory) as client:
        client.sendall(frames.pack(frames.HELLO, b"oi"))
        size = (50).to_bytes(2, "little") + (132).to_bytes(2, "little")
        client.sendall(frames.pack(frames.RESIZE, size) + frames.pack(frames.STDIN, b"words\n"))
        received = bytearray()
        while chunk := client.recv(65536):
            received += chunk
    seen = []
    while (frame := frames.take(received)) is not None:
        seen.append(frame)
    text = b"".join(frame.data for frame in seen if frame.stream == frames.STDOUT)
    assert b"50 132" in text
    assert b"got words" in text
    assert seen[-1].stream == frames.END
    assert one.wait().state == "completed"


def test_a_slow_or_senseless_client_disturbs_nobody(run: object) -> None:
    one = run("head -c 30000000 /dev/zero; sleep 0.2; echo end >&2", limits=Limits(output_bytes=None))  # type: ignore[operator]
    with supervisor_client.connect(one.directory) as slow, supervisor_client.connect(one.directory) as odd:
        slow.sendall(frames.pack(frames.HELLO, b"o"))
        odd.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
        assert one.wait().output_bytes == 30_000_004


def test_one_run_has_one_supervisor(run: object) -> None:
    one = run("sleep 600")  # type: ignore[operator]
    found = supervisor_client.find_supervisor(one.directory)
    assert found is not None
    assert found.pid == one.pid
    assert spawn.is_alive(found.pid, found.start_time)
    with pytest.raises(Conflict):
        supervisor.supervise(
            lambda _: Launch(argv=("/bin/true",), environment={}),
            Order(directory=one.directory, name="aw-test-second"),
            Enforcement(sandbox="none"),
            Hooks(),
        )
    supervisor_client.request_stop(one.directory, at_once=True)
    one.wait()


def test_the_heart_beats(run: object) -> None:
    one = run("sleep 600", heartbeat_seconds=0.1)  # type: ignore[operator]
    one.wait_started()
    first = supervisor_client.find_supervisor(one.directory)
    assert first is not None

    def has_beaten() -> bool:
        now = supervisor_client.find_supervisor(one.directory)
        return now is not None and now.beat_at > first.beat_at

    wait_until(has_beaten)
    supervisor_client.request_stop(one.directory, at_once=True)
    one.wait()


def test_the_starter_may_die(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    starter = os.fork()
    if starter == 0:
        Run(directory, "sleep 0.3; echo survived")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(starter, 0)
    result = wait_until(lambda: find_result(str(directory)))
    assert result.state == "completed"
    text = b"".join(frame.data for frame in frames.read(str(directory / "output")) if frame.stream == frames.STDOUT)
    assert text == b"survived\n"


def test_a_full_disk_ends_the_keeping_and_not_the_run(tmp_path: Path) -> None:
    output = frames.Output("/dev/full", None)
    output.add(frames.STDOUT, memoryview(b"lost"))
    assert (output.kept, output.dropped) == (0, 4)
    output.close()


def test_half_a_frame_is_waited_for(tmp_path: Path) -> None:
    whole = frames.pack(frames.STDOUT, b"whole")
    half = frames.pack(frames.STDERR, b"half")
    path = tmp_path / "output"
    path.write_bytes(whole + half[:-2])
    assert [frame.data for frame in frames.read(str(path))] == [b"whole"]
    path.write_bytes(whole + half)
    assert [frame.data for frame in frames.read(str(path), len(whole))] == [b"half"]
