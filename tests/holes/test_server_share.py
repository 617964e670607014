"""What one caller can take from a server that others use as well: memory, threads, streams, room in the log."""

from __future__ import annotations

import http.client
import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from browsing import Server
from waiting import wait_until
from workstead.local import Local
from workstead.server.serve import Background
from workstead.settings import Settings

KIB = 1024


@pytest.fixture
def server(home_path: str) -> Iterator[Server]:
    serving = Server(home_path)
    yield serving
    serving.stop()


class Caller:
    """One connection with a token."""

    def __init__(self, server: Server, token: str) -> None:
        address = urlsplit(server.url)
        self.connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        self.headers = {"Host": address.netloc, "Authorization": f"Bearer {token}"}

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, bytes, str]:
        sent = {**self.headers, **headers}
        if body is not None:
            sent["Content-Type"] = "application/json"
        self.connection.request(method, path, None if body is None else json.dumps(body), sent)
        answer = self.connection.getresponse()
        return answer.status, answer.read(), answer.headers["content-type"]

    def close(self) -> None:
        self.connection.close()


def names_in(home: str) -> set[str]:
    """Every path in a home, but for those of the log's own files."""
    return {str(path) for path in Path(home).rglob("*") if not path.name.startswith("log.db")}


def memory_of(server: Server) -> int:
    """The resident memory of the server in bytes."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * KIB


@pytest.mark.parametrize("prefix", ["/api/", "/api/workspaces/t/a/", "/mcp/", "/api/workspaces/t/", "/api/runs/"])
def test_an_address_that_does_not_exist_costs_nothing(
    server: Server, workspaces: Local, home_path: str, prefix: str
) -> None:
    with closing(Caller(server, workspaces.owner_token())) as caller:

        def ask(numbers: range) -> set[tuple[int, str]]:
            answers = [caller.ask("GET", f"{prefix}nothing-{number}") for number in numbers]
            return {(status, kind) for status, _, kind in answers}

        ask(range(100))
        memory, files = memory_of(server), names_in(home_path)
        kinds = ask(range(100, 700))
        assert memory_of(server) - memory < 600 * 10 * KIB  # it was 67 kB each
        assert names_in(home_path) <= files
        assert kinds == {(404, "application/json")}


def begin_upload(server: Server, token: str, path: str) -> socket.socket:
    """The head of an upload and a part of its body: the server waits for the rest."""
    address = urlsplit(server.url)
    connection = socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=60)
    head = f"PUT {path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n"
    head += "Content-Type: application/octet-stream\r\nContent-Length: 1000\r\n\r\nonly"
    connection.sendall(head.encode())
    return connection


def answered(connections: list[socket.socket]) -> list[socket.socket]:
    return select.select(connections, [], [], 0)[0]


def test_one_token_does_not_use_up_the_lanes_of_others(server: Server, workspaces: Local) -> None:
    tokens = {name: workspaces.create_token(workspaces.create(id=f"t/{name}").id)[1] for name in "ab"}
    held = [begin_upload(server, tokens["a"], "/api/workspaces/t/a/files/work/half") for _ in range(110)]
    wait_until(lambda: len(answered(held)) >= 10)  # before, all but the last ten were let in
    for token, name in ((tokens["b"], "b"), (workspaces.owner_token(), "a")):
        with closing(begin_upload(server, token, f"/api/workspaces/t/{name}/files/work/whole")) as connection:
            connection.sendall(b"x" * 996)
            assert connection.recv(100).startswith(b"HTTP/1.1 200"), name
    wait_until(lambda: len(answered(held)) == 110 - 25)
    assert all(each.recv(100).startswith(b"HTTP/1.1 429") for each in answered(held))
    for each in held:
        each.close()
    with closing(Caller(server, tokens["a"])) as caller:
        wait_until(lambda: caller.ask("DELETE", "/api/workspaces/t/a/files/work/x", Prefer="wait=0")[0] != 429)


def test_one_token_does_not_use_up_the_streams_of_others(workspaces: Local, settings: Settings) -> None:
    tokens = {name: workspaces.create_token(workspaces.create(id=f"t/{name}").id)[1] for name in "abcd"}
    few = settings.replace(server=settings.server.replace(max_streams=8))
    with Background(workspaces, few) as server, ExitStack() as stack:
        address = urlsplit(server.url)

        def listen(token: str) -> bytes:
            connection = socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=60)
            stack.enter_context(connection)
            head = f"GET /api/events?follow=true HTTP/1.1\r\nHost: {address.netloc}\r\n"
            connection.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
            return connection.recv(12)[9:]

        assert [listen(tokens["a"]) for _ in range(4)] == [b"200", b"200", b"429", b"429"]  # a quarter for each
        assert [listen(tokens[name]) for name in "bbccd"] == [b"200"] * 4 + [b"429"]  # three quarters for all of them
        assert [listen(workspaces.owner_token()) for _ in range(3)] == [b"200", b"200", b"429"]
