"""A bug report helps and holds no secret."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from people import Person
from workstead.model.redact import REMOVED, looks_secret, redact

SECRETS = {
    "webhook secret": "whsec-planted-one",
    "webhook address": "hook-path-planted-two",
    "proxy secret file": "planted three in a file",
    "variable of an agent": "planted-four",
    "any variable": "planted five of no special name",
    "secret variable": "planted6",
    "password in a log": "planted-seven",
    "bearer in a log": "planted.eight",
    "query in a log": "planted-nine",
    "unknown key in a log": "sk-ant-api03-Planted10Planted10Planted10",
    "setting in a log": "planted-eleven",
    "task name": "planted-twelve",
    "file name": "planted-thirteen",
    "content": "planted fourteen",
    "prompt": "planted fifteen",
    "command": "planted-sixteen",
    "output": "planted-seventeen",
    "message": "planted eighteen",
    "private key in a log": "planted nineteen",
    "variable in a setting": "planted-twenty",
}

LOG = f"""--- 2026-01-01T00:00:00Z operation x, process 1
Traceback (most recent call last):
  File "calls.py", line 1, in main
RuntimeError: https://me:{SECRETS["password in a log"]}@example.org/?sig={SECRETS["query in a log"]}
Authorization: Bearer {SECRETS["bearer in a log"]}
key {SECRETS["unknown key in a log"]}
{{"password": "{SECRETS["setting in a log"]}"}}
{SECRETS["any variable"]} {SECRETS["secret variable"]} {SECRETS["variable of an agent"]}
{SECRETS["webhook secret"]} {SECRETS["proxy secret file"]}
-----BEGIN PRIVATE KEY-----
{SECRETS["private key in a log"]}
-----END PRIVATE KEY-----
"""


def plant(person: Person) -> dict[str, str]:
    """Put a secret wherever one can be; returns the environment of the one who asks for a report."""
    secret = person.directory / "api-key"
    secret.write_text(SECRETS["proxy secret file"] + "\n")
    config = person.folder(".config/aw")
    (config / "aw.yaml").write_text(
        json.dumps(
            {
                "webhooks": {
                    "mine": {
                        "url": f"https://example.org/{SECRETS['webhook address']}",
                        "secret": SECRETS["webhook secret"],
                    }
                },
                "agents": {"mine": {"command": ["mine", SECRETS["command"], "{prompt}"], "environment": ["MINE"]}},
                "sandbox": {"secrets": [f"api.example.org X-Key {secret}"]},
            }
        )
    )
    person.own(config)
    person.own(secret)
    workspace = f"{SECRETS['task name']}/main"
    person.aw_ok("create", workspace)
    person.aw_ok("put", workspace, SECRETS["file name"], feed=SECRETS["content"])
    person.aw_ok("run", workspace, "--prompt", SECRETS["prompt"], "--", "echo", SECRETS["output"])
    person.aw_ok("mail", "send", workspace, SECRETS["message"])
    logs = person.home / "logs"
    run = next((person.home / "runs").iterdir())
    logs.mkdir()
    for path in (logs / "call.log", logs / "watcher.log", logs / "sweep.log", run / "supervisor.log"):
        path.write_text(LOG)
    (person.home / "workspaces" / ".carrel" / "mount-daemon.log").write_text(LOG)
    person.own(person.home / "logs")
    return {
        "MINE": SECRETS["variable of an agent"],
        "THING": SECRETS["any variable"],
        "SOME_TOKEN": SECRETS["secret variable"],
        "AW_AGENTS__OTHER": json.dumps({"command": ["other", f"--key={SECRETS['variable in a setting']}"]}),
    }


def test_a_report_holds_no_secret(person: Person) -> None:
    environment = plant(person)
    token = person.aw_ok("token", "create", f"{SECRETS['task name']}/main").split()[0]
    path = person.directory / "report.txt"
    person.aw_ok("doctor", "--report", str(path), **environment)
    report = path.read_text()
    for where, secret in SECRETS.items():
        assert secret not in report, where
    assert token not in report
    assert str(person.directory) not in report, "the user's directory is ~"


def test_a_report_says_what_a_maintainer_asks_for(person: Person) -> None:
    environment = plant(person)
    path = person.directory / "report.txt"
    person.aw_ok("doctor", "--report", str(path), **environment)
    report = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for expected in (
        "workstead 0.",
        "python 3.",
        "kernel ",
        "ok  python",
        "storage.mechanism = 'auto'  (default)",
        "webhooks.mine  (~/.config/aw/aw.yaml)",
        "AW_AGENTS__OTHER",
        "run_completed",
        "RuntimeError",
        "mount-daemon.log",
        "supervisor.log",
    ):
        assert expected in report, expected


def test_a_report_does_not_replace_a_file(person: Person) -> None:
    path = person.folder("reports", {"old.txt": "old"}) / "old.txt"
    done = person.aw("doctor", "--report", str(path))
    assert done.returncode == 2
    assert f"{path} exists" in done.stderr
    assert path.read_text() == "old"
    assert "== versions" in person.aw_ok("doctor", "--report", "-")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://me:pw@db/x", f"postgresql://{REMOVED}@db/x"),
        ("https://example.org/a?token=abc&b=c", f"https://example.org/a?{REMOVED}"),
        ("Authorization: Basic dXNlcjpwdw==", f"Authorization: {REMOVED} {REMOVED}"),
        ("API_KEY=abc next", f"API_KEY={REMOVED} next"),
        ("{'password': 'a b c', 'size': 3}", f"{{'password': {REMOVED}, 'size': 3}}"),
        ("ghp_abcdefghij0123456789", REMOVED),
        ("run-cr42afax5tv0wxw0 in demo/main", "run-cr42afax5tv0wxw0 in demo/main"),
        ("the mount daemon does not answer", "the mount daemon does not answer"),
        ("a known value", f"a {REMOVED} value"),
    ],
)
def test_redact(text: str, expected: str) -> None:
    assert redact(text, ["known", "a"]) == expected


def test_names_of_secrets() -> None:
    assert all(map(looks_secret, ("GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "OPENAI_API_KEY", "SSH_KEY")))
    assert not any(map(looks_secret, ("PATH", "min_free_mb", "public_mount")))


def test_every_place_has_its_own_secret() -> None:
    assert len(set(SECRETS.values())) == len(SECRETS)
    assert Path(__file__).read_text().count("SECRETS[") >= len(SECRETS)
