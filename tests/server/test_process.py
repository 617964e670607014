"""`aw serve` as a process: what it prints, how it ends, what survives its death."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import workstead
from waiting import wait_until
from workstead.errors import Unavailable, WorksteadError
from workstead.local import Local

from .conftest import Answer, Wire

SECONDS = 20.0 if os.environ.get("AW_LOAD") == "full" else 3.0


class Served:
    """A server in a process of its own."""

    def __init__(self, home: str, *arguments: str) -> None:
        program = "from workstead.cli import command; command()"
        everything = [sys.executable, "-I", "-c", program, "serve", "--home", home, "--format", "json", "--no-page"]
        self.process = subprocess.Popen(
            [*everything, *(arguments or ("--port", "0"))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert self.process.stdout
        line = self.process.stdout.readline()
        self.said: dict[str, Any] = json.loads(line) if line else {}

    @property
    def wire(self) -> Wire:
        return Wire(self.said["url"], Path(self.said["token_path"]).read_text().strip())

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal and give the exit code and what was said on stderr."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


@pytest.fixture
def served(home_path: str) -> Iterator[Served]:
    server = Served(home_path)
    yield server
    if server.process.poll() is None:
        server.end(signal.SIGKILL)
    for stream in (server.process.stdout, server.process.stderr):
        assert stream
        stream.close()


def test_it_says_where_it_is_and_ends_when_told(served: Served, workspaces: Local) -> None:
    assert set(served.said) == {"url", "token_path", "pid"}
    assert served.said["pid"] == served.process.pid
    assert workspaces.find_server() == served.said["url"]
    wire = served.wire
    assert wire.ask("POST", "/api/workspaces", {"id": "t/a"}).status == 201
    with wire.connect() as stream:  # one that would go on for ever
        head = f"GET /api/events?follow=true HTTP/1.1\r\nHost: {wire.host}\r\nAuthorization: Bearer {wire.token}\r\n"
        stream.sendall(f"{head}\r\n".encode())
        assert b"200 OK" in stream.recv(100)
        code, said = served.end()
    assert code == 0
    lines = [json.loads(line) for line in said.splitlines()]
    assert lines[-1]["what"] == "end"
    assert wire.token not in said
    assert workspaces.find_server() is None
    assert workspaces.exists("t/a")


def test_a_request_that_outlasts_the_end_is_told_so_and_nothing_looks_like_a_bug(served: Served) -> None:
    wire = served.wire
    assert wire.ask("POST", "/api/workspaces", {"id": "t/a"}).status == 201
    answers: list[Answer] = []
    slow = {"command": ["sh", "-c", "echo > begun; sleep 60"]}
    asking = threading.Thread(target=lambda: answers.append(wire.ask("POST", "/api/workspaces/t/a/commands", slow)))
    asking.start()
    while wire.ask("HEAD", "/api/workspaces/t/a/files/work/begun").status != 200:
        time.sleep(0.05)
    code, said = served.end()
    asking.join()
    assert code == 0
    assert "Traceback" not in said
    assert (answers[0].status, answers[0].code) == (503, "unavailable")


@pytest.mark.parametrize(
    "head",
    [
        "POST /api/workspaces HTTP/1.1\r\nContent-Type: application/json",
        "PUT /api/workspaces/t/a/files/work/x HTTP/1.1\r\nContent-Type: application/octet-stream",
        "POST /mcp HTTP/1.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream",
    ],
)
def test_a_client_that_goes_in_the_middle_of_its_request_is_no_bug(served: Served, head: str) -> None:
    wire = served.wire
    assert wire.ask("POST", "/api/workspaces", {"id": "t/a"}).status == 201
    with wire.connect() as connection:
        rest = f"Host: {wire.host}\r\nAuthorization: Bearer {wire.token}\r\nContent-Length: 1000\r\n\r\n{{"
        connection.sendall(f"{head}\r\n{rest}".encode())
        time.sleep(0.3)
    assert wire.ask("GET", "/api/workspaces").status == 200
    assert wire.ask("HEAD", "/api/workspaces/t/a/files/work/x").status == 404
    code, said = served.end()
    assert code == 0
    lines = [json.loads(line)["what"] for line in said.splitlines()]
    assert "bug" not in lines


def test_settings_are_read_again_on_request(served: Served, home_path: str) -> None:
    wire = served.wire
    config = Path(os.environ["HOME"]) / ".config" / "aw"
    config.mkdir(parents=True)
    (config / "aw.yaml").write_text("workspaces: {default_max_size_mb: 77}\n")
    assert wire.ask("POST", "/api/workspaces", {"id": "t/before"}).json["config"]["max_size_mb"] != 77
    served.process.send_signal(signal.SIGHUP)
    numbers = itertools.count()

    def is_read() -> bool:
        made = wire.ask("POST", "/api/workspaces", {"id": f"t/{next(numbers)}", "lazy": True})
        return bool(made.json["config"]["max_size_mb"] == 77)

    wait_until(is_read)
    (config / "aw.yaml").write_text("nonsense: {x: 1}\n")
    served.process.send_signal(signal.SIGHUP)
    time.sleep(1.5)
    assert wire.ask("POST", "/api/workspaces", {"id": "t/after"}).json["config"]["max_size_mb"] == 77
    _, said = served.end()
    assert [json.loads(line)["message"][:9] for line in said.splitlines() if '"settings"' in line] == [
        "read agai",
        "as before",
    ]


def test_other_processes_work_beside_it_on_the_same_home(served: Served, home_path: str, workspaces: Local) -> None:
    wire = served.wire
    program = "from workstead.cli import command; command()"
    for number in range(3):
        argv = [sys.executable, "-I", "-c", program, "create", "--home", home_path, "--id", f"cli/{number}"]
        subprocess.run(argv, check=True, capture_output=True)
        assert wire.ask("POST", "/api/workspaces", {"id": f"http/{number}"}).status == 201
        workspaces.create(id=f"library/{number}")
    assert len(wire.ask("GET", "/api/workspaces").json) == 9
    assert workspaces.verify().events == workspaces.last_position()


@pytest.mark.parametrize(
    "arguments", [("--host", "0.0.0.0", "--port", "0"), ("--port", "99999"), ("--host", "256.0.0.1")]
)
def test_what_cannot_be_listened_on_is_refused(home_path: str, arguments: tuple[str, ...]) -> None:
    server = Served(home_path, *arguments)
    _, said = server.process.communicate(timeout=30)
    assert server.process.returncode in (2, 7), said
    assert "Traceback" not in said


def test_nothing_acknowledged_is_lost_and_nothing_done_twice_when_it_is_killed(
    home_path: str, workspaces: Local
) -> None:
    """Many callers make and write; the server is killed at any point and comes back; a repeat has the same key."""
    server = Served(home_path)
    port = server.said["url"].rpartition(":")[2]
    url, token = server.said["url"], server.wire.token
    stop = threading.Event()
    made: list[tuple[str, str]] = []
    files: dict[str, bytes] = {}
    seen: list[int] = []
    first = workspaces.last_position()

    def call(number: int) -> None:
        with workstead.connect(url, token) as remote:
            count = 0
            while not stop.is_set():
                count += 1
                name = f"w{number}/{count}"
                try:
                    # A fresh task each time: only the key tells a repeat from another request.
                    made.append((remote.create(config={"prompt": name}).id, name))
                    desk = made[-1][0]
                    remote.write_file(desk, "work/x", name)
                    files[desk] = name.encode()
                except WorksteadError:
                    continue  # not acknowledged

    def follow() -> None:
        def has_all() -> bool:
            return stop.is_set() and seen[-1:] == [workspaces.last_position()]

        with workstead.connect(url, token) as remote:
            while not has_all():  # a server that takes long to come back is given up, and asked again
                with suppress(Unavailable):
                    for event in remote.follow(after=seen[-1] if seen else first, until=has_all):
                        seen.append(event.position)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    follower = threading.Thread(target=follow)
    for each in (*threads, follower):
        each.start()
    end = time.monotonic() + SECONDS
    kills = 0
    while time.monotonic() < end or kills < 2:
        time.sleep(0.6)
        server.process.kill()
        server.process.communicate()
        kills += 1
        server = Served(home_path, "--port", port)
    stop.set()
    for each in threads:
        each.join(60)
    follower.join(60)
    server.end()
    prompts = [each.config["prompt"] for each in workspaces.list()]
    assert len(prompts) == len(set(prompts)), "something was done twice"
    there = {each.id for each in workspaces.list()}
    assert {id for id, _ in made} <= there
    assert {id: workspaces.read_file(id, "work/x") for id in files} == files
    assert made
    assert workspaces.verify().events == workspaces.last_position()
    assert seen == list(range(first + 1, first + 1 + len(seen)))
    assert len(seen) >= len(made)


def test_memory_stays_flat_over_many_requests(served: Served) -> None:
    wire = served.wire
    for name in ("a", "b"):
        assert wire.ask("POST", "/api/workspaces", {"id": f"t/{name}"}).status == 201

    def many(count: int) -> None:
        with workstead.connect(served.said["url"], wire.token) as remote:
            for number in range(count // 4):
                remote.write_file("t/a", "work/x", str(number))
                assert remote.read_text("t/a", "work/x") == str(number)
                remote.list()
                with pytest.raises(WorksteadError):
                    remote.get("no/body")

    many(2_000)  # caches fill, and the log's last events are kept in memory up to a number
    before = _resident(served.process.pid)
    many(100_000 if os.environ.get("AW_LOAD") == "full" else 2_000)
    assert _resident(served.process.pid) - before < 30 << 20


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
