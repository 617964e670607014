"""The supervisor: the process that owns one run, with its child process, limits, output file and result.

It is small and single-threaded, and it is not a child of the process that started it, so that a command line or a
server can die and restart while the run goes on. All of its state is in the run's directory, which belongs to Workstead
and is never visible inside the sandbox:

    lock      locked while the run is alive; contains process id and start time; its mtime is the heartbeat
    output    frames, see frames.py; the last one is the result
    control   a unix socket for frames: stop, resize, stdin, live output
    result    the result as JSON, complete or absent

When the supervisor is killed, the kernel releases the lock and ends the sandbox with it (parent-death signal through
bubblewrap to the namespace's first process, and with that every process in it). Only an empty control group is left,
for `forget`.

This module does not know the event log: it reports events to `Hooks`.
"""

from __future__ import annotations

import contextlib
import os
import time

from workstead.errors import Conflict, SandboxUnavailable, WorksteadError
from workstead.model.enforcement import Enforcement, Limits
from workstead.model.value import Value
from workstead.system.kernel import cgroups
from workstead.system.process import frames, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from typing import Any

    from workstead.system.files.measure import Measured
    from workstead.system.kernel.sockets import Stream
    from workstead.system.overlay.quota_image import Gauge
    from workstead.system.process import proxy
    from workstead.system.process.quota_meter import Meter
    from workstead.system.process.spawn import Launch

TIMED_OUT_CODE = 124
NOT_STARTED_CODE = 125
_BUFFER = 1 << 18  # a larger buffer does not fit the processor's cache and is slower
_STDIN_PENDING = 1 << 18
_CLIENT_PENDING = 8 << 20
_CHECK_INTERVAL = 0.2
_LOOK_INTERVAL = 0.05
_LINGER = 10.0
_FILE_TABLE = "/proc/sys/fs/file-nr"  # open files of the whole machine: number and maximum
_OPEN_FILES_SHARE = 16  # when half of them are in use, one run may have 1/16 of the maximum


class Order(Value):
    """How to supervise a run: directory, limits, streams, quota, proxy rules."""

    directory: str  # the run's own directory, mode 0700
    name: str  # name of the control group: the run's id
    limits: Limits = Limits()
    terminal: bool = False
    rows: int = 24
    columns: int = 80
    stdin: bool = False  # a client of the control socket will write it; otherwise stdin is empty
    workspace: str = ""  # the directory whose disk the disk limits check
    measure: Callable[[], Measured] | None = None  # measure the workspace's own files, which the quota counts
    space: str = ""  # mount point of the workspace's quota image, whose kernel limits are listed in `held`
    space_files: int | None = None
    held: dict[str, tuple[str, ...]] = {}
    rules: tuple[proxy.Rule, ...] = ()  # network rules of the proxy, if the launch waits for one
    heartbeat_seconds: float = 2.0


class Result(Value):
    """The result of a run."""

    state: str  # completed failed cancelled timed_out
    exit_code: int  # 128 + n for a signal; 124 for a timeout, 125 if the command never started
    signal: int | None = None  # only where it is known for certain
    reason: str = ""
    error: dict[str, object] | None = None  # why the command never started, in the error format of the doors
    started_at: float | None = None
    finished_at: float = 0.0
    output_bytes: int = 0
    dropped_bytes: int = 0
    usage: dict[str, int] = {}


class Hooks:
    """Callbacks for the caller, called in the supervisor process, in this order."""

    def on_started(self, pid: int, start_time: int, enforcement: Enforcement) -> None:
        """The command is running in its sandbox; `pid` is the process of its launcher."""

    def on_denied(self, denial: dict[str, str]) -> None:
        """The proxy refused a request."""

    def on_quota(self, event: str, size: int, files: int) -> None:
        """The workspace was measured; `event` is warned, exceeded, freed (below the limit again) or over (killed)."""

    def on_finished(self, result: Result) -> None:
        """No process of the run is alive any more."""


