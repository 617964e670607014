"""The limits requested for a run and the mechanisms that enforced them: a value for the event, `aw show` and JSON."""

from __future__ import annotations

from workstead.model.value import Value

MIB = 1 << 20
GIB = 1 << 30


class Limits(Value):
    """Resource limits of one run; None is no limit."""

    wall_seconds: float | None = None
    grace_seconds: float = 5.0  # between SIGTERM and SIGKILL
    memory_bytes: int | None = None  # of all its processes, including files in /tmp and /dev/shm
    processes: int | None = None  # threads included
    open_files: int | None = None  # per process
    cpus: float | None = None
    file_bytes: int | None = None  # per file
    disk_bytes: int | None = None  # how much of the disk's free space it may use up while it runs
    disk_free_bytes: int | None = None  # free space below which the run is stopped
    quota_bytes: int | None = None  # total size of the workspace's own files
    quota_files: int | None = None
    output_bytes: int | None = 64 * MIB  # stored; further output is counted and dropped
    needs_cgroup: bool = (
        True  # require a control group for memory and processes; if False, a per-process rlimit is an accepted fallback
    )

    @property
    def stops_at_quota(self) -> bool:
        """Return whether the supervisor has to measure the workspace's size while it runs."""
        return self.quota_bytes is not None or self.quota_files is not None


class Enforcement(Value):
    """The confinement of a run: the mechanisms that enforced each restriction; an empty tuple means no restriction."""

    sandbox: str
    files: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    execute: tuple[str, ...] = ()  # mechanisms that block execution of workspace files, where the policy denies it
    limits: dict[str, tuple[str, ...]] = {}
    uid: int | None = None  # host user of the run; None is the user that started it
    landlock: int = 0  # Landlock ABI version found and used
    notes: tuple[str, ...] = ()  # warnings for the reader: weaker than usual, and why
