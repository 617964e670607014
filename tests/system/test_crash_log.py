"""Crash logs: a traceback of a background process is in a file that the error names."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from people import Person
from waiting import wait_until
from workstead.model.text import without_log_path
from workstead.system.process import crash_log

TRACEBACK = "Traceback (most recent call last)"


def fail_in(person: Person, definition: str) -> None:
    """Give this person a program of their own with a bug: the function that begins with this line raises."""
    own = person.directory.parent / "packages"
    if person.packages[0] != own:
        shutil.copytree(person.packages[0], own, ignore=shutil.ignore_patterns("__pycache__"))
        person.packages[0] = own
    found = [path for path in person.packages[0].rglob("*.py") if definition in path.read_text()]
    assert len(found) == 1, f"{definition} is in {found}"
    text = found[0].read_text()
    head, _, tail = text.partition(definition)
    signature, colon, body = tail.partition(":\n")
    indent = re.match(r"\s*", definition)
    assert indent
    broken = f'{indent[0]}    raise RuntimeError("this program has a bug")\n'
    found[0].write_text(f"{head}{definition}{signature}{colon}{broken}{body}")


def follow_hint(error: str) -> Path:
    """The file that an error names."""
    found = re.search(r"traceback in (/[^)]+)\)", error)
    assert found, error
    return Path(found[1])


def check_log(person: Person, path: Path) -> str:
    """A log has a traceback and is its owner's alone; its text."""
    status = path.stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_uid == person.uid
    text = path.read_text()
    assert TRACEBACK in text
    return text


def test_a_supervisor_that_crashes_before_it_is_ready(person: Person) -> None:
    person.aw_ok("create", "demo")
    fail_in(person, "def supervise(home: Home, run_id: str)")
    done = person.aw("run", "demo", "--", "true")
    assert done.returncode != 0
    assert "RuntimeError: this program has a bug" in done.stderr
    text = check_log(person, follow_hint(done.stderr))
    assert "in supervise" in text
    assert "supervisor of run-" in text


def test_a_supervisor_of_a_library_that_crashes_before_it_is_ready(person: Person) -> None:
    """A library starts it as a program of its own instead of a fork."""
    person.aw_ok("create", "demo")
    fail_in(person, "def supervise(home: Home, run_id: str)")
    said = person.python(
        "import workstead; from workstead.errors import WorksteadError\n"
        "with workstead.open() as workspaces:\n"
        "    try: workspaces.run('demo', ['true'])\n"
        "    except WorksteadError as error: print(error)\n"
    )
    assert "RuntimeError: this program has a bug" in said
    check_log(person, follow_hint(said))


@contextmanager
def refusing(person: Person, event_type: str) -> Iterator[None]:
    """A log that refuses one type of event."""
    database = sqlite3.connect(person.home / "log.db")
    database.execute(
        f"CREATE TRIGGER refuse BEFORE INSERT ON events WHEN NEW.event_type = '{event_type}' "
        "BEGIN SELECT RAISE(FAIL, 'no room for this event'); END"
    )
    database.commit()
    person.own(person.home / "log.db")
    yield
    database.execute("DROP TRIGGER refuse")
    database.commit()
    database.close()


def crash(person: Person, event_type: str) -> Path:
    """Run a command whose supervisor cannot record an event of this type; its log."""
    person.aw_ok("create", "demo")
    with refusing(person, event_type):
        person.aw("run", "demo", "--detach", "--", "true")
        log = wait_until(lambda: next(iter(person.home.glob("runs/*/supervisor.log")), None))
        wait_until(lambda: TRACEBACK in log.read_text())
    return log


