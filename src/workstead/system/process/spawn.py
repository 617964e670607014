"""Start processes, wait for them and kill them: the only place where commands are started.

`spawn` forks, so call it from the small supervisor process of a run, never from a server: forking 2 GB costs 110 ms.
`start_detached` is for the others; its cost does not depend on the caller's size.

A program gets its own session, three descriptors and those that its launcher names, the given environment, and default
signal handlers. The result of the start is reported through a pipe, in the format that `shim.py` describes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time

from workstead.model.value import Value
from workstead.system.kernel.libc import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import NoReturn

    from workstead.system.process import staged_root

SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGCONT = 1, 2, 9, 15, 18
REPORT_FD = 3
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE = 1, 36, 38, 4
_TIOCSCTTY = 0x540E
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_FIRST_KEPT = 10  # descriptors for the launcher are moved here, away from 0 to 3 and from the shim's own


class Launch(Value):
    """A command as it is started: with its launcher in front, its descriptors, and its user.

    The descriptors belong to the launch; `spawn` closes them in the parent."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    directory: str = "/"
    keep: tuple[int, ...] = ()  # descriptors for the launcher, which keep their numbers
    pass_on: tuple[int, ...] = ()  # descriptors for the command, which gets them as 4, 5 and so on
    uid: int | None = None
    gid: int | None = None
    # staged root directory, made by root before it drops privileges
    stage: tuple[staged_root.Source, ...] | None = None
    scratch_bytes: int = 0  # size of a noexec tmpfs, made before the launcher starts
    scratch: str = ""  # its path, without a stage
    no_exec: tuple[str, ...] = ()  # paths to remount noexec, without a stage
    rlimits: tuple[tuple[int, int], ...] = ()  # for a program without a shim to set them
    reports: bool = False  # a shim reports the start; otherwise only the success of exec is known
    holder: int | None = None  # start in the user and mount namespaces of this process
    guarded: bool = False  # with a PID namespace around the launcher itself, see `_guard`
    # bubblewrap's start barrier: it writes its child's id to `info` and waits until a byte arrives on `gate`
    info: int | None = None
    gate: int | None = None
    # Instead of a program, a function of ours: a process that represents a command which runs elsewhere. It receives
    # SIGTERM itself, and forwards it.
    body: Callable[[], object] | None = None
    told: int | None = None  # from the remote side: JSON lines, and EOF when no process is left
    ear: int | None = None  # a listening socket for the run's proxy


class Child(Value):
    """A spawned process, and its report pipe."""

    pid: int
    report: int


def keep(descriptor: int) -> int:
    """Move a descriptor above the standard ones, so that its number can be used inside."""
    import fcntl

    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_KEPT)
    os.close(descriptor)
    return high


