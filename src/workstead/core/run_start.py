"""Start a run: check the request, record the intent, hand it to a supervisor process."""

from __future__ import annotations

import json
import os
from types import MappingProxyType

from workstead import sandboxes
from workstead.core import lookup
from workstead.core.metadata import write_run
from workstead.core.mounting import attach, filled_in, refresh
from workstead.core.run_policy import refuse_reaching_out, sandbox_of
from workstead.core.run_supervision import parse_network, snapshot_around_run, supervise
from workstead.core.runs import MAX_WORD, crash_log_of, get, machines_of, record_end, run_directory
from workstead.errors import Conflict, Invalid, SandboxUnavailable, WorkspaceBusy, WorksteadError
from workstead.model.event import Caller, RunStarting
from workstead.model.run import Run
from workstead.model.text import word
from workstead.system.files.parts import make_parts
from workstead.system.process import crash_log, supervisor_client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from workstead.core.home import Home
    from workstead.core.runs import RunSpec
    from workstead.model.workspace import Workspace
    from workstead.settings import Settings
START_SECONDS = 20.0


def end_kept_sandbox(home: Home, workspace: Workspace) -> None:
    record = home.log.find_live("run", workspace.uid)
    if record is not None and record.get("box"):
        from workstead.core.stopping import end_box

        end_box(home, workspace)


def make_ready(home: Home, sandbox: str, progress: Callable[[str], None]) -> None:
    """Build the VM image once, before a run waits for it; other sandboxes need no preparation."""
    if sandbox.startswith("vm"):
        from workstead.sandboxes.vm import driver

        driver.make_ready(machines_of(home, "", sandbox), home.settings.sandbox.uid, progress)


def start(home: Home, workspace: Workspace, spec: RunSpec, runner: Runner | None = None) -> Run:
    """Start a run whose spec was already checked."""
    run_id = f"run-{home.new_id()}"
    directory = run_directory(home, run_id)
    with home.hold(run_id):
        with home.hold(workspace.id):  # prevents a destroy or restore between the check and the recorded intent
            _announce(home, lookup.get(home, workspace.id), run_id, spec)
        try:
            os.makedirs(directory, mode=0o700)
            _write_spec(directory, spec)
            pid = _start_runner(home, run_id, runner)
            if not supervisor_client.wait_ready(directory, pid, wait_seconds=START_SECONDS):
                log, _ = crash_log_of(home.path, run_id)
                message = crash_log.explain(f"the supervisor of {run_id} did not come up", log)
                raise SandboxUnavailable(message, hint="aw doctor checks this machine")
        except (OSError, WorksteadError) as error:
            if get(home, run_id).is_active:
                record_end(home, run_id, "failed", exit_code=125, reason=f"the runner could not be started: {error}")
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"the runner of {run_id} could not be started: {error.strerror}") from error
            raise
        except KeyboardInterrupt:  # the caller will never learn the run's id
            supervisor_client.request_stop(directory, at_once=True)
            raise
    return get(home, run_id)


def _with_agent(home: Home, spec: RunSpec, told: object) -> RunSpec:
    """Return the spec with the defaults of its agent; values from the caller win."""
    if spec.agent is None:
        return spec
    from workstead.model.agent import command_of, find_agent

    agent = find_agent(home.settings.agents, spec.agent)
    prompt = spec.prompt or (told if isinstance(told, str) else None)
    return spec.replace(
        agent=None,
        command=command_of(agent, spec.agent, prompt, spec.command),
        prompt=prompt,
        network=spec.network or agent.network,
        tools=[*agent.tools, *spec.tools],
        read_only=[*agent.read_only, *spec.read_only],
        read_write=[*agent.read_write, *spec.read_write],
    )


def checked(home: Home, spec: RunSpec, config: Mapping[str, Any] = MappingProxyType({})) -> RunSpec:
    """Validate the spec and complete it from its agent, the settings and the workspace's configuration."""
    sandbox = sandbox_of(home, config)
    spec = refuse_reaching_out(home, spec, sandbox)
    spec = _with_agent(home, spec, config.get("prompt"))
    if not spec.command or not all(isinstance(word, str) and word and "\0" not in word for word in spec.command[:1]):
        raise Invalid("there is no command to run", hint="aw run ID -- COMMAND ARGUMENTS")
    if any("\0" in word for word in spec.command):
        raise Invalid("the command holds a NUL byte")
    if any(len(os.fsencode(word)) > MAX_WORD for word in (*spec.command, spec.prompt or "")):
        raise Invalid(
            "a word of the command, or the prompt, is longer than the system passes on",
            hint="put it into a file in the workspace, and name the file",
        )
    for name, value in spec.environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise Invalid(
                f"{name!r:.100} is not a variable that a process can have",
                hint="a name without '=' and NUL, and a value without NUL",
            )
    if spec.timeout_seconds is not None and spec.timeout_seconds <= 0:
        raise Invalid(f"a time-out of {spec.timeout_seconds} seconds leaves no time", hint="give more than 0")
    network = spec.network or sandbox.network
    parse_network(network)
    if spec.sandbox != "auto":
        sandboxes.driver(spec.sandbox)  # raises for an unknown name
    return spec.replace(
        network=network,
        sandbox=spec.sandbox if spec.sandbox != "auto" else sandbox.default,
        tools=[*sandbox.tools, *spec.tools],
        read_only=[*sandbox.read_only, *spec.read_only],
        read_write=[*sandbox.read_write, *spec.read_write],
        memory_mb=spec.memory_mb or sandbox.memory_mb,
        processes=spec.processes or sandbox.processes,
        file_mb=spec.file_mb or sandbox.file_mb,
        output_mb=spec.output_mb or sandbox.output_mb,
        timeout_seconds=spec.timeout_seconds or sandbox.timeout_seconds,
    )


