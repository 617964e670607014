"""Webhooks: signed, in order, at least once, and not lost while anybody is down."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from waiting import wait_until
from workstead.errors import InvalidConfig
from workstead.local import Local
from workstead.server import webhooks
from workstead.server.serve import Background
from workstead.settings import Settings, Webhook, load_settings


class Receiver(ThreadingHTTPServer):
    """Takes events, and refuses as many as it is told to, and all at an address that is closed."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.taken: list[dict[str, Any]] = []
        self.refuse = 0
        self.closed = ""
        self.asked = 0
        self.paths: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        stamp = self.headers["X-Workstead-Timestamp"]
        good = hmac.new(b"secret", f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
        assert self.headers["X-Workstead-Signature"] == f"sha256={good}"
        self.server.asked += 1
        self.server.paths.append(self.path)
        if self.path == self.server.closed:
            self.send_response(503)
        elif self.server.refuse:
            self.server.refuse -= 1
            self.send_response(503)
        else:
            self.server.taken.append(json.loads(body))
            self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield listening
        listening.shutdown()
        thread.join()


@pytest.fixture
def hooked(settings: Settings, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(webhooks, "FIRST_PAUSE", 0.01)
    url = f"http://127.0.0.1:{receiver.server_address[1]}/hook?x=1"
    return settings.replace(webhooks={"mine": Webhook(url=url, secret="secret", events=["workspace_planned"])})


def _wait(receiver: Receiver, count: int) -> list[str]:
    wait_until(lambda: len(receiver.taken) >= count)
    return [event["stream"] for event in receiver.taken]


def test_events_of_the_chosen_types_arrive_signed_and_in_order(
    workspaces: Local, hooked: Settings, receiver: Receiver
) -> None:
    with Background(workspaces, hooked):
        while workspaces.find_cursor("mine") is None:
            time.sleep(0.01)
        for name in "abcdef":
            workspaces.create(id=name, lazy=True)
        workspaces.create(id="built")
        assert _wait(receiver, 6) == list("abcdef")


def test_what_is_refused_is_sent_again_and_what_is_behind_it_waits(
    workspaces: Local, hooked: Settings, receiver: Receiver
) -> None:
    receiver.refuse = 4
    with Background(workspaces, hooked):
        while workspaces.find_cursor("mine") is None:
            time.sleep(0.01)
        for name in "abc":
            workspaces.create(id=name, lazy=True)
        assert _wait(receiver, 3) == list("abc")
    assert receiver.asked == 7


def test_what_happens_while_the_server_is_down_is_told_when_it_is_back(
    workspaces: Local, hooked: Settings, receiver: Receiver
) -> None:
    with Background(workspaces, hooked):
        while workspaces.find_cursor("mine") is None:
            time.sleep(0.01)
        workspaces.create(id="a", lazy=True)
        _wait(receiver, 1)
    workspaces.create(id="b", lazy=True)
    with Background(workspaces, hooked):
        assert _wait(receiver, 2) == ["a", "b"]


def test_settings_that_are_read_anew_change_who_is_told_and_leave_nothing_out(
    workspaces: Local, hooked: Settings, settings: Settings, receiver: Receiver
) -> None:
    """A new webhook begins, one that changed goes on from where it was, one that is gone is told nothing more."""
    with Background(workspaces, settings) as server:
        front = server.app.front
        workspaces.create(id="before", lazy=True)
        front.use_settings(hooked)
        while workspaces.find_cursor("mine") is None:
            time.sleep(0.01)
        receiver.closed = "/hook?x=1"  # what is under way to the old address never gets there
        workspaces.create(id="a", lazy=True)
        while not receiver.asked:
            time.sleep(0.01)
        moved = hooked.webhooks["mine"].replace(url=hooked.webhooks["mine"].url.replace("/hook", "/moved"))
        front.use_settings(hooked.replace(webhooks={"mine": moved}))
        workspaces.create(id="b", lazy=True)
        assert _wait(receiver, 2) == ["a", "b"]
        assert receiver.paths[-2:] == ["/moved?x=1"] * 2
        receiver.closed = ""
        front.use_settings(settings)
        workspaces.create(id="c", lazy=True)
        front.use_settings(hooked)
        workspaces.create(id="d", lazy=True)
        assert _wait(receiver, 4) == ["a", "b", "c", "d"], "by its cursor, what it missed meanwhile"
    for thread in threading.enumerate():
        if thread.name.startswith("webhook-"):
            thread.join(30)
            assert not thread.is_alive()


def test_settings_name_webhooks_and_a_project_may_not(tmp_path: Any) -> None:
    (tmp_path / "config" / "aw").mkdir(parents=True)
    text = "webhooks: {ci: {url: 'https://ci.example/hook', secret: s, events: [run_completed]}}"
    (tmp_path / "config" / "aw" / "aw.yaml").write_text(text)
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    found = load_settings(environ, str(tmp_path), system_directory="")
    assert found.webhooks["ci"].events == ["run_completed"]
    assert not [name for name in found.as_environment() if "WEBHOOK" in name], "a run has no use for the secret"
    project = tmp_path / "project"
    project.mkdir()
    (project / "aw.yaml").write_text(text)
    with pytest.raises(InvalidConfig):
        load_settings({"HOME": "/nowhere"}, str(project), system_directory="")
    for wrong in ("{url: x, secret: s}", "{url: 'http://x'}", "{url: 'http://x', secret: ''}", "{nonsense: 1}"):
        (tmp_path / "config" / "aw" / "aw.yaml").write_text(f"webhooks: {{ci: {wrong}}}")
        with pytest.raises(InvalidConfig):
            load_settings(environ, str(tmp_path), system_directory="")
