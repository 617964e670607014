"""Tokens: the owner's, those for one workspace, and the one that every run has."""

from __future__ import annotations

import os
import stat
import time
from types import SimpleNamespace

import pytest

import workstead
from workstead import errors
from workstead.core import tokens
from workstead.local import Local
from workstead.server.serve import Background

from .conftest import Wire


def test_the_owners_token_is_made_once_and_is_for_the_owner_only(workspaces: Local, home_path: str) -> None:
    token = workspaces.owner_token()
    assert workspaces.owner_token() == token
    assert len(bytes.fromhex(token.removeprefix("aw-owner-"))) == 32
    assert stat.S_IMODE(os.stat(f"{home_path}/token").st_mode) == 0o600
    assert workspaces.authenticate(token).workspace_id is None


def test_a_changed_token_ends_the_old_one_at_once(wire: Wire, workspaces: Local) -> None:
    assert wire.ask("GET", "/api/workspaces").status == 200
    fresh = workspaces.change_owner_token()
    assert wire.ask("GET", "/api/workspaces").status == 401
    assert wire.ask("GET", "/api/workspaces", token=fresh).status == 200


def test_a_workspace_token_is_kept_as_a_digest_only(workspaces: Local, desk: str, home_path: str) -> None:
    _, text = workspaces.create_token(desk, label="ci")
    for directory, _, names in os.walk(home_path):
        for name in names:
            with open(os.path.join(directory, name), "rb") as file:
                assert text.encode() not in file.read()


