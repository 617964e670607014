"""Control groups (cgroups): limits for all processes of a run together, and a list of them that they cannot escape.

Both versions are supported, because distributions mix them: a version 1 hierarchy per controller, one version 2
hierarchy for the rest. A run's group is made beneath our own group, so that limits on us apply to it too. Version 2
allows processes only in leaves; if our own group therefore cannot have children with controllers, the group is made in
the nearest ancestor that delegates them, as a sibling of ours.
"""

from __future__ import annotations

import contextlib
import os
import time
from errno import EBUSY, ENOENT, ESRCH

from workstead.model.enforcement import Limits
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SIGKILL = 9
# freezer is a controller in version 1 only; in version 2 any group can freeze
_CONTROLLERS = ("memory", "pids", "cpu", "freezer")
_CPU_PERIOD = 100_000  # microseconds


class Group(Value):
    """The directories of one run's control group, one in each hierarchy that it uses."""

    name: str
    directories: dict[str, str]  # controller -> directory; those of version 2 share one
    version: dict[str, int]  # controller -> 1 or 2

    @property
    def paths(self) -> tuple[str, ...]:
        """Return every directory once."""
        return tuple(dict.fromkeys(self.directories.values()))


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _unescape(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def find_parents(proc: str = "/proc/self") -> dict[str, tuple[int, str]]:
    """Return, for each mounted controller, the version and the directory of our own group."""
    mounts: list[
        tuple[str, str, set[str]]
    ] = []  # (root within the hierarchy, mount point, controllers; {""} is version 2)
    for line in _read(f"{proc}/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        if kind in ("cgroup", "cgroup2"):
            root, point = (_unescape(field) for field in fields.split()[3:5])
            mounts.append((root, point, {""} if kind == "cgroup2" else set(options.split()[-1].split(","))))
    found: dict[str, tuple[int, str]] = {}
    for line in _read(f"{proc}/cgroup").splitlines():
        _, controllers, own = line.split(":", 2)
        for root, point, names in mounts:
            if not names & set(controllers.split(",")):
                continue
            inside = own.removeprefix(root.rstrip("/")) if own.startswith(root.rstrip("/")) else "/"
            directory = os.path.normpath(point + inside)
            if controllers:
                found.update({name: (1, directory) for name in controllers.split(",") if name in _CONTROLLERS})
            else:
                found.update(_handed_out(point, directory, found))
    return found


def _handed_out(point: str, directory: str, taken: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Return the version 2 groups in which we can make a group with controllers: our own, or the nearest ancestor."""
    wanted = [name for name in _CONTROLLERS if name not in taken]
    while directory.startswith(point):
        ready = _read(f"{directory}/cgroup.subtree_control").split()
        for name in wanted:
            if name not in ready and name in _read(f"{directory}/cgroup.controllers").split():
                with contextlib.suppress(OSError):  # EBUSY: it contains processes; EACCES: not ours
                    _write(f"{directory}/cgroup.subtree_control", f"+{name}")
        ready = _read(f"{directory}/cgroup.subtree_control").split()
        if any(name in ready for name in wanted) and os.access(directory, os.W_OK):
            return {name: (2, directory) for name in wanted if name in ready}
        if directory == point:
            break
        directory = os.path.dirname(directory)
    return {}


def _settings(limits: Limits, controller: str, version: int) -> list[tuple[str, str]]:
    """Return the files to write with their values, in order; a file with a question mark may be missing."""
    if controller == "memory" and limits.memory_bytes is not None:
        size = str(limits.memory_bytes)
        if version == 1:
            return [("memory.limit_in_bytes", size), ("memory.memsw.limit_in_bytes?", size)]
        return [("memory.max", size), ("memory.swap.max?", "0"), ("memory.oom.group?", "1")]
    if controller == "pids" and limits.processes is not None:
        return [("pids.max", str(limits.processes))]
    if controller == "freezer" and limits.stops_at_quota:
        return [("freezer.state", "THAWED")]
    if controller == "cpu" and limits.cpus is not None:
        quota = str(max(1000, int(limits.cpus * _CPU_PERIOD)))
        if version == 1:
            return [("cpu.cfs_period_us", str(_CPU_PERIOD)), ("cpu.cfs_quota_us", quota)]
        return [("cpu.max", f"{quota} {_CPU_PERIOD}")]
    return []


def make(name: str, limits: Limits, parents: dict[str, tuple[int, str]] | None = None, *, listed: bool = True) -> Group:
    """Make a group that enforces as many of the limits as possible; an unavailable controller is not in the group.

    Without limits, one hierarchy is used, if the processes are to be `listed`. No more than needed: entering a version
    2 group waits for the kernel's RCU grace period, some 10 ms."""
    group = Group(name=name, directories={}, version={})
    found = find_parents() if parents is None else parents
    wanted = [controller for controller, (version, _) in found.items() if _settings(limits, controller, version)]
    for controller in wanted or sorted(found)[-1:] if listed else wanted:
        version, parent = found[controller]
        directory = f"{parent}/{name}"
        try:
            if directory not in group.paths:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(directory, 0o755)
            for file, text in _settings(limits, controller, version):
                optional = file.endswith("?")
                try:
                    _write(f"{directory}/{file.rstrip('?')}", text)
                except OSError:
                    if not optional:
                        raise
        except OSError:
            if directory not in group.paths:
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
            continue
        group.directories[controller] = directory
        group.version[controller] = version
    return group


def processes(group: Group) -> set[int]:
    """Return the ids of all processes in the group."""
    return {int(line) for path in group.paths for line in _read(f"{path}/cgroup.procs").split()}


def can_freeze(group: Group) -> bool:
    """Return whether all processes of the group can be frozen at once."""
    return "freezer" in group.directories or 2 in group.version.values()


def start_freezing(group: Group) -> None:
    """Ask the kernel to freeze every process of the group; `is_frozen` returns True when it is done."""
    for path in group.paths:
        for name, text in (("freezer.state", "FROZEN"), ("cgroup.freeze", "1")):
            with contextlib.suppress(OSError):
                _write(f"{path}/{name}", text)


def is_frozen(group: Group) -> bool:
    """Return whether all processes of the group are frozen; a system call continues until it leaves the kernel."""
    if directory := group.directories.get("freezer"):
        return _read(f"{directory}/freezer.state").strip() == "FROZEN"
    return any(_field(_read(f"{path}/cgroup.events"), "frozen") for path in group.paths)


def thaw(group: Group) -> None:
    """Resume every process of the group."""
    for path in group.paths:
        for name, text in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            with contextlib.suppress(OSError):
                _write(f"{path}/{name}", text)


def kill(group: Group, *, wait_seconds: float = 5.0) -> bool:
    """Kill until no process is left; return False if one remains (in an uninterruptible wait) after the timeout."""
    end = time.monotonic() + wait_seconds
    pause = 0.0005
    thaw(group)  # in version 1 a frozen process does not die
    for path in group.paths:
        with contextlib.suppress(OSError):  # version 2 since Linux 5.14: kills all at once, including forks
            _write(f"{path}/cgroup.kill", "1")
    while left := processes(group):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, SIGKILL)
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return True


def remove(group: Group, *, wait_seconds: float = 2.0) -> bool:
    """Remove the empty group; retry while a dying process keeps it busy."""
    end = time.monotonic() + wait_seconds
    for path in group.paths:
        while True:
            try:
                os.rmdir(path)
            except OSError as error:
                if error.errno in (ENOENT, ESRCH):
                    break
                if error.errno != EBUSY or time.monotonic() > end:
                    return False
                time.sleep(0.002)
            else:
                break
    return True


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def usage(group: Group) -> dict[str, int]:
    """Return counters of the limits: `oom_kills`, `refused_forks`, `throttled_periods`; a missing one is unknown."""
    found: dict[str, int] = {}
    if memory := group.directories.get("memory"):
        events = "memory.oom_control" if group.version["memory"] == 1 else "memory.events"
        found["oom_kills"] = _field(_read(f"{memory}/{events}"), "oom_kill")
        peak = _read(
            f"{memory}/{'memory.max_usage_in_bytes' if group.version['memory'] == 1 else 'memory.peak'}"
        ).strip()
        if peak.isdigit():
            found["peak_memory_bytes"] = int(peak)
    if pids := group.directories.get("pids"):
        found["refused_forks"] = _field(_read(f"{pids}/pids.events"), "max")
    if cpu := group.directories.get("cpu"):
        found["throttled_periods"] = _field(_read(f"{cpu}/cpu.stat"), "nr_throttled")
    return found


def find(name: str, parents: dict[str, tuple[int, str]] | None = None) -> Group:
    """Return the remaining group of a run whose supervisor died, to be killed and removed."""
    group = Group(name=name, directories={}, version={})
    for controller, (version, parent) in (find_parents() if parents is None else parents).items():
        if os.path.isdir(f"{parent}/{name}"):
            group.directories[controller] = f"{parent}/{name}"
            group.version[controller] = version
    return group
