"""Run many short commands in one workspace, in a sandbox with a command server that is started once and kept.

    the command server is a run of its own → each command is one message to it → command_completed

The sandbox is that of any run, and no process stays alive between two commands. The command server ends by `stop`, with
its workspace, when it was idle for `sandbox.keep_seconds`, or when another verb needs the workspace exclusively. Its
lock is held while a command runs: a process that gets the lock knows that the command server is idle.
"""

from __future__ import annotations

import time

from workstead.core import lookup, run_start, runs, stopping
from workstead.core.building import materialise
from workstead.core.gate import judged
from workstead.core.run_policy import permit_run
from workstead.core.stopping import sandbox_lock
from workstead.errors import BY_CODE, Invalid, SandboxUnavailable
from workstead.model.digest import blake2b
from workstead.model.event import CommandCompleted
from workstead.model.run import Command, Run
from workstead.system.process import supervisor_client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.core.home import Home
    from workstead.model.workspace import Workspace
    from workstead.system.process.command_server import Answer

QUEUE_SECONDS = 600.0

# Fields that must be equal to reuse a command server; others may differ from command to command.
_BUILT_WITH = (
    *("sandbox", "network", "memory_mb", "processes", "cpus", "file_mb", "read_only", "read_write", "tools"),
    "executable",
)


def run_kept(
    home: Home,
    workspace_id: str,
    spec: runs.RunSpec,
    *,
    stdin: int | None = None,
    write: Callable[[int, bytes], None] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Command:
    """Run one command to its end in the workspace's command server, which is started if there is none of this kind.

    The output is in the result, up to the limit, or goes to `write` as it comes, all of it. Commands wait for each
    other. Raises WorkspaceBusy if a run is active there; a command that cannot be started ends with exit code 125.
    """
    if spec.tty or spec.concurrent:
        raise Invalid("a box has no terminal, and shares its workspace with nobody", hint="run without --keep")
    workspace = lookup.get(home, workspace_id)
    spec = run_start.checked(home, spec.replace(stdin=stdin is not None), workspace.config)
    if spec.sandbox == "none":
        # The command server kills every process that it can reach between two commands: without a sandbox, all
        # processes.
        raise Invalid("a box cannot be kept without a sandbox", hint="leave out --sandbox none, or --keep")
    workspace = materialise(home, workspace)
    spec = judged(home, lambda gate: permit_run(home, gate, lookup.by_uid(home, workspace.uid), spec, kept=True))
    run_start.make_ready(home, spec.sandbox, progress)
    with home.hold(sandbox_lock(workspace.uid), wait_seconds=QUEUE_SECONDS):
        for _ in range(3):
            box = _find_box(home, workspace, spec) or _build(home, workspace, spec)
            try:
                return _command(home, workspace, box, spec, stdin, write)
            except SandboxUnavailable as error:
                if error.details.get("started") is not False:
                    raise
                _look_why(home, box)  # it was just ending: the command has not begun, so start another command server
        raise SandboxUnavailable(f"no box stays up in {workspace.id}", hint=f"aw why {box.id}")


def _digest(spec: runs.RunSpec) -> str:
    import json

    wanted = [getattr(spec, name) for name in _BUILT_WITH]
    return blake2b(json.dumps(wanted).encode(), digest_size=8).hexdigest()


def _find_box(home: Home, workspace: Workspace, spec: runs.RunSpec) -> Run | None:
    record = home.log.find_live("run", workspace.uid)
    if record is None or not record.get("box"):
        return None
    found = Run(**record)
    if supervisor_client.find_supervisor(runs.run_directory(home, found.id)) is None:
        runs.wait(home, found.id, timeout_seconds=10)
        return None
    if found.box != _digest(spec):
        stopping.stop(home, found.id, at_once=True)
        return None
    return found


def _build(home: Home, workspace: Workspace, spec: runs.RunSpec) -> Run:
    built = spec.replace(
        command=["box"], box=_digest(spec), environment={}, timeout_seconds=None, stdin=False, prompt=None, bound=None
    )
    return run_start.start(home, workspace, built)


def _look_why(home: Home, box: Run) -> None:
    """Raise the error of a command server that could not be started; one that has ended is no error."""
    found = runs.wait(home, box.id, timeout_seconds=10)
    if found.error:
        kind = BY_CODE.get(str(found.error["code"]), SandboxUnavailable)
        raise kind(str(found.error["message"]), hint=str(found.error.get("hint", "")))


def _command(
    home: Home,
    workspace: Workspace,
    box: Run,
    spec: runs.RunSpec,
    stdin: int | None,
    write: Callable[[int, bytes], None] | None,
) -> Command:
    from workstead.core.command_files import check_unchanged
    from workstead.system.process.command_server import Answer, Box

    check_unchanged(home, workspace, spec)
    started = time.monotonic()
    sandbox = home.settings.sandbox
    error: dict[str, object] | None = None
    answer = Answer(exit_code=runs.NOT_STARTED_CODE)
    reason = "whoever waited for it went away"
    gone = False
    try:
        answer = Box(runs.run_directory(home, box.id), sandbox.uid).run(
            spec.command,
            directory=f"{lookup.public_mount(home, workspace).rstrip('/')}/work",
            environment={**({"AW_PROMPT": spec.prompt} if spec.prompt else {}), **spec.environment},
            timeout_seconds=spec.timeout_seconds,
            output_bytes=spec.output_mb * runs.MIB if spec.output_mb and write is None else None,
            stdin=stdin,
            write=write,
        )
        reason = _reason(answer, spec)
    except Invalid as refused:
        answer, reason = Answer(exit_code=runs.NOT_STARTED_CODE), refused.message
        body = refused.as_dict()["error"]
        error = body if isinstance(body, dict) else None
    except SandboxUnavailable as unavailable:
        gone = unavailable.details.get("started") is False
        reason = unavailable.message
        raise
    finally:
        if not gone:
            seconds = round(time.monotonic() - started, 4)
            fact = CommandCompleted(
                **runs.run_names(box),
                command=spec.command,
                exit_code=answer.exit_code,
                seconds=seconds,
                reason=reason,
                output_bytes=answer.output_bytes,
                dropped_bytes=answer.dropped_bytes,
            )
            # Many short commands: the synced end of the command server makes them all durable.
            home.record(box.task_id, fact, durable=False)
    return Command(
        run_id=box.id,
        command=spec.command,
        exit_code=answer.exit_code,
        seconds=seconds,
        reason=reason,
        error=error,
        stdout=answer.stdout,
        stderr=answer.stderr,
        dropped_bytes=answer.dropped_bytes,
    )


def _reason(answer: Answer, spec: runs.RunSpec) -> str:
    if answer.timed_out:
        return f"it took longer than {spec.timeout_seconds:g} seconds"
    if answer.signal:
        return f"signal {answer.signal}"
    return f"exit code {answer.exit_code}" if answer.exit_code else ""
