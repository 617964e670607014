"""Sixteen processes at once on one home, killed at random: what was acknowledged is there, and the home is whole.

Each process has workspaces of its own and does everything that one can do to them; a fork of the shared one is made by
all. It writes down what it was told before it goes on. About a minute here; AW_STORM_SECONDS makes it longer.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from people import Person

SECONDS = float(os.environ.get("AW_STORM_SECONDS", "25"))
PROCESSES = 16

pytestmark = pytest.mark.timeout(SECONDS + 900)

WORKER = """
import os, random, sys
import workstead
from workstead.errors import Conflict, Invalid
name, origin, out, seed = sys.argv[1:5]
dice = random.Random(seed)
said = open(out, "a", buffering=1)
def tell(*words): said.write(" ".join(words) + "\\n")
workspaces = workstead.open(os.environ["AW_HOME"])
mine = sorted(each.id for each in workspaces.list() if each.task_id == name and each.state == "ready")
number = int(seed) * 1000
while True:
    number += 1
    if not mine or dice.random() < 0.1:
        id = f"{name}/w{number}"
        source = dice.choice(["empty", f"overlay:{origin}", "fork:shared/main"])
        tell("creating", id)
        workspaces.create(source, id=id)
        tell("created", id)
        mine.append(id)
    id = dice.choice(mine)
    step = dice.choice(["put", "put", "put", "snapshot", "fork", "apply", "destroy", "undo"])
    try:
        if step == "put":
            tell("putting", id, str(number))
            workspaces.write_file(id, "work/f", str(number).encode())
            tell("put", id, str(number))
        elif step == "snapshot":
            snapshot = workspaces.snapshot(id)
            tell("snapshot", id, snapshot.id)
        elif step == "fork":
            tell("creating", f"{name}/f{number}")
            workspaces.create(f"fork:{id}", id=f"{name}/f{number}")
            tell("created", f"{name}/f{number}")
            mine.append(f"{name}/f{number}")
        elif step == "apply":
            tell("applying", id)
            workspaces.apply(id)
        elif step == "destroy":
            tell("destroying", id)
            workspaces.destroy(id, force=True)
            tell("destroyed", id)
            mine.remove(id)
            if dice.random() < 0.5:
                operation = next(each for each in workspaces.operations() if each.workspaces == [id])
                tell("undoing", id)
                workspaces.undo(operation.operation_id)
                tell("undone", id)
                mine.append(id)
    except (Conflict, Invalid) as refused:  # others apply to the same folder, or it is empty and has none
        tell("refused", id, refused.code)
"""


class Told:
    """What one worker was told, over all its lives."""

    def __init__(self, path: Path) -> None:
        self.state: dict[str, str] = {}  # the last step of each workspace, begun or done
        self.content: dict[str, set[str]] = {}  # what `work/f` may hold
        self.snapshots: list[tuple[str, str]] = []
        for line in path.read_text().splitlines() if path.exists() else []:
            word, workspace, *rest = [*line.split(), ""]
            if word in ("creating", "created", "destroying", "destroyed", "undoing", "undone"):
                self.state[workspace] = word
            elif word == "putting":
                self.content.setdefault(workspace, {""}).add(rest[0])
            elif word == "put":
                self.content[workspace] = {rest[0]}
            elif word == "snapshot":
                self.snapshots.append((workspace, rest[0]))


ALLOWED = {
    "creating": {"ready", "gone"},
    "created": {"ready"},
    "destroying": {"ready", "destroyed"},
    "destroyed": {"destroyed"},
    "undoing": {"ready", "destroyed"},
    "undone": {"ready"},
}


def test_what_was_acknowledged_survives_a_storm_of_killed_processes(person: Person) -> None:
    origin = person.folder("origin", {"f": "base\n", "g": "base\n"})
    person.aw_ok("create", "shared/main", "--source", f"overlay:{origin}")
    dice = random.Random(16)
    workers: dict[str, subprocess.Popen[str]] = {}
    lives: dict[str, int] = {}

    def start(name: str) -> None:
        lives[name] = lives.get(name, 0) + 1
        words = [name, str(origin), str(person.directory / f"told-{name}"), str(lives[name])]
        with open(person.directory / f"errors-{name}", "a") as errors:
            workers[name] = person.start([person.python_program, "-B", "-c", WORKER, *words], stderr=errors)

    for number in range(PROCESSES):
        start(f"p{number}")
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            time.sleep(dice.uniform(0, 0.5))
            name = dice.choice(list(workers))
            os.kill(workers[name].pid, signal.SIGKILL)
            workers[name].wait()
            start(name)
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    problems = "".join((person.directory / f"errors-{name}").read_text() for name in workers)
    assert "Traceback" not in problems, problems[-3000:]
    person.aw_ok("verify")
    person.aw_ok("repair")
    assert json.loads(person.aw_ok("--format", "json", "repair")) == []
    person.aw_ok("verify")
    check(person, [Told(person.directory / f"told-{name}") for name in workers])


def check(person: Person, every: list[Told]) -> None:
    known = {each["workspace_id"]: each for each in _json(person, "list", "--all")}  # of one id the newest is last
    done = 0
    for told in every:
        for workspace, step in told.state.items():
            state = known[workspace]["state"] if workspace in known else "gone"
            assert state in ALLOWED[step], (workspace, step, state)
            if state == "ready" and workspace in told.content:
                found = person.do("cat", f"{known[workspace]['path']}/work/f")
                text = found.stdout if person.is_root else person.aw("cat", workspace, "work/f").stdout
                assert text in told.content[workspace] or "" in told.content[workspace], (workspace, text)
                done += 1
        for workspace, snapshot in told.snapshots[-2:]:
            if known[workspace]["state"] == "ready":
                assert snapshot in {each["id"] for each in _json(person, "snapshots", workspace)}
    assert done > 0


def _json(person: Person, *words: str) -> Any:
    return json.loads(person.aw_ok("--format", "json", *words))