def keep_bytes(data: bytes, name: str = "workstead") -> int:
    """Return a descriptor from which a program can read these bytes."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return keep(descriptor)


def die_with(lifeline: int, signal: int = SIGKILL) -> None:
    """Have the kernel kill this process when its parent thread ends.

    The lifeline is one end of a pipe whose other end only the parent has: if it is broken, the parent ended before this
    call. The parent's id cannot tell: it is 0 for the first process of a namespace."""
    import select

    libc.prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0)
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # POLLERR or POLLHUP
        os._exit(125)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies (subreaper), so that none can escape."""
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hide_memory() -> None:
    """Protect our memory and descriptors from other processes of the same user."""
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def step_down(uid: int, gid: int) -> None:
    """Drop root privileges permanently and become this user."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def close_above(last: int, keep: Iterable[int] = ()) -> None:
    """Close every descriptor above `last` except `keep`, in a forked child, by replacing them with /dev/null.

    The numbers must stay in use, because the objects that opened them still exist: libuv closes its descriptors in
    every forked child, and the garbage collector closes those of unreachable objects. Reused numbers would be closed by
    them."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in {int(name) for name in os.listdir("/proc/self/fd")}.difference(keep):
        if descriptor > last and descriptor != null:
            os.dup2(null, descriptor, inheritable=False)


def spawn(
    launch: Launch, stdin: int, stdout: int, stderr: int, *, terminal: bool = False, groups: Sequence[str] = ()
) -> Child:
    """Start a program with these three descriptors in these control groups; its pipe reports a failure."""
    # imported here, because the child cannot find modules after it has changed its root
    import fcntl
    import resource  # noqa: F401
    import select  # noqa: F401
    import signal  # noqa: F401

    from workstead.system.process import staged_root

    report, write_end = map(keep, os.pipe2(os.O_CLOEXEC))
    pid = _fork_guarded() if launch.guarded and os.geteuid() == 0 else os.fork()
    if pid == 0:
        stages = 1
        lifeline = REPORT_FD
        try:
            for group in groups:
                _join(group)
            for number, descriptor in enumerate((stdin, stdout, stderr, write_end)):
                os.dup2(descriptor, number)
            for number, descriptor in enumerate(launch.pass_on, REPORT_FD + 1):
                os.dup2(descriptor, number)
            close_above(REPORT_FD + len(launch.pass_on), launch.keep)
            if launch.holder is not None:
                _enter_namespaces(launch.holder)
            if launch.guarded and os.geteuid() != 0:
                lifeline = _guard(mounts=bool(launch.no_exec))
            os.setsid()
            os.set_inheritable(REPORT_FD, launch.reports)
            if terminal:
                fcntl.ioctl(0, _TIOCSCTTY, 0)
            for descriptor in launch.keep:
                os.set_inheritable(descriptor, True)
            if launch.stage is not None:
                staged_root.enter(launch.stage, launch.scratch_bytes, -1 if launch.uid is None else launch.uid)
            elif launch.no_exec:
                staged_root.forbid_execution(launch.no_exec, launch.scratch, launch.scratch_bytes)
            _set_rlimits(launch.rlimits)
            os.chdir(launch.directory)
            if launch.uid is not None:
                step_down(launch.uid, launch.gid if launch.gid is not None else launch.uid)
            reset_signals()
            os.umask(0o022)
            die_with(lifeline)  # after the change of user, which clears it
            if launch.body is not None:
                launch.body()
                os._exit(0)
            stages = 5
            os.execve(launch.argv[0], launch.argv, launch.environment)  # an absolute path, or resolved by the caller
        except OSError as error:
            _report(stages, error.errno or 1, str(error))
        except BaseException as error:
            _report(stages, 1, repr(error))
        finally:
            os._exit(125)
    os.close(write_end)
    for descriptor in (*launch.keep, *launch.pass_on):
        os.close(descriptor)
    return Child(pid=pid, report=report)


def _join(group: str) -> None:
    """Move this single-threaded process into a control group.

    A thread that moves itself does not need the machine-wide lock, for which the kernel waits some 10 ms; version 2 has
    no such interface for a process."""
    try:
        descriptor = os.open(f"{group}/tasks", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = os.open(f"{group}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    os.write(descriptor, b"0")
    os.close(descriptor)


# bubblewrap's first inner process waits for its parent without a parent-death signal: if supervisor and launcher are
# both killed in that moment, it waits forever (observed). A PID namespace around the launcher fixes this: when its
# first process, the launcher, dies, the kernel kills everything in it.


def _fork_guarded() -> int:
    """Fork a child as the first process of a new PID namespace; later children start in the old one again."""
    old = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(_CLONE_NEWPID) != 0:
            return os.fork()  # a container without that privilege: the fallback is the control group
        try:
            pid = os.fork()
        finally:
            if os.getpid() != 1:
                libc.setns(old, _CLONE_NEWPID)
    finally:
        os.close(old)
    return pid


def _guard(*, mounts: bool = False) -> int:
    """Enter a PID namespace as an ordinary user, by a user namespace; the parent process stays outside and waits.

    Return the lifeline to that parent. Where unprivileged user namespaces are restricted, as on Ubuntu, the launcher
    stays in the old namespace, and killing everything in the wrong millisecond may leave an idle waiting process. With
    `mounts` a mount namespace is made too, and a failure raises PermissionError."""
    uid, gid = os.geteuid(), os.getegid()
    wanted = _CLONE_NEWUSER | _CLONE_NEWPID | (_CLONE_NEWNS if mounts else 0)
    if _is_restricted() or libc.unshare(wanted) != 0:
        if mounts:
            raise PermissionError(1, "a mount namespace to forbid execution in is not allowed")
        return REPORT_FD
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise /proc/self belongs to root
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        os.write(descriptor, text.encode())
        os.close(descriptor)
    lifeline, ours = os.pipe2(os.O_CLOEXEC)
    inner = os.fork()
    if inner == 0:
        os.close(ours)
        return lifeline
    hide_memory()
    die_with(REPORT_FD)
    os.closerange(0, ours)
    os.closerange(ours + 1, os.sysconf("SC_OPEN_MAX"))
    _, status = os.waitpid(inner, 0)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _enter_namespaces(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    if libc.setns(descriptor, _CLONE_NEWUSER | _CLONE_NEWNS) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"the process that holds the workspace's mounts: {os.strerror(code)}")
    os.close(descriptor)


def _is_restricted() -> bool:
    try:
        with open("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "rb") as file:
            return file.read().strip() == b"1"
    except OSError:
        return False


def _report(stages: int, code: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(REPORT_FD, stages.to_bytes(4, "little") + code.to_bytes(4, "little") + os.fsencode(text))


def _set_rlimits(rlimits: Iterable[tuple[int, int]]) -> None:
    if rlimits:
        import resource

        for kind, value in rlimits:
            _, hard = resource.getrlimit(kind)
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))


def reset_signals() -> None:
    """Reset signals to default handlers and an empty mask, as a new program expects.

    Except SIGXFSZ, which is ignored: a write beyond a limit has to fail, as on a full disk, and not kill the program.
    """
    import signal

    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):  # SIGKILL, SIGSTOP and the C library's own signals cannot be set
            signal.signal(number, signal.SIG_IGN if number == signal.SIGXFSZ else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def start_detached(argv: Sequence[str], environment: dict[str, str], *, output: int | None = None) -> int:
    """Start a program that outlives us, in its own session, without our descriptors; return its process id.

    The spawn itself calls `setsid`; the caller must reap the process if it wants no zombie."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    sink = null if output is None else output
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, sink, 1), (os.POSIX_SPAWN_DUP2, sink, 2)]
        return os.posix_spawn(argv[0], tuple(argv), environment, file_actions=actions, setsid=True)
    finally:
        os.close(null)


