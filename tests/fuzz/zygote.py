"""Run `aw` many times from one warm process: a fork for each command instead of a new interpreter.

One JSON line in: {"argv", "cwd", "feed", "seconds"}; one out: {"code", "out", "err"}, code null if it had to be killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time


def main() -> None:
    for name in ("cli", "local", "verbs.run", "verbs.fork", "verbs.apply", "verbs.create", "snapshots.take", "yaml"):
        __import__(name if name == "yaml" else f"workstead.{name}")
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


def _answer(order: dict) -> dict:  # type: ignore[type-arg]
    with tempfile.TemporaryFile() as feed, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        feed.write(order["feed"].encode())
        feed.seek(0)
        child = os.fork()
        if child == 0:
            _become(order, feed.fileno(), out.fileno(), err.fileno())
        code = _wait(child, order["seconds"])
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(1 << 22).decode(errors="backslashreplace"))
        return {"code": code, "out": texts[0], "err": texts[1]}


def _become(order: dict, feed: int, out: int, err: int) -> None:  # type: ignore[type-arg]
    try:
        os.setsid()
        for number, descriptor in enumerate((feed, out, err)):
            os.dup2(descriptor, number)
        os.chdir(order["cwd"])
        sys.argv = ["aw", *order["argv"]]
        from workstead.cli import command

        command()
    finally:
        os._exit(70)


def _wait(child: int, seconds: float) -> int | None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    main()
