"""Streams: nothing missed or repeated, many at once, slow ones let go, an end when the server ends."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from typing import Any

import pytest

import workstead
import workstead.remote
from situations import in_a_loop
from workstead.errors import Unavailable
from workstead.local import Local
from workstead.server import streams
from workstead.server.serve import Background
from workstead.settings import Settings

from .conftest import Wire

CLIENTS = 1000 if os.environ.get("AW_LOAD") == "full" else 200


def _head(wire: Wire, target: str, **headers: str) -> bytes:
    every = {"Host": wire.host, "Authorization": f"Bearer {wire.token}", **headers}
    return f"GET {target} HTTP/1.1\r\n{''.join(f'{k}: {v}{chr(13)}{chr(10)}' for k, v in every.items())}\r\n".encode()


async def _listen(wire: Wire, target: str, last: int, **headers: str) -> list[int]:
    """The ids that a client is sent, up to the last one that it waits for."""
    reader, writer = await asyncio.open_connection(*wire.address)
    writer.write(_head(wire, target, **headers))
    seen: list[int] = []
    while not seen or seen[-1] < last:
        line = await reader.readline()
        if not line:
            break
        if line.startswith(b"id: "):
            seen.append(int(line[4:]))
    writer.close()
    return seen


def test_every_client_sees_every_event_once(server: Background, wire: Wire, workspaces: Local) -> None:
    workspaces.create(id="t/a")
    start = workspaces.last_position()
    rounds = 20
    names = [f"n{number}/main" for number in range(rounds)]
    last = start + rounds

    async def everybody() -> list[list[int]]:
        clients = [
            asyncio.create_task(_listen(wire, f"/api/events?follow=true&after={start}", last)) for _ in range(CLIENTS)
        ]
        while server.app.front.hub.open_streams < CLIENTS:
            await asyncio.sleep(0.02)
        for name in names:
            await asyncio.to_thread(workspaces.create, id=name, lazy=True)
        return await asyncio.wait_for(asyncio.gather(*clients), 120)

    seen = in_a_loop(everybody())
    assert seen == [list(range(start + 1, last + 1))] * CLIENTS
    while server.app.front.hub.open_streams:
        time.sleep(0.01)


def test_a_client_resumes_where_it_left_off_from_memory_and_from_the_log(
    server: Background, wire: Wire, workspaces: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "BATCH", 7)
    for number in range(60):
        workspaces.create(id=f"n{number}/main", lazy=True)
    last = workspaces.last_position()
    whole = in_a_loop(_listen(wire, "/api/events?follow=true&after=0", last))
    assert whole == list(range(1, last + 1))
    resumed = in_a_loop(_listen(wire, "/api/events?follow=true&after=0", last, **{"Last-Event-ID": "31"}))
    assert resumed == list(range(32, last + 1))
    one = in_a_loop(_listen(wire, "/api/events?follow=true&after=0&task_id=n59", last))
    assert one == [last]


def test_what_is_not_in_memory_any_more_comes_from_the_log(
    workspaces: Local, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEPT", 5)
    with Background(workspaces, settings) as server:
        wire = Wire(server.url, workspaces.owner_token())
        for number in range(40):
            workspaces.create(id=f"n{number}/main", lazy=True)
        last = workspaces.last_position()
        assert in_a_loop(_listen(wire, "/api/events?follow=true&after=3", last)) == list(range(4, last + 1))


@pytest.mark.parametrize("position", ["-1", "NaN", "1e9", "99999999999999999999999", "1 ", "%31", "١"])
def test_a_position_that_is_none_is_refused(wire: Wire, position: str) -> None:
    answer = wire.send(_head(wire, "/api/events?follow=true", **{"Last-Event-ID": position, "Connection": "close"}))
    assert answer.status in (200, 400) if position == "1 " else answer.status == 400


@pytest.mark.parametrize("target", ["/api/events?follow=true&after=0", "/api/workspaces/t/a/files/work/big"])
def test_a_slow_client_is_let_go_and_harms_nobody(
    workspaces: Local, settings: Settings, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(streams, "SLOW_SECONDS", 1.0)
    workspaces.create(id="t/a")
    for number in range(250):
        workspaces.read_file("t/a", ".aw/run.json", start=number)
    workspaces.write_file("t/a", "work/big", bytes(4 << 20))
    with Background(workspaces, settings) as server, socket.socket() as slow:
        server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # little on the way, so that it shows
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        wire = Wire(server.url, workspaces.owner_token())
        slow.connect(wire.address)
        slow.sendall(_head(wire, target))
        last = workspaces.last_position()
        assert in_a_loop(_listen(wire, "/api/events?follow=true&after=0", last))[:last] == list(range(1, last + 1))
        assert _is_let_go(slow)
        assert wire.ask("GET", "/healthz").status == 200


def _is_let_go(connection: socket.socket) -> bool:
    """Whether the server ends a connection whose other side does not read: what was under way is cut."""
    connection.settimeout(30)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        time.sleep(0.1)
        try:  # the state of the connection is asked without reading from it
            if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1:
                return True
        except OSError:
            return True
    return False


def test_more_streams_than_allowed_are_refused(workspaces: Local, settings: Settings) -> None:
    few = settings.replace(server=settings.server.replace(max_streams=2))
    with Background(workspaces, few) as server:
        wire = Wire(server.url, workspaces.owner_token())
        held = []
        for _ in range(2):
            connection = wire.connect()
            connection.sendall(_head(wire, "/api/events?follow=true"))
            assert b"200 OK" in connection.recv(100)
            held.append(connection)
        refused = wire.ask("GET", "/api/events?follow=true")
        assert (refused.status, refused.code) == (429, "too_many")
        for connection in held:
            connection.close()


def test_a_forged_line_stays_within_its_event(wire: Wire, workspaces: Local) -> None:
    """Names that hold what readers take for the end of a line would otherwise begin an event of their own."""
    odd = "a\u2028id: 999\u2028data: {}\u2029\x85\r\n\nid: 998"
    made = workspaces.create(task=odd)
    seen = in_a_loop(_listen(wire, "/api/events?follow=true&after=0", workspaces.last_position()))
    assert seen == [1, 2]
    with workstead.connect(wire.url, wire.token) as remote:
        events = list(remote.follow(after=0, timeout_seconds=3))
    assert [event.stream for event in events] == [made.task_id] * 2


def test_output_is_followed_by_many_and_resumed(server: Background, wire: Wire, workspaces: Local, desk: str) -> None:
    script = "for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done"
    run = workspaces.run(desk, ["sh", "-c", script])
    texts: list[bytes] = []

    def follow(last: str) -> None:
        more = {"Last-Event-ID": last} if last else {}
        texts.append(wire.send(_head(wire, f"/api/runs/{run.id}/output?follow=true", Connection="close", **more)).body)

    listeners = [threading.Thread(target=follow, args=("",)) for _ in range(20)]
    for each in listeners:
        each.start()
    for each in listeners:
        each.join()
    whole = [_text(body) for body in texts]
    assert whole == ["".join(f"line {number}\n" for number in range(1, 6))] * 20
    texts.clear()
    pieces = len(list(workspaces.output(run.id)))
    follow(str(pieces - 1))
    assert _text(texts[0]) == "line 5\n"


def _text(body: bytes) -> str:
    data = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b'data: {"stream')]
    return "".join(each["text"] for each in data)


def test_the_server_ends_while_streams_are_open(workspaces: Local, settings: Settings, desk: str) -> None:
    run = workspaces.run(desk, ["sleep", "60"])
    with Background(workspaces, settings) as server:
        wire = Wire(server.url, workspaces.owner_token())
        held = []
        this = f"/api/runs/{run.id}"
        for target in ("/api/events?follow=true", f"{this}/output?follow=true", f"{this}?wait=60"):
            connection = wire.connect()
            connection.sendall(_head(wire, target))
            held.append(connection)
        held[0].recv(100)
        held[1].recv(100)
    assert not server._thread.is_alive()
    for connection in held:
        connection.close()
    workspaces.stop(run.id, at_once=True)


def test_a_follower_of_the_client_goes_on_after_the_server_came_back(
    workspaces: Local, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workstead.remote, "TRIES", 1)  # a server that is not there at all is given up at once
    got: list[Any] = []
    first = Background(workspaces, settings)
    with first:
        port = int(first.url.rpartition(":")[2])
        remote = workstead.connect(first.url, workspaces.owner_token())
        listener = threading.Thread(target=lambda: got.extend(_until(remote, "last/main")), daemon=True)
        listener.start()
        workspaces.create(id="one/main", lazy=True)
        while first.app.front.hub.open_streams == 0:
            time.sleep(0.01)
    workspaces.create(id="while-it-was-down/main", lazy=True)
    time.sleep(0.5)  # some attempts
    with Background(workspaces, settings, port=port):
        workspaces.create(id="last/main", lazy=True)
        listener.join(30)
    remote.close()
    assert got == ["one/main", "while-it-was-down/main", "last/main"]


def test_a_follower_gives_up_a_server_that_stays_away(
    workspaces: Local, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workstead.remote, "TRIES", 1)
    monkeypatch.setattr(workstead.remote, "PATIENCE_SECONDS", 0.2)
    with Background(workspaces, settings) as server:
        remote = workstead.connect(server.url, workspaces.owner_token())
        workspaces.create(id="one/main", lazy=True)
        following = remote.follow(after=0)
        assert next(following).event_data["workspace_id"] == "one/main"
    with pytest.raises(Unavailable):
        next(following)
    with pytest.raises(Unavailable):
        next(remote.follow(after=0))
    remote.close()


def _until(remote: Any, id: str) -> list[str]:
    seen = []
    for event in remote.follow(after=0):
        seen.append(event.event_data["workspace_id"])
        if seen[-1] == id:
            return seen
    return seen
