"""Run a command in a workspace, supervised by a process of its own.

    run_starting → the runner enters the sandbox and starts the command → run_started → … → run_completed

Whoever starts a run may die: the runner owns the command, its limits, its output and its last event. A runner that
dies takes the command with it, and is noticed because the kernel gives back its lock.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from workstead.core import lookup
from workstead.core.building import materialise
from workstead.core.gate import judged
from workstead.core.metadata import write_run
from workstead.core.run_policy import permit_run
from workstead.core.run_start import checked, end_kept_sandbox, make_ready, start, starting_event
from workstead.core.runs import NOT_STARTED_CODE, get, record_end
from workstead.errors import StoreUnavailable, WorksteadError
from workstead.model.event import RunFailed
from workstead.model.run import Run
from workstead.system.files.durable import sync_trees

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.core.gate import Gate
    from workstead.core.home import Home
    from workstead.core.run_start import Runner
    from workstead.core.runs import RunSpec
    from workstead.model.workspace import Workspace
    from workstead.system.process.supervisor import Result
STORE_SECONDS = 600.0  # that long a runner tries to record the end of its run; then whoever opens the home does
RETRY_SECONDS = 5.0


def run(
    home: Home,
    workspace_id: str,
    spec: RunSpec,
    *,
    runner: Runner | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Run:
    """Start a command in a workspace and give the run, which goes on by itself.

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
    """Give a run that was asked for together with its workspace its end, because the workspace could not be filled."""
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


def _crash_log(home_path: str, run_id: str) -> tuple[str, str]:
    """The file in which the supervisor of a run leaves its traceback, and the title of its entry."""
    return f"{home_path}/runs/{run_id}/supervisor.log", f"supervisor of {run_id},"


def _take_notes(home: Home, workspace: Workspace) -> None:
    """Note what the run's changes lie over in the user's folder: later the user may have moved or deleted it."""
    from workstead.core.states import place_of_state

    with suppress(OSError):  # notes are a help: an apply does without, and what a run did is recorded in any case
        overlay = place_of_state(home, workspace).overlay
        if overlay is not None and overlay.stack.fixed_ns:
            from workstead.snapshots.notes import take_notes
            from workstead.snapshots.origins import Origins

            with Origins(overlay) as origins:
                take_notes(overlay, origins)


def _until_the_store_is_back(act: Callable[[], None], directory: str) -> None:
    """Do it, again and again while the store is away; gives up after STORE_SECONDS, or when the run's directory goes.

    The result stays in that directory: whoever settles the run later records it."""
    end = time.monotonic() + STORE_SECONDS
    pause = 0.1
    while True:
        try:
            act()
            return
        except StoreUnavailable:
            if time.monotonic() >= end or not os.path.isdir(directory):
                raise
        if pause == 0.1:  # from here on nobody but the disk knows how it ended
            with suppress(OSError):
                sync_trees(directory)
        time.sleep(pause)
        pause = min(pause * 2, RETRY_SECONDS)


def _record_result(home: Home, run_id: str, result: Result, snapshot_after: str | None = None) -> None:
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
