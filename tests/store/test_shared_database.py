"""Homes that share one PostgreSQL: whose things undo takes back, and what happens while the server is away."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from database import Database, a_database
from people import Person
from waiting import wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[Database]:
    with a_database() as database:
        yield database


@pytest.fixture
def database(server: Database, person: Person) -> Iterator[Database]:
    """A server that nobody has used, and a person who can reach it."""
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS carrel CASCADE")
    person.packages.append(Path(importlib.util.find_spec("psycopg").origin).parents[1])  # type: ignore[union-attr, arg-type]
    yield server
    if server._process is None:
        server.start()


class Host:
    """A home of a person's that uses the shared database."""

    def __init__(self, person: Person, database: Database, name: str) -> None:
        self.person = person
        self.home = person.directory / name
        self.environment = {"AW_HOME": str(self.home), "AW_STORE__URL": database.url}

    def aw(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.person.aw(*words, **self.environment, **more)

    def ok(self, *words: str, **options: Any) -> str:
        return self.person.aw_ok(*words, **self.environment, **options)

    def json(self, *words: str) -> Any:
        return json.loads(self.ok("--format", "json", *words))


@pytest.fixture
def one(person: Person, database: Database) -> Host:
    return Host(person, database, "one")


@pytest.fixture
def other(person: Person, database: Database) -> Host:
    return Host(person, database, "other")


# -- undo --------------------------------------------------------------------------------------------------------------


def test_undo_takes_back_what_this_home_did_last(one: Host, other: Host) -> None:
    for host, name in ((one, "t/mine"), (other, "t/theirs")):
        host.ok("create", name)
        host.ok("destroy", name)
    one.ok("undo")
    assert [each["workspace_id"] for each in one.json("list")] == ["t/mine"]
    refused = one.aw("undo")
    assert refused.returncode == 3  # what the other home did is not for us to take back
    assert [each["workspace_id"] for each in other.json("trash", "list")] == ["t/theirs"]
    other.ok("undo")
    assert {each["workspace_id"] for each in one.json("list")} == {"t/mine", "t/theirs"}


@pytest.mark.parametrize("what", ["destroy", "put", "undo"])
def test_undo_of_an_operation_of_another_home_names_that_home_and_refuses(one: Host, other: Host, what: str) -> None:
    other.ok("create", "t/theirs")
    path = Path(other.json("show", "t/theirs")["path"])
    other.ok("put", "t/theirs", "work/f", feed="old")
    if what == "put":
        other.ok("put", "t/theirs", "work/f", feed="new")
    else:
        other.ok("destroy", "t/theirs")
    if what == "undo":
        other.ok("undo")
    operation = one.json("ops")[0]
    assert operation["kind"] in (what, "change")
    refused = one.aw("undo", operation["operation_id"])
    assert refused.returncode == 4
    assert os.uname().nodename in refused.stderr
    assert str(path) in refused.stderr
    assert path.exists() == (what != "destroy")
    other.ok("undo", operation["operation_id"])
    assert path.exists() == (what != "undo")
    if what == "put":
        assert (path / "work/f").read_text() == "old"
    other.ok("verify")


def test_what_is_in_the_trash_of_another_home_stays_there(one: Host, other: Host) -> None:
    other.ok("create", "t/theirs")
    other.ok("destroy", "t/theirs")
    refused = one.aw("trash", "restore", "t/theirs")
    assert refused.returncode == 4
    assert os.uname().nodename in refused.stderr
    other.ok("trash", "restore", "t/theirs")
    other.ok("verify")


# -- a server that goes away -------------------------------------------------------------------------------------------


def start_run(host: Host, script: str) -> str:
    """Start a command that waits for `work/go`, and return the run's id when it runs."""
    host.ok("create", "t/a")
    run = json.loads(host.ok("--format", "json", "run", "--detach", "t/a", "--", "sh", "-c", script))
    wait_until(lambda: host.json("runs", "t/a")[-1]["state"] == "running")
    return str(run["run_id"])


WAIT = "until test -e go; do sleep 0.05; done; echo said; exit 7"


@pytest.mark.parametrize("dies", [False, True], ids=["supervisor lives", "supervisor killed"])
def test_a_run_that_ended_while_the_server_was_away_is_recorded_as_it_ended(
    one: Host, database: Database, dies: bool
) -> None:
    run_id = start_run(one, WAIT)
    work = Path(one.json("show", "t/a")["path"]) / "work"
    directory = one.home / "runs" / run_id
    supervisor = int((directory / "lock").read_text().split()[0])
    database.kill()
    one.person.sh(f"touch {work}/go")
    wait_until((directory / "result").exists)
    refused = one.aw("list")
    assert refused.returncode == 7
    assert "PostgreSQL" in refused.stderr
    if dies:
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{supervisor}") or _is_zombie(supervisor))
    database.start()
    ended = wait_until(lambda: _ended(one, run_id))
    assert (ended["state"], ended["exit_code"], ended["reason"]) == ("failed", 7, "exit code 7")
    assert one.ok("logs", run_id) == "said\n"
    ends = [each for each in events_of(one, run_id) if each.startswith("run_") and each not in BEGINNINGS]
    assert ends == ["run_failed"]
    one.ok("verify")
    one.ok("repair")
    one.ok("run", "t/a", "--", "true")


BEGINNINGS = ("run_starting", "run_started")


def events_of(host: Host, run_id: str) -> list[str]:
    lines = host.ok("--format", "json", "events").splitlines()
    document = json.loads("\n".join(lines)) if lines[0].startswith("[") else [json.loads(line) for line in lines]
    return [each["event_type"] for each in document if each["event_data"].get("run_id") == run_id]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _ended(host: Host, run_id: str) -> Any:
    (found,) = [each for each in host.json("runs", "t/a") if each["run_id"] == run_id]
    return found if found["state"] not in ("starting", "running") else None


def test_a_run_outlives_the_server_and_what_happened_meanwhile_is_recorded(one: Host, database: Database) -> None:
    """The server comes back before the command ends: nobody noticed but those who asked."""
    run_id = start_run(one, WAIT)
    work = Path(one.json("show", "t/a")["path"]) / "work"
    database.kill()
    database.start()
    one.person.sh(f"touch {work}/go")
    assert wait_until(lambda: _ended(one, run_id))["exit_code"] == 7
    assert [each for each in events_of(one, run_id) if each.startswith("run_")] == [*BEGINNINGS, "run_failed"]


# -- a server that is killed in the middle of verbs --------------------------------------------------------------------

WRITER = """
import os, sys, time
import workstead
from workstead.errors import StoreUnavailable, WorksteadError
name, said = sys.argv[1], open(sys.argv[2], "a", buffering=1)
number = away = 0
workspaces = workstead.open(os.environ["AW_HOME"])
while not os.path.exists(sys.argv[3]):
    number += 1
    try:
        workspaces.create(id=f"{name}/{number}")
        said.write(f"created {name}/{number}\\n")
        workspaces.write_file(f"{name}/{number}", "work/f", str(number).encode())
        said.write(f"wrote {name}/{number}\\n")
        gone, = workspaces.destroy(f"{name}/{number}")
        said.write(f"destroyed {name}/{number}\\n")
        if number % 2:
            workspaces.undo(gone.operation_id)  # not the newest operation, which may be another writer's
            said.write(f"undone {name}/{number}\\n")
    except StoreUnavailable:
        said.write("away\\n")
        time.sleep(0.05)
    said.write("round\\n")
"""


def test_a_server_killed_in_the_middle_of_verbs_loses_nothing_that_was_acknowledged(
    one: Host, database: Database
) -> None:
    person = one.person
    one.ok("list")
    said, stop = person.directory / "said", person.directory / "stop"
    environment = person.environment(**one.environment)
    environment["AW_STORE__URL"] = database.url
    writers = [
        person.start(
            [person.python_program, "-B", "-c", WRITER, name, f"{said}-{name}", str(stop)],
            env=environment,
            stderr=subprocess.PIPE,
        )
        for name in ("a", "b", "c")
    ]

    def rounds() -> int:
        return sum(Path(f"{said}-{name}").read_text().count("wrote") for name in "abc")

    try:
        wait_until(lambda: all(Path(f"{said}-{name}").exists() for name in "abc"))
        for _ in range(4):
            before = rounds()
            wait_until(lambda before=before: rounds() >= before + 6)  # type: ignore[misc]
            aways = sum(Path(f"{said}-{name}").read_text().count("away") for name in "abc")
            database.kill()
            wait_until(
                lambda aways=aways: (  # type: ignore[misc]
                    sum(Path(f"{said}-{name}").read_text().count("away") for name in "abc") > aways
                )
            )
            database.start()
        before = rounds()
        wait_until(lambda: rounds() >= before + 6)
    finally:
        stop.touch()
        problems = [writer.communicate(timeout=60)[1] for writer in writers]
    assert problems == ["", "", ""]
    assert "whole" in one.ok("verify")
    one.ok("repair")
    known = {each["workspace_id"]: each for each in one.json("list", "--all")}
    last: dict[str, str] = {}
    for name in "abc":
        for line in Path(f"{said}-{name}").read_text().splitlines():
            word, _, workspace = line.partition(" ")
            if workspace:
                last[workspace] = word
    assert len(last) > 20
    for workspace, word in last.items():
        state = known[workspace]["state"]
        # The verb after the last one that was acknowledged may have been done, and its answer lost.
        assert (
            state
            in {
                "created": ("ready",),
                "wrote": ("ready", "destroyed"),
                "destroyed": ("destroyed", "ready"),
                "undone": ("ready",),
            }[word]
        ), (workspace, word, state)
        if state == "ready" and word != "created":
            path = Path(known[workspace]["path"]) / "work/f"
            assert path.read_text() == workspace.partition("/")[2]
    assert one.ok("repair").count("\n") <= 1
    one.ok("verify")


def test_a_server_of_ours_goes_on_when_the_database_is_back(one: Host, database: Database) -> None:
    """`aw serve` with many threads, each with a connection of its own: none has to be restarted."""
    one.ok("create", "t/a")
    with serving(one) as (url, headers):
        assert get(url, headers)[0] == 200
        database.kill()
        status, body = get(url, headers)
        assert status == 503
        assert body["error"]["code"] == "store_unavailable"
        database.start()
        answers = in_threads(lambda: get(url, headers)[0], 16)
        assert answers == [200] * 16


def in_threads(act: Any, count: int) -> list[Any]:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(act())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def get(url: str, headers: dict[str, str]) -> tuple[int, Any]:
    request = urllib.request.Request(f"{url}/workspaces", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@contextmanager
def serving(host: Host) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a server of this home, and the headers that it wants."""
    person = host.person
    with person.start(
        person.aw_words("--format", "json", "serve", "--port", "0", "--no-page"),
        env=person.environment(**host.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdout
            said = json.loads(process.stdout.readline())
            token = Path(said["token_path"]).read_text().strip()
            yield f"{said['url']}/api", {"Authorization": f"Bearer {token}"}
        finally:
            process.terminate()


# -- a client that is stopped ------------------------------------------------------------------------------------------

HOLD = """
import os, signal, sys
import workstead
log = workstead.open(os.environ["AW_HOME"])._home.log
with log._database.transaction(durable=True):
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_stopped_client_that_holds_the_lock_is_named(one: Host, other: Host) -> None:
    person = one.person
    environment = person.environment(**other.environment)
    environment["PYTHONPATH"] = os.pathsep.join(map(str, person.packages))
    words = [person.python_program, "-B", "-c", HOLD]
    with person.start(words, env=environment, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout
            assert holder.stdout.readline() == "held\n"
            refused = one.aw("create", "t/a")
            assert refused.returncode == 7
            assert f"{os.uname().nodename} process {holder.pid}" in refused.stderr
            assert one.json("list") == []  # reading needs no lock
        finally:
            os.kill(holder.pid, signal.SIGCONT)
        assert holder.wait(60) == 0
    one.ok("create", "t/a")
