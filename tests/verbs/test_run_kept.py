"""The box that is kept for many short commands: the same walls, each command written down, and an end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

import workstead
from needs import need_program
from waiting import wait_until
from workstead.errors import Invalid, SandboxUnavailable, WorkspaceBusy
from workstead.local import Local
from workstead.model.event import Event
from workstead.model.workspace import Workspace
from workstead.settings import Settings
from workstead.system.process.command_server import Box


@pytest.fixture
def desk(workspaces: Local) -> Iterator[Workspace]:
    need_program("bwrap")
    made = workspaces.create(id="t/a")
    yield made
    for run in workspaces.runs(made.id):
        workspaces.stop(run.id, at_once=True)


def commands(workspaces: Local) -> list[Event]:
    return [event for event in workspaces.events() if event.event_type == "command_completed"]


def test_commands_share_one_box_and_each_is_an_event(workspaces: Local, desk: Workspace) -> None:
    first = workspaces.run_kept(desk.id, ["sh", "-c", "pwd; echo $MORE; echo e >&2; echo x > made; exit 3"])
    assert (first.exit_code, first.stdout, first.stderr) == (3, b"/mnt/workspace/work\n\n", b"e\n")
    second = workspaces.run_kept(desk.id, ["sh", "-c", "cat made; echo $MORE"], environment={"MORE": "yes"})
    assert (second.exit_code, second.stdout) == (0, b"x\nyes\n")
    assert first.run_id == second.run_id
    (box,) = workspaces.runs(desk.id)
    assert (box.id, box.state, box.commands) == (first.run_id, "running", 2)
    assert box.enforcement["files"]
    assert [(event.event_data["command"][0], event.event_data["exit_code"]) for event in commands(workspaces)] == [  # type: ignore[index]
        ("sh", 3),
        ("sh", 0),
    ]
    workspaces.verify()


def test_output_is_byte_exact_and_time_is_kept(workspaces: Local, desk: Workspace) -> None:
    data = bytes(range(256)) * 4000
    read_end, write_end = os.pipe()
    feeder = threading.Thread(target=lambda: (os.write(write_end, data), os.close(write_end)))
    feeder.start()
    assert workspaces.run_kept(desk.id, ["cat"], stdin=read_end).stdout == data
    feeder.join()
    os.close(read_end)
    pieces: list[tuple[int, bytes]] = []
    workspaces.run_kept(
        desk.id,
        ["sh", "-c", "head -c 20000000 /dev/zero; echo e >&2"],
        write=lambda stream, piece: pieces.append((stream, piece)),
        output_mb=1,
    )
    assert sum(len(piece) for stream, piece in pieces if stream == 1) == 20_000_000
    assert b"".join(piece for stream, piece in pieces if stream == 2) == b"e\n"
    late = workspaces.run_kept(desk.id, ["sh", "-c", "echo before; sleep 60"], timeout_seconds=1.5)
    assert (late.exit_code, late.stdout) == (124, b"before\n")
    missing = workspaces.run_kept(desk.id, ["no-such-program"])
    assert missing.exit_code == 125
    assert missing.error is not None
    assert [event.event_data["exit_code"] for event in commands(workspaces)] == [0, 0, 124, 125]


def test_the_box_ends_when_it_is_idle_and_the_next_command_builds_another(home_path: str, settings: Settings) -> None:
    need_program("bwrap")
    short = settings.replace(sandbox=settings.sandbox.replace(keep_seconds=0.2))
    with workstead.open(home_path, settings=short) as workspaces:
        desk = workspaces.create(id="t/a")
        first = workspaces.run_kept(desk.id, ["true"])
        assert workspaces.wait(first.run_id, timeout_seconds=10).state == "completed"
        # also in the moment in which it leaves, no command is lost
        seen = {first.run_id}
        for pause in (0.15, 0.19, 0.2, 0.205, 0.21, 0.22):
            time.sleep(pause)
            done = workspaces.run_kept(desk.id, ["echo", "here"])
            assert (done.exit_code, done.stdout) == (0, b"here\n")
            seen.add(done.run_id)
        assert len(seen) > 1
        workspaces.verify()
        workspaces.wait(done.run_id, timeout_seconds=10)


def test_a_box_of_another_kind_replaces_the_old_one(workspaces: Local, desk: Workspace) -> None:
    first = workspaces.run_kept(desk.id, ["true"])
    second = workspaces.run_kept(desk.id, ["sh", "-c", "ls /etc/resolv.conf"], network="host")
    assert first.run_id != second.run_id
    assert [run.state for run in workspaces.runs(desk.id)] == ["cancelled", "running"]
    assert workspaces.runs(desk.id)[1].network == "host"


@pytest.mark.parametrize("wants", ["run", "restore", "fork", "destroy", "stop"])
def test_an_idle_box_is_in_nobodys_way(workspaces: Local, desk: Workspace, wants: str) -> None:
    kept = workspaces.snapshot(desk.id)
    box = workspaces.run_kept(desk.id, ["sh", "-c", "touch made"]).run_id
    if wants == "run":
        assert workspaces.wait(workspaces.run(desk.id, ["ls"]).id).state == "completed"
    elif wants == "restore":
        workspaces.restore(desk.id, kept.id)
        assert workspaces.run_kept(desk.id, ["ls"]).stdout == b""
    elif wants == "fork":
        (child,) = workspaces.fork(desk.id)
        assert workspaces.read_file(child.id, "work/made") == b""
    elif wants == "destroy":
        workspaces.destroy(desk.id)
    else:
        workspaces.stop(box)
    assert workspaces.get_run(box).state == "cancelled"


def test_a_busy_box_is_in_the_way_and_commands_wait_for_each_other(workspaces: Local, desk: Workspace) -> None:
    workspaces.run_kept(desk.id, ["true"])
    results: list[bytes] = []
    waits = "touch begun; until [ -e go ]; do sleep 0.05; done; echo first"
    long = threading.Thread(
        target=lambda: results.append(workspaces.run_kept(desk.id, ["sh", "-c", waits]).stdout), daemon=True
    )
    long.start()
    wait_until(lambda: os.path.exists(f"{desk.path}/work/begun"))
    with pytest.raises(WorkspaceBusy):
        workspaces.run(desk.id, ["true"])
    with pytest.raises(WorkspaceBusy):
        workspaces.destroy(desk.id)
    threading.Timer(0.3, lambda: workspaces.write_file(desk.id, "work/go", "")).start()
    results.append(workspaces.run_kept(desk.id, ["echo", "second"]).stdout)
    long.join()
    assert results == [b"first\n", b"second\n"]


def test_a_run_keeps_a_box_away(workspaces: Local, desk: Workspace) -> None:
    run = workspaces.run(desk.id, ["sleep", "60"])
    with pytest.raises(WorkspaceBusy):
        workspaces.run_kept(desk.id, ["true"])
    workspaces.stop(run.id, at_once=True)
    assert workspaces.run_kept(desk.id, ["true"]).exit_code == 0


def test_a_box_without_a_wall_is_refused(workspaces: Local, desk: Workspace) -> None:
    """Between commands it kills all that it can reach: without a namespace that is the host."""
    with pytest.raises(Invalid, match="without a sandbox"):
        workspaces.run_kept(desk.id, ["true"], sandbox="none")
    with pytest.raises(Invalid):
        workspaces.run_kept(desk.id, ["true"], tty=True)
    assert workspaces.runs(desk.id) == []


def _is_there(directory: str) -> bool:
    try:
        Box(directory)._connect().close()
    except SandboxUnavailable:
        return False
    return True


def test_a_killed_box_is_noticed_and_replaced(workspaces: Local, desk: Workspace, home_path: str) -> None:
    first = workspaces.run_kept(desk.id, ["true"])
    with open(f"{home_path}/runs/{first.run_id}/lock") as lock:
        os.kill(int(lock.read().split()[0]), 9)
    wait_until(lambda: not _is_there(f"{home_path}/runs/{first.run_id}"))  # while it dies it may take the command
    second = workspaces.run_kept(desk.id, ["echo", "again"])
    assert second.stdout == b"again\n"
    assert workspaces.get_run(first.run_id).state == "failed"
    workspaces.verify()
