"""The command in this process, and as the program that people start."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from workstead.cli import main

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "aw")


class Answer:
    """How a command ended and what it said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The documents on stdout, one per line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """The error, which must be all there is on stdout, and on stderr for people."""
        (only,) = self.json.values()
        assert set(only) == {"code", "message", "hint", "details"}
        assert self.err.startswith("aw: ")
        assert "Traceback" not in self.err
        return only


class Aw:
    """`aw` on one home, called in this process."""

    def __init__(self, home: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Answer:
        self._capsys.readouterr()
        code = main(["--home", self.home, *arguments])
        out, err = self._capsys.readouterr()
        return Answer(code, out, err)

    def json(self, *arguments: str) -> Answer:
        return self(*arguments, "--format", "json")

    def ok(self, *arguments: str) -> Any:
        """What a command that has to go well gives as JSON."""
        answer = self.json(*arguments)
        assert answer.code == 0, answer.err
        assert answer.err == ""
        return answer.json


def program(*arguments: str | bytes, home: str, stdin: bytes = b"", **environment: str) -> Answer:
    """Run `./aw` itself."""
    done = subprocess.run(
        [PROGRAM, *arguments], input=stdin, capture_output=True, env={**os.environ, "AW_HOME": home, **environment}
    )
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())
