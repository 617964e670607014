"""Hold a run to what its workspace may take, on a file system that has no quota of its own.

Free space is asked for all the time, which costs a microsecond: it says how much can have been written since the
workspace was last measured. When that could be too much, everything in the run is frozen, the workspace is measured,
and the run goes on. Others who write to the same disk cost a measurement, never a verdict.

Over the limit the run goes on with a largest file size of nothing: the kernel then refuses every write, append,
truncation and copy that would make a file longer (EFBIG), to every process and to all that they start. What deletes
works, and when enough is deleted the limit is lifted again. Only the soft limit is set, which anybody may raise again
for processes of the same user; that nobody inside raises it is seen to by the sandbox (see `seccomp`).

What counts is what has a name, and what the processes of the run hold without one (see `nameless`). Where they hold
something that cannot be measured, everything that the disk has lost since the run began counts as theirs; and a
directory that cannot be looked into counts as a full workspace. So nothing is gained by hiding.

There are ways to grow that no file size stops: names without content, stores into the holes of a mapped file, a kernel
that is in the middle of a copy. They are watched, and what grows on for another 2 % is ended. One call can reserve any
amount, also beyond a file's end where no limit counts: the sandbox does not offer it.
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
FULL_SHARE = 0.99  # from here on growth is refused: between the look and the freezing a little more is written
LIFT_SHARE = 0.95
GRACE_SHARE, GRACE_BYTES, GRACE_FILES = 0.02, 1 << 20, 100  # over the limit, whichever is more
_BYTES_PER_SECOND = 2 << 30  # what one processor writes into memory at most
_FILES_PER_SECOND = 200_000
_SHORTEST, _LONGEST = 0.001, 0.25
_FREEZE_SECONDS = 2.0
_SIGSTOP = 19
_CALLS = {"x86_64": (117, 119), "aarch64": (147, 149)}  # setresuid, setresgid


class Allowed(Value):
    """What a workspace may take, and where it does."""

    measure: Callable[[], Measured]  # what it takes, exactly
    disk: str  # a directory of its file system that nobody inside can take away
    max_bytes: int | None = None
    max_files: int | None = None
    file_bytes: int | None = None  # of each file, as long as there is room


class Meter:
    """Watches one run from a thread of its own, from when the command runs until `stop`."""

    def __init__(self, allowed: Allowed, group: cgroups.Group, report: Callable[[bytes, Measured], object]) -> None:
        """`report` is told, in the thread: warned, exceeded, freed, over (everything was killed)."""
        self._allowed = allowed
        self._group = group
        self._pid = 0  # the launcher's: what it started is the run
        self._began: tuple[int, int] | None = None  # bytes of the workspace and free ones of the disk, at first
        self._report = report
        self._is_over = False
        self._told = _thread.allocate_lock()  # held until it is told to stop
        self._done = _thread.allocate_lock()  # held until it has
        self._refusing = False
        self._allowed_excess = 1.0  # graces
        self._warned = False

    @property
    def means(self) -> tuple[str, ...]:
        """By what it holds the run, for the statement."""
        version = next((f"cgroup v{number}" for number in sorted(self._group.version.values())), "")
        freezer = f"{version} freezer" if cgroups.can_freeze(self._group) else "stop signals"
        return ("metering", freezer, "rlimit")

    def follow(self, pid: int) -> None:
        """Whom to watch: the launcher and all that it starts."""
        self._pid = pid

    def measure_first(self) -> None:
        """See what there is, while the sandbox is being built; what is written meanwhile is not missed."""
        self._measure()

    def start(self) -> None:
        """Watch from now on, in a thread."""
        self._done.acquire()
        self._told.acquire()
        _thread.start_new_thread(self._watch, ())

    def stop(self) -> None:
        """Let it end, and wait for that: nothing is frozen any more."""
        self._told.release()
        self._done.acquire()

    # -- the loop --

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -15)  # this thread: a run with a hundred processes must not outrun it
        try:
            pause = self._decide() if self._share(self._last) >= WARN_SHARE else 0.0
            while not self._is_over and not self._told.acquire(timeout=pause):
                pause = self._look()
        except Exception:  # whatever it is: a run that nobody watches is not let loose
            self._kill()
            self._report(b"lost", self._last)
        finally:
            self._done.release()

    def _look(self) -> float:
        """Estimate; measure if it could be too much, or if there may be room again; give the seconds until next."""
        byte_room, file_room = self._rooms()  # until growth is refused
        is_time = time.monotonic() >= self._measured_at + 10 * self._measuring_seconds  # a tenth of it for measuring
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
        """Freeze, measure and judge: while a large workspace is measured a run could write a lot."""
        with self._frozen() as stopped:
            if not stopped:
                return self._end()
            return self._judge(self._measure())

    def _estimate(self) -> tuple[int, int]:
        """The bytes and files that there are, if all that was taken from the disk since was taken by the run."""
        disk = os.statvfs(self._allowed.disk)
        return (
            self._last.bytes + max(0, self._free - disk.f_bfree * disk.f_frsize),
            self._last.inodes + max(0, self._free_files - disk.f_ffree),
        )

    def _rooms(self) -> tuple[float, float]:
        """What is left until growth is refused, by the estimate."""
        size, files = self._estimate()
        most, most_files = self._allowed.max_bytes, self._allowed.max_files
        return (
            float("inf") if most is None else most * FULL_SHARE - size,
            float("inf") if most_files is None else most_files * FULL_SHARE - files,
        )

    def _graces(self) -> tuple[float, float]:
        """What may be over each limit before a run is ended for it."""
        most, most_files = self._allowed.max_bytes or 0, self._allowed.max_files or 0
        return max(GRACE_BYTES, most * GRACE_SHARE), max(GRACE_FILES, most_files * GRACE_SHARE)

    def _excess(self, size: int, files: int) -> float:
        """How much of this is over the limits, in graces."""
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
        """Half the time in which everything that is left could be used up, and the grace with it."""
        rate = _BYTES_PER_SECOND * (os.cpu_count() or 1)
        grace, grace_files = self._graces()
        seconds = min((byte_room + grace) / rate, (file_room + grace_files) / _FILES_PER_SECOND) / 2
        return max(_SHORTEST, min(_LONGEST, seconds))

    def _measure(self) -> Measured:
        """What the workspace takes; from here on free space tells what can have come to it."""
        began = time.monotonic()
        disk = os.statvfs(self._allowed.disk)  # before: what is written meanwhile counts twice rather than never
        self._free, self._free_files = disk.f_bfree * disk.f_frsize, disk.f_ffree
        self._last = self._with_hidden(self._allowed.measure())
        self._measured_at = time.monotonic()
        self._measuring_seconds = self._measured_at - began
        return self._last

    def _with_hidden(self, named: Measured) -> Measured:
        """Add what the processes hold without a name."""
        if self._began is None:
            self._began = named.bytes, self._free
        held = nameless(self._processes())
        size = named.bytes + held.bytes
        if not held.complete:
            size = max(size, self._began[0] + self._began[1] - self._free)
        return named.replace(bytes=size, files=named.files + held.files)

    # -- what follows --

    def _share(self, found: Measured) -> float:
        """How much of the tighter limit is used; what cannot be looked into could be anything."""
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
            # What was written between the look and the freezing is no growth against the refusal.
            self._allowed_excess = max(0.0, self._excess(found.bytes, found.inodes)) + 1
            self._set_file_limit(0)
            self._report(b"exceeded", found)
        return self._pause(0, 0) if self._refusing else self._pause(*self._rooms())

    def _end(self) -> float:
        """It grows on by ways that nothing else stops."""
        self._is_over = True
        self._kill()
        self._report(b"over", self._last)
        return 0.0

    def _kill(self) -> None:
        spawn.send([*spawn.descendants(self._pid), self._pid, *cgroups.processes(self._group)], spawn.SIGKILL)
        cgroups.thaw(self._group)

    def _processes(self) -> set[int]:
        """All that the command started, and not its launcher, which has a sandbox to take down."""
        found = set(spawn.descendants(self._pid)) | cgroups.processes(self._group)
        return found - {self._pid}

    def _set_file_limit(self, size: int | None) -> None:
        by_user: dict[tuple[int, int] | None, list[int]] = {}
        for pid in self._processes():
            by_user.setdefault(_user_of(pid), []).append(pid)
        for user, pids in by_user.items():
            with _as_user(user):
                for pid in pids:
                    with contextlib.suppress(OSError, ValueError):  # gone, or not ours to limit: then it is ended
                        _set_soft_limit(pid, size)

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[bool]:
        """Nothing of the run goes on inside; False if it cannot be stopped and has taken far too much meanwhile."""
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
        # It may have been over long before, and what was written until now was written while nobody looked.
        most = max(0.0, self._excess(*self._estimate())) + 1
        while True:
            if cgroups.is_frozen(self._group) if by_group else self._stop_all():
                return True
            # What is in the kernel goes on there, for as long as a copy of a large file takes.
            if self._grew(room) or time.monotonic() > end:
                found = self._measure()
                if self._excess(found.bytes, found.inodes) > most:
                    return False
                if time.monotonic() > end:
                    return True  # something hangs in the kernel, and does not grow
                room = self._rooms()
            time.sleep(0.0003)
            if by_group:
                cgroups.start_freezing(self._group)

    def _grew(self, before: tuple[float, float]) -> bool:
        """Whether half of the grace may have been used since."""
        return any(was - now > grace / 2 for was, now, grace in zip(before, self._rooms(), self._graces(), strict=True))

    def _stop_all(self) -> bool:
        """Stop every process by signal; True when a second look finds none that still runs."""
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
    """The user and group of a process; None if it is gone, or if we are somebody who cannot become another anyway."""
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
    """Be of this user as far as the kernel asks for it: root in a container has no right to set limits for others.

    Straight to the kernel and for this thread only; the C library would change the whole process."""
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
