"""Each route calls its verb: a few requests of each kind."""

from __future__ import annotations

import io
import tarfile
from urllib.parse import quote

import pytest

from workstead.local import Local

from .conftest import Wire


def test_a_workspace_is_made_listed_shown_and_destroyed(wire: Wire, workspaces: Local) -> None:
    made = wire.ask("POST", "/api/workspaces", {"id": "fix/a1"})
    assert (made.status, made.json["workspace_id"]) == (201, "fix/a1")
    assert [each["workspace_id"] for each in wire.ask("GET", "/api/workspaces?task_id=fix").json] == ["fix/a1"]
    assert wire.ask("GET", made.headers["location"]).json == made.json
    assert wire.ask("POST", "/api/workspaces", {"id": "fix/a1"}).code == "workspace_exists"
    assert wire.ask("DELETE", "/api/workspaces/fix/a1").status == 200
    assert not workspaces.exists("fix/a1")
    assert wire.ask("POST", "/api/undo", {}).status == 200
    assert workspaces.exists("fix/a1")


ODD_IDS = [
    ("with space", "a.b"),
    ("über", "é"),
    (".", "..."),
    ("a%2Fb", "%41"),
    ("line\nbreak", "\x7f"),
    ("?q=1&", "#"),
]


@pytest.mark.parametrize(("task", "agent"), ODD_IDS)
def test_every_legal_id_can_be_reached(wire: Wire, workspaces: Local, task: str, agent: str) -> None:
    made = wire.ask("POST", "/api/workspaces", {"task": task, "agent": agent})
    assert made.status == 201
    assert wire.ask("GET", made.headers["location"]).json["workspace_id"] == f"{task}/{agent}"
    there = f"/api/workspaces/{quote(task, safe='')}/{quote(agent, safe='')}"
    assert wire.ask("GET", there).json["agent_id"] == agent
    assert wire.ask("DELETE", there).status == 200
    assert not workspaces.exists(f"{task}/{agent}")


def test_files_are_written_read_listed_moved_and_removed(wire: Wire, desk: str) -> None:
    at = f"/api/workspaces/{desk}"
    written = wire.ask("PUT", f"{at}/files/work/new.txt", b"hello")
    assert (written.status, written.json["size"]) == (200, 5)
    read = wire.ask("GET", f"{at}/files/work/new.txt")
    assert (read.body, read.headers["etag"]) == (b"hello", written.headers["etag"])
    assert wire.ask("GET", f"{at}/files/work?format=list").json[0]["name"] == "in.txt"
    assert wire.ask("GET", f"{at}/tree").json["work"] == {"in.txt": "file", "new.txt": "file"}
    assert wire.ask("POST", f"{at}/move", {"path": "work/new.txt", "to": "work/old.txt"}).status == 200
    assert wire.ask("DELETE", f"{at}/files/work/old.txt").json["kind"] == "file"
    assert wire.ask("GET", f"{at}/files/work/old.txt").code == "file_not_found"
    assert wire.ask("GET", f"{at}/files/work").code == "not_a_file"


def test_odd_names_of_files_are_reached(wire: Wire, desk: str) -> None:
    for name in ("a b.txt", "line\nbreak", "..x", "ü", "100%", "?a=b#c", "trailing\n"):
        target = f"/api/workspaces/{desk}/files/work/{quote(name)}"
        assert wire.ask("PUT", target, name.encode()).status == 200
        assert wire.ask("GET", target).body == name.encode()


def test_a_directory_is_sent_as_a_tar_file(wire: Wire, workspaces: Local, desk: str) -> None:
    workspaces.write_file(desk, "work/sub/deep/x.bin", bytes(range(256)) * 9000, parents=True)
    whole = wire.ask("GET", f"/api/workspaces/{desk}/files/work?format=tar")
    with tarfile.open(fileobj=io.BytesIO(whole.body)) as archive:
        assert sorted(archive.getnames()) == ["in.txt", "sub", "sub/deep", "sub/deep/x.bin"]
        member = archive.extractfile("sub/deep/x.bin")
        assert member is not None
        assert member.read() == bytes(range(256)) * 9000