def _write_spec(directory: str, spec: RunSpec) -> None:
    # The environment may hold secrets: only the owner can read the file, and the supervisor deletes it after reading.
    descriptor = os.open(f"{directory}/spec", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        json.dump(spec.as_dict(), file)


def _announce(home: Home, workspace: Workspace, run_id: str, spec: RunSpec) -> None:
    if workspace.state != "ready":
        raise Conflict(f"workspace {workspace.id} is {workspace.state}", hint=f"aw show {word(workspace.id)}")
    attach(home, workspace)
    make_parts(workspace.path, ("output", "tmp"), filled_in(home, workspace)[1].owner)
    busy = [Run(**record) for record in lookup.active_runs(home, workspace)]
    if busy and not spec.concurrent:
        raise _busy(workspace, busy[0])
    if not busy:
        refresh(home, workspace)
    before = snapshot_around_run(home, workspace, "before_run") if not busy else None
    digest = write_run(workspace, run_id, spec.prompt)
    # An intent needs no sync: the end is synced, and with it everything written before.
    home.record(workspace.task_id, starting_event(home, workspace, run_id, spec, digest, before), durable=False)


def starting_event(
    home: Home, workspace: Workspace, run_id: str, spec: RunSpec, digest: str, before: str | None = None
) -> RunStarting:
    return RunStarting(
        **workspace.names(),
        run_id=run_id,
        command=spec.command,
        sandbox=spec.sandbox,
        network=spec.network or "none",
        home=home.id,
        prompt=spec.prompt,
        concurrent=spec.concurrent,
        metadata_digest=digest,
        snapshot_before=before,
        box=spec.box,
    )


def _busy(workspace: Workspace, other: Run) -> WorkspaceBusy:
    return WorkspaceBusy(
        f"workspace {workspace.id} is busy with {other.id}",
        hint=f"aw stop {other.id}, wait for it, or run with --concurrent",
    )


class Runner:
    """A forked process that will supervise a run: created before the run is known, it loads its modules meanwhile.

    For a small single-threaded caller that starts one run, such as the command line, and before it opens a home: a
    connection to the log must not cross a fork, because SQLite's locks belong to the process.
    """

    def __init__(self, path: str, settings: Settings) -> None:
        from workstead.system.process import spawn

        self._path = path
        self._settings = settings
        if settings.snapshots.around_runs:  # parent and child need these, so load them once before the fork
            from workstead.core import snapshots  # noqa: F401
            from workstead.snapshots import take  # noqa: F401
        told, self._tell = os.pipe2(os.O_CLOEXEC)
        try:
            self._pid = spawn.fork_detached(lambda: self._wait(told), keep=(told,))
        finally:
            os.close(told)

    def _wait(self, told: int) -> None:
        from workstead.core.home import Home

        order = b""
        try:
            _load_sandbox()
            home = Home.open(self._path, self._settings, Caller())
        finally:  # a failure is in the crash log of the run
            with open(told, "rb") as pipe:
                order = pipe.read()
            if order:
                run_id, caller = json.loads(order)
                crash_log.install(*crash_log_of(self._path, run_id))
        if order:  # empty: the parent started no run
            # The supervisor acts as the owner, even if an agent requested the run.
            supervise(home.acting_as(Caller(**caller).replace(agent_of=None)), run_id)

    def start(self, home: Home, run_id: str) -> int:
        """Start the run; return the supervisor's process id."""
        os.write(self._tell, json.dumps([run_id, home.caller.as_dict()]).encode())
        self.close()
        return self._pid

    def close(self) -> None:
        """Let the process exit, if no run was started."""
        if self._tell >= 0:
            os.close(self._tell)
            self._tell = -1


def _start_runner(home: Home, run_id: str, runner: Runner | None) -> int:
    if runner is not None:
        return runner.start(home, run_id)
    from workstead.system.process import background, spawn

    pid = spawn.start_detached(
        background.logged_argv(
            "from workstead.runner import main; main()", *crash_log_of(home.path, run_id), home.path, run_id
        ),
        {**home.settings.as_environment(), **_caller_environment(home), "PATH": "/usr/local/bin:/usr/bin:/bin"},
    )
    _reap_later(pid)
    return pid


def _load_sandbox() -> None:
    """Import modules that only the supervisor needs, while its parent records the run."""
    import signal  # noqa: F401

    from workstead.sandboxes import bubblewrap  # noqa: F401
    from workstead.system.process import staged_root, supervisor  # noqa: F401


def _caller_environment(home: Home) -> dict[str, str]:
    caller = home.caller
    return {
        "AW_ACTOR": caller.actor_id,
        "AW_CORRELATION_ID": caller.correlation_id,
        "AW_CAUSATION_ID": caller.causation_id,
    }


def _reap_later(pid: int) -> None:
    """Reap the supervisor in a background thread: it is a child of this process."""
    import threading

    threading.Thread(target=lambda: os.waitpid(pid, 0), name=f"reap-{pid}", daemon=True).start()
