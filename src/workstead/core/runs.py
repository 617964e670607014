"""The specification of a run, its directory, its record and its result."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from workstead.core import lookup
from workstead.errors import RunNotFound, TimedOut, WorkspaceBusy
from workstead.model.event import RunCancelled, RunCompleted, RunFailed, RunTimedOut
from workstead.model.run import Run
from workstead.model.value import Value
from workstead.system.process import crash_log, supervisor_client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from workstead.core.home import Home
    from workstead.system.process.frames import Frame
    from workstead.system.process.supervisor import Result

MIB = 1 << 20
NOT_STARTED_CODE = 125
MAX_WORD = 120_000  # Linux allows 131,072 bytes


class RunSpec(Value):
    """The specification of a command: everything that the supervisor needs, stored as JSON in the run's directory."""

    command: list[str]
    sandbox: str = "auto"
    network: str | None = None  # default: from the settings; none | host | host names, separated by commas
    environment: dict[str, str] = {}
    timeout_seconds: float | None = None
    memory_mb: int | None = None
    processes: int | None = None
    cpus: float | None = None
    file_mb: int | None = None
    output_mb: int | None = None
    read_only: list[str] = []  # host paths, or HOST:INSIDE
    read_write: list[str] = []
    tools: list[str] = []
    tty: bool = False
    rows: int = 24
    columns: int = 80
    stdin: bool = False
    concurrent: bool = False
    prompt: str | None = None
    agent: str | None = None  # one of the settings' agents, or a command with `{prompt}` in it
    box: str = ""  # set for a command server instead of a command, see `run_kept.py`
    executable: bool = True  # whether files of the workspace can be executed, from its policy
    bound: dict[str, str] | None = None  # fingerprints of the files that an approved command names


def run_directory(home: Home, run_id: str) -> str:
    """Return the directory of a run's output and its supervisor's files."""
    return f"{home.path}/runs/{run_id}"


def machines_of(home: Home, owner: str, kind: str) -> Any:
    """Return the directories and settings of the machines of the sandbox `vm`."""
    from workstead.sandboxes import Machines

    sandbox = home.settings.sandbox
    return Machines(
        directory=machines_path(home),
        cache=f"{home.path}/cache/guest",
        owner=owner,
        emulation={"vm/tcg": "only", "vm/kvm": "refuse"}.get(kind, sandbox.vm_emulation),
        memory_mb=sandbox.vm_memory_mb,
        cpus=sandbox.vm_cpus,
        idle_seconds=sandbox.vm_idle_seconds,
        packages=sandbox.vm_packages,
    )


def machines_path(home: Home) -> str:
    """Return the directory of the machines of the sandbox `vm`."""
    return f"{home.path}/machines"


_ENDS = {"completed": RunCompleted, "failed": RunFailed, "cancelled": RunCancelled, "timed_out": RunTimedOut}


def run_names(found: Run) -> dict[str, Any]:
    """Return the common fields of every event about the run."""
    _, _, agent = found.workspace_id.partition("/")
    return {"workspace_id": found.workspace_id, "agent_id": agent, "uid": found.uid, "run_id": found.run_id}


def record_end(home: Home, run_id: str, state: str, **fields: Any) -> None:
    found = get(home, run_id)
    home.record(found.task_id, _ENDS[state](**run_names(found), **fields))


# -- looking, waiting, stopping ----------------------------------------------------------------------------------------


def get(home: Home, run_id: str) -> Run:
    """Return the run of this id, or raise RunNotFound."""
    record = home.log.get("run", run_id)
    if record is None or home.caller.agent_of not in (None, "", record["workspace_id"]):
        raise RunNotFound(f"there is no run {run_id}", hint="aw runs lists them")
    return Run(**record)


def runs(home: Home, workspace_id: str | None = None) -> list[Run]:
    """Return the runs of one workspace or of all, oldest first; an agent sees those of its own."""
    workspace_id = workspace_id or home.caller.agent_of or None
    if workspace_id is None:
        return [Run(**record) for record in home.log.find_all("run")]
    wanted = lookup.normal_id(workspace_id)
    lookup.check_reach(home, wanted)
    task = wanted.partition("/")[0]
    return [Run(**record) for record in home.log.find_all("run", task=task) if record["workspace_id"] == wanted]


def wait(home: Home, run_id: str, *, timeout_seconds: float | None = None) -> Run:
    """Wait for the end of a run, started by any process."""
    directory = run_directory(home, run_id)
    end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    pause = 0.001
    while True:
        found = get(home, run_id)
        if not found.is_active:
            return found
        if supervisor_client.find_supervisor(directory) is None:
            settle(home, run_id)
        if end is not None and time.monotonic() >= end:
            raise TimedOut(f"run {run_id} is still {found.state} after {timeout_seconds:g} s", hint=f"aw stop {run_id}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def output(home: Home, run_id: str, *, follow: bool = False, offset: int = 0) -> Iterator[Frame]:
    """Yield the output of a run, in pieces with their stream and time; with `follow` until its end."""
    from workstead.system.process import frames

    get(home, run_id)
    directory = run_directory(home, run_id)
    if not os.path.exists(f"{directory}/output"):
        return iter(())
    if follow:
        pieces: Iterator[Frame] = supervisor_client.follow(directory, offset=offset)
        return pieces
    return frames.read(f"{directory}/output", offset)


def settle(home: Home, run_id: str) -> str | None:
    """Record the end of a run whose supervisor died; None if it is alive, or has recorded the end itself.

    A supervisor that saw the end of the command has written the result to the disk; that is recorded.
    """
    try:
        with home.hold(run_id, wait_seconds=0):
            found = get(home, run_id)
            directory = run_directory(home, run_id)
            if not found.is_active or found.home != home.id or supervisor_client.find_supervisor(directory):
                return None
            found = get(home, run_id)  # it may have ended between the two reads
            if not found.is_active:
                return None
            supervisor_client.forget(f"aw-{run_id}")
            with suppress(OSError):
                os.unlink(f"{directory}/spec")  # may hold secrets, and is no longer needed
            result = supervisor_client.find_result(directory)
            if result is not None:
                record_result(home, run_id, result)
                return f"its end was recorded: {result.state}, exit code {result.exit_code}"
            log, _ = crash_log_of(home.path, run_id)
            reason = crash_log.explain("its supervisor died, and the command with it", log)
            record_end(home, run_id, "failed", exit_code=125, reason=reason)
            return f"ended as failed: {reason}"
    except WorkspaceBusy:  # it is being started
        return None


def crash_log_of(home_path: str, run_id: str) -> tuple[str, str]:
    """Return the crash log of a run's supervisor, and the title of its entry."""
    return f"{home_path}/runs/{run_id}/supervisor.log", f"supervisor of {run_id},"


def record_result(home: Home, run_id: str, result: Result, snapshot_after: str | None = None) -> None:
    record_end(
        home,
        run_id,
        result.state,
        exit_code=result.exit_code,
        reason=result.reason,
        error=result.error,
        output_bytes=result.output_bytes,
        dropped_bytes=result.dropped_bytes,
        usage=result.usage,
        snapshot_after=snapshot_after,
    )