def supervise(
    launch: Callable[[Sequence[tuple[int, int]]], Launch],
    order: Order,
    enforcement: Enforcement,
    hooks: Hooks,
    explain: Callable[[str, bytes], WorksteadError] | None = None,
) -> Result:
    """Supervise a run to its end, in this process, which must have no other children and no threads.

    `launch` gets the resource limits and returns the launch; `explain` turns the last output of a sandbox that failed
    to start into an error. A failure before the command runs also returns a result, so that every announced run gets an
    end. Raise `Conflict` if another supervisor has the run's lock."""
    watch = _Supervision(order, enforcement, hooks, explain)
    watch.hold_lock()
    try:
        return watch.run(launch)
    finally:
        watch.close()


def resource_limits(limits: Limits, group: cgroups.Group) -> list[tuple[int, int]]:
    """Return the rlimits that the kernel enforces per process, in addition to the control group or as its fallback."""
    import resource

    found = [(resource.RLIMIT_CORE, 0)]
    if largest_file(limits) is not None:
        found.append((resource.RLIMIT_FSIZE, largest_file(limits) or 0))
    if limits.processes is not None:
        found.append((resource.RLIMIT_NPROC, limits.processes))
    if limits.open_files is not None:
        found.append((resource.RLIMIT_NOFILE, limits.open_files))
    if limits.memory_bytes is not None and "memory" not in group.directories:
        found.append((resource.RLIMIT_DATA, limits.memory_bytes))
    return found


def largest_file(limits: Limits) -> int | None:
    """Return the maximum size of one file: even a sparse file must not exceed the whole quota."""
    return min((each for each in (limits.file_bytes, limits.quota_bytes) if each is not None), default=None)


def held_limits(limits: Limits, group: cgroups.Group, sandbox: str) -> dict[str, tuple[str, ...]]:
    """Return the mechanisms that enforce each limit; raise `SandboxUnavailable` for a limit that cannot be enforced."""
    held: dict[str, tuple[str, ...]] = {}
    for limit, controller, fallback in (
        ("memory_bytes", "memory", "rlimit of each process"),
        ("processes", "pids", "rlimit" if sandbox != "none" else ""),
        ("cpus", "cpu", ""),
    ):
        if getattr(limits, limit) is None:
            continue
        by_group = (f"cgroup v{group.version[controller]}",) if controller in group.directories else ()
        weaker = (fallback,) if fallback and (not by_group or controller == "pids") else ()
        if not by_group and (limits.needs_cgroup or not fallback):
            raise SandboxUnavailable(
                f"the limit on {limit} cannot be held: no control group with {controller!r} can be made here",
                hint="start it as root or in a delegated group (systemd-run --user --scope -p Delegate=yes), "
                "or allow limits by rlimit only",
            )
        held[limit] = by_group + weaker
    if limits.wall_seconds is not None:
        held["wall_seconds"] = ("supervisor",)
    for limit in ("file_bytes", "open_files"):
        if getattr(limits, limit) is not None:
            held[limit] = ("rlimit",)
    for limit in ("disk_bytes", "disk_free_bytes", "output_bytes"):
        if getattr(limits, limit) is not None:
            held[limit] = ("supervisor",)
    return held


class _Client:
    def __init__(self, connection: Stream) -> None:
        self.connection = connection
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.wants_output = False
        self.owns_stdin = False


