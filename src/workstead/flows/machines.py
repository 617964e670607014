"""Virtual machines of the sandbox `vm`: list them, start one in advance, stop one.

A run starts the machine it needs, and the machine is kept for the next run; starting it in advance only saves the first
command the wait. The log has the runs of a machine; the machine itself records no event.
"""

from __future__ import annotations

from workstead.core import lookup, runs
from workstead.core.machines import LET_GO_SECONDS
from workstead.errors import SandboxUnavailable, WorkspaceBusy
from workstead.model.machine import Mounted
from workstead.model.text import word
from workstead.verbs import run as running

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.core.home import Home


def machines(home: Home, workspace_id: str | None = None, *, wait_seconds: float = 0.0) -> list[Mounted]:
    """Return the existing machines, of one workspace or of all; `wait_seconds` waits for one to be idle."""
    from workstead.sandboxes.vm import machines as kept

    wanted = lookup.get(home, workspace_id).uid if workspace_id else ""
    root = runs.machines_path(home)
    found = []
    for machine in kept.find_all(root, wanted):
        workspace = lookup.by_uid(home, machine.name.partition(".")[0])
        found.append(
            Mounted(
                workspace_id=workspace.id,
                mode=machine.mode,
                public_mount=machine.public_mount,
                memory_mb=machine.memory_mb,
                cpus=machine.cpus,
                started_at=machine.started_at,
                warm=machine.warm,
                busy=kept.is_used(root, machine.name, wait_seconds=wait_seconds),
                pid=machine.pid,
                notes=machine.notes,
            )
        )
    return found


def mount(
    home: Home, workspace_id: str, *, sandbox: str = "vm", progress: Callable[[str], None] = lambda _: None
) -> list[Mounted]:
    """Start a machine for the workspace, by a run of `true` in it. Raises SandboxUnavailable with the reason."""
    spec = runs.RunSpec(command=["true"], sandbox=sandbox, concurrent=True)
    started = running.run(home, workspace_id, spec, progress=progress)
    done = runs.wait(home, started.id)
    if done.exit_code != 0:
        error = done.error or {}
        raise SandboxUnavailable(str(error.get("message") or done.reason), hint=str(error.get("hint", "")))
    return machines(home, workspace_id, wait_seconds=LET_GO_SECONDS)


def unmount(home: Home, workspace_id: str) -> list[Mounted]:
    """Stop the machines of a workspace and return them; raises WorkspaceBusy while a command runs in one."""
    from workstead.sandboxes.vm import machines as kept

    workspace = lookup.get(home, workspace_id)
    found = machines(home, workspace_id)
    root = runs.machines_path(home)
    for machine in kept.find_all(root, workspace.uid):
        if kept.is_used(root, machine.name, wait_seconds=LET_GO_SECONDS):
            raise WorkspaceBusy(
                f"a command runs in a machine of {workspace.id}", hint=f"aw runs {word(workspace.id)}, then aw stop RUN"
            )
        kept.stop(root, machine.name)
    return found


def build(home: Home, *, progress: Callable[[str], None] = lambda _: None) -> str:
    """Prepare the guest image of the machines, also after an earlier failure; return the guest's kernel.

    Raises SandboxUnavailable with the remedy if there is no guest.
    """
    from workstead.sandboxes.vm import driver

    asked = runs.machines_of(home, "", "vm")
    ready = driver.make_ready(asked, home.settings.sandbox.uid, progress, again=True)
    return ready.guest.version
