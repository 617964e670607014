"""The proxy of a run: a secret that it adds does not come back, and no private address is taken for a public one."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from people import Person
from workstead.errors import Invalid, InvalidSource
from workstead.local import Local
from workstead.system.process import proxy
from workstead.system.process.addresses import is_host_name, is_public, parse_port

SECRET = "Bearer s3cr3t"


class Echo:
    """A host that answers every request with the request, as TRACE asks for."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection:
                    connection.settimeout(5)
                    data = b""
                    with suppress(OSError):
                        while b"\r\n\r\n" not in data and (piece := connection.recv(65536)):
                            data += piece
                    self.heard.append(data)
                    with suppress(OSError):
                        connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + data)


@pytest.fixture
def echo() -> Iterator[Echo]:
    found = Echo()
    yield found
    found.listener.close()


@pytest.fixture
def denials() -> list[dict[str, str]]:
    return []


@pytest.fixture
def through(echo: Echo, denials: list[dict[str, str]]) -> Iterator[tuple[str, int]]:
    """The address of a proxy whose only rule adds a secret for the echoing host."""
    rule = proxy.Rule(host="127.0.0.1", ports=(echo.port,), private=True, header=("authorization", SECRET), tls=False)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=proxy.serve, args=(listener, [rule], denials.append), daemon=True).start()
    yield listener.getsockname()
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _send(address: tuple[str, int], data: bytes) -> bytes:
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(data)
        answer = b""
        with suppress(OSError):
            while piece := connection.recv(65536):
                answer += piece
    return answer


def _request(method: str, port: int, *lines: bytes) -> bytes:
    return b"\r\n".join([f"{method} http://127.0.0.1:{port}/ HTTP/1.1".encode(), b"host: x", *lines, b"", b""])


def test_a_secret_that_the_proxy_adds_does_not_come_back(
    through: tuple[str, int], echo: Echo, denials: list[dict[str, str]]
) -> None:
    answer = _send(through, _request("GET", echo.port))
    assert SECRET.encode() in answer  # the twin: this host does echo, and the secret was added
    heard = len(echo.heard)
    for method in ("TRACE", "trace", "Track", "TRACK"):
        answer = _send(through, _request(method, echo.port))
        assert answer.startswith(b"HTTP/1.1 403"), answer
        assert SECRET.encode() not in answer
    assert len(echo.heard) == heard
    assert len(denials) == 4


@pytest.mark.parametrize(
    "line",
    [
        b"x: 1\rauthorization: mine",
        b"x: 1\r\rhost: other",
        b"x: 1\nauthorization: mine",
        b"x: 1\0",
        b"x: 1\x0b",
        b"x: 1\r\n folded",
        b"x: 1\r\n\tfolded",
        b" x: 1",
        b"x : 1",
        b"x y: 1",
        b"x",
        b": 1",
        b"x\x7f: 1",
        "ä: 1".encode(),
    ],
)
def test_a_head_that_programs_read_differently_is_refused(through: tuple[str, int], echo: Echo, line: bytes) -> None:
    answer = _send(through, _request("GET", echo.port, line))
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert echo.heard == []
    assert _send(through, _request("GET", echo.port, b"x:\t1 \xff")).startswith(b"HTTP/1.1 200")  # the twin


@pytest.mark.parametrize("first", [b"GET\thttp://h/ HTTP/1.1", b"G\0T http://h/ HTTP/1.1", b"G(T http://h/ HTTP/1.1"])
def test_a_first_line_that_is_none_is_refused(through: tuple[str, int], echo: Echo, first: bytes) -> None:
    first = first.replace(b"//h", f"//127.0.0.1:{echo.port}".encode())
    assert _send(through, first + b"\r\nhost: x\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert echo.heard == []


# every block of IANA's registries of special-purpose addresses, and some addresses between them
NOT_PUBLIC = """
0.0.0.1 10.0.0.1 100.64.0.1 100.127.255.254 127.0.0.1 169.254.169.254 172.16.0.1 172.31.255.254 192.0.0.1 192.0.0.9
192.0.0.170 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.254 198.51.100.1 203.0.113.1 224.0.0.1
239.255.255.250 240.0.0.1 255.255.255.255 :: ::1 ::127.0.0.1 ::ffff:10.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::10.0.0.1
64:ff9b::7f00:1 64:ff9b:1::1 100::1 100:0:0:1::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:2::1 2001:10::1
2001:20::1 2001:db8::1 2002:7f00:1:: 2002:c0a8:101::1 2002:a9fe:a9fe:: 3fff::1 5f00::1 4000::1 fc00::1 fd00:ec2::254
fe80::1 fec0::1 feff::1 fec0:0:0:ffff::1 ff02::1 ff0e::1
""".split()
PUBLIC = """
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 93.184.215.14 100.63.255.255 100.128.0.0 172.15.255.255 172.32.0.0
192.0.1.1 198.17.255.255 198.20.0.0 223.255.255.255 2606:4700::1 2a00:1450:4001::1 2001:4860:4860::8888 2001:200::1
::ffff:8.8.8.8 64:ff9b::8.8.8.8 2002:808:808::1
""".split()


def test_every_special_address_is_not_public() -> None:
    for text in NOT_PUBLIC:
        assert not is_public(ipaddress.ip_address(text)), text
    for text in PUBLIC:
        assert is_public(ipaddress.ip_address(text)), text
    assert ipaddress.ip_address("fec0::1").is_global  # the twin: what the standard library of this version says


NO_HOSTS = ["a" * 64, f"{'a' * 64}.org", "a..b", ".", "..", ".a", "a" * 254, "x:" + "9" * 5000, "x:0", "x:65536", "*."]


@pytest.mark.parametrize("host", NO_HOSTS)
def test_a_host_that_is_none_is_an_error_through_the_library(workspaces: Local, host: str) -> None:
    assert not is_host_name(host.partition(":")[0]) or parse_port(host.partition(":")[2]) is None
    desk = workspaces.create()
    with pytest.raises(Invalid):
        workspaces.run(desk.id, ["true"], network=host)
    with pytest.raises(InvalidSource):
        workspaces.create(source=f"clone:https://{host}/x")
    assert [each.id for each in workspaces.list()] == [desk.id]


def test_a_host_that_is_none_is_an_error_on_the_command_line(person: Person) -> None:
    person.aw_ok("create", "t/a")
    for host in NO_HOSTS:
        done = person.aw("run", "t/a", "--network", host, "--", "true")
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        done = person.aw("create", "t/b", "--source", f"clone:https://{host}/x")
        assert done.returncode == 2, done.stderr
    assert [each["workspace_id"] for each in person.aw_json("list")] == ["t/a"]
