"""A real server on a free port of the loopback, and requests made byte by byte."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from workstead.local import Local
from workstead.server.serve import Background
from workstead.settings import Settings


class Answer:
    """What came back."""

    def __init__(self, raw: bytes) -> None:
        head, _, body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1]) if lines[0] else 0  # 0: the connection was closed without a word
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines[1:])}
        self.body = _unchunked(body) if self.headers.get("transfer-encoding") == "chunked" else body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


def _unchunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        whole, body = whole + body[:length], body[length + 2 :]
    return whole


class Wire:
    """Speaks to the server as anybody could."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self.url, self.token = url, token
        self.address = (str(parts.hostname), int(parts.port or 0))
        self.host = f"{parts.hostname}:{parts.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=20)

    def send(self, data: bytes) -> Answer:
        """Send bytes as they are and read until the server closes or answers in full."""
        with self.connect() as connection:
            with suppress(OSError):  # refused while it was being sent: the answer may still be there
                connection.sendall(data)
            return Answer(read_all(connection))

    def ask(
        self,
        method: str,
        target: str,
        body: bytes | object | None = None,
        *,
        token: str | None = "",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request on a connection of its own; `token` "" is the owner's, None is none."""
        every = {"Host": self.host, "Connection": "close"}
        if token is not None:
            every["Authorization"] = f"Bearer {token or self.token}"
        if body is not None:
            every["Content-Type"] = "application/octet-stream" if isinstance(body, bytes) else "application/json"
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            every["Content-Length"] = str(len(body))
        every.update(headers or {})
        head = "".join(f"{name}: {value}\r\n" for name, value in every.items())
        return self.send(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + (body or b""))  # type: ignore[operator]


def read_all(connection: socket.socket) -> bytes:
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except (ConnectionError, TimeoutError):
        pass
    return data


def unmount_below(path: str) -> None:
    """Nothing that was mounted in a home for many tests outlives them."""
    with open("/proc/self/mountinfo") as table:
        targets = [line.split()[4] for line in table]
    for target in sorted((each for each in targets if each.startswith(f"{path}/")), reverse=True):
        subprocess.run(["umount", "-l", target], check=False)


@pytest.fixture
def server(workspaces: Local, settings: Settings) -> Iterator[Background]:
    with Background(workspaces, settings) as running:
        yield running


@pytest.fixture
def wire(server: Background, workspaces: Local) -> Wire:
    return Wire(server.url, workspaces.owner_token())


@pytest.fixture
def desk(workspaces: Local) -> str:
    made = workspaces.create(id="fix/a1")
    workspaces.write_file(made.id, "work/in.txt", "IN:in.txt")
    return made.id
