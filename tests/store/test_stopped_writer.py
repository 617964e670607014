"""A process that is stopped while it holds the write lock of the log."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from people import Person
from waiting import wait_until
from workstead.errors import StoreUnavailable
from workstead.model.event import Caller
from workstead.store import open_log, sqlite

HOLD = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_command_names_the_stopped_process_that_holds_the_log(person: Person) -> None:
    person.aw_ok("create", "t/a")
    words = [person.python_program, "-c", HOLD, str(person.home / "log.db.lock")]
    with person.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin
        assert holder.stdout
        try:
            assert holder.stdout.readline() == "held\n"
            os.kill(holder.pid, signal.SIGSTOP)
            wait_until(lambda: Path(f"/proc/{holder.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
            refused = person.aw("create", "t/b")
            assert refused.returncode == 7
            assert f"process {holder.pid}" in refused.stderr
            assert "which is stopped" in refused.stderr
            assert "t/a" in person.aw_ok("list")  # reading needs no lock
        finally:
            os.kill(holder.pid, signal.SIGCONT)
            holder.stdin.close()
    person.aw_ok("create", "t/b")


def test_a_lock_that_comes_too_late_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOCK_SECONDS", 0.05)
    path = str(tmp_path / "log.db")
    caller = Caller(actor_id="me")
    first, second = open_log(path, None), open_log(path, None)
    database = first._database
    with database.transaction(durable=False), pytest.raises(StoreUnavailable, match=f"process {os.getpid()} "):
        second.append_raw("t", [], caller)
    # The thread that waited for the refused caller takes the lock now and lets go of it: others are not kept out.
    wait_until(lambda: _appends(second, caller))
    first.close()
    second.close()


def _appends(log: object, caller: Caller) -> bool:
    try:
        log.append_raw("t", [], caller)  # type: ignore[attr-defined]
    except StoreUnavailable:
        return False
    return True