def test_states_are_kept_compared_and_brought_back(wire: Wire, workspaces: Local, desk: str) -> None:
    at = f"/api/workspaces/{desk}"
    kept = wire.ask("POST", f"{at}/snapshots", {"label": "one"})
    assert kept.status == 201
    workspaces.write_file(desk, "work/in.txt", "changed")
    assert wire.ask("GET", f"{at}/diff").json["changes"][0]["path"] == "in.txt"
    assert wire.ask("POST", f"{at}/restore", {"snapshot": kept.json["id"]}).json["restored"]["written"] == 1
    assert workspaces.read_text(desk, "work/in.txt") == "IN:in.txt"
    assert [each["label"] for each in wire.ask("GET", f"{at}/snapshots").json if each["label"]] == ["one"]
    assert [each["workspace_id"] for each in wire.ask("POST", f"{at}/fork", {"count": 2}).json] != []


def test_a_run_is_started_waited_for_and_read(wire: Wire, desk: str) -> None:
    started = wire.ask("POST", f"/api/workspaces/{desk}/runs", {"command": ["sh", "-c", "echo out; echo err >&2"]})
    assert started.status == 201
    run = wire.ask("GET", f"{started.headers['location']}?wait=30").json
    assert (run["state"], run["exit_code"]) == ("completed", 0)
    assert wire.ask("GET", f"/api/runs/{run['run_id']}/output?stream=stderr").body == b"err\n"
    followed = wire.ask("GET", f"/api/runs/{run['run_id']}/output?follow=true")
    assert b'"stream":"stdout"' in followed.body
    assert followed.body.endswith(b"event: end\ndata: {}\n\n")


def test_a_workspace_is_destroyed_by_its_run_but_not_while_it_is_active(
    wire: Wire, workspaces: Local, desk: str
) -> None:
    run = workspaces.run(desk, ["sleep", "60"])
    assert wire.ask("DELETE", f"/api/workspaces/{run.id}?force=true").status == 409
    assert wire.ask("POST", f"/api/runs/{run.id}/stop").json["state"] == "cancelled"
    assert wire.ask("DELETE", f"/api/workspaces/{run.id}?force=true").status == 200
    assert not workspaces.exists(desk)


def test_events_are_listed_and_followed_from_where_one_left_off(wire: Wire, desk: str) -> None:
    listed = wire.ask("GET", "/api/events?task_id=fix").json
    assert [event["event_type"] for event in listed] == ["workspace_creating", "workspace_created", "file_written"]
    with wire.connect() as connection:
        head = f"GET /api/events?follow=true HTTP/1.1\r\nHost: {wire.host}\r\nAuthorization: Bearer {wire.token}\r\n"
        connection.sendall(f"{head}Last-Event-ID: 1\r\n\r\n".encode())
        got = b""
        while b"file_written" not in got:
            got += connection.recv(65536) or pytest.fail(f"it ended after {got!r}")
        assert b"id: 1\n" not in got
        assert wire.ask("GET", f"/api/workspaces/{desk}/files/work/in.txt").status == 200
        while b"file_read" not in got:
            got += connection.recv(65536) or pytest.fail(f"it ended after {got!r}")


def test_the_document_describes_every_route(wire: Wire) -> None:
    document = wire.ask("GET", "/openapi.json").json
    assert document["security"] == [{"token": []}]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], (method, path)
            assert {"401", "421"} <= operation["responses"].keys() or path == "/healthz"


@pytest.mark.parametrize("name", ["../../../../secret", "a\0b", "a\ud800b", "a\u202eb", "x" * 4000, ""])
def test_a_branch_name_that_is_none_is_said(wire: Wire, desk: str, name: str) -> None:
    answer = wire.ask("POST", f"/api/workspaces/{desk}/apply", {"to": f"branch:{name}"})
    assert (answer.status, answer.code) in ((422, "invalid"), (400, "invalid")), answer.body


def test_a_url_with_a_password_is_kept_nowhere(wire: Wire, workspaces: Local) -> None:
    body = {"source": "https://u:hunter2secret@example.com/x.git", "id": "t/a"}
    for headers in ({}, {"Idempotency-Key": "k1"}, {"Prefer": "respond-async"}):
        answer = wire.ask("POST", "/api/workspaces", body, headers=headers)
        assert answer.status == 422, answer.body
        assert b"hunter2" not in answer.body
    assert not [event for event in workspaces.events() if "hunter2" in str(event)]