class _Supervision:
    """The event loop: one poll over pipes, sockets, the child process and the timers."""

    def __init__(
        self,
        order: Order,
        enforcement: Enforcement,
        hooks: Hooks,
        explain: Callable[[str, bytes], WorksteadError] | None,
    ) -> None:
        self.order = order
        self.limits = order.limits
        self.enforcement = enforcement
        self.hooks = hooks
        self.explain = explain
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.clients: dict[int, _Client] = {}
        self.open: list[Callable[[], object]] = []  # cleanup functions, called at the end in reverse order
        self.group = cgroups.Group(name=order.name, directories={}, version={})
        self.buffer = memoryview(bytearray(_BUFFER))
        self.sources: set[int] = set()  # our ends of the stdout and stderr pipes, or the terminal
        self.stdin = -1
        self.stdin_pending = bytearray()
        self.stdin_ends = False
        self.terminal = -1
        self.pid = 0
        self.proxy_pid = 0
        self.reports = -1
        self.told = -1
        self.told_pending = bytearray()
        self.told_usage: dict[str, int] = {}
        self.lost = ""  # why the remote side that executes the command was lost
        self.status: int | None = None
        self.report = b""
        self.launched_at: float | None = None
        self.last_errors = bytearray()
        self.meter: Meter | None = None
        self.gauge: Gauge | None = None
        self.quota_stops = 0  # how often growth was refused
        self.stopping = ""  # the reason: cancelled, timed_out, or a limit
        self.kill_at: float | None = None
        self.deadline: float | None = None

    # -- setting up ----------------------------------------------------------------------------------------------------

    def hold_lock(self) -> None:
        import fcntl

        path = os.path.join(self.order.directory, "lock")
        self.lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.open.append(lambda: os.close(self.lock))
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise Conflict(f"run {self.order.name} has a supervisor already") from None
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, f"{os.getpid()} {spawn.read_start_time(os.getpid())}\n".encode(), 0)

    def close(self) -> None:
        while self.open:
            with contextlib.suppress(OSError):
                self.open.pop()()
        # break the reference cycle (handlers, self, buffer) instead of waiting for the garbage collector
        self.handlers.clear()

    def run(self, launch: Callable[[Sequence[tuple[int, int]]], Launch]) -> Result:
        import select

        spawn.adopt_orphans()
        spawn.hide_memory()
        self.output = frames.Output(os.path.join(self.order.directory, "output"), self.limits.output_bytes)
        self.open.append(self.output.close)
        self.poll = select.poll()
        self._catch_signals()
        try:
            self._start(launch)
            self._listen()  # also imports the modules needed at the end, while another processor builds the sandbox
        except WorksteadError as error:
            return self._finish(self._never_started(error))
        except OSError as error:
            return self._finish(self._never_started(SandboxUnavailable(f"the run could not be set up: {error}")))
        while not self._is_over():
            self._turn()
        return self._finish(self._end())

    def _catch_signals(self) -> None:
        """Let signals only wake the loop: each writes its number as one byte to a pipe."""
        import signal

        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.open += [lambda: os.close(read_end), lambda: os.close(write_end), lambda: signal.set_wakeup_fd(-1)]
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

        def woken(_: int) -> None:
            for number in os.read(read_end, 64):
                if number in (spawn.SIGTERM, spawn.SIGINT):
                    self.stop("cancelled")

        self._watch(read_end, woken)

    def _listen(self) -> None:
        import json  # noqa: F401

        from workstead.system.kernel.sockets import Stream

        if self.meter:
            self.meter.measure_first()
        directory = os.open(self.order.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # by descriptor, because the path of a unix socket is limited to 107 bytes
            path = f"/proc/self/fd/{directory}/control"
            with contextlib.suppress(FileNotFoundError):
                os.unlink("control", dir_fd=directory)
            listener = Stream(blocking=False)
            self.open.append(listener.close)
            listener.bind(path)
            os.chmod("control", 0o600, dir_fd=directory)
            listener.listen(16)
        finally:
            os.close(directory)
        self._watch(listener.fileno(), lambda _: self._accept(listener))

    def _start(self, launch: Callable[[Sequence[tuple[int, int]]], Launch]) -> None:
        # limits that the cell enforces itself are already listed in its enforcement
        ours = self.limits.replace(**dict.fromkeys(self.enforcement.limits))
        # a sandbox's processes die with their namespace; without a namespace, the group is the only way to find them
        # all
        self.group = cgroups.make(self.order.name, ours, listed=self.enforcement.sandbox == "none")
        held = held_limits(ours, self.group, self.enforcement.sandbox)
        self.enforcement = self.enforcement.replace(limits={**self.enforcement.limits, **held, **self.order.held})
        if self.limits.stops_at_quota and self.order.measure is not None:
            self._make_meter(self.order.measure)
        self.free_at_start = self._free_space()
        ready = launch(resource_limits(ours, self.group))
        # leading processes that belong to the launcher, not to the command
        self.skipped = 1 if ready.reports and ready.body is None else 0
        self.child_has_shim = ready.reports
        theirs = self._make_descriptors(ready)
        try:
            child = spawn.spawn(ready, *theirs, terminal=self.order.terminal, groups=self.group.paths)
        finally:
            for descriptor in set(theirs):
                os.close(descriptor)
        self.pid = child.pid
        if self.meter:
            self.meter.follow(child.pid)
        self.report_pipe = child.report
        self._watch(child.report, self._read_report)
        descriptor = os.pidfd_open(child.pid)
        self.open.append(lambda: os.close(descriptor))
        self._watch(descriptor, lambda _: self._child_ended(descriptor))
        if ready.body is None:  # otherwise the timeout begins when the remote side starts the command
            self._begin_time()
        self.next_beat = time.monotonic() + self.order.heartbeat_seconds
        self.next_look = time.monotonic() + _LOOK_INTERVAL if self.order.held else None
        watched = (self.limits.disk_bytes, self.limits.disk_free_bytes, self.limits.open_files)
        self.next_check = time.monotonic() + _CHECK_INTERVAL if any(each is not None for each in watched) else None
        if ready.told is not None:
            self._listen_to(ready.told)
        if ready.ear is not None:
            import socket

            self._start_proxy(socket.socket(fileno=ready.ear), ready)
        if ready.info is not None and ready.gate is not None:
            self._open_gate(ready.info, ready.gate, ready)

    def _begin_time(self) -> None:
        if self.limits.wall_seconds is not None and self.deadline is None:
            self.deadline = time.monotonic() + self.limits.wall_seconds

    def _make_meter(self, measure: Callable[[], Measured]) -> None:
        """Make the quota meter, a thread that measures the workspace and wakes the loop by a line in a pipe."""
        from workstead.system.process.quota_meter import Allowed, Meter

        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.open += [lambda: os.close(read_end), lambda: os.close(write_end)]
        allowed = Allowed(
            disk=self.order.space or self.order.workspace,
            measure=measure,
            max_bytes=self.limits.quota_bytes,
            max_files=self.limits.quota_files,
            file_bytes=largest_file(self.limits),
        )
        self.meter = Meter(
            allowed,
            self.group,
            lambda event, found: os.write(write_end, b"%s %d %d\n" % (event, found.bytes, found.inodes)),
        )
        # A virtual machine cannot be frozen from here: if its workspace grows too far, it is killed.
        means = ("metering",) if "kernel of its own" in self.enforcement.kernel else self.meter.means
        if "seccomp" in self.enforcement.kernel:
            means += ("seccomp",)  # seccomp blocks fallocate and raising rlimits from inside
        quotas = {name: means for name in ("quota_bytes", "quota_files") if getattr(self.limits, name) is not None}
        self.enforcement = self.enforcement.replace(limits={**self.enforcement.limits, **quotas})
        self.metered = read_end
        self._watch(read_end, lambda _: self._hear_meter())

    def _hear_meter(self) -> None:
        try:
            lines = os.read(self.metered, 65536).splitlines()
        except BlockingIOError:
            return
        for line in lines:
            event, size, files = line.decode().split()
            if event == "exceeded":
                self.quota_stops += 1
            elif event == "lost":
                self.stopping = self.stopping or "quota_exceeded: what it takes could not be watched any more"
            elif event == "over":
                self.stopping = self.stopping or "quota_exceeded: it went on growing where growth was refused"
            self.hooks.on_quota(event, int(size), int(files))

    def _make_descriptors(self, ready: Launch) -> tuple[int, int, int]:
        """Return the command's three descriptors; our ends are added to the loop.

        Pipes and never files: through /proc/self/fd a process inside could reopen our file with other access rights."""
        import fcntl

        if self.order.terminal:
            ours, theirs = spawn.open_terminal(self.order.rows, self.order.columns, ready.uid)
            self.terminal = self.stdin = ours
            os.set_blocking(ours, False)
            self._add_source(ours, frames.STDOUT)
            return theirs, theirs, theirs
        ends = []
        for stream in (frames.STDOUT, frames.STDERR):
            ours, theirs = map(spawn.keep, os.pipe2(os.O_CLOEXEC))
            if ready.uid is not None:
                os.fchown(theirs, ready.uid, -1)  # otherwise `echo > /dev/stdout` is refused inside
            with contextlib.suppress(OSError):  # above the user's share of pipe memory it stays at 64 kB
                fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _BUFFER)
            os.set_blocking(ours, False)
            self._add_source(ours, stream)
            ends.append(theirs)
        if not self.order.stdin:
            return spawn.keep(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)), ends[0], ends[1]
        theirs, self.stdin = map(spawn.keep, os.pipe2(os.O_CLOEXEC))
        if ready.uid is not None:
            os.fchown(theirs, ready.uid, -1)
        os.set_blocking(self.stdin, False)
        return theirs, ends[0], ends[1]

    def _open_gate(self, info: int, gate: int, ready: Launch) -> None:
        """Open the proxy's listener in bubblewrap's new network namespace, then let the waiting command start."""
        from workstead.system.process import proxy

        try:
            proxy.wait_for_network(info)
            self._start_proxy(proxy.listen_inside(spawn.descendants(self.pid)[-1]), ready)
            os.write(gate, b"x")
        finally:
            os.close(gate)
            os.close(info)

    def _start_proxy(self, listener: socket.socket, ready: Launch) -> None:
        from workstead.system.process import proxy

        self.proxy_pid, reports = proxy.start(listener, self.order.rules, ready.uid, ready.gid)
        self.open.append(lambda: os.close(reports))
        self.reports = reports
        pending = bytearray()

        def heard(_: int) -> None:
            data = os.read(reports, 65536)
            if not data:
                self._forget(reports)
            pending.extend(data)
            while b"\n" in pending:
                line, pending[:] = bytes(pending).split(b"\n", 1)
                self.hooks.on_denied(proxy.parse_denial(line))

        self._watch(reports, heard)

    def _listen_to(self, told: int) -> None:
        self.told = told
        os.set_blocking(told, False)
        self.open.append(lambda: os.close(told))
        self._watch(told, lambda _: self._hear_told())

    def _hear_told(self) -> None:
        """Read status messages of the remote side that executes the command."""
        import json

        try:
            data = os.read(self.told, 65536)
        except BlockingIOError:
            return
        if not data:
            self._forget(self.told)
        self.told_pending += data
        while b"\n" in self.told_pending:
            line, self.told_pending = self.told_pending.split(b"\n", 1)
            words = json.loads(line)
            self.lost = words.get("lost", self.lost)
            self.told_usage = words.get("usage", self.told_usage)
            notes = (*self.enforcement.notes, *words.get("notes", ()))
            self.enforcement = self.enforcement.replace(notes=notes)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _watch(self, descriptor: int, handler: Callable[[int], None], events: int = 1) -> None:
        self.handlers[descriptor] = handler
        self.poll.register(descriptor, events)

    def _forget(self, descriptor: int) -> None:
        if self.handlers.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    def _is_over(self) -> bool:
        return self.status is not None

    def _turn(self) -> None:
        now = time.monotonic()
        times = [self.kill_at, self.next_beat, self.next_check, self.next_look]
        times.append(self.deadline if not self.stopping else None)
        soonest = min(moment for moment in times if moment is not None)
        for descriptor, event in self.poll.poll(max(0, (soonest - now) * 1000 + 1)):
            handler = self.handlers.get(descriptor)
            if handler is not None:
                handler(event)
        now = time.monotonic()
        if self.deadline is not None and now >= self.deadline and not self.stopping:
            self.stop("timed_out")
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = now + 1.0  # retry until it is dead
            self._kill()
        if now >= self.next_beat:
            os.utime(self.lock)
            self.next_beat = now + self.order.heartbeat_seconds
        if self.next_check is not None and now >= self.next_check:
            self.next_check = now + _CHECK_INTERVAL
            if self.order.workspace:
                self._check_disk()
            if self.limits.open_files is not None:
                self._check_open_files()
        if self.next_look is not None and now >= self.next_look:
            self.next_look = now + _LOOK_INTERVAL
            self._look_at_space()

    def stop(self, why: str, *, at_once: bool = False) -> None:
        """Send SIGTERM to the whole process tree, and SIGKILL to the processes left after the grace period."""
        if self.stopping and not at_once:
            return
        self.stopping = self.stopping or why
        self.kill_at = time.monotonic() + (0 if at_once else self.limits.grace_seconds)
        if not at_once and self.pid:
            self._ask()

    def _ask(self) -> None:
        """Send SIGTERM to the whole tree, then SIGCONT: a stopped process receives SIGTERM only when it continues."""
        tree = spawn.descendants(self.pid)
        asked = tree if self.skipped else [self.pid, *tree]
        spawn.send(asked, spawn.SIGTERM)
        spawn.send(asked, spawn.SIGCONT)

    def _kill(self) -> None:
        """Kill the launcher, with which its namespace dies, and every process that the control group lists."""
        if self.status is None and self.pid:
            spawn.send([*spawn.descendants(self.pid), self.pid], spawn.SIGKILL)
        spawn.send(cgroups.processes(self.group), spawn.SIGKILL)

    def _free_space(self) -> int:
        if not self.order.workspace:
            return 0
        found = os.statvfs(self.order.workspace)
        return found.f_bavail * found.f_frsize

    def _check_open_files(self) -> None:
        """Stop a run that uses too many of the machine's open files: at the maximum, no process can open any."""
        with open(_FILE_TABLE, "rb") as file:
            used, _, most = map(int, file.read().split())
        share = most // _OPEN_FILES_SHARE
        if used > most // 2 and spawn.has_open_files([self.pid, *spawn.descendants(self.pid)], share):
            self.stop(f"open files: it had more than {share}, and the machine has {most} for everybody", at_once=True)

    def _check_disk(self) -> None:
        free = self._free_space()
        if self.limits.disk_bytes is not None and self.free_at_start - free > self.limits.disk_bytes:
            self.stop(f"disk limit: over {self.limits.disk_bytes} bytes were written", at_once=True)
        elif self.limits.disk_free_bytes is not None and free < min(self.limits.disk_free_bytes, self.free_at_start):
            self.stop(f"disk limit: less than {self.limits.disk_free_bytes} bytes are free", at_once=True)

    def _look_at_space(self) -> None:
        """Report how full the workspace's quota image is; the image itself enforces the limit."""
        if self.gauge is None:
            from workstead.system.overlay.quota_image import Gauge

            self.gauge = Gauge(self.order.space, self.order.space_files)
        for event, size, files in self.gauge.look():
            self.quota_stops += event == "exceeded"
            self.hooks.on_quota(event, size, files)

    def _read_report(self, _: int) -> None:
        data = os.read(self.report_pipe, 4096)
        self.report += data
        if data:
            return
        self._forget(self.report_pipe)
        os.close(self.report_pipe)
        if self.report == (bytes(8) if self.child_has_shim else b""):
            self.launched_at = time.time()
            self._begin_time()
            if self.meter:
                self.meter.start()  # before writing the log, which may take a while
            if self.told >= 0:
                self._hear_told()  # the remote side reports how it starts the command before it starts it
            start_time = spawn.read_start_time(self.pid)
            self.hooks.on_started(self.pid, start_time or 0, self.enforcement)
            if self.stopping:  # requested while the sandbox was being built, when no process could receive the signal
                self._ask()

    def _child_ended(self, descriptor: int) -> None:
        self._forget(descriptor)
        _, self.status = os.waitpid(self.pid, 0)

    def _add_source(self, descriptor: int, stream: int) -> None:
        self.sources.add(descriptor)
        self._watch(descriptor, lambda event: self._read_output(descriptor, stream, event))

    def _read_output(self, descriptor: int, stream: int, event: int) -> None:
        if event & 4:  # POLLOUT: the terminal accepts input again
            self._write_stdin()
        if not event & ~4:
            return
        try:
            size = os.readv(descriptor, [self.buffer])
        except BlockingIOError:
            return
        except OSError:  # EIO: no process has the terminal's other end open any more
            size = 0
        if size == 0:
            self._forget(descriptor)
            self.sources.discard(descriptor)
            os.close(descriptor)
            if descriptor == self.terminal:
                self.terminal = self.stdin = -1
            return
        data = self.buffer[:size]
        self.output.add(stream, data)
        if stream == frames.STDERR and not self.launched_at:
            self.last_errors = (self.last_errors + data)[-4096:]
        if any(client.wants_output for client in self.clients.values()):
            self._publish(frames.header(stream, size) + data.tobytes())

    # -- clients -------------------------------------------------------------------------------------------------------

    def _accept(self, listener: Stream) -> None:
        try:
            connection = listener.take()
        except OSError:
            return
        client = self.clients[connection.fileno()] = _Client(connection)
        self._watch(connection.fileno(), lambda event: self._serve(client, event))

    def _drop(self, client: _Client) -> None:
        descriptor = client.connection.fileno()
        if self.clients.pop(descriptor, None) is None:
            return
        self._forget(descriptor)
        client.connection.close()
        if client.owns_stdin and not self.order.terminal:
            self._end_stdin()  # the client that wrote stdin is gone: the command must not wait for more

    def _serve(self, client: _Client, event: int) -> None:
        try:
            if event & 4 and client.outgoing:
                sent = client.connection.send(client.outgoing)
                del client.outgoing[:sent]
            if event & ~4:
                data = client.connection.recv(65536)
                if not data:
                    self._drop(client)
                    return
                client.incoming += data
                while (frame := frames.take(client.incoming)) is not None:
                    self._obey(client, frame)
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            self._drop(client)
            return
        self._rearm(client)

    def _rearm(self, client: _Client) -> None:
        if client.connection.fileno() in self.handlers:
            full = client.owns_stdin and len(self.stdin_pending) > _STDIN_PENDING
            self.poll.modify(client.connection.fileno(), (0 if full else 1) | (4 if client.outgoing else 0))

    def _obey(self, client: _Client, frame: frames.Frame) -> None:
        if frame.stream == frames.HELLO:
            client.wants_output = b"o" in frame.data
            client.owns_stdin = b"i" in frame.data
        elif frame.stream == frames.STOP:
            self.stop("cancelled", at_once=frame.data == b"now")
        elif frame.stream == frames.RESIZE and self.terminal >= 0 and len(frame.data) == 4:
            rows, columns = int.from_bytes(frame.data[:2], "little"), int.from_bytes(frame.data[2:], "little")
            spawn.resize(self.terminal, rows, columns)
        elif frame.stream == frames.STDIN and self.stdin >= 0:
            self.stdin_pending += frame.data
            self._write_stdin()
        elif frame.stream == frames.EOF:
            if self.order.terminal:
                self.stdin_pending += b"\x04"
                self._write_stdin()
            else:
                self._end_stdin()

    def _publish(self, frame: bytes) -> None:
        for client in list(self.clients.values()):
            if client.wants_output:
                client.outgoing += frame
                if len(client.outgoing) > _CLIENT_PENDING:
                    self._drop(client)  # the client reads too slowly; the output file is complete
                else:
                    self._rearm(client)

    def _write_stdin(self) -> None:
        if self.stdin < 0:
            self.stdin_pending.clear()
            return
        try:
            while self.stdin_pending:
                done = os.write(self.stdin, self.stdin_pending[:65536])
                del self.stdin_pending[:done]
        except BlockingIOError:
            pass
        except OSError:  # the command closed it
            self.stdin_pending.clear()
            self.stdin_ends = self.stdin_ends or not self.order.terminal
        waits = bool(self.stdin_pending)
        if self.order.terminal:
            self.poll.modify(self.stdin, 1 | (4 if waits else 0))
        elif waits and self.stdin not in self.handlers:
            self._watch(self.stdin, lambda _: self._write_stdin(), 4)
        elif not waits:
            self._forget(self.stdin)
            if self.stdin_ends:
                os.close(self.stdin)
                self.stdin = -1
        for client in self.clients.values():
            if client.owns_stdin:
                self._rearm(client)

    def _end_stdin(self) -> None:
        self.stdin_ends = True
        if not self.order.terminal:
            self._write_stdin()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _clear(self) -> bool:
        """Kill remaining processes of the group, adopted orphans and the proxy; return False if any remains."""
        gone = cgroups.kill(self.group, wait_seconds=_LINGER)
        return spawn.kill_descendants(wait_seconds=_LINGER) and self._is_told_over() and gone

    def _is_told_over(self) -> bool:
        """Wait until the command has ended on the remote side."""
        import select

        end = time.monotonic() + _LINGER
        while self.told in self.handlers and time.monotonic() < end:
            if select.select([self.told], [], [], max(0.0, end - time.monotonic()))[0]:
                self._hear_told()
        return self.told not in self.handlers

    def _drain(self) -> None:
        """Read the rest of the pipes. All writers are dead, so this ends at once unless a process lingers."""
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            wanted = {descriptor for descriptor in (*self.sources, self.reports) if descriptor in self.handlers}
            if not wanted:
                return
            for descriptor, event in self.poll.poll(50):
                if descriptor in wanted:
                    self.handlers[descriptor](event)

    def _end(self) -> Result:
        if self.meter and self.launched_at is not None:
            self.meter.stop()
            self._hear_meter()
        if self.order.held and self.launched_at is not None:
            self._look_at_space()
        gone = self._clear()
        if self.report_pipe in self.handlers:
            while self.report_pipe in self.handlers:
                self._read_report(0)
        self._drain()
        usage = {**cgroups.usage(self.group), **self.told_usage}
        if self.quota_stops:
            usage["quota_stops"] = self.quota_stops
        state, code, reason = self._judge(usage)
        if not gone:
            reason = f"{reason}; some of its processes do not die".lstrip("; ")
        error = None
        if self.launched_at is None and not self.stopping:
            error = self._start_error().as_dict()["error"]
            reason = str(error["message"]) if isinstance(error, dict) else reason
        signal = os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None
        return self._result(
            state, code, reason=reason, usage=usage, error=error, signal=None if self.child_has_shim else signal
        )

    def _judge(self, usage: dict[str, int]) -> tuple[str, int, str]:
        assert self.status is not None
        code = os.waitstatus_to_exitcode(self.status)
        code = 128 - code if code < 0 else code
        if self.stopping == "timed_out":
            return "timed_out", TIMED_OUT_CODE, f"it took longer than {self.limits.wall_seconds} seconds"
        if self.stopping == "cancelled":
            return "cancelled", code, "it was stopped"
        if self.stopping:
            return "failed", code or 1, self.stopping
        if self.lost and self.launched_at is not None:
            return "failed", code or 1, self.lost
        if self.launched_at is None:
            return "failed", NOT_STARTED_CODE, "it could not be started"
        if code == 0:
            return "completed", 0, ""
        if usage.get("oom_kills"):
            return "failed", code, f"memory limit: {usage['oom_kills']} of its processes were killed"
        return "failed", code, f"exit code {code}"

    def _start_error(self) -> WorksteadError:
        """Return the error why the command never ran: the command itself, or the sandbox around it."""
        last = self.report[-8:] if self.child_has_shim and len(self.report) == 16 else self.report
        stage, number = int.from_bytes(last[:4], "little"), int.from_bytes(last[4:8], "little")
        if stage == 5:
            from workstead.errors import Invalid

            return Invalid(f"the command could not be started: {os.strerror(number).lower()}")
        if self.lost:
            return SandboxUnavailable(self.lost)
        words = self.last_errors.decode(errors="replace")
        if self.explain is not None:
            return self.explain(words, last)
        words = words.strip() or last[8:].decode(errors="replace")
        return SandboxUnavailable(f"the sandbox could not be built: {words}")

    def _never_started(self, error: WorksteadError) -> Result:
        if self.pid:
            self._kill()
        self._clear()
        return self._result("failed", NOT_STARTED_CODE, reason=error.message, error=error.as_dict()["error"])

    def _result(self, state: str, code: int, **more: Any) -> Result:
        return Result(
            state=state,
            exit_code=code,
            started_at=self.launched_at,
            finished_at=time.time(),
            output_bytes=self.output.kept,
            dropped_bytes=self.output.dropped,
            **more,
        )

    def _finish(self, result: Result) -> Result:
        """Write the result, record it in the log, then notify the followers.

        In this order, so that a follower that sees the end of the output or the released lock can rely on the log.
        Crash recovery reads the result file of a run that has neither an end in the log nor a supervisor."""
        import json

        cgroups.remove(self.group)
        body = json.dumps(result.as_dict()).encode()
        with contextlib.suppress(OSError):  # on a full disk there may still be a reserve for the log
            self._write_result(body)
        try:
            self.hooks.on_finished(result)
        finally:
            self._end_output(body)
        return result

    def _write_result(self, body: bytes) -> None:
        path = os.path.join(self.order.directory, "result")
        descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.write(descriptor, body)
        os.close(descriptor)
        os.rename(f"{path}.new", path)

    def _end_output(self, body: bytes) -> None:
        self.output.end(body)
        self._publish(frames.pack(frames.END, body))
        for client in list(self.clients.values()):
            with contextlib.suppress(OSError):
                client.connection.setblocking(True)
                client.connection.settimeout(0.5)
                client.connection.sendall(client.outgoing)
            client.owns_stdin = False
            self._drop(client)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.order.directory, "control"))
