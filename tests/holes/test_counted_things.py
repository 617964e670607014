"""Limits on what a run can have many of: open files, and names on the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from people import Person
from waiting import wait_until
from workstead.model.enforcement import Enforcement, Limits
from workstead.system.process import spawn, supervisor
from workstead.system.process.spawn import Launch
from workstead.system.process.supervisor_client import find_result

OPEN = """
import os, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard + 1000))
    print("raised")
except (OSError, ValueError):
    print("kept")
held = []
try:
    while len(held) < 1000:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(os.strerror(error.errno))
print(len(held) < 300)
"""


def test_a_process_has_a_limited_number_of_open_files(person: Person) -> None:
    person.aw_ok("create", "t/a")
    python = ("/usr/bin/python3", "-c")
    assert person.do(*python, OPEN).stdout.endswith("False\n")
    said = person.aw_ok("run", "t/a", "--", *python, OPEN, AW_SANDBOX__OPEN_FILES="300")
    assert said == "kept\nToo many open files\nTrue\n"
    assert person.aw_ok("run", "t/a", "--", "sh", "-c", "ulimit -Hn").strip() == "8192"


HOARD = "import os, time\nheld = [os.open('/dev/null', os.O_RDONLY) for _ in range(200)]\ntime.sleep(600)"


@pytest.mark.parametrize(("used", "state"), [(900, "failed"), (100, "completed")])
def test_a_run_does_not_take_the_machines_last_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: int, state: str
) -> None:
    """A table of a thousand files, of which a run may have 62 when half of them are open."""
    table = tmp_path / "file-nr"
    table.write_text(f"{used}\t0\t1000\n")
    monkeypatch.setattr(supervisor, "_FILE_TABLE", str(table))
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    program = HOARD if state == "failed" else HOARD.replace("600", "0.5")
    argv = ("/usr/bin/python3", "-c", program)
    spawn.fork_detached(
        lambda: supervisor.supervise(
            lambda _: Launch(argv=argv, environment={"PATH": "/usr/bin:/bin"}),
            supervisor.Order(directory=str(directory), name=f"aw-test-{os.getpid()}", limits=Limits(open_files=1000)),
            Enforcement(sandbox="none"),
            supervisor.Hooks(),
        )
    )
    wait_until(lambda: find_result(str(directory)))
    result = find_result(str(directory))
    assert result
    assert result.state == state, result.reason
    assert result.reason.startswith("open files") == (state == "failed")


NAMES = """
import os, sys
try:
    for number in range(int(sys.argv[1])):
        os.close(os.open(f"n{number}", os.O_CREAT | os.O_WRONLY))
except OSError as error:
    print(os.strerror(error.errno))
print("there are", len(os.listdir(".")), flush=True)
"""


@pytest.mark.parametrize(
    ("person", "means"),
    [("ordinary", "metering"), ("root", "metering"), ("root", "image")],  # only root can mount a file system of a file
    indirect=["person"],
)
def test_a_workspace_has_a_number_of_files_by_default(person: Person, means: str) -> None:
    limits = {"AW_WORKSPACES__DEFAULT_MAX_FILES": "3000", "AW_STORAGE__QUOTA": means}
    person.aw_ok("create", "t/a", "--config", '{"max_size_mb": 64}', **limits)
    python = ("/usr/bin/python3", "-c", NAMES, "60000")
    plain = person.folder("plain")
    assert person.do(*python, cwd=plain).stdout == "there are 60000\n"
    run = person.aw("run", "t/a", "--", *python)
    assert "there are 60000" not in run.stdout
    assert run.returncode or "No space left on device" in run.stdout
    [used] = person.aw_json("usage", "t/a")["workspaces"]
    assert (used["max_files"], used["files"] < 30_000) == (3000, True)


def test_the_default_number_of_files_goes_into_small_file_systems_too(person: Person) -> None:
    person.aw_ok("create", "t/a", "--config", '{"max_size_mb": 16}')
    assert person.aw_ok("run", "t/a", "--", "sh", "-c", "echo works > f; cat f") == "works\n"
    events = [json.loads(line) for line in person.aw_ok("--format", "json", "events").splitlines()]
    assert not [each for each in events if each["event_type"].startswith("quota")]
    assert person.aw_json("usage", "t/a")["workspaces"][0]["max_files"] == 250_000
