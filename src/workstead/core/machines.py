"""Stop and remove virtual machines that are kept between commands."""

from __future__ import annotations

from workstead.core import runs
from workstead.errors import WorksteadError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home
    from workstead.model.workspace import Workspace

LET_GO_SECONDS = 2.0


def stop_idle(home: Home, workspace: Workspace) -> None:
    """Stop the idle virtual machines of a workspace."""
    import os

    root = runs.machines_path(home)
    if not os.path.isdir(root):
        return
    from workstead.sandboxes.vm import machines as kept

    for machine in kept.find_all(root, workspace.uid):
        if not kept.is_used(root, machine.name, wait_seconds=LET_GO_SECONDS):
            kept.stop(root, machine.name)


def forget(home: Home, workspace: Workspace) -> None:
    """Stop the virtual machines of a workspace that is being removed, and delete their files."""
    from workstead.sandboxes.vm import machines as kept

    kept.forget(runs.machines_path(home), workspace.uid)


def probe(home: Home) -> tuple[bool, str]:
    """Return whether a virtual machine can be started here, and how: with hardware support or emulated."""
    from workstead.sandboxes.vm import driver, guest

    asked = runs.machines_of(home, "", "vm")
    try:
        emulated = driver.is_emulated(asked, home.settings.sandbox.uid)
    except WorksteadError as error:
        return False, error.message
    built = guest.find(asked.cache)
    how = "emulated, as sandbox.vm_emulation allows" if emulated else "by hardware"
    return True, f"{how}; guest: {built.version if built else 'built by the first run, or by aw vm build'}"
