"""A running virtual machine of a workspace."""

from __future__ import annotations

from workstead.model.value import Value


class Mounted(Value):
    """A workspace in a running virtual machine."""

    workspace_id: str
    mode: str  # vm/kvm or vm/tcg
    public_mount: str  # its path in the guest
    memory_mb: int
    cpus: int
    started_at: float
    warm: bool  # started from a saved VM state
    busy: bool  # whether a command is running in it
    pid: int  # of the VM daemon
    notes: tuple[str, ...] = ()
