"""What a run was asked to keep to, and by what it was held: a value for the event, `aw show` and JSON."""

from __future__ import annotations

from workstead.model.value import Value

MIB = 1 << 20
GIB = 1 << 30


class Limits(Value):
    """What one run may use; None is no limit."""

    wall_seconds: float | None = None
    grace_seconds: float = 5.0  # between SIGTERM and SIGKILL
    memory_bytes: int | None = None  # of all its processes, files in /tmp and /dev/shm included
    processes: int | None = None  # threads count
    open_files: int | None = None  # of each process
    cpus: float | None = None
    file_bytes: int | None = None  # of each file
    disk_bytes: int | None = None  # how far the free space of the workspace's disk may fall while it runs
    disk_free_bytes: int | None = None  # the free space below which it is stopped
    quota_bytes: int | None = None  # what the workspace may take in all, its own files only
    quota_files: int | None = None
    output_bytes: int | None = 64 * MIB  # kept; what comes after is counted and dropped
    needs_cgroup: bool = (
        True  # memory and processes by a control group, or not at all; else a per-process rlimit will do
    )

    @property
    def stops_at_quota(self) -> bool:
        """Whether somebody has to watch what the workspace takes."""
        return self.quota_bytes is not None or self.quota_files is not None


class Enforcement(Value):
    """Which walls stood around a run, each by the names of what held it; an empty tuple is no wall."""

    sandbox: str
    files: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    execute: tuple[str, ...] = ()  # what keeps files of the workspace from being executed, where its policy denies that
    limits: dict[str, tuple[str, ...]] = {}
    uid: int | None = None  # the host's user behind the run; None is whoever started it
    landlock: int = 0  # version of the interface found and used
    notes: tuple[str, ...] = ()  # what a reader should know: weaker than usual, and why
