"""The machines of the sandbox `vm`: which there are, and starting or ending one by itself.

A run starts the machine it needs, and it is kept for the next one: to mount a workspace beforehand only saves the
first command the wait. What a machine was used for is in the log as runs; the machine itself leaves no event.
"""

from __future__ import annotations

from workstead.errors import SandboxUnavailable, WorkspaceBusy, WorksteadError
from workstead.model.text import word
from workstead.model.value import Value
from workstead.verbs import run as running
from workstead.verbs import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.home import Home
    from workstead.model.workspace import Workspace


class Mounted(Value):
    """A workspace that is mounted in a machine."""

    workspace_id: str
    mode: str  # vm/kvm or vm/tcg
    public_mount: str  # where it is in there
    memory_mb: int
    cpus: int
    started_at: float
    warm: bool  # started from a saved state
    busy: bool  # whether a command runs in it
    pid: int  # of the process that keeps it
    notes: tuple[str, ...] = ()


LET_GO_SECONDS = 2.0


def machines(home: Home, workspace_id: str | None = None, *, wait_seconds: float = 0.0) -> list[Mounted]:
    """The machines that are there, of one workspace or of all; after waiting that long for one to be idle."""
    from workstead.system.vm import machines as kept

    wanted = show.get(home, workspace_id).uid if workspace_id else ""
    root = running.machines_path(home)
    found = []
    for machine in kept.find_all(root, wanted):
        workspace = show.by_uid(home, machine.name.partition(".")[0])
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
    """Have the workspace in a machine that is up: a run of `true` in it. SandboxUnavailable with the reason if not."""
    spec = running.RunSpec(command=["true"], sandbox=sandbox, concurrent=True)
    started = running.run(home, workspace_id, spec, progress=progress)
    done = running.wait(home, started.id)
    if done.exit_code != 0:
        error = done.error or {}
        raise SandboxUnavailable(str(error.get("message") or done.reason), hint=str(error.get("hint", "")))
    return machines(home, workspace_id, wait_seconds=LET_GO_SECONDS)


def unmount(home: Home, workspace_id: str) -> list[Mounted]:
    """End the machines of a workspace; WorkspaceBusy while a command runs in one. Gives those that ended."""
    from workstead.system.vm import machines as kept

    workspace = show.get(home, workspace_id)
    found = machines(home, workspace_id)
    root = running.machines_path(home)
    for machine in kept.find_all(root, workspace.uid):
        if kept.is_used(root, machine.name, wait_seconds=LET_GO_SECONDS):
            raise WorkspaceBusy(
                f"a command runs in a machine of {workspace.id}", hint=f"aw runs {word(workspace.id)}, then aw stop RUN"
            )
        kept.stop(root, machine.name)
    return found


def stop_idle(home: Home, workspace: Workspace) -> None:
    """End the machines of a workspace in which nothing runs."""
    import os

    root = running.machines_path(home)
    if not os.path.isdir(root):
        return
    from workstead.system.vm import machines as kept

    for machine in kept.find_all(root, workspace.uid):
        if not kept.is_used(root, machine.name, wait_seconds=LET_GO_SECONDS):
            kept.stop(root, machine.name)


def forget(home: Home, workspace: Workspace) -> None:
    """End the machines of a workspace that is going, and remove what they had."""
    from workstead.system.vm import machines as kept

    kept.forget(running.machines_path(home), workspace.uid)


def build(home: Home, *, progress: Callable[[str], None] = lambda _: None) -> str:
    """Make ready what machines start from, also where it failed before; gives the guest's kernel.

    SandboxUnavailable with the remedy if there is no guest."""
    from workstead.sandboxes import vm

    asked = running.machines_of(home, "", "vm")
    ready = vm.make_ready(asked, home.settings.sandbox.uid, progress, again=True)
    return ready.guest.version


def probe(home: Home) -> tuple[bool, str]:
    """Whether a machine can be started here, by hardware or emulated, and how."""
    from workstead.sandboxes import vm
    from workstead.system.vm import guest

    asked = running.machines_of(home, "", "vm")
    try:
        emulated = vm.is_emulated(asked, home.settings.sandbox.uid)
    except WorksteadError as error:
        return False, error.message
    built = guest.find(asked.cache)
    how = "emulated, as sandbox.vm_emulation allows" if emulated else "by hardware"
    return True, f"{how}; guest: {built.version if built else 'built by the first run, or by aw vm build'}"
