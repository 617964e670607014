"""Run several `aw` commands in one forked child of a warm process.

One JSON line in: a list of argument lists; one out: a list of [exit code, output]. A child that dies ends the list.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile


def main() -> None:
    for name in ("cli", "local", "verbs.run", "verbs.fork", "verbs.apply", "verbs.create", "core.inspection", "yaml"):
        __import__(name if name == "yaml" else f"workstead.{name}")
    for line in sys.stdin:
        print(json.dumps(_answers(json.loads(line))), flush=True)


def _answers(orders: list[list[str]]) -> list[tuple[int, str]]:
    with tempfile.TemporaryFile() as answers:
        child = os.fork()
        if child == 0:
            try:
                _run_all(orders, answers.fileno())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        answers.seek(0)
        return [json.loads(line) for line in answers]


def _run_all(orders: list[list[str]], answers: int) -> None:
    from workstead.cli import main as aw

    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for order in orders:
        with tempfile.TemporaryFile() as told:
            for descriptor in (1, 2):
                os.dup2(told.fileno(), descriptor)
            code = aw(order)
            sys.stdout.flush()
            sys.stderr.flush()
            told.seek(0)
            text = told.read(1 << 20).decode(errors="backslashreplace")
        os.write(answers, json.dumps([code, text]).encode() + b"\n")


if __name__ == "__main__":
    main()
