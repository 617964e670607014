"""A process that was stopped while it holds a lock: whoever waits gets an error that names it, and nobody hangs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from people import Person
from waiting import wait_until
from workstead.system.kernel.locks import is_stopped

HOLD = """
import os, signal, sys
import workstead
from workstead.system.kernel import locks
workspaces = workstead.open(os.environ["AW_HOME"])
home = workspaces._home
workspace = workspaces.get("t/a")
def stop():
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""
# What each holder holds, and a command that needs it.
KINDS: dict[str, tuple[str, Sequence[str]]] = {
    "workspace": ("with home.hold('t/a'): stop()", ("snapshot", "t/a")),
    "snapshot store": (
        "from workstead.core.states import open_store\nwith open_store(home) as store, store.hold_alone(): stop()",
        ("snapshot", "t/a"),
    ),
    "layers": (
        "from workstead.system.overlay.stack import Hold\nwith Hold(f'{home.private}/layers/{workspace.uid}'): stop()",
        ("destroy", "--force", "t/a"),
    ),
    "origin": (
        "with locks.hold_folder(os.environ['HOME'] + '/origin'): stop()",
        ("apply", "t/a"),
    ),
}


@contextmanager
def stopped(person: Person, script: str) -> Iterator[int]:
    """A process of this person's that does this and is stopped in the middle of it."""
    with person.start([person.python_program, "-B", "-c", HOLD + script], stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == "held\n"
            wait_until(lambda: is_stopped(process.pid))
            yield process.pid
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert process.wait(60) == 0


@pytest.fixture
def desk(person: Person) -> Person:
    origin = person.folder("origin", {"a.txt": "a\n"})
    person.aw_ok("create", "t/a", "--source", f"overlay:{origin}")
    person.aw_ok("put", "t/a", "work/b.txt", feed="b\n")
    return person


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_holder_is_named(desk: Person, kind: str) -> None:
    script, words = KINDS[kind]
    with stopped(desk, script) as holder:
        refused = desk.aw(*words, timeout=60)
        assert refused.returncode in (4, 7), refused.stderr
        assert f"process {holder} " in refused.stderr
        assert "which is stopped" in refused.stderr
        assert "t/a" in desk.aw_ok("list")
    desk.aw_ok(*words)


def test_a_stopped_mount_daemon_is_named(desk: Person) -> None:
    """An ordinary user's mounts are held by a process; root mounts by itself, and has none to stop."""
    sockets = list(desk.home.rglob("holder.sock"))
    assert bool(sockets) != desk.is_root
    if not sockets:
        return
    from workstead.system.overlay.mount_daemon import Holder

    holder = Holder(str(sockets[0].parent)).find_process()
    assert holder
    os.kill(holder, signal.SIGSTOP)
    try:
        refused = desk.aw("destroy", "--force", "t/a", timeout=90)
        assert refused.returncode in (4, 7), refused.stderr
        assert f"process {holder} " in refused.stderr
        assert "which is stopped" in refused.stderr
    finally:
        os.kill(holder, signal.SIGCONT)
    assert "t/a" in desk.aw_ok("list")
    desk.aw_ok("destroy", "--force", "t/a")


CALL = """
from workstead.core.operations import hold_call
call, _ = workspaces.accept_call("create", "t/b", key="k", body="b", arguments={}, detached=False)
with hold_call(home, call.call_id): stop()
"""
REPEAT = """
import os
import workstead
from workstead.calls import do_call
from workstead.errors import WorksteadError
workspaces = workstead.open(os.environ["AW_HOME"])
call, is_new = workspaces.accept_call("create", "t/b", key="k", body="b", arguments={}, detached=False)
try:
    do_call(workspaces, call, {"source": "empty", "id": "t/b"})
except WorksteadError as error:
    print(is_new, error.code, error.message)
"""


def test_a_stopped_caller_of_an_idempotent_call_is_named(desk: Person) -> None:
    with stopped(desk, CALL) as holder:
        said = desk.python(REPEAT)
        assert said.startswith("False workspace_busy ")
        assert f"process {holder} " in said
        assert "which is stopped" in said


def test_a_holder_that_works_is_waited_for(desk: Person) -> None:
    """The twin: one that is only slow is not refused before its time."""
    script = "import time\nwith home.hold('t/a'):\n    print('held', flush=True)\n    sys.stdin.read()"
    words = [desk.python_program, "-B", "-c", HOLD + script]
    with desk.start(words, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "held\n"
        waiting = desk.start(desk.aw_words("snapshot", "t/a"))
        wait_until(lambda: _has_open(waiting.pid, desk.home / "locks"))
        process.stdin.close()
        assert waiting.wait(60) == 0


def _has_open(pid: int, path: Path) -> bool:
    try:
        return any(os.path.samefile(each, path) for each in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
