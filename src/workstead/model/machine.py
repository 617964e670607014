"""A virtual machine that is mounted around a workspace."""

from __future__ import annotations

from workstead.model.value import Value


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