def test_a_workspace_token_ends_by_time_by_word_and_with_its_workspace(
    wire: Wire, workspaces: Local, desk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = workspaces.create_token(desk, expires_seconds=3600)[1]
    token, text = workspaces.create_token(desk)
    target = f"/api/workspaces/{desk}"
    assert wire.ask("GET", target, token=text).status == 200
    assert wire.ask("GET", target, token=short).status == 200
    with monkeypatch.context() as patch:
        patch.setattr(tokens, "time", SimpleNamespace(time=lambda: time.time() + 3601))
        assert wire.ask("GET", target, token=short).status == 401
        assert wire.ask("GET", target, token=text).status == 200
    workspaces.revoke_token(token.token_id)
    assert wire.ask("GET", target, token=text).status == 401
    other = workspaces.create_token(desk)[1]
    workspaces.destroy(desk, force=True)
    assert wire.ask("GET", target, token=other).status == 401
    workspaces.create(id=desk)
    assert wire.ask("GET", target, token=other).status == 401, "another workspace of the same name is not the same"
    with pytest.raises(errors.TokenNotFound):
        workspaces.revoke_token("tok-none")


def test_what_is_not_for_a_token_looks_as_if_it_were_not_there(wire: Wire, workspaces: Local, desk: str) -> None:
    other = workspaces.create(id="other/a").id
    run = workspaces.run(other, ["true"])
    workspaces.wait(run.id)
    _, text = workspaces.create_token(desk)
    for there, nowhere in (
        (f"/api/workspaces/{other}", "/api/workspaces/no/body"),
        (f"/api/workspaces/{other}/files/work/x", "/api/workspaces/no/body/files/work/x"),
        (f"/api/workspaces/{other}/tree", "/api/workspaces/no/body/tree"),
        (f"/api/runs/{run.id}", "/api/runs/run-0000000000000000"),
        (f"/api/runs/{run.id}/output", "/api/runs/run-0000000000000000/output"),
    ):
        one, two = wire.ask("GET", there, token=text), wire.ask("GET", nowhere, token=text)
        assert one.status == two.status == 404
        names = (other, "no/body", run.id, "run-0000000000000000")
        shown = [answer.body for answer in (one, two)]
        for name in names:
            shown = [body.replace(name.encode(), b"X") for body in shown]
        assert shown[0] == shown[1]
    assert [each["workspace_id"] for each in wire.ask("GET", "/api/workspaces?all=true", token=text).json] == [desk]
    assert wire.ask("GET", "/api/runs", token=text).json == []
    streams = {event["stream"] for event in wire.ask("GET", "/api/events", token=text).json}
    assert streams == {"fix"}


OWNERS = [
    ("POST", "/api/workspaces", {"id": "new/one"}),
    ("POST", "/api/workspaces", {"source": "folder:/etc"}),
    ("POST", "/api/undo", {}),
    ("POST", "/api/sweep", {"everything": True}),
    ("POST", "/api/destroy", {"ids": ["other/a"]}),
    ("DELETE", "/api/workspaces?task_id=other", None),
    ("GET", "/api/operations", None),
    ("GET", "/api/trash", None),
    ("GET", "/api/recent", None),
    ("GET", "/api/folders?path=/etc", None),
    ("GET", "/api/doctor", None),
    ("GET", "/api/usage", None),
    ("GET", "/api/tokens", None),
    ("POST", "/api/tokens", {"workspace_id": "other/a"}),
    ("GET", "/metrics", None),
    ("POST", "/api/templates", {"name": "x", "folder": "/etc"}),
    ("POST", "/api/repair", {}),
    ("POST", "/api/archives/verify", {"location": "/etc/passwd"}),
    ("GET", "/api/workspaces/fix/a1/history", None),
    ("GET", "/api/machines", None),
    ("POST", "/api/workspaces/fix/a1/machine", {}),
    ("POST", "/api/runs/run-of-the-owner/terminal", {"text": "id\n"}),
]


@pytest.mark.parametrize(("method", "target", "body"), OWNERS)
def test_what_is_the_owners_is_refused_to_a_workspace_token(
    wire: Wire, workspaces: Local, desk: str, method: str, target: str, body: object
) -> None:
    workspaces.create(id="other/a")
    _, text = workspaces.create_token(desk)
    before = workspaces.list()
    answer = wire.ask(method, target, body, token=text)
    assert (answer.status, answer.code) == (403, "forbidden")
    assert workspaces.list() == before


def test_a_workspace_token_is_shown_nothing_of_the_machine(
    wire: Wire, workspaces: Local, desk: str, home_path: str
) -> None:
    _, text = workspaces.create_token(desk)
    run = workspaces.run(desk, ["true"])
    workspaces.wait(run.id)
    for target in (
        f"/api/workspaces/{desk}",
        "/api/workspaces",
        "/api/session/workspace",
        "/api/session/workspace/snapshots",
        "/api/events",
        "/api/runs",
        f"/api/runs/{run.id}/why",
        f"/api/workspaces/{desk}/files/.?format=list",
        f"/api/workspaces/{desk}/diff",
        f"/api/workspaces/{desk}/usage",
    ):
        answer = wire.ask("GET", target, token=text)
        assert answer.status == 200, target
        assert home_path.encode() not in answer.body, target


def test_a_run_speaks_for_its_own_workspace_while_it_lives(server: Background, workspaces: Local, desk: str) -> None:
    """With the network of the host it reaches the server; that it can do so only as itself is what is shown."""
    workspaces.announce_server(server.url)
    code = (
        "import os, urllib.request as r\n"
        "def ask(path):\n"
        "    token = os.environ['AW_TOKEN']\n"
        "    q = r.Request(os.environ['AW_URL'] + path, headers={'Authorization': 'Bearer ' + token})\n"
        "    try: return r.urlopen(q).status\n"
        "    except r.HTTPError as e: return e.code\n"
        "print(ask('/api/session/workspace'), ask('/api/workspaces/other/a'), ask('/api/trash'))\n"
        "print(os.environ['AW_TOKEN'])\n"
    )
    workspaces.create(id="other/a")
    run = workspaces.run(desk, ["python3", "-c", code], network="host")
    assert workspaces.wait(run.id).exit_code == 0
    answers = b"".join(data for _, _, data in workspaces.output(run.id)).decode().split()
    assert answers[:3] == ["200", "404", "403"]
    with pytest.raises(errors.Unauthorized):
        workspaces.authenticate(answers[3])


def test_the_session_routes_are_about_the_tokens_workspace_and_answer_400(
    wire: Wire, workspaces: Local, desk: str
) -> None:
    _, text = workspaces.create_token(desk)
    base = "/api/session/workspace"
    assert wire.ask("GET", base, token=text).json["workspace_id"] == desk
    kept = wire.ask("POST", f"{base}/snapshots", {"label": "mine"}, token=text)
    assert kept.status == 201
    assert kept.json["id"] in [each["id"] for each in wire.ask("GET", f"{base}/snapshots", token=text).json]
    unknown = wire.ask("POST", f"{base}/restore", {"snapshot": "snap-none"}, token=text)
    assert (unknown.status, unknown.code) == (400, "snapshot_not_found")
    assert wire.ask("GET", base).status == 400, "the owner's token has no workspace"
    assert wire.ask("GET", base, token="wrong").status == 401


def test_an_agent_is_asked_for_and_the_owner_decides(wire: Wire, workspaces: Local, desk: str) -> None:
    _, text = workspaces.create_token(desk)
    target = f"/api/workspaces/{desk}/files/work/in.txt"
    refused = wire.ask("DELETE", target, token=text)
    assert (refused.status, refused.code) == (403, "approval_required")
    approval = refused.json["error"]["details"]["approval_id"]
    assert wire.ask("POST", f"/api/approvals/{approval}", {"decision": "grant"}, token=text).status == 403
    assert [each["approval_id"] for each in wire.ask("GET", "/api/approvals").json] == [approval]
    assert b"in.txt" in wire.ask("GET", f"/api/approvals/{approval}/preview").body
    decided = wire.ask("POST", f"/api/approvals/{approval}", {"decision": "grant", "comment": "go on"})
    assert decided.json["state"] == "granted"
    assert wire.ask("DELETE", target, token=text).status == 200
    assert workspaces.list_files(desk, "work") == {}


def test_an_agent_may_wait_for_the_decision(wire: Wire, workspaces: Local, desk: str) -> None:
    import threading

    _, text = workspaces.create_token(desk)

    def decide() -> None:
        while not (open_ := workspaces.approvals()):
            time.sleep(0.02)
        workspaces.deny(open_[0].id, comment="no")

    decider = threading.Thread(target=decide, daemon=True)
    decider.start()
    target = f"/api/workspaces/{desk}/files/work/in.txt"
    answer = wire.ask("DELETE", target, token=text, headers={"Prefer": "wait=30"})
    decider.join(20)
    assert (answer.status, answer.code) == (403, "approval_denied")
    assert workspaces.list_files(desk, "work") == {"in.txt": "file"}


def test_the_client_of_an_agent_raises_the_same_errors(server: Background, workspaces: Local, desk: str) -> None:
    _, text = workspaces.create_token(desk)
    with workstead.connect(server.url, text) as mine:
        assert mine.read_text(desk, "work/in.txt") == "IN:in.txt"
        with pytest.raises(errors.ApprovalRequired) as asked:
            mine.delete_file(desk, "work/in.txt")
        assert asked.value.details["approval_id"]
        with pytest.raises(errors.WorkspaceNotFound):
            mine.get("other/a")
        with pytest.raises(errors.Forbidden):
            mine.create("empty")
    with workstead.connect(server.url, "wrong") as nobody, pytest.raises(errors.Unauthorized):
        nobody.list()
