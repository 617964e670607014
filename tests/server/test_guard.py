"""What is refused before anything is read, and that the server is well afterwards. Requests are bytes on a socket."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import workstead
from workstead.local import Local
from workstead.server import guard, protocol
from workstead.server.serve import Background
from workstead.settings import Settings, load_settings

from .conftest import Answer, Wire, read_all, unmount_below

# One server for all: nothing that is sent to it may leave a trace.


@pytest.fixture(scope="module")
def home_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("guarded") / "home")


@pytest.fixture(scope="module")
def settings(home_path: str) -> Settings:
    there = os.path.dirname(home_path)
    return load_settings({"HOME": there}, there, system_directory=f"{there}/no-etc")


@pytest.fixture(scope="module")
def workspaces(home_path: str, settings: Settings) -> Iterator[Local]:
    with workstead.open(home_path, settings=settings) as opened:
        yield opened
    unmount_below(home_path)


@pytest.fixture(scope="module")
def server(workspaces: Local, settings: Settings) -> Iterator[Background]:
    with Background(workspaces, settings) as running:
        yield running


@pytest.fixture(scope="module")
def wire(server: Background, workspaces: Local) -> Wire:
    return Wire(server.url, workspaces.owner_token())


@pytest.fixture(scope="module")
def desk(workspaces: Local) -> str:
    made = workspaces.create(id="fix/a1")
    workspaces.write_file(made.id, "work/in.txt", "IN:in.txt")
    return made.id


@pytest.fixture(autouse=True)
def _unharmed(wire: Wire, workspaces: Local, desk: str) -> Any:
    """Whatever a test sends: nothing is made, changed or run, and the next request is answered."""
    before = (workspaces.list(), workspaces.runs(), workspaces.list_files(desk))
    yield
    assert wire.ask("GET", "/healthz").status == 200
    assert (workspaces.list(), workspaces.runs(), workspaces.list_files(desk)) == before


def _plain(answer: Answer, home_path: str) -> None:
    """An error body of ours: a code, and no path of the host."""
    assert set(answer.json["error"]) == {"code", "message", "hint", "details"}
    assert home_path.encode() not in answer.body
    assert b"Traceback" not in answer.body


# -- hosts and origins -------------------------------------------------------------------------------------------------

FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:{port}",
    "localhost",
    "127.0.0.1",
    "127.0.0.1:1",
    "localhost:{port}.evil.example",
    "evil.example#localhost:{port}",
    "localhost:{port}@evil.example",
    "127.0.0.1:{port}, evil.example",
    "[::ffff:127.0.0.1]:{port}",
    "2130706433:{port}",
    "",
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_request_for_another_host_is_refused_with_a_good_token(wire: Wire, host: str, home_path: str) -> None:
    answer = wire.ask("GET", "/api/workspaces", headers={"Host": host.format(port=wire.address[1])})
    assert (answer.status, answer.code) in ((421, "wrong_host"), (400, "bad_request"))
    _plain(answer, home_path)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_our_own_hosts_are_taken(wire: Wire, host: str) -> None:
    """The twin: with the right name the same request is answered."""
    assert wire.ask("GET", "/api/workspaces", headers={"Host": host.format(port=wire.address[1])}).status == 200


def test_forwarding_headers_rescue_nothing(wire: Wire) -> None:
    for name in ("X-Forwarded-Host", "X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Original-URL"):
        headers = {"Host": "evil.example", name: wire.host}
        assert wire.ask("GET", "/api/workspaces", headers=headers).status == 421


def test_two_hosts_or_none_are_refused(wire: Wire) -> None:
    head = f"GET /api/workspaces HTTP/1.1\r\nAuthorization: Bearer {wire.token}\r\nConnection: close\r\n"
    assert wire.send(f"{head}\r\n".encode()).status == 400
    assert wire.send(f"{head}Host: {wire.host}\r\nHost: evil.example\r\n\r\n".encode()).status == 400


@pytest.mark.parametrize(
    "origin", ["null", "https://evil.example", "http://localhost:1", "http://", "{host}", "http://{host}.evil.example"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_of_another_origin_is_refused(wire: Wire, origin: str, method: str) -> None:
    body = {"id": "made/by-a-page"} if method == "POST" else None
    answer = wire.ask(method, "/api/workspaces", body, headers={"Origin": origin.format(host=wire.host)})
    assert (answer.status, answer.code) == (403, "foreign_origin")
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_our_own_origin_is_taken(wire: Wire) -> None:
    assert wire.ask("GET", "/api/workspaces", headers={"Origin": f"http://{wire.host}"}).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "CROSS-SITE", "anything"])
def test_what_a_browser_says_comes_from_elsewhere_is_refused(wire: Wire, site: str) -> None:
    assert wire.ask("GET", "/api/workspaces", headers={"Sec-Fetch-Site": site}).status == 403


def test_a_preflight_gets_nothing(wire: Wire) -> None:
    headers = {"Origin": f"http://{wire.host}", "Access-Control-Request-Method": "POST"}
    answer = wire.ask("OPTIONS", "/api/workspaces", headers=headers)
    assert answer.status == 405
    assert not [name for name in answer.headers if name.startswith("access-control-")]


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: "",
        lambda token: token[:-1],
        lambda token: token + "0",
        lambda token: token.swapcase(),
        lambda token: f"{token},Bearer wrong",
        lambda token: f" {token}",
        lambda token: "aw-owner-" + "0" * 64,
        lambda token: "aw-run-run-0000000000000000." + "0" * 64,
        lambda token: "aw-desk-" + "0" * 64,
        lambda token: "é" * 40,
        lambda token: "x" * 10_000,
    ],
)
def test_a_spoilt_token_is_refused(wire: Wire, desk: str, spoil: Any) -> None:
    for method, target in (("GET", "/api/workspaces"), ("DELETE", f"/api/workspaces/{desk}?force=true")):
        answer = wire.ask(method, target, token=None, headers={"Authorization": f"Bearer {spoil(wire.token)}"})
        assert (answer.status, answer.code) == (401, "unauthorized")


def test_a_token_counts_in_its_header_only(wire: Wire, desk: str) -> None:
    token = wire.token
    assert wire.ask("GET", f"/api/workspaces?token={token}&access_token={token}", token=None).status == 401
    for headers in ({"Cookie": f"token={token}"}, {"X-Api-Key": token}, {"Proxy-Authorization": f"Bearer {token}"}):
        assert wire.ask("GET", "/api/workspaces", token=None, headers=headers).status == 401
    for scheme in ("Basic", "Token", "bearer:"):
        answer = wire.ask("GET", "/api/workspaces", token=None, headers={"Authorization": f"{scheme} {token}"})
        assert answer.status == 401
    head = f"GET /api/workspaces HTTP/1.1\r\nHost: {wire.host}\r\nConnection: close\r\n"
    twice = f"{head}Authorization: Bearer wrong\r\nAuthorization: Bearer {token}\r\n\r\n"
    assert wire.send(twice.encode()).status == 400


def test_only_health_is_open_and_it_says_nothing(wire: Wire, home_path: str) -> None:
    health = wire.ask("GET", "/healthz", token=None)
    assert health.json == {"status": "ok"}
    for target in ("/metrics", "/openapi.json", "/api/events", "/api/nothing", "/mcp", "/api/"):
        assert wire.ask("GET", target, token=None).status == 401


# -- addresses ---------------------------------------------------------------------------------------------------------

ODD_IDS = [
    "..",
    ".%2e",
    "%2e%2e",
    "..%2fother",
    "%2e%2e%2f%2e%2e%2fetc",
    "..%5c..",
    "%252e%252e",
    "fix%2fa1",
    "fix%00/a1",
    "fix/a1%00",
    "fix/a1%0a",
    "fix/a1%20",
    "FIX/A1",
    "fix/a1%e2%80%8b",
    "%e2%80%aefix/a1",
    "%ff/a1",
    "%c0%ae%c0%ae/a1",
    "%zz/a1",
    "%2",
    "-1",
    "lost%2bfound",
    "a" * 20_000,
    "%2561",
]


@pytest.mark.parametrize("id", ODD_IDS, ids=range(len(ODD_IDS)))
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_an_id_is_exactly_itself(wire: Wire, id: str, method: str, home_path: str) -> None:
    answer = wire.ask(method, f"/api/workspaces/{id}")
    assert answer.status in (400, 404, 405, 422), answer.body
    if answer.status != 405:
        _plain(answer, home_path)


def test_dots_in_the_address_lead_nowhere(wire: Wire) -> None:
    for target in (
        "/api/../../etc/passwd",
        "/api/workspaces/../../../../etc/passwd",
        "//etc/passwd",
        "/api//workspaces",
    ):
        answer = wire.ask("GET", target)
        assert answer.status in (400, 401, 404)
        assert b"root:" not in answer.body


@pytest.fixture
def bait(workspaces: Local, desk: str, tmp_path: Path) -> Iterator[Path]:
    canary = tmp_path / "canary"
    canary.write_text("CANARY")
    here = workspaces.path(desk)
    os.symlink(canary, f"{here}/leak")
    os.symlink(tmp_path, f"{here}/leaks")
    os.mkfifo(f"{here}/pipe")
    yield canary
    for name in ("leak", "leaks", "pipe"):
        os.unlink(f"{here}/{name}")


OUTSIDE = [
    "../canary",
    "..%2f..%2fcanary",
    "%2e%2e/%2e%2e/canary",
    "work/../../canary",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "leak",
    "leaks/canary",
    "pipe",
    "work/in.txt%00",
    "x" * 5000,
    "d/" * 2400,
    "./../canary",
    "%ff%fe",
    ".aw",
    "",
]
# To remove a link that leads out, or a pipe, is to remove a name in the workspace: that is allowed.
ATTEMPTS = [(method, path) for method in ("GET", "PUT", "DELETE") for path in OUTSIDE]
ATTEMPTS = [each for each in ATTEMPTS if each not in (("DELETE", "leak"), ("DELETE", "pipe"))]


@pytest.mark.parametrize(("method", "path"), ATTEMPTS)
def test_a_file_outside_is_neither_read_nor_touched(wire: Wire, desk: str, bait: Path, path: str, method: str) -> None:
    answer = wire.ask(method, f"/api/workspaces/{desk}/files/{path}", b"x" if method == "PUT" else None)
    assert answer.status in (400, 403, 404, 405, 422), answer.body
    assert b"CANARY" not in answer.body
    assert bait.read_text() == "CANARY"


def test_what_is_encoded_twice_is_decoded_once_and_names_a_file_inside(
    wire: Wire, workspaces: Local, desk: str, bait: Path
) -> None:
    assert wire.ask("PUT", f"/api/workspaces/{desk}/files/tmp/..%252f..%252fcanary", b"x").status == 200
    assert workspaces.delete_file(desk, "tmp/..%2f..%2fcanary").size == 1
    assert bait.read_text() == "CANARY"


def test_without_the_guard_the_link_would_be_followed(workspaces: Local, desk: str, bait: Path) -> None:
    """The twin of the test above: an ordinary open does read it."""
    assert Path(f"{workspaces.path(desk)}/leak").read_text() == "CANARY"


@pytest.mark.parametrize(
    "query",
    [
        "path=a&path=b",
        "nonsense=1",
        "path=%zz",
        "path=%ff",
        "path=..",
        "path=%2e%2e",
        "PATH=.",
        "path[]=.",
        "&&path=..&x",
    ],
)
def test_a_query_is_decoded_once_and_wholly_known(wire: Wire, desk: str, query: str) -> None:
    assert wire.ask("GET", f"/api/workspaces/{desk}/tree?{query}").status in (400, 403, 422)


def test_method_override_is_ignored_and_other_methods_are_refused(wire: Wire, desk: str) -> None:
    for name in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
        assert wire.ask("GET", f"/api/workspaces/{desk}", headers={name: "DELETE"}).status == 200
    for method in ("PATCH", "TRACE", "PROPFIND", "DEBUG"):
        assert wire.ask(method, f"/api/workspaces/{desk}").status in (400, 405)
    assert wire.ask("POST", "/healthz", {}).status == 405


# -- bodies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=b",
        "text/html",
        "application/jsonx",
    ],
)
def test_only_json_changes_anything(wire: Wire, kind: str) -> None:
    body = b'{"id": "made/by-a-form"}'
    answer = wire.ask("POST", "/api/workspaces", body, headers={"Content-Type": kind})
    assert (answer.status, answer.code) == (415, "unsupported_type")
    head = f"POST /api/workspaces HTTP/1.1\r\nHost: {wire.host}\r\nAuthorization: Bearer {wire.token}\r\n"
    bare = f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    assert wire.send(bare).status == 415


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"id": 1}',
        b'{"id": ["a"]}',
        b'{"task": {}}',
        b'{"task": -0.0}',
        b'{"task": 1e999}',
        b'{"task": NaN}',
        b'{"unknown": 1}',
        b'{"id": "a/b/c"}',
        b'{"task": "a\\u0000b"}',
        b'{"task": "\\ud800"}',
        b'{"config": {"unknown": 1}}',
        b'{"lazy": "yes"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        json.dumps({str(number): number for number in range(100_000)}).encode(),
    ],
    ids=range(21),
)
def test_a_body_that_makes_no_sense_is_refused(wire: Wire, body: bytes, home_path: str) -> None:
    answer = wire.ask("POST", "/api/workspaces", body, headers={"Content-Type": "application/json"})
    assert answer.status in (400, 413, 422), answer.body
    _plain(answer, home_path)


@pytest.mark.parametrize(
    "body",
    [
        {"command": []},
        {"command": [""]},
        {"command": "true"},
        {"command": ["a\0b"]},
        {"command": [1]},
        {"command": ["true"], "sandbox": "none"},
        {"command": ["true"], "timeout_seconds": "9"},
        {"command": ["true"], "timeout_seconds": -1},
        {"command": ["true"], "timeout_seconds": 1e300},
        {"command": ["true"], "user": "root"},
        {"command": ["true"], "read_write": ["/"]},
        {"command": ["true"], "network": "yes please"},
        {"command": ["x" * 200_000]},
        {"argv": ["true"]},
    ],
)
def test_a_command_that_makes_no_sense_is_not_run(wire: Wire, desk: str, body: object) -> None:
    assert wire.ask("POST", f"/api/workspaces/{desk}/runs", body).status in (400, 403, 422)


def test_a_body_is_refused_by_its_size_before_and_while_it_is_read(
    wire: Wire, server: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = server.app.front.settings
    small = settings.replace(server=settings.server.replace(max_body_mb=1))
    monkeypatch.setattr(server.app.front, "settings", small)
    head = (
        f"POST /api/workspaces HTTP/1.1\r\nHost: {wire.host}\r\nAuthorization: Bearer {wire.token}\r\n"
        "Content-Type: application/json\r\n"
    )
    announced = wire.send(f"{head}Content-Length: 99999999999\r\n\r\n".encode())
    assert (announced.status, announced.code) == (413, "too_large")
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
    chunked = wire.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + piece * 20 + b"0\r\n\r\n")
    assert chunked.status in (413, 0)


def test_an_upload_over_the_limit_leaves_nothing(
    wire: Wire, workspaces: Local, server: Background, desk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = server.app.front.settings
    monkeypatch.setattr(server.app.front, "settings", settings.replace(files=settings.files.replace(max_write_mb=1)))
    answer = wire.ask("PUT", f"/api/workspaces/{desk}/files/work/big", bytes(2 << 20))
    assert answer.status in (413, 0)
    head = f"PUT /api/workspaces/{desk}/files/work/big HTTP/1.1\r\nHost: {wire.host}\r\n"
    head += f"Authorization: Bearer {wire.token}\r\nContent-Type: application/octet-stream\r\n"
    piece = b"10000\r\n" + bytes(65536) + b"\r\n"
    chunked = wire.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + piece * 40 + b"0\r\n\r\n")
    assert chunked.status in (413, 0)


def test_an_encoded_body_is_not_unpacked(wire: Wire) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert wire.ask("POST", "/api/workspaces", b"\x1f\x8b\x08", headers=headers).status == 415


def test_an_upload_that_breaks_off_leaves_nothing(wire: Wire, desk: str) -> None:
    head = f"PUT /api/workspaces/{desk}/files/work/half HTTP/1.1\r\nHost: {wire.host}\r\n"
    head += (
        f"Authorization: Bearer {wire.token}\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000\r\n\r\n"
    )
    with wire.connect() as connection:
        connection.sendall(head.encode() + b"only this")
    time.sleep(0.3)


@pytest.mark.parametrize(
    "tail",
    [
        "Content-Length: -1\r\n\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 0x10\r\n\r\n",
        "Bad Header: x\r\n\r\n",
        "X: a\x00b\r\n\r\n",
    ],
)
def test_a_lie_about_the_body_ends_the_connection(wire: Wire, tail: str) -> None:
    head = f"POST /api/workspaces HTTP/1.1\r\nHost: {wire.host}\r\nAuthorization: Bearer {wire.token}\r\n"
    answer = wire.send(f"{head}Content-Type: application/json\r\nConnection: close\r\n{tail}".encode("latin-1"))
    assert answer.status in (0, 400, 411, 413, 415, 422)


def test_other_protocols_on_the_port_are_refused(wire: Wire) -> None:
    for data in (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 100,
        b"GET\r\n\r\n",
    ):
        with wire.connect() as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            assert Answer(read_all(connection)).status in (0, 400, 421)


def test_a_flood_of_headers_is_cut_off(wire: Wire) -> None:
    start = f"GET /api/workspaces HTTP/1.1\r\nHost: {wire.host}\r\n"
    assert wire.send(f"{start}X-A: ".encode() + b"b" * 5_000_000 + b"\r\n\r\n").status in (0, 400, 431)
    many = "".join(f"X-{number}: y\r\n" for number in range(5000))
    assert wire.send(f"{start}{many}\r\n".encode()).status in (0, 400, 431)
    assert wire.send(b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n").status in (0, 400, 414, 431)


def test_who_is_slow_with_the_head_or_the_body_is_let_go(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.5)
    with wire.connect() as connection:
        connection.sendall(b"GET /api/workspaces HTTP/1.1\r\nHo")
        assert read_all(connection) == b""
    head = f"POST /api/workspaces HTTP/1.1\r\nHost: {wire.host}\r\nAuthorization: Bearer {wire.token}\r\n"
    slow = f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    assert wire.send(slow.encode()).status == 408


def test_waiting_requests_and_uploads_never_hold_every_thread(
    wire: Wire, desk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "SLOW_REQUESTS", 3)
    head = f"PUT /api/workspaces/{desk}/files/work/half HTTP/1.1\r\nHost: {wire.host}\r\n"
    head += f"Authorization: Bearer {wire.token}\r\nContent-Type: application/octet-stream\r\n"
    held = [wire.connect() for _ in range(3)]
    for connection in held:
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\nonly".encode())
    refused = wire.ask("DELETE", f"/api/workspaces/{desk}/files/work/none", headers={"Prefer": "wait=60"})
    assert (refused.status, refused.code) == (429, "too_many")
    assert wire.ask("GET", f"/api/workspaces/{desk}").status == 200
    for connection in held:
        connection.close()
    while wire.ask("DELETE", f"/api/workspaces/{desk}/files/work/none", headers={"Prefer": "wait=1"}).status == 429:
        time.sleep(0.02)


def test_pipelined_requests_are_answered_in_order(wire: Wire, desk: str) -> None:
    one = f"GET /api/workspaces/{desk} HTTP/1.1\r\nHost: {wire.host}\r\nAuthorization: Bearer {wire.token}\r\n"
    two = f"GET /healthz HTTP/1.1\r\nHost: {wire.host}\r\nConnection: close\r\n\r\n"
    with wire.connect() as connection:
        connection.sendall(f"{one}\r\n{one}\r\n{two}".encode())
        whole = read_all(connection)
    assert whole.count(b"HTTP/1.1 200 OK") == 3
    assert whole.endswith(b'{"status":"ok"}')


# -- answers -----------------------------------------------------------------------------------------------------------


def test_what_an_agent_wrote_is_never_rendered(wire: Wire, workspaces: Local, desk: str) -> None:
    name = 'evil"\r\nX-Injected: 1.html'
    workspaces.write_file(desk, f"tmp/{name}", "<script>alert(1)</script>")
    try:
        from urllib.parse import quote

        answer = wire.ask("GET", f"/api/workspaces/{desk}/files/tmp/{quote(name)}")
    finally:
        workspaces.delete_file(desk, f"tmp/{name}")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert "x-injected" not in answer.headers


def test_ranges_are_taken_one_at_a_time(wire: Wire, desk: str) -> None:
    target = f"/api/workspaces/{desk}/files/work/in.txt"
    part = wire.ask("GET", target, headers={"Range": "bytes=3-5"})
    assert (part.status, part.body, part.headers["content-range"]) == (206, b"in.", "bytes 3-5/9")
    assert wire.ask("GET", target, headers={"Range": "bytes=-3"}).body == b"txt"
    assert wire.ask("GET", target, headers={"Range": "bytes=99-"}).code == "range_not_satisfiable"
    many = "bytes=0-1" + ",0-1" * 1500
    assert wire.ask("GET", target, headers={"Range": many}).status == 200
    tag = wire.ask("GET", target).headers["etag"]
    assert wire.ask("GET", target, headers={"If-None-Match": tag}).status == 304
    assert wire.ask("HEAD", target).headers["content-length"] == "9"


def test_a_lost_update_is_refused(wire: Wire, workspaces: Local, desk: str) -> None:
    target = f"/api/workspaces/{desk}/files/tmp/note"
    first = wire.ask("PUT", target, b"one", headers={"If-None-Match": "*"})
    assert wire.ask("PUT", target, b"two", headers={"If-None-Match": "*"}).status == 412
    second = wire.ask("PUT", target, b"two", headers={"If-Match": first.headers["etag"]})
    assert second.status == 200
    assert wire.ask("PUT", target, b"three", headers={"If-Match": first.headers["etag"]}).code == "file_changed"
    assert wire.ask("DELETE", target, headers={"If-Match": '"nonsense"'}).status == 412
    assert wire.ask("DELETE", target, headers={"If-Match": second.headers["etag"]}).status == 200


def test_a_file_of_gigabytes_is_sent_without_holding_it(workspaces: Local, wire: Wire, desk: str) -> None:
    """Sparse, so that it costs nothing here: the first bytes come at once, and a reader that leaves is forgotten."""
    path = f"{workspaces.path(desk)}/tmp/sparse"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    try:
        head = f"GET /api/workspaces/{desk}/files/tmp/sparse HTTP/1.1\r\nHost: {wire.host}\r\n"
        with wire.connect() as connection:
            connection.sendall(f"{head}Authorization: Bearer {wire.token}\r\n\r\n".encode())
            assert b"content-length: 1099511627776" in connection.recv(4096).lower()
        part = wire.ask("GET", f"/api/workspaces/{desk}/files/tmp/sparse", headers={"Range": "bytes=1099511627770-"})
        assert part.body == bytes(6)
    finally:
        os.unlink(path)


def test_the_settings_may_name_further_hosts(workspaces: Local, settings: Settings) -> None:
    named = settings.replace(server=settings.server.replace(names=["workstead.example"]))
    with Background(workspaces, named) as server:
        wire = Wire(server.url, workspaces.owner_token())
        assert wire.ask("GET", "/api/workspaces", headers={"Host": "workstead.example"}).status == 200
        assert wire.ask("GET", "/api/workspaces", headers={"Host": "other.example"}).status == 421
