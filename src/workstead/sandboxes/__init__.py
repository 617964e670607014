"""What confines a run.

A driver is a module that says what it promises, whether this host can, and gives a cell: a handle that turns a command
into a confined launch. `system/process/spawn.py` starts them all. What was asked for and cannot be had is
`SandboxUnavailable`; a cell is never weaker than its promises.
"""

from __future__ import annotations

from workstead.errors import Invalid, SandboxUnavailable
from workstead.model.enforcement import Enforcement, Limits
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from typing import Protocol

    from workstead.system.process.spawn import Launch

    class Sandbox(Protocol):
        """What a driver module offers."""

        PROMISES: Promises

        def probe(self) -> str | None:
            """Say why this host cannot, with the remedy; None if it can."""

        def enter(self, confinement: Confinement) -> AbstractContextManager[Cell]:
            """Open a cell around a workspace. Raises `SandboxUnavailable`, `Invalid`, `NotADirectory`."""

    class Cell(Protocol):
        """An open confinement; commands are launched in it one at a time or side by side."""

        enforcement: Enforcement

        def launch(
            self,
            argv: Sequence[str],
            *,
            rlimits: Sequence[tuple[int, int]] = (),
            terminal: bool = False,
            first: bool = False,
            pass_on: Sequence[int] = (),
        ) -> Launch:
            """How to start the command in here. `first` makes it process 1 of its namespace, which dies with it;
            `pass_on` are descriptors that it gets as 4, 5 and so on."""

        def serve(self, listener: int, *, idle_seconds: float, rlimits: Sequence[tuple[int, int]] = ()) -> Launch:
            """How to start a box in here: a server, see `box.py`, of the commands that come to the listener."""


class Promises(Value):
    """What a driver enforces, against a command that does not cooperate."""

    files: bool
    network: bool
    processes: bool
    kernel: bool  # a kernel of its own


class Mount(Value):
    """A host path that is shown inside."""

    source: str
    target: str
    writable: bool = False
    executable: bool = True  # in a confinement that is not, only for what cannot be written and is named so


class Machines(Value):
    """Where and how the `vm` sandbox keeps its machines."""

    directory: str  # of the machines that run
    cache: str  # of the guest, and of states to start from
    owner: str  # whose machine it is: the workspace's own id
    emulation: str = "refuse"  # what to do without hardware: refuse, allow; or only, also with it; or never
    memory_mb: int = 1024
    cpus: int | None = None
    idle_seconds: float = 600.0
    packages: str | None = None
    patience_seconds: float = 20.0


class Confinement(Value):
    """What a command may see and use: all that a driver gets to know."""

    workspace: str  # host path; ours, its parents are not the agent's to change
    public_mount: str = "/mnt/workspace"
    directory: str = "work"  # where commands start, below the public mount
    read_only: tuple[str, ...] = (".aw",)  # names at the top of the workspace
    parts: tuple[str, ...] = ()  # directories at the top of the workspace that nobody inside can rename or remove
    mounts: tuple[Mount, ...] = ()
    tools: tuple[str, ...] = ()  # directories that appear read-only at their own path: ~/.pyenv, ~/.nvm, ~/.cargo
    environment: dict[str, str] = {}
    network: str = "none"  # none, host, or proxy: only what the proxy lets through
    uid: int = 64042  # the user behind the sandbox when root starts it
    gid: int = 64042
    executable: bool = True  # whether what the command can write can be executed: the workspace, /tmp, its home
    tmp_bytes: int = 2 << 30  # of /tmp, /dev/shm and the home together: each may take that much at most
    hostname: str = "workstead"
    user: str = "agent"
    holder: int | None = None  # the process of an ordinary user in whose namespaces the workspace's overlay is mounted
    launcher: str = ""  # an absolute path instead of the bwrap found
    limits: Limits = Limits()  # what the supervisor is asked to hold, for a sandbox that can hold some of it itself
    machines: Machines | None = None  # for the sandbox `vm`
    room: str = ""  # commands with the same word share /tmp and the home, where a sandbox outlives its commands


def choose(kind: str, *, try_first: bool = True) -> Sandbox:
    """The driver of this name; `auto` is the strongest that works here and never `none`.

    To try one costs as much as to use it: without `try_first` the last resort is taken untried, and says why it does
    not work when it is used."""
    if kind == "auto":
        reasons = []
        for name in AUTO:
            if name == AUTO[-1] and not try_first:
                return driver(name)
            reason = driver(name).probe()
            if reason is None:
                return driver(name)
            reasons.append(f"{name}: {reason}")
        raise SandboxUnavailable(
            f"no sandbox works here: {'; '.join(reasons)}", hint="aw doctor tells more; --sandbox none runs unconfined"
        )
    return driver(kind)


def driver(name: str) -> Sandbox:
    """Load one driver."""
    if name not in SANDBOXES:
        raise Invalid(f"there is no sandbox {name!r}", hint=f"one of: auto, {', '.join(SANDBOXES)}")
    from importlib import import_module

    module: Sandbox = import_module(SANDBOXES[name])
    return module


# modules by name, loaded when asked for: a run needs one of them
SANDBOXES = {
    "none": "workstead.sandboxes.none",
    "bubblewrap": "workstead.sandboxes.bubblewrap",
    "vm": "workstead.sandboxes.vm.driver",  # by hardware; emulated if the settings allow it
    "vm/kvm": "workstead.sandboxes.vm.driver",
    "vm/tcg": "workstead.sandboxes.vm.driver",
}
AUTO = ("bubblewrap",)
