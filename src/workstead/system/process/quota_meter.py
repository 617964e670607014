"""Quota meter: enforce a workspace's disk quota during a run, on a file system without quotas.

The meter polls free space, which costs a microsecond and limits how much can have been written since the workspace was
last measured. When that could exceed the quota, the meter freezes all processes of the run, measures the workspace, and
resumes them. Other writers on the same disk cause additional measurements, never a wrong verdict.

Over the quota the run goes on with RLIMIT_FSIZE 0: the kernel then refuses every write, append, truncation and copy
that would make a file longer (EFBIG), to every process and to all its children. Deleting works, and when enough is
deleted the limit is lifted again. Only the soft limit is set, which a process of the same user could raise again; the
sandbox prevents that (see `seccomp`).

The count includes files with a name, and files without one that processes of the run hold open (see `nameless`). If
they hold something that cannot be measured, all space that the disk has lost since the run began counts as theirs; a
directory that cannot be read counts as a full workspace. So hiding files gains nothing.

Some growth is not stopped by a file size limit: names without content, stores into the holes of a mapped file, a copy
that the kernel is executing. The meter watches for it, and kills a run that grows by another 2 %. fallocate can reserve
any amount in one call, also beyond a file's end where no limit counts: the sandbox blocks it.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import time
from ctypes import c_int

from workstead.model.value import Value
from workstead.system.files.nameless import nameless
from workstead.system.kernel import cgroups
from workstead.system.kernel.libc import syscall
from workstead.system.process import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workstead.system.files.measure import Measured

WARN_SHARE = 0.8
FULL_SHARE = 0.99  # growth is refused from here on: a little more is written between the check and the freeze
LIFT_SHARE = 0.95
GRACE_SHARE, GRACE_BYTES, GRACE_FILES = 0.02, 1 << 20, 100  # allowed excess over the limit, whichever is more
_BYTES_PER_SECOND = 2 << 30  # the most that one processor writes into memory
_FILES_PER_SECOND = 200_000
_SHORTEST, _LONGEST = 0.001, 0.25
_FREEZE_SECONDS = 2.0
_SIGSTOP = 19
_CALLS = {"x86_64": (117, 119), "aarch64": (147, 149)}  # setresuid, setresgid


class Allowed(Value):
    """The quota of a workspace, and the disk that it is on."""

    measure: Callable[[], Measured]  # measures the workspace exactly
    disk: str  # a directory of its file system that no process inside can remove
    max_bytes: int | None = None
    max_files: int | None = None
    file_bytes: int | None = None  # maximum size of each file while the workspace is below its quota


class Meter:
    """Watch one run from a separate thread, from the start of the command until `stop`."""

    def __init__(self, allowed: Allowed, group: cgroups.Group, report: Callable[[bytes, Measured], object]) -> None:
        """`report` is called in the thread with an event: warned, exceeded, freed, over (the run was killed)."""
        self._allowed = allowed
        self._group = group
        self._pid = 0  # of the launcher: its descendants are the run
        self._began: tuple[int, int] | None = None  # bytes of the workspace and free bytes of the disk at the start
        self._report = report
        self._is_over = False
        self._told = _thread.allocate_lock()  # locked until `stop` is called
        self._done = _thread.allocate_lock()  # locked until the thread has ended
        self._refusing = False
        self._allowed_excess = 1.0  # in units of the grace
        self._warned = False

    @property
    def means(self) -> tuple[str, ...]:
        """Return the mechanisms that enforce the quota, for the run's enforcement record."""
        version = next((f"cgroup v{number}" for number in sorted(self._group.version.values())), "")
        freezer = f"{version} freezer" if cgroups.can_freeze(self._group) else "stop signals"
        return ("metering", freezer, "rlimit")

    def follow(self, pid: int) -> None:
        """Set the process to watch: the launcher, with all its descendants."""
        self._pid = pid

    def measure_first(self) -> None:
        """Measure the initial state while the sandbox is being built; writes during the measurement are not missed."""
        self._measure()

    def start(self) -> None:
        """Start the watching thread."""
        self._done.acquire()
        self._told.acquire()
        _thread.start_new_thread(self._watch, ())

    def stop(self) -> None:
        """Stop the thread and wait for its end: no process is frozen afterwards."""
        self._told.release()
        self._done.acquire()

    # -- the loop --

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            # for this thread: a run with a hundred processes must not outrun it
            os.setpriority(os.PRIO_PROCESS, 0, -15)
        try:
            pause = self._decide() if self._share(self._last) >= WARN_SHARE else 0.0
            while not self._is_over and not self._told.acquire(timeout=pause):
                pause = self._look()
        except Exception:  # any error: a run without its meter must not go on
            self._kill()
            self._report(b"lost", self._last)
        finally:
            self._done.release()

    def _look(self) -> float:
        """Estimate usage, measure if it may have crossed a limit, and return the seconds until the next check."""
        byte_room, file_room = self._rooms()  # room left until growth is refused
        # measure for a tenth of the time
        is_time = time.monotonic() >= self._measured_at + 10 * self._measuring_seconds
        if self._refusing:
            grace, grace_files = self._graces()
            grows_on = byte_room < -grace * self._allowed_excess or file_room < -grace_files * self._allowed_excess
            if grows_on or (is_time and time.monotonic() >= self._measured_at + 0.05):
                return self._decide()
            return self._pause(0, 0)
        if (
            byte_room <= 0
            or file_room <= 0
            or (is_time and not self._warned and self._could_warn(byte_room, file_room))
        ):
            return self._decide()
        return self._pause(byte_room, file_room)

    def _decide(self) -> float:
        """Freeze, measure and decide: a run could write a lot while a large workspace is measured."""
        with self._frozen() as stopped:
            if not stopped:
                return self._end()
            return self._judge(self._measure())

    def _estimate(self) -> tuple[int, int]:
        """Return the bytes and files in use, assuming that all space lost on the disk since was taken by the run."""
        disk = os.statvfs(self._allowed.disk)
        return (
            self._last.bytes + max(0, self._free - disk.f_bfree * disk.f_frsize),
            self._last.inodes + max(0, self._free_files - disk.f_ffree),
        )

    def _rooms(self) -> tuple[float, float]:
        """Return the estimated bytes and files left until growth is refused."""
        size, files = self._estimate()
        most, most_files = self._allowed.max_bytes, self._allowed.max_files
        return (
            float("inf") if most is None else most * FULL_SHARE - size,
            float("inf") if most_files is None else most_files * FULL_SHARE - files,
        )

    def _graces(self) -> tuple[float, float]:
        """Return the bytes and files allowed over each limit before the run is killed."""
        most, most_files = self._allowed.max_bytes or 0, self._allowed.max_files or 0
        return max(GRACE_BYTES, most * GRACE_SHARE), max(GRACE_FILES, most_files * GRACE_SHARE)

    def _excess(self, size: int, files: int) -> float:
        """Return how far this is over the limits, in units of the grace."""
        most, most_files = self._allowed.max_bytes, self._allowed.max_files
        grace, grace_files = self._graces()
        return max(
            0.0 if most is None else (size - most) / grace,
            0.0 if most_files is None else (files - most_files) / grace_files,
        )

    def _could_warn(self, byte_room: float, file_room: float) -> bool:
        most, most_files = self._allowed.max_bytes, self._allowed.max_files
        return (most is not None and byte_room <= most * (1 - WARN_SHARE)) or (
            most_files is not None and file_room <= most_files * (1 - WARN_SHARE)
        )

    def _pause(self, byte_room: float, file_room: float) -> float:
        """Return half the time in which the remaining room and the grace could be used up."""
        rate = _BYTES_PER_SECOND * (os.cpu_count() or 1)
        grace, grace_files = self._graces()
        seconds = min((byte_room + grace) / rate, (file_room + grace_files) / _FILES_PER_SECOND) / 2
        return max(_SHORTEST, min(_LONGEST, seconds))

    def _measure(self) -> Measured:
        """Measure the workspace, and remember the free space as the reference for later estimates."""
        began = time.monotonic()
        disk = os.statvfs(self._allowed.disk)  # before measuring: concurrent writes count twice rather than never
        self._free, self._free_files = disk.f_bfree * disk.f_frsize, disk.f_ffree
        self._last = self._with_hidden(self._allowed.measure())
        self._measured_at = time.monotonic()
        self._measuring_seconds = self._measured_at - began
        return self._last

    def _with_hidden(self, named: Measured) -> Measured:
        """Add files without a name that the processes hold open."""
        if self._began is None:
            self._began = named.bytes, self._free
        held = nameless(self._processes())
        size = named.bytes + held.bytes
        if not held.complete:
            size = max(size, self._began[0] + self._began[1] - self._free)
        return named.replace(bytes=size, files=named.files + held.files)

    # -- decisions --

    def _share(self, found: Measured) -> float:
        """Return the used share of the tighter limit; an unreadable directory counts as full."""
        most, most_files = self._allowed.max_bytes, self._allowed.max_files
        return max(
            1.0 if found.unreadable else 0.0,
            0.0 if most is None else found.bytes / max(1, most),
            0.0 if most_files is None else found.inodes / max(1, most_files),
        )

    def _judge(self, found: Measured) -> float:
        share = self._share(found)
        if share < WARN_SHARE:
            self._warned = False
        elif not self._warned:
            self._warned = True
            self._report(b"warned", found)
        if self._refusing and self._excess(found.bytes, found.inodes) > self._allowed_excess:
            return self._end()
        if self._refusing and share < LIFT_SHARE:
            self._refusing = False
            self._set_file_limit(self._allowed.file_bytes)
            self._report(b"freed", found)
        elif not self._refusing and share >= FULL_SHARE:
            self._refusing = True
            # Bytes written between the check and the freeze are not growth after the refusal.
            self._allowed_excess = max(0.0, self._excess(found.bytes, found.inodes)) + 1
            self._set_file_limit(0)
            self._report(b"exceeded", found)
        return self._pause(0, 0) if self._refusing else self._pause(*self._rooms())

    def _end(self) -> float:
        """Kill a run that keeps growing by ways that no limit stops."""
        self._is_over = True
        self._kill()
        self._report(b"over", self._last)
        return 0.0

    def _kill(self) -> None:
        spawn.send([*spawn.descendants(self._pid), self._pid, *cgroups.processes(self._group)], spawn.SIGKILL)
        cgroups.thaw(self._group)

    def _processes(self) -> set[int]:
        """Return all processes that the command started, without its launcher, which has to take down the sandbox."""
        found = set(spawn.descendants(self._pid)) | cgroups.processes(self._group)
        return found - {self._pid}

    def _set_file_limit(self, size: int | None) -> None:
        by_user: dict[tuple[int, int] | None, list[int]] = {}
        for pid in self._processes():
            by_user.setdefault(_user_of(pid), []).append(pid)
        for user, pids in by_user.items():
            with _as_user(user):
                for pid in pids:
                    # it ended, or we may not limit it: then it is killed
                    with contextlib.suppress(OSError, ValueError):
                        _set_soft_limit(pid, size)

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[bool]:
        """Freeze all processes of the run; yield False if they cannot be stopped and wrote far too much meanwhile."""
        by_group = cgroups.can_freeze(self._group)
        try:
            yield self._freeze(by_group)
        finally:
            if by_group:
                cgroups.thaw(self._group)
            else:
                spawn.send(self._processes(), spawn.SIGCONT)

    def _freeze(self, by_group: bool) -> bool:
        end = time.monotonic() + _FREEZE_SECONDS
        if by_group:
            cgroups.start_freezing(self._group)
        room = self._rooms()
        # The run may already be over its limit: usage so far was written before this check, so it is not new growth.
        most = max(0.0, self._excess(*self._estimate())) + 1
        while True:
            if cgroups.is_frozen(self._group) if by_group else self._stop_all():
                return True
            # A system call goes on in the kernel, for as long as a copy of a large file takes.
            if self._grew(room) or time.monotonic() > end:
                found = self._measure()
                if self._excess(found.bytes, found.inodes) > most:
                    return False
                if time.monotonic() > end:
                    return True  # a process hangs in the kernel, and does not grow
                room = self._rooms()
            time.sleep(0.0003)
            if by_group:
                cgroups.start_freezing(self._group)

    def _grew(self, before: tuple[float, float]) -> bool:
        """Return whether half of the grace may have been used since `before`."""
        return any(was - now > grace / 2 for was, now, grace in zip(before, self._rooms(), self._graces(), strict=True))

    def _stop_all(self) -> bool:
        """Stop every process by SIGSTOP; return True when a second pass finds none that still runs."""
        found = self._processes()
        spawn.send(found, _SIGSTOP)
        return all(_is_stopped(pid) for pid in self._processes() & found) and self._processes() <= found


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t", b"Z", b"X")
    except OSError:
        return True


def _set_soft_limit(pid: int, size: int | None) -> None:
    import resource

    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    wanted = hard if size is None else size
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def _user_of(pid: int) -> tuple[int, int] | None:
    """Return the user and group of a process; None if it is gone, or if this process cannot change its user anyway."""
    if os.geteuid() != 0:
        return None
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
        return int(fields[b"Uid"].split()[0]), int(fields[b"Gid"].split()[0])
    except (OSError, KeyError):
        return None


@contextlib.contextmanager
def _as_user(user: tuple[int, int] | None) -> Iterator[None]:
    """Act with the user's ids: root in a container lacks the privilege to set limits for other users.

    Calls the kernel directly and for this thread only; the C library would change the whole process."""
    if user is None:
        yield
        return
    setresuid, setresgid = _CALLS[os.uname().machine]
    same = c_int(-1)
    syscall(setresgid, c_int(user[1]), same, same)
    syscall(setresuid, c_int(user[0]), same, same)
    try:
        yield
    finally:
        syscall(setresuid, c_int(0), same, same)
        syscall(setresgid, c_int(0), same, same)
