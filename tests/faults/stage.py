"""A prepared disk of one person's, and a process that plays acts on copies of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from needs import need_program
from people import Person

TESTS = Path(__file__).parents[1]


class Stage:
    """Where acts are played."""

    def __init__(self, person: Person) -> None:
        need_program("strace")
        need_program("mkfs.ext4")
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._person, self._top = person, Path(tempfile.mkdtemp(prefix="aw-faults-", dir=shared))
        self._place = person.folder("disk")
        self._disk = self._top / "disk"
        subprocess.run(["truncate", "-s", "640M", self._disk], check=True)
        owner = f"root_owner={person.uid}:{person.uid}"
        subprocess.run(["mkfs.ext4", "-q", "-F", "-N", "8192", "-E", owner, self._disk], check=True)
        environment = person.environment()
        environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), environment["PYTHONPATH"]])
        self._player = subprocess.Popen(
            [person.python_program, "-B", "-m", "faults.player"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd="/",
        )
        assert self._ask(self._disk, act=None) == []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._player.communicate()
        shutil.rmtree(self._top)

    def calls(self, act: str) -> list[list[Any]]:
        """The calls that an act makes when none of them fails."""
        answer = self._play(act=act)
        assert answer["outcome"] == "done", answer
        calls: list[list[Any]] = answer["calls"]
        return calls

    def steps(self, act: str) -> list[list[Any]]:
        """One call of each step: SQLite and a copy write one file with many calls in a row."""
        steps: list[list[Any]] = []
        before = None
        for name, number, arguments in self.calls(act):
            step = (name, arguments.partition(",")[0], arguments if name.startswith(("open", "mkdir")) else "")
            if step != before:
                steps.append([name, number, arguments])
            before = step
        return steps

    def fail(self, act: str, call: str, when: int, error: str) -> list[str]:
        """What is wrong after the act, one call of which failed."""
        problems: list[str] = self._play(act=act, fault={"call": call, "when": when, "error": error})
        return problems

    def _play(self, **request: Any) -> Any:
        copy = self._top / "copy"
        copy.unlink(missing_ok=True)  # a new file: the last mount of it may still be on its way out
        subprocess.run(["cp", "--sparse=auto", self._disk, copy], check=True)
        return self._ask(copy, **request)

    def _ask(self, image: Path, **request: Any) -> Any:
        assert self._player.stdin
        assert self._player.stdout
        request |= {"mounts": [[str(image), str(self._place)]], "place": str(self._place), "uid": self._person.uid}
        self._player.stdin.write(json.dumps(request) + "\n")
        self._player.stdin.flush()
        return json.loads(self._player.stdout.readline())
