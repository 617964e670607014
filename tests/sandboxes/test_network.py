"""The network: none, the host's, or a list of names through the proxy."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import threading
from collections.abc import Iterator

import pytest
from scene import Outcome, Scene

from workstead.system.process.proxy import Rule


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"path={self.path} host={self.headers['host']} secret={self.headers.get('x-secret', '')}".encode()
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        if self.headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

    def log_message(self, *_: object) -> None:
        pass


class Web(http.server.ThreadingHTTPServer):
    seen: list[str]


@pytest.fixture
def web() -> Iterator[Web]:
    server = Web(("127.0.0.1", 0), _Handler)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


ASK = r"""
import socket, sys
def ask(data, again=b''):
    s = socket.create_connection(('127.0.0.1', 3128), 5)
    s.sendall(data)
    if again:
        print(s.recv(1000).split(b'\r\n')[0].decode())
        s.sendall(again)
    out = b''
    try:
        while chunk := s.recv(65536): out += chunk
    except OSError: pass
    print(out.decode('latin-1').replace('\r\n', '|')[-200:])
"""


def ask(host: Scene, body: str, rules: tuple[Rule, ...]) -> Outcome:
    return host.inside(["/usr/bin/python3", "-c", ASK + body], network="proxy", rules=rules)


def test_a_name_in_the_list_is_reached_by_plain_http(host: Scene, web: Web) -> None:
    port = web.server_port
    rule = Rule(host="localhost", ports=(port,), private=True)
    outcome = ask(host, f"ask(b'GET http://localhost:{port}/a?b HTTP/1.1\\r\\nHost: evil\\r\\n\\r\\n')", (rule,))
    assert f"path=/a?b host=localhost:{port} secret=" in outcome.text
    assert not [event for event in outcome.events if event[0] == "denied"]


def test_a_name_in_the_list_is_reached_by_a_tunnel(host: Scene, web: Web) -> None:
    port = web.server_port
    rule = Rule(host="localhost", ports=(port,), private=True)
    again = "GET /t HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n"
    outcome = ask(host, f"ask(b'CONNECT localhost:{port} HTTP/1.1\\r\\n\\r\\n', b'{again}')", (rule,))
    assert "200 Connection established" in outcome.text
    assert "path=/t" in outcome.text


def test_bodies_arrive_whole(host: Scene, web: Web) -> None:
    port = web.server_port
    rule = Rule(host="localhost", ports=(port,), private=True)
    head = f"POST http://localhost:{port}/p HTTP/1.1\\r\\n"
    outcome = ask(
        host,
        f"ask(b'{head}content-length: 5\\r\\n\\r\\nabcde')\n"
        f"ask(b'{head}transfer-encoding: chunked\\r\\n\\r\\n3\\r\\nxyz\\r\\n2\\r\\nuv\\r\\n0\\r\\n\\r\\n')",
        (rule,),
    )
    assert "edcba" in outcome.text
    assert "vuzyx" in outcome.text


def test_a_request_cannot_hide_behind_another(host: Scene, web: Web) -> None:
    port = web.server_port
    rule = Rule(host="localhost", ports=(port,), private=True)
    line = f"GET http://localhost:{port}/one HTTP/1.1\\r\\n\\r\\nGET /smuggled HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
    ask(host, f"ask(b'{line}')", (rule,))
    assert web.seen == ["/one"]


@pytest.mark.parametrize(
    ("request_line", "reason"),
    [
        ("CONNECT elsewhere.test:443", "not in the list"),
        ("CONNECT localhost:1", "not in the list"),
        ("CONNECT LOCALHOST.:PORT", "address that is not public"),
        ("CONNECT 127.0.0.1:PORT", "not in the list"),
        ("CONNECT 2130706433:PORT", "not a plain host name"),
        ("CONNECT 0x7f.1:PORT", "not a plain host name"),
        ("CONNECT 0177.0.0.1:PORT", "not a plain host name"),
        ("CONNECT [::1]:PORT", "not a plain host name"),
        ("CONNECT localhost%00.example.org:443", "not a plain host name"),
        ("CONNECT localhost@example.org:443", "not a plain host name"),
        ("CONNECT example.org/../localhost:443", "not a plain host name"),
        ("CONNECT localhost:99999", "not a proper port"),
        ("CONNECT localhost", "not a proper port"),
        ("CONNECT 169.254.169.254:80", "not in the list"),
        ("GET http://a@localhost:PORT/", "not a plain address"),
        ("GET http://localhost\\\\@b:PORT/", "not a plain address"),
        ("GET http://elsewhere.test/", "not in the list"),
        ("GET http://sub.localhost:PORT/", "not in the list"),
    ],
)
def test_what_is_not_in_the_list_is_refused_and_told(host: Scene, web: Web, request_line: str, reason: str) -> None:
    port = web.server_port
    line = request_line.replace("PORT", str(port))
    rules = (Rule(host="localhost", ports=(port,)), Rule(host="example.org"))
    outcome = ask(host, f"ask(b'{line} HTTP/1.1\\r\\n\\r\\n')", rules)
    assert "403 Forbidden" in outcome.text, outcome.text
    (denied,) = [event[1] for event in outcome.events if event[0] == "denied"]
    assert reason in denied["reason"]  # type: ignore[index,call-overload]
    assert web.seen == []


def test_odd_bytes_are_refused(host: Scene, web: Web) -> None:
    rule = Rule(host="localhost", ports=(web.server_port,), private=True)
    outcome = ask(
        host,
        f"ask(b'CONNECT localhost\\0.x:{web.server_port} HTTP/1.1\\r\\n\\r\\n')\n"
        f"ask(b'GET http://localhost:{web.server_port}/ HTTP/1.1\\r\\na: b\\nHost: c\\r\\n\\r\\n')\n"
        "ask(b'GET / HTTP/1.1\\r\\n\\r\\n')\nask(b'nonsense\\r\\n\\r\\n')",
        (rule,),
    )
    assert outcome.text.count("400 Bad Request") == 4, outcome.text
    assert web.seen == []


def test_an_empty_list_lets_nothing_through(host: Scene, web: Web) -> None:
    outcome = ask(host, f"ask(b'CONNECT localhost:{web.server_port} HTTP/1.1\\r\\n\\r\\n')", ())
    assert "403" in outcome.text


def test_there_is_no_way_around_the_proxy(host: Scene, web: Web) -> None:
    rule = Rule(host="localhost", ports=(web.server_port,), private=True)
    body = f"socket.create_connection(('127.0.0.1', {web.server_port}), 2)"
    outcome = ask(host, body, (rule,))
    assert "ConnectionRefusedError" in outcome.text
    assert web.seen == []


def test_a_secret_is_added_outside_and_never_seen_inside(host: Scene, web: Web) -> None:
    port = web.server_port
    rule = Rule(host="localhost", ports=(port,), private=True, header=("X-Secret", "s3cr3t"), tls=False)
    body = (
        f"ask(b'GET http://localhost:{port}/k HTTP/1.1\\r\\nX-Secret: forged\\r\\n\\r\\n')\n"
        "import os; print([os.environ, open('/proc/self/environ').read()])"
    )
    outcome = ask(host, body, (rule,))
    assert "secret=s3cr3t" in outcome.text  # this server tells; a real one would not
    assert outcome.text.count("s3cr3t") == 1
    assert "forged" not in outcome.text


def test_the_proxy_dies_with_the_run(host: Scene) -> None:
    outcome = ask(host, "print('x')", ())
    assert outcome.result.state == "completed"
    sessions = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            sessions.append(os.getsid(int(pid)))
    assert outcome.supervisor not in sessions


def test_the_environment_names_the_proxy(host: Scene) -> None:
    outcome = host.inside("echo $https_proxy $HTTP_PROXY", network="proxy")
    assert outcome.stdout == b"http://127.0.0.1:3128 http://127.0.0.1:3128\n"


def test_the_hosts_network_is_the_hosts(host: Scene) -> None:
    body = "import socket; socket.create_connection(('127.0.0.1', PORT), 2); print('there')"
    body = body.replace("PORT", str(host.tcp.getsockname()[1]))
    outcome = host.inside(["/usr/bin/python3", "-c", body], network="host")
    assert outcome.text == "there\n"
    assert host.hear() == ["tcp"]
    assert "the command uses the host's network" in outcome.events[0][3]["notes"]  # type: ignore[index,call-overload]


def test_abstract_sockets_stay_closed_on_the_hosts_network(host: Scene) -> None:
    body = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{host.abstract}')"
    outcome = host.inside(["/usr/bin/python3", "-c", body], network="host")
    if outcome.events[0][3]["landlock"] >= 6:  # type: ignore[index,call-overload]
        assert "PermissionError" in outcome.text
    twin = socket.socket(socket.AF_UNIX)
    twin.connect(f"\0{host.abstract}")
    twin.close()
    host.hear()