def fork_detached(body: Callable[[], object], *, keep: Iterable[int] = ()) -> int:
    """Run a function in a grandchild that outlives us, in its own session and with no descriptors except `keep`.

    For a small caller without threads, such as the command line: it takes a millisecond, a new interpreter fifteen.
    Return the process id. An exception of the body exits with status 1 and a traceback on `sys.stderr`: a daemon
    redirects that to a file first, see `crash_log`."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    middle = os.fork()
    if middle == 0:
        _become_daemon(body, write_end, tuple(keep))
    os.close(write_end)
    os.waitpid(middle, 0)
    answer = os.read(read_end, 16)
    os.close(read_end)
    return int(answer)


def _become_daemon(body: Callable[[], object], answer: int, keep: tuple[int, ...]) -> NoReturn:
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            if number not in keep:
                os.dup2(null, number)
        os.write(answer, str(os.getpid()).encode())
        close_above(2, keep)
        os.chdir("/")
        body()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def read_start_time(pid: int) -> int | None:
    """Return the start time in clock ticks since boot, which with the id identifies a process; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def identity(pid: int) -> str:
    """Return a text that identifies a process uniquely, from its start time and boot id; "" if it does not exist."""
    started = read_start_time(pid)
    if started is None:
        return ""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{started} {file.read().strip()}"


def is_alive(pid: int, start_time: int) -> bool:
    """Return whether exactly this process still exists."""
    return read_start_time(pid) == start_time


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
            found += map(int, file.read().split())
    return found


def descendants(pid: int) -> list[int]:
    """Return every process below this one, parents first."""
    found: list[int] = []
    waiting = _children(pid)
    while waiting:
        child = waiting.pop()
        if child not in found:
            found.append(child)
            waiting += _children(child)
    return found


def has_open_files(pids: Iterable[int], most: int) -> bool:
    """Return whether these processes have more than `most` descriptors; shared ones count for each process."""
    count = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/fd"))
        if count > most:
            return True
    return False


def send(pids: Iterable[int], signal: int) -> None:
    """Send a signal to each; skip processes that are gone or not ours, because the set changes meanwhile."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal)


def kill_descendants(*, wait_seconds: float = 5.0) -> bool:
    """Kill all descendants of this process, which must have called `adopt_orphans`; return False if one remains."""
    end = time.monotonic() + wait_seconds
    pause = 0.0005
    me = os.getpid()
    while True:
        reap()
        left = descendants(me)
        if not left:
            return True
        send(left, SIGKILL)
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def reap() -> dict[int, int]:
    """Reap every child that has ended; return id -> wait status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def open_terminal(rows: int = 24, columns: int = 80, owner: int | None = None) -> tuple[int, int]:
    """Open a pseudo-terminal of this size; return our end and the program's end."""
    ours, theirs = os.openpty()
    ours, theirs = keep(ours), keep(theirs)
    resize(ours, rows, columns)
    if owner is not None:
        os.fchown(theirs, owner, -1)  # so that the program can open /dev/stdin etc. by name
    return ours, theirs


def resize(terminal: int, rows: int, columns: int) -> None:
    """Set the size of a terminal; its foreground group gets SIGWINCH."""
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows & 0xFFFF, columns & 0xFFFF, 0, 0))
