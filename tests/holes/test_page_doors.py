"""The owner's token reaches the server only; the page's cookie alone opens nothing, and ends with the token."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser

from browsing import Server
from people import Person
from waiting import wait_until
from workstead.local import Local
from workstead.model.token import LINK_SECONDS, link_code
from workstead.page.access import Access
from workstead.server.serve import Background
from workstead.settings import Settings


class Impostor:
    """Somebody else who listens at a port of the loopback and records what comes in."""

    def __init__(self) -> None:
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    connection.settimeout(5)
                    self.heard += connection.recv(65536)
                    connection.sendall(b'HTTP/1.1 201 Created\r\ncontent-length: 15\r\n\r\n{"path":"/own"}')

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def impostor() -> Iterator[Impostor]:
    found = Impostor()
    yield found
    found.close()


ANNOUNCE = """
import workstead, sys
with workstead.open() as workspaces:
    workspaces.announce_server(sys.argv[1], "instance")
    print("announced", flush=True)
    sys.stdin.read()
"""


def test_whoever_listens_at_the_port_of_a_dead_server_gets_no_token(person: Person, impostor: Impostor) -> None:
    token = person.aw_ok("token", "owner").strip()
    server = person.start(
        [person.python_program, "-B", "-c", ANNOUNCE, impostor.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin
    assert server.stdout
    assert server.stdout.readline() == "announced\n"
    record = person.home / "server"
    said = json.loads(record.read_text())
    assert (said["pid"], said["url"]) == (server.pid, impostor.url)
    link = person.aw_ok("page").strip()
    assert link.startswith(f"{impostor.url}/enter?code=")
    assert token not in link
    boot = said["process"].split()[1]
    for changed in (
        {"pid": os.getpid()},  # the id is in use again, by a process that lives
        {"process": said["process"].replace(boot, boot[::-1])},  # the same number of ticks after another boot
        {"process": ""},
        {"process": None},
    ):
        record.write_text(json.dumps({**said, **changed}))
        assert os.path.exists(f"/proc/{json.loads(record.read_text())['pid']}")  # all that was looked at before
        done = person.aw("page")
        assert (done.returncode, done.stdout) == (7, "")
        assert "no server runs for this home" in done.stderr
    record.write_text(json.dumps(said))
    server.communicate(timeout=20)
    assert person.aw("page").returncode == 7
    assert impostor.heard == b""
    # the twin: that is what a client gets rid of that asks before it knows whom
    asked = urllib.request.Request(f"{impostor.url}/api/links", method="POST", headers={"Authorization": token})
    urllib.request.urlopen(asked, timeout=10).close()
    assert token.encode() in impostor.heard


def test_a_link_is_for_one_server_process_and_one_token() -> None:
    token = "aw-owner-1"
    access, other = Access(lambda: token, "one"), Access(lambda: token, "other")
    ends = int(time.time()) + LINK_SECONDS
    code = link_code(token, "one", ends, "n")
    assert not other.take_code(code)
    assert not access.take_code(link_code("aw-owner-2", "one", ends, "n"))
    assert not access.take_code(link_code(token, "one", int(time.time()) - 1, "n"))
    for forged in ("", ".", "..", code[:-1], code.replace(".n.", ".m."), f"x{code}", "9" * 99 + ".n.s", "²" + code):
        assert not access.take_code(forged), forged
    assert access.take_code(code)
    assert not access.take_code(code)


# -- the cookie --------------------------------------------------------------------------------------------------------


def _ask(url: str, path: str, cookie: str = "") -> http.client.HTTPResponse:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=20)
    connection.request("GET", path, headers={"Host": address.netloc, **({"Cookie": cookie} if cookie else {})})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def _entered(server: Server) -> tuple[str, str]:
    """The cookie of a browser that followed the link, and the path that it is for."""
    said = _ask(server.url, server.said["link"].removeprefix(server.url)).headers["set-cookie"]
    parts = [part.strip() for part in said.split(";")]
    return parts[0], next(part.removeprefix("Path=") for part in parts if part.startswith("Path="))


@pytest.fixture
def server(home_path: str) -> Iterator[Server]:
    serving = Server(home_path)
    yield serving
    serving.stop()


def test_the_cookie_ends_with_the_owners_token(server: Server, workspaces: Local) -> None:
    cookie, root = _entered(server)
    assert _ask(server.url, f"{root}/", cookie).status == 200
    kept = workspaces.page_link().removeprefix(server.url)
    workspaces.change_owner_token()
    assert _ask(server.url, f"{root}/", cookie).status == 401
    assert _ask(server.url, kept).status == 401, "a link ends with it too"
    assert _ask(server.url, workspaces.page_link().removeprefix(server.url)).status == 200


def test_a_cookie_without_its_path_opens_nothing(server: Server) -> None:
    cookie, root = _entered(server)
    other_cookie, other_root = _entered_again(server)
    assert root != other_root
    assert len(root) > 30
    for path in ("/", "/desk/t/a", "/approvals", "/p/", "/p/x/", f"{root[:-1]}/", f"{root}x/", f"{other_root}/"):
        assert _ask(server.url, path, cookie).status == 401, path
    for path in (f"{root}/", f"{root}/machine"):
        assert _ask(server.url, path, cookie).status == 200
        assert _ask(server.url, path).status == 401
        assert _ask(server.url, path, f"{cookie.partition('=')[0]}=1.2.3; {cookie}; {other_cookie}").status == 200
    for path in ("/api/workspaces", "/metrics", "/mcp", "/healthz"):
        assert _ask(server.url, root + path, cookie).status == 401, "the API is not below the page"


def _entered_again(server: Server) -> tuple[str, str]:
    import workstead

    with workstead.open(server.home) as workspaces:
        server.said["link"] = workspaces.page_link()
    return _entered(server)


def test_a_browser_does_not_give_the_cookie_to_another_port(
    server: Server, impostor: Impostor, browser: Browser
) -> None:
    """The twin is a cookie for `/`, which the same browser sends to every port."""
    tab = browser.new_context().new_page()
    tab.goto(server.said["link"])
    tab.get_by_role("heading", name="Workspaces", exact=True).wait_for()
    root = urlsplit(tab.url).path.rstrip("/")
    tab.goto(f"{server.url}/machine")  # an address without the root leads below it
    tab.wait_for_url(f"{server.url}{root}/machine")
    name = f"aw-page-{urlsplit(server.url).port}"
    assert name in [each.get("name") for each in tab.context.cookies(tab.url)]
    tab.context.add_cookies([{"name": "plain", "value": "1", "domain": "127.0.0.1", "path": "/"}])
    tab.goto(f"{impostor.url}/anything")
    wait_until(lambda: b"plain=1" in impostor.heard)
    assert name.encode() not in impostor.heard
    assert root.encode() not in impostor.heard
    tab.context.close()


def test_an_open_page_ends_with_the_owners_token(server: Server, workspaces: Local, browser: Browser) -> None:
    tab = browser.new_context().new_page()
    tab.goto(server.said["link"])
    tab.get_by_role("heading", name="Workspaces", exact=True).wait_for()
    workspaces.create(id="seen/a")
    tab.get_by_text("seen/a").first.wait_for()
    workspaces.change_owner_token()
    workspaces.create(id="unseen/a")
    tab.get_by_text("Connection lost").wait_for(timeout=60_000)
    assert tab.get_by_text("unseen/a").count() == 0
    tab.context.close()


def test_the_home_keeps_no_token_where_others_can_read_it(person: Person) -> None:
    person.aw_ok("token", "owner")
    assert (Path(person.home) / "token").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("how", ["change", "revoke"])
def test_an_open_stream_ends_with_its_token(how: str, workspaces: Local, settings: Settings) -> None:
    workspaces.create(id="t/a")
    made, text = workspaces.create_token("t/a")
    token = text if how == "revoke" else workspaces.owner_token()
    with Background(workspaces, settings) as running:
        address = urlsplit(running.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        headers = {"Authorization": f"Bearer {token}", "Host": address.netloc}
        connection.request("GET", "/api/events?follow=true&after=0", headers=headers)
        answer = connection.getresponse()
        assert b"workspace_created" in _first(answer)  # the twin: it flows
        if how == "change":
            workspaces.change_owner_token()
        else:
            workspaces.revoke_token(made.token_id)
        ended = threading.Event()

        def read() -> None:
            while answer.read1(65536):
                pass
            ended.set()

        threading.Thread(target=read, daemon=True).start()
        numbers = itertools.count()

        def is_ended() -> bool:
            workspaces.write_file("t/a", f"work/{next(numbers)}", "x")
            return ended.is_set()

        wait_until(is_ended)
        connection.close()


def _first(answer: http.client.HTTPResponse) -> bytes:
    data = b""
    while b"workspace_created" not in data:
        data += answer.read1(65536)
    return data