def test_a_supervisor_that_crashes_when_its_command_starts(person: Person) -> None:
    log = crash(person, "run_started")
    run = wait_until(lambda: next((run for run in person.aw_json("runs") if run["state"] == "failed"), None))
    person.aw_ok("repair")
    assert "its supervisor died" in run["reason"]
    assert follow_hint(run["reason"]) == log
    assert "no room for this event" in check_log(person, log)
    assert follow_hint(person.aw_ok("why", run["run_id"])) == log
    seen = person.python(
        "import workstead\n"
        "with workstead.open() as workspaces:\n"
        f"    print(workspaces.acting_as('agent', agent_of='demo/main').why('{run['run_id']}').reason)\n"
    )
    assert "its supervisor died" in seen
    assert str(person.home) not in seen, "an agent learns no path of the machine"


def test_a_supervisor_that_crashes_when_its_command_has_ended_loses_no_result(person: Person) -> None:
    """The result is on the disk before it is in the log: the next command records it."""
    log = crash(person, "run_completed")
    run = wait_until(lambda: next((run for run in person.aw_json("runs") if run["state"] == "completed"), None))
    assert run["exit_code"] == 0
    assert "no room for this event" in check_log(person, log)


def test_a_supervisor_that_ends_well_leaves_no_log(person: Person) -> None:
    person.aw_ok("create", "demo")
    person.aw_ok("run", "demo", "--", "true")
    person.aw_ok("run", "demo", "--network", "example.org", "--", "true")  # with a proxy, which opens its log
    [*runs] = (person.home / "runs").iterdir()
    assert len(runs) == 2
    wait_until(lambda: not list(person.home.glob("runs/*/*.log")))
    assert not (person.home / "logs").exists()


def test_a_watcher_that_crashes(person: Person) -> None:
    person.aw_ok("create", "demo")
    person.aw_ok("watch", "--start", "demo")
    record = "def _write(home: Home, workspace: Workspace"
    person.aw_ok("watch", "--stop", "demo")
    fail_in(person, record)
    person.aw("watch", "--start", "demo")
    log = person.home / "logs" / "watcher.log"
    wait_until(log.exists)
    wait_until(lambda: "this program has a bug" in log.read_text())
    assert "watcher of demo/main," in check_log(person, log)


def test_a_sweep_in_the_background_that_crashes(person: Person) -> None:
    person.aw_ok("create", "demo")
    stamp = person.home / "swept"
    stamp.touch()
    person.own(stamp)
    os.utime(stamp, (time.time() - 7200,) * 2)
    fail_in(person, "def sweep(\n    home: Home")
    person.aw_ok("destroy", "demo")
    log = person.home / "logs" / "sweep.log"
    wait_until(log.exists)
    wait_until(lambda: "this program has a bug" in log.read_text())
    check_log(person, log)


@pytest.mark.parametrize("person", ["ordinary"], indirect=True)  # root mounts by itself
def test_a_mount_daemon_that_crashes(person: Person) -> None:
    fail_in(person, "    def do_mount(self, layers: str, work: str)")
    folder = person.folder("project", {"file": "text"})
    done = person.aw("create", "demo", "--source", str(folder), AW_STORAGE__MECHANISM="rootless-overlay")
    assert done.returncode != 0
    assert "RuntimeError: this program has a bug" in done.stderr
    check_log(person, follow_hint(done.stderr))


def test_a_proxy_that_crashes_after_it_has_given_up_root(person: Person) -> None:
    person.aw_ok("create", "demo")
    fail_in(person, "def serve(listener: socket.socket, rules: Sequence[Rule]")
    person.aw_ok("run", "demo", "--detach", "--network", "example.org", "--", "sleep", "600")
    log = wait_until(lambda: next(iter(person.home.glob("runs/*/supervisor.log")), None))
    wait_until(lambda: "this program has a bug" in log.read_text())
    person.aw_ok("stop", log.parent.name)
    check_log(person, log)


def test_a_detached_operation_that_crashes(person: Person) -> None:
    person.python("import workstead\nwith workstead.open() as workspaces: workspaces.start_call('no-such-operation')")
    log = person.home / "logs" / "call.log"
    wait_until(log.exists)
    wait_until(lambda: "no-such-operation" in (log.read_text().splitlines() or [""])[-1])
    assert "operation no-such-operation," in check_log(person, log)


