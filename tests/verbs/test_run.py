"""Runs: started, watched, stopped, and given an end whatever happens to those who look after them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from needs import need_program
from waiting import wait_until
from workstead.errors import Invalid, RunNotFound, TimedOut, WorkspaceBusy
from workstead.local import Local
from workstead.model.run import Run


@pytest.fixture(autouse=True)
def _bubblewrap() -> None:
    need_program("bwrap")


def printed(workspaces: Local, run: Run, stream: int = 1) -> bytes:
    return b"".join(data for which, _, data in workspaces.output(run.id) if which == stream)


def supervisor_of(workspaces: Local, run: Run) -> int:
    text = Path(workspaces._home.path, "runs", run.id, "lock").read_text()
    return int(text.split()[0])


def test_a_run_starts_in_work_with_the_environment_of_its_workspace(workspaces: Local) -> None:
    desk = workspaces.create(id="t/a")
    run = workspaces.run(
        desk.id, ["sh", "-c", "pwd; echo $AW_WORKSPACE $AW_WORKSPACE_ID $AW_RUN_ID; touch made; echo e >&2"]
    )
    run = workspaces.wait(run.id)
    assert run.state == "completed"
    assert run.exit_code == 0
    assert printed(workspaces, run).decode().split() == ["/mnt/workspace/work", "/mnt/workspace", "t/a", run.id]
    assert printed(workspaces, run, 2) == b"e\n"
    assert os.path.exists(f"{desk.path}/work/made")


def test_each_step_of_a_run_is_an_event(workspaces: Local) -> None:
    desk = workspaces.create(id="t/a")
    run = workspaces.wait(workspaces.run(desk.id, ["true"], prompt="fix it").id)
    types = [event.event_type for event in workspaces.events(task="t") if event.event_data.get("run_id") == run.id]
    assert types == ["run_starting", "run_started", "run_completed"]
    assert run.enforcement["sandbox"] == "bubblewrap"
    assert run.enforcement["files"]
    assert run.enforcement["network"]
    with open(f"{desk.path}/.aw/run.json") as file:
        told = json.load(file)
    assert told["run_id"] == run.id
    assert told["prompt"] == "fix it"
    assert workspaces.repair() == []  # the new metadata is the one that the log knows
    workspaces.verify()


@pytest.mark.parametrize(
    ("command", "state", "code"), [(["false"], "failed", 1), (["sh", "-c", "exit 7"], "failed", 7)]
)
def test_another_exit_code_is_a_failed_run(workspaces: Local, command: list[str], state: str, code: int) -> None:
    run = workspaces.wait(workspaces.run(workspaces.create().id, command).id)
    assert (run.state, run.exit_code) == (state, code)


def test_a_command_that_does_not_exist_fails_with_125_and_says_why(workspaces: Local) -> None:
    run = workspaces.wait(workspaces.run(workspaces.create().id, ["no-such-program"]).id)
    assert (run.state, run.exit_code) == ("failed", 125)
    assert run.error
    assert "no such file" in str(run.error["message"])


def test_a_run_that_takes_too_long_is_timed_out_with_all_its_processes(workspaces: Local) -> None:
    mark = f"3{os.getpid()}.25"
    run = workspaces.run(workspaces.create().id, ["sh", "-c", f"sleep {mark} & sleep {mark}"], timeout_seconds=0.3)
    run = workspaces.wait(run.id, timeout_seconds=20)
    assert (run.state, run.exit_code) == ("timed_out", 124)
    assert mark not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_a_second_run_is_refused_while_one_is_active_unless_they_may_share(workspaces: Local) -> None:
    desk = workspaces.create()
    first = workspaces.run(desk.id, ["sleep", "60"])
    with pytest.raises(WorkspaceBusy, match=first.id):
        workspaces.run(desk.id, ["true"])
    beside = workspaces.wait(workspaces.run(desk.id, ["true"], concurrent=True).id)
    assert beside.state == "completed"
    stopped = workspaces.stop(first.id)
    assert stopped.state == "cancelled"
    assert workspaces.stop(first.id).state == "cancelled"  # again is no error
    assert workspaces.wait(workspaces.run(desk.id, ["true"]).id).state == "completed"


def test_destroy_refuses_while_a_run_is_active_and_force_stops_it(workspaces: Local) -> None:
    desk = workspaces.create()
    run = workspaces.run(desk.id, ["sleep", "60"])
    with pytest.raises(WorkspaceBusy, match=run.id):
        workspaces.destroy(desk.id)
    assert workspaces.exists(desk.id)
    workspaces.destroy(desk.id, force=True)
    assert workspaces.get_run(run.id).state == "cancelled"
    assert not workspaces.exists(desk.id)


def test_a_run_outlives_the_process_that_started_it(home_path: str, workspaces: Local) -> None:
    desk = workspaces.create()
    script = (
        "import workstead, sys, os\n"
        "run = workstead.open(sys.argv[1]).run(sys.argv[2], ['sh', '-c', 'sleep 1; echo done'])\n"
        "print(run.id, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, home_path, desk.id], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    run = workspaces.wait(done.stdout.strip(), timeout_seconds=20)
    assert run.state == "completed"
    assert printed(workspaces, run) == b"done\n"


def test_a_run_whose_supervisor_is_killed_ends_as_failed_and_leaves_no_process(
    workspaces: Local, home_path: str
) -> None:
    desk = workspaces.create()
    mark = f"4{os.getpid()}.5"
    run = workspaces.run(desk.id, ["sh", "-c", f"echo up; sleep {mark}"])
    wait_until(lambda: printed(workspaces, run) == b"up\n")
    os.kill(supervisor_of(workspaces, run), signal.SIGKILL)
    run = workspaces.wait(run.id, timeout_seconds=20)
    assert run.state == "failed"
    assert "supervisor died" in run.reason
    ps = ["ps", "-eo", "args"]
    wait_until(lambda: mark not in subprocess.run(ps, capture_output=True, text=True, check=True).stdout)
    assert workspaces.wait(workspaces.run(desk.id, ["true"]).id).state == "completed"
    workspaces.verify()


def test_the_next_opener_gives_a_dead_run_its_end(workspaces: Local, home_path: str, settings: object) -> None:
    import workstead

    desk = workspaces.create()
    run = workspaces.run(desk.id, ["sleep", "60"])
    os.kill(supervisor_of(workspaces, run), signal.SIGKILL)

    def is_ended() -> bool:
        with workstead.open(home_path, settings=settings) as other:  # type: ignore[arg-type]
            return other.get_run(run.id).state == "failed"

    wait_until(is_ended)


def test_wait_gives_up_after_its_time(workspaces: Local) -> None:
    run = workspaces.run(workspaces.create().id, ["sleep", "60"])
    with pytest.raises(TimedOut):
        workspaces.wait(run.id, timeout_seconds=0.2)
    workspaces.stop(run.id, at_once=True)


@pytest.mark.parametrize("command", [[], ["a\0b"], ["true", "\0"]])
def test_bad_commands_are_refused_and_leave_no_run(workspaces: Local, command: list[str]) -> None:
    desk = workspaces.create()
    with pytest.raises(Invalid):
        workspaces.run(desk.id, command)
    assert workspaces.runs(desk.id) == []


def test_unknown_things_are_named(workspaces: Local) -> None:
    with pytest.raises(RunNotFound):
        workspaces.get_run("run-none")
    desk = workspaces.create()
    with pytest.raises(Invalid, match="no sandbox 'moat'"):
        workspaces.run(desk.id, ["true"], sandbox="moat")
    with pytest.raises(Invalid, match="time-out"):
        workspaces.run(desk.id, ["true"], timeout_seconds=-1)


def test_sandbox_none_runs_in_the_directory_and_says_that_it_is_no_wall(workspaces: Local) -> None:
    desk = workspaces.create()
    run = workspaces.wait(workspaces.run(desk.id, ["pwd"], sandbox="none").id)
    assert printed(workspaces, run).decode().strip() == f"{desk.path}/work"
    assert run.enforcement["sandbox"] == "none"
    assert not run.enforcement["files"]
