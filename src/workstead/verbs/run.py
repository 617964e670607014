"""Run a command in a workspace, supervised by a process of its own.

    run_starting → the supervisor enters the sandbox and starts the command → run_started → … → run_completed

The starting process may die: the supervisor owns the command, its limits, its output and its last event. A supervisor
that dies takes the command with it, and is noticed because the kernel frees its lock.
"""

from __future__ import annotations

from workstead.core import lookup
from workstead.core.building import materialise
from workstead.core.gate import judged
from workstead.core.metadata import write_run
from workstead.core.run_policy import permit_run
from workstead.core.run_start import checked, end_kept_sandbox, make_ready, start, starting_event
from workstead.core.runs import NOT_STARTED_CODE, get
from workstead.errors import WorksteadError
from workstead.model.event import RunFailed
from workstead.model.run import Run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.core.gate import Gate
    from workstead.core.home import Home
    from workstead.core.run_start import Runner
    from workstead.core.runs import RunSpec


def run(
    home: Home,
    workspace_id: str,
    spec: RunSpec,
    *,
    runner: Runner | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Run:
    """Start a command in a workspace and return the run, which continues by itself.

    Raises WorkspaceBusy if another run is active there and this one may not share.
    """
    workspace = lookup.get(home, workspace_id)
    spec = checked(home, spec, workspace.config)
    workspace = materialise(home, workspace)

    def act(gate: Gate) -> Run:
        permitted = permit_run(home, gate, lookup.by_uid(home, workspace.uid), spec)
        if not spec.concurrent:
            end_kept_sandbox(home, workspace)
        make_ready(home, permitted.sandbox, progress)
        return start(home, workspace, permitted, runner)

    return judged(home, act)


def record_clone_failure(home: Home, workspace_id: str, spec: RunSpec, error: WorksteadError) -> Run:
    """Record the failure of a run that was requested with its workspace, because the workspace could not be filled."""
    workspace = lookup.get(home, workspace_id)
    spec = checked(home, spec, workspace.config)
    run_id = f"run-{home.new_id()}"
    with home.hold(workspace.id):
        names = {**workspace.names(), "run_id": run_id}
        digest = write_run(workspace, run_id, spec.prompt)
        body = error.as_dict()["error"]
        failed = RunFailed(
            **names,
            exit_code=NOT_STARTED_CODE,
            reason=error.message,
            error=body if isinstance(body, dict) else None,
        )
        home.record(workspace.task_id, starting_event(home, workspace, run_id, spec, digest), failed)
    return get(home, run_id)