KEEP_A_MACHINE_WITHOUT_A_GUEST = """
import fcntl, json, os, socket
from {keeper} import Order, start
from {machine} import Machine
from {wire} import take
directory = os.environ["AW_HOME"]
os.makedirs(directory, 0o700)
used = os.open(directory + "/use", os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(used, fcntl.LOCK_SH)
machine = Machine(workspace=directory, public_mount="/mnt/workspace", uid=os.getuid(), gid=os.getgid())
start(Order(directory=directory, machine=machine, guest=None))
door = socket.socket(socket.AF_UNIX)
door.settimeout(60)
door.connect(directory + "/door")
said = bytearray()
while chunk := door.recv(65536):
    said += chunk
print(json.loads(take(said, 65536)[3])["reason"])
"""


def test_a_daemon_of_a_virtual_machine_that_crashes(person: Person) -> None:
    """Whoever waits for the machine is told the reason and the log."""
    modules = {}
    for name, definition in {
        "keeper": "class Relay:",
        "machine": "class Machine(Value):",
        "wire": "def read_grant(",
    }.items():
        [path] = [path for path in person.packages[0].rglob("*.py") if f"\n{definition}" in path.read_text()]
        modules[name] = ".".join(path.relative_to(person.packages[0]).with_suffix("").parts)
    said = person.python(KEEP_A_MACHINE_WITHOUT_A_GUEST.format(**modules))
    assert "AttributeError" in said
    check_log(person, follow_hint(said))


def run_logged(path: Path, body: str) -> None:
    program = f"from workstead.system.process import crash_log\ncrash_log.install({str(path)!r}, 'test,')\n{body}"
    source = Path(crash_log.__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], check=False, env={"PYTHONPATH": str(source)}, timeout=60)


def test_one_process_writes_a_bounded_amount(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "noise.log"
    run_logged(log, "import sys\nfor _ in range(100_000): print('x' * 100, file=sys.stderr)")
    assert crash_log.PROCESS_BYTES < log.stat().st_size < crash_log.PROCESS_BYTES + 4096


def test_a_file_is_rotated_once_and_stays_bounded(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "noise.log"
    for _ in range(12):
        run_logged(log, "import sys; sys.stderr.write('x' * 100_000)")
    assert sorted(path.name for path in log.parent.iterdir()) == ["noise.log", "noise.log.1"]
    for path in log.parent.iterdir():
        assert path.stat().st_size < crash_log.FILE_BYTES + crash_log.PROCESS_BYTES + 4096


def test_a_log_of_a_removed_home_is_not_made(tmp_path: Path) -> None:
    run_logged(tmp_path / "gone" / "logs" / "noise.log", "raise RuntimeError('nobody reads this')")
    assert not (tmp_path / "gone").exists()


def test_a_link_in_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "noise.log").symlink_to(tmp_path / "elsewhere")
    run_logged(tmp_path / "logs" / "noise.log", "raise RuntimeError('not here')")
    assert not (tmp_path / "elsewhere").exists()


def test_an_error_shows_the_last_line_without_secrets(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "call.log"
    run_logged(log, "raise RuntimeError('clone https://me:hunter22@example.org failed')")
    message = crash_log.explain("it died", str(log), title="test,")
    assert message == (f"it died: RuntimeError: clone https://[removed]@example.org failed (traceback in {log})")
    assert crash_log.explain("it died", str(log), title="another,") == "it died"
    assert crash_log.explain("it died", str(log), since=time.time() + 60) == "it died"


def test_the_bearer_of_a_token_for_one_workspace_is_not_shown_the_path() -> None:
    reason = "its supervisor died: RuntimeError (traceback in /srv/home/runs/run-1/supervisor.log)"
    assert without_log_path(reason) == "its supervisor died: RuntimeError"
