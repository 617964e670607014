"""Stop runs, and sandboxes that are kept between commands."""

from __future__ import annotations

import time

from workstead.core.runs import get, run_directory, settle, wait
from workstead.errors import WorkspaceBusy
from workstead.model.run import Run
from workstead.system.process import supervisor_client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from workstead.core.home import Home
    from workstead.model.workspace import Workspace


def sandbox_lock(uid: str) -> str:
    return f"box {uid}"


def make_way(home: Home, workspace: Workspace) -> None:
    """Stop an idle command server or virtual machine of the workspace, for a caller who needs it exclusively."""
    end_box(home, workspace)
    from workstead.core.machines import stop_idle

    stop_idle(home, workspace)


def end_box(home: Home, workspace: Workspace) -> None:
    """Stop the workspace's command server if it is idle; a busy one is left."""
    record = home.log.find_live("run", workspace.uid)
    if record is None or not record.get("box") or record["home"] != home.id:
        return
    try:
        with home.hold(sandbox_lock(workspace.uid), wait_seconds=0):
            stop(home, record["run_id"], at_once=True)
    except WorkspaceBusy:
        return


def is_idle(home: Home, box: Run) -> bool:
    """Return whether the command server is executing no command."""
    try:
        with home.hold(sandbox_lock(box.uid), wait_seconds=0):
            return True
    except WorkspaceBusy:
        return False


def stop(home: Home, run_id: str, *, at_once: bool = False, wait_seconds: float = 15.0) -> Run:
    """Stop a run: its whole process tree gets SIGTERM, then SIGKILL; a run that has ended is left as it is."""
    found = get(home, run_id)
    if not found.is_active:
        return found
    if found.box and not at_once:
        at_once = is_idle(home, found)  # its first process ignores SIGTERM
    if not supervisor_client.request_stop(run_directory(home, run_id), at_once=at_once):
        settle(home, run_id)
    return wait(home, run_id, timeout_seconds=wait_seconds)


def stop_all(home: Home, run_ids: Sequence[str], *, grace_seconds: float, seconds: float) -> None:
    """Stop these runs concurrently: signal all, and kill the remaining ones after the grace period."""
    end = time.monotonic() + seconds
    left = [run_id for run_id in run_ids if get(home, run_id).is_active]
    for run_id in left:
        if not supervisor_client.request_stop(run_directory(home, run_id)):
            settle(home, run_id)
    kill_at = time.monotonic() + grace_seconds
    killed = False
    while left and time.monotonic() < end:
        left = [run_id for run_id in left if get(home, run_id).is_active]
        if not killed and time.monotonic() >= kill_at:
            killed = True
            for run_id in left:
                supervisor_client.request_stop(run_directory(home, run_id), at_once=True)
        time.sleep(0.01 if left else 0)
