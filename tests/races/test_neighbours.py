"""Runs in workspaces whose siblings are made, destroyed, brought back and swept: each run ends as its command does.

Bounded here; AW_LOAD=full makes it ten times as many.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from people import Person

FULL = os.environ.get("AW_LOAD") == "full"
ROUNDS = 40 if FULL else 4
RUNNERS = 4
SIBLINGS = 4

pytestmark = pytest.mark.timeout(3600 if FULL else 600)


class Storm:
    """Runs in some workspaces, and lives and deaths of others beside them."""

    def __init__(self, person: Person, source: list[str]) -> None:
        self.person = person
        self.source = source
        self.problems: list[str] = []
        self.over = threading.Event()
        self.deaths = 0

    def aw(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.person.aw(*words)

    def run_many(self, name: str, seed: int) -> None:
        """Run commands with exit codes of their own; each writes a file, which the next one finds."""
        dice = random.Random(seed)
        for number in range(ROUNDS):
            code = dice.choice([0, 0, 3, 7])
            before = f"test $(cat mark) = {number - 1} &&" if number else ""
            script = f"{before} for n in 1 2 3 4 5; do ls > /dev/null && cat a.txt > /dev/null && sleep 0.05; done"
            script += f" && echo {number} > mark && exit {code} || exit 99"
            script = script.replace(f"&& exit {code} || exit 99", f"|| exit 99; exit {code}")
            done = self.aw("run", "-q", name, "--", "sh", "-c", script)
            if done.returncode != code:
                self.problems.append(f"{name} {number}: {done.returncode} instead of {code}: {done.stderr}")

    def live_and_die(self, number: int) -> None:
        """Make a sibling, change it, fork it, destroy both, bring them back, destroy again."""
        while not self.over.is_set():
            name = f"t/s{number}-{self.deaths}"
            steps: list[tuple[str, ...]] = [
                ("create", name, *self.source),
                ("run", "-q", name, "--", "sh", "-c", "echo x > new"),
                ("fork", name, "--as", f"{name}f"),
                ("destroy", "--force", name, f"{name}f"),
            ]
            for words in steps:
                done = self.aw(*words)
                if done.returncode:
                    self.problems.append(f"{' '.join(words)}: {done.returncode}: {done.stderr}")
                    return
            self.deaths += 1
            # Undo takes back what anybody destroyed last: which of them does not matter here.
            self.expect(self.aw("undo"), 0, 3, 4)
            self.expect(self.aw("destroy", "--force", name, f"{name}f"), 0)
            self.expect(self.aw("sweep"), 0)

    def expect(self, done: subprocess.CompletedProcess[str], *codes: int) -> None:
        if done.returncode not in codes:
            self.problems.append(f"{done.args[-3:]}: {done.returncode}: {done.stderr}")


@pytest.mark.parametrize("kind", ["overlay", "empty", "sized"])
def test_each_run_ends_as_its_command_does_whatever_happens_to_its_neighbours(person: Person, kind: str) -> None:
    origin = person.folder("origin", {"a.txt": "a\n", "sub/b.txt": "b\n"})
    source = {
        "overlay": ["--source", f"overlay:{origin}"],
        "empty": [],
        "sized": ["--source", f"overlay:{origin}", "--max-size-mb", "64"],
    }[kind]
    storm = Storm(person, source)
    names = [f"t/r{number}" for number in range(RUNNERS)]
    for name in names:
        person.aw_ok("create", name, *source)
        person.aw_ok("put", name, "work/a.txt", feed="own\n")
    runners = [threading.Thread(target=storm.run_many, args=(name, seed)) for seed, name in enumerate(names)]
    siblings = [threading.Thread(target=storm.live_and_die, args=(number,)) for number in range(SIBLINGS)]
    for thread in (*runners, *siblings):
        thread.start()
    for thread in runners:
        thread.join()
    storm.over.set()
    for thread in siblings:
        thread.join()
    assert storm.problems == []
    assert storm.deaths >= SIBLINGS
    for name in names:
        ends = [(each["state"], each["reason"]) for each in _json(person, "runs", name)]
        assert len(ends) == ROUNDS
        kept = {each["cause"] for each in _json(person, "snapshots", name)}
        assert "after_run" in kept or kind == "empty"
        assert Path(person.aw_ok("cat", name, "work/mark").strip()) == Path(str(ROUNDS - 1))
    person.aw_ok("verify")


def _json(person: Person, *words: str) -> Any:
    return json.loads(person.aw_ok("--format", "json", *words))
