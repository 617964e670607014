"""Control groups: limits that hold for all processes of a run together, and a list of them that cannot be escaped.

Both versions, because distributions mix them: a hierarchy of version 1 per controller, one hierarchy of version 2 for
the rest. A run's group is made beneath the group we live in, so that whatever holds us holds it too. Version 2 allows
processes only in leaves; where our own group therefore cannot have children with controllers, the nearest ancestor
that has handed them out is taken, as a sibling of ours.
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
_CONTROLLERS = ("memory", "pids", "cpu", "freezer")  # the last is one in version 1 only; in version 2 any group can
_CPU_PERIOD = 100_000  # microseconds


class Group(Value):
    """The directories of one run's group, one in each hierarchy that it uses."""

    name: str
    directories: dict[str, str]  # controller -> directory; those of version 2 share one
    version: dict[str, int]  # controller -> 1 or 2

    @property
    def paths(self) -> tuple[str, ...]:
        """Every directory once."""
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
    """For each controller that is mounted: the version and the directory of our own group."""
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
    """Where version 2 lets us make a group with controllers: our own group, or the nearest ancestor that has some."""
    wanted = [name for name in _CONTROLLERS if name not in taken]
    while directory.startswith(point):
        ready = _read(f"{directory}/cgroup.subtree_control").split()
        for name in wanted:
            if name not in ready and name in _read(f"{directory}/cgroup.controllers").split():
                with contextlib.suppress(OSError):  # EBUSY: has processes of its own; EACCES: not ours
                    _write(f"{directory}/cgroup.subtree_control", f"+{name}")
        ready = _read(f"{directory}/cgroup.subtree_control").split()
        if any(name in ready for name in wanted) and os.access(directory, os.W_OK):
            return {name: (2, directory) for name in wanted if name in ready}
        if directory == point:
            break
        directory = os.path.dirname(directory)
    return {}


def _settings(limits: Limits, controller: str, version: int) -> list[tuple[str, str]]:
    """Files to write, in order; a name with a question mark may be missing."""
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
    """Make a group that holds what can be held of the limits; a controller that cannot be had is not in the group.

    Without limits there is one hierarchy, if the processes are to be `listed`. No more than needed: entering a group
    of version 2 waits for the kernel's grace period, some 10 ms."""
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
    """The ids of all processes in the group."""
    return {int(line) for path in group.paths for line in _read(f"{path}/cgroup.procs").split()}


def can_freeze(group: Group) -> bool:
    """Whether all processes of the group can be stopped at once."""
    return "freezer" in group.directories or 2 in group.version.values()


def start_freezing(group: Group) -> None:
    """Ask the kernel to stop every process of the group; `is_frozen` tells when it is done."""
    for path in group.paths:
        for name, text in (("freezer.state", "FROZEN"), ("cgroup.freeze", "1")):
            with contextlib.suppress(OSError):
                _write(f"{path}/{name}", text)


def is_frozen(group: Group) -> bool:
    """Whether nothing in the group runs any more; what is in the kernel goes on until it leaves it."""
    if directory := group.directories.get("freezer"):
        return _read(f"{directory}/freezer.state").strip() == "FROZEN"
    return any(_field(_read(f"{path}/cgroup.events"), "frozen") for path in group.paths)


def thaw(group: Group) -> None:
    """Let every process of the group go on."""
    for path in group.paths:
        for name, text in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            with contextlib.suppress(OSError):
                _write(f"{path}/{name}", text)


def kill(group: Group, *, wait_seconds: float = 5.0) -> bool:
    """Kill until nothing is left; False if something still lingers (in an uninterruptible wait) when time is up."""
    end = time.monotonic() + wait_seconds
    pause = 0.0005
    thaw(group)  # in version 1 nothing that is frozen dies
    for path in group.paths:
        with contextlib.suppress(OSError):  # version 2 since Linux 5.14: all of them in one stroke, forks included
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
    """Remove the empty group; a dying process keeps it busy for a moment."""
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
    """What happened at the limits: `oom_kills`, `refused_forks`, `throttled_periods`; absent is unknown."""
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
    """The group of a run whose supervisor died: what is left of it, to be killed and removed."""
    group = Group(name=name, directories={}, version={})
    for controller, (version, parent) in (find_parents() if parents is None else parents).items():
        if os.path.isdir(f"{parent}/{name}"):
            group.directories[controller] = f"{parent}/{name}"
            group.version[controller] = version
    return group
