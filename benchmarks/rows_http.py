"""HTTP: requests to a server of ours, and to a bare FastAPI route that does the raw file operation without a log.

Each arm is a batch of requests by several connections at once; the time of one is that of the batch by its size.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness import Row

import workstead

CONNECTIONS, EACH = 4, 25
CLIENTS = 1000
BODY = os.urandom(4096)
COUNT = itertools.count()
OURS = "from workstead.cli import command; command()"
Requests = Callable[[], list[bytes]]
BARE = Path(__file__).with_name("bare_server.py")


def rows(scratch: str) -> Iterator[Row]:
    os.makedirs(f"{scratch}/bare")
    with _ours(f"{scratch}/home") as (ours, token), _bare(f"{scratch}/bare") as bare:
        workspaces = workstead.open(f"{scratch}/home")
        for number in range(20):
            workspaces.create(id=f"t/{number}")
            os.mkdir(f"{scratch}/bare/{number}")
        workspaces.write_file("t/0", "work/x", BODY)
        Path(f"{scratch}/bare/0/x").write_bytes(BODY)
        head = f"Host: 127.0.0.1:{ours}\r\nAuthorization: Bearer {token}\r\n"
        plain = f"Host: 127.0.0.1:{bare}\r\n"
        file = "/api/workspaces/t/0/files/work/x"
        yield _row("list 20 workspaces", ours, _get("/api/workspaces", head), bare, _get("/list", plain))
        yield _row("read 4 KB", ours, _get(file, head), bare, _get("/read/0/x", plain))
        yield _row("write 4 KB", ours, _put(file, head), bare, _put("/write/0/x", plain))
        yield _row(
            "create and destroy", ours, _made(head), bare, _made_bare(plain), 5, "four durable appends against none"
        )
        yield _events(workspaces, ours, token)
        workspaces.let_go()


def _row(
    name: str, port: int, ours: Requests, bare_port: int, bare: Requests, each: int = EACH, aim: str = "bare <= 3"
) -> Row:
    one, two = _Crowd(port, each), _Crowd(bare_port, each)
    arms = {"ours": lambda: one.send(ours), "bare FastAPI route": lambda: two.send(bare)}
    return Row(f"{name}, {CONNECTIONS * each} requests by {CONNECTIONS} connections", arms, aim=aim, rounds=7)


class _Crowd:
    """Connections that are kept, each with a thread that sends one request after the other."""

    def __init__(self, port: int, each: int) -> None:
        self._each = each
        self._connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]

    def send(self, requests: Requests) -> None:
        threads = [threading.Thread(target=self._talk, args=(each, requests)) for each in self._connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _talk(self, connection: socket.socket, requests: Requests) -> None:
        for _ in range(self._each):
            for request in requests():
                connection.sendall(request)
                status = _answer(connection)
                if not 200 <= status < 300:
                    raise RuntimeError(f"{status} for {request[:80]!r}")


def _answer(connection: socket.socket) -> int:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
    got = len(body)
    while got < length:
        got += len(connection.recv(65536))
    return int(lines[0].split()[1])


def _get(target: str, head: str) -> Requests:
    request = [f"GET {target} HTTP/1.1\r\n{head}\r\n".encode()]
    return lambda: request


def _put(target: str, head: str) -> Requests:
    more = f"Content-Type: application/octet-stream\r\nContent-Length: {len(BODY)}\r\n"
    request = [f"PUT {target} HTTP/1.1\r\n{head}{more}\r\n".encode() + BODY]
    return lambda: request


def _made(head: str) -> Requests:
    def requests() -> list[bytes]:
        number = next(COUNT)
        body = json.dumps({"id": f"bench/{number}"}).encode()
        more = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return [
            f"POST /api/workspaces HTTP/1.1\r\n{head}{more}\r\n".encode() + body,
            f"DELETE /api/workspaces/bench/{number} HTTP/1.1\r\n{head}\r\n".encode(),
        ]

    return requests


def _made_bare(head: str) -> Requests:
    def requests() -> list[bytes]:
        number = next(COUNT)
        return [
            f"POST /make/{number} HTTP/1.1\r\n{head}Content-Length: 0\r\n\r\n".encode(),
            f"DELETE /make/{number} HTTP/1.1\r\n{head}\r\n".encode(),
        ]

    return requests


def _events(workspaces: workstead.local.Local, port: int, token: str) -> Row:
    """From the append in this process until every client has it, against handing the same bytes to as many sockets."""
    listeners: list[socket.socket] = []
    pairs = [socket.socketpair() for _ in range(CLIENTS // 4)]  # a quarter: each takes two descriptors

    @contextmanager
    def hold() -> Iterator[None]:
        head = (
            f"GET /api/events?follow=true HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        for _ in range(CLIENTS):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(head.encode())
            listeners.append(connection)
        _drain(listeners, b"the log")
        yield
        for connection in (*listeners, *itertools.chain(*pairs)):
            connection.close()

    def ours() -> None:
        name = f"event{next(COUNT)}"
        workspaces.create(id=name, lazy=True)
        _drain(listeners, name.encode())

    def raw() -> None:
        for _ in range(4):
            for one, _ in pairs:
                one.sendall(b"x" * 600)
            _drain([other for _, other in pairs], b"x")

    return Row(f"event from append to {CLIENTS} clients", {"ours": ours, "raw sockets": raw}, rounds=7, hold=hold)


def _drain(connections: list[socket.socket], wanted: bytes) -> None:
    """Read until each has been sent the words."""
    waiting = {connection.fileno(): connection for connection in connections}
    poll = select.epoll()
    for number in waiting:
        poll.register(number, select.EPOLLIN)
    while waiting:
        for number, _ in poll.poll(30):
            if number in waiting and wanted in waiting[number].recv(1 << 20):
                poll.unregister(number)
                del waiting[number]
    poll.close()


@contextmanager
def _ours(home: str) -> Iterator[tuple[int, str]]:
    argv = [sys.executable, "-I", "-c", OURS, "serve", "--home", home, "--port", "0", "--format", "json", "--no-page"]
    with _process(argv) as line:
        said = json.loads(line)
        yield int(said["url"].rpartition(":")[2]), Path(said["token_path"]).read_text().strip()


@contextmanager
def _bare(folder: str) -> Iterator[int]:
    with _process([sys.executable, str(BARE), folder]) as line:
        yield int(line)


@contextmanager
def _process(argv: list[str]) -> Iterator[str]:
    started = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert started.stdout
        yield started.stdout.readline()
    finally:
        started.terminate()
        with suppress(subprocess.TimeoutExpired):
            started.wait(10)
        started.kill()
