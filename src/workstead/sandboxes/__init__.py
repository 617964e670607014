"""Sandboxes: drivers that confine a run.

A driver is a module that declares its promises, probes whether this host supports it, and opens a cell: a handle that
turns a command into a confined launch. `system/process/spawn.py` starts all of them. An unsupported request raises
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
        """The interface of a driver module."""

        PROMISES: Promises

        def probe(self) -> str | None:
            """Return why this host does not support the sandbox, with the remedy; None if it does."""

        def enter(self, confinement: Confinement) -> AbstractContextManager[Cell]:
            """Open a cell around a workspace. Raise `SandboxUnavailable`, `Invalid` or `NotADirectory`."""

    class Cell(Protocol):
        """An open confinement; commands are launched in it one after the other or concurrently."""

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
            """Return how to start the command in the cell.

            `first` makes it process 1 of its namespace, which dies with it; `pass_on` are descriptors that it gets as
            4, 5 and so on.
            """

        def serve(self, listener: int, *, idle_seconds: float, rlimits: Sequence[tuple[int, int]] = ()) -> Launch:
            """Return how to start a command server in the cell, see `box.py`, for commands sent to the listener."""


class Promises(Value):
    """The guarantees that a driver enforces against a command that does not cooperate."""

    files: bool
    network: bool
    processes: bool
    kernel: bool  # a kernel of its own


class Mount(Value):
    """A host path that is mounted inside."""

    source: str
    target: str
    writable: bool = False
    executable: bool = True  # in a confinement without `executable`, only for named paths that are not writable


class Machines(Value):
    """Where and how the `vm` sandbox keeps its virtual machines."""

    directory: str  # of the running machines
    cache: str  # of the guest, and of saved states to start from
    owner: str  # the workspace's own id
    emulation: str = "refuse"  # without hardware: refuse or allow emulation; only: always emulate; or never
    memory_mb: int = 1024
    cpus: int | None = None
    idle_seconds: float = 600.0
    packages: str | None = None
    patience_seconds: float = 20.0


class Confinement(Value):
    """The files and resources that a command may use: the whole input of a driver."""

    workspace: str  # host path; ours, the agent cannot change its parents
    public_mount: str = "/mnt/workspace"
    directory: str = "work"  # working directory of commands, below the public mount
    read_only: tuple[str, ...] = (".aw",)  # names at the top of the workspace
    parts: tuple[str, ...] = ()  # directories at the top of the workspace that cannot be renamed or removed inside
    mounts: tuple[Mount, ...] = ()
    tools: tuple[str, ...] = ()  # directories mounted read-only at their own path: ~/.pyenv, ~/.nvm, ~/.cargo
    environment: dict[str, str] = {}
    network: str = "none"  # none, host, or proxy: only traffic that the proxy allows
    uid: int = 64042  # the user that runs the sandbox when root starts it
    gid: int = 64042
    executable: bool = True  # whether writable files can be executed: the workspace, /tmp, the home
    tmp_bytes: int = 2 << 30  # limit of each of /tmp, /dev/shm and the home
    hostname: str = "workstead"
    user: str = "agent"
    holder: int | None = None  # mount daemon of an ordinary user, in whose namespaces the overlay is mounted
    launcher: str = ""  # an absolute path that replaces the bwrap found
    limits: Limits = Limits()  # limits of the supervisor, for a sandbox that can enforce some itself
    machines: Machines | None = None  # for the sandbox `vm`
    room: str = ""  # commands with the same value share /tmp and the home, if the sandbox outlives its commands


def choose(kind: str, *, try_first: bool = True) -> Sandbox:
    """Return the driver of this name; `auto` is the strongest that works here and never `none`.

    Probing costs as much as using it: without `try_first` the last fallback is returned without a probe, and raises
    when it is used and does not work.
    """
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


# modules by name, imported on demand: a run needs one of them
SANDBOXES = {
    "none": "workstead.sandboxes.none",
    "bubblewrap": "workstead.sandboxes.bubblewrap",
    "vm": "workstead.sandboxes.vm.driver",  # by hardware; emulated if the settings allow it
    "vm/kvm": "workstead.sandboxes.vm.driver",
    "vm/tcg": "workstead.sandboxes.vm.driver",
}
AUTO = ("bubblewrap",)
