"""Start, wait for and end processes: the one place where a command comes to life.

`spawn` forks, so call it from the small process that supervises a run, never from a server: forking 2 GB costs 110 ms.
`start_detached` is for the others; it costs the same whatever the caller's size.

A program gets its own session, three descriptors and what its launcher names, the environment it is given, and default
signals. How starting went comes back through a pipe, in the form that `shim.py` describes.
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
_FIRST_KEPT = 10  # descriptors for the launcher are moved here, out of the way of 0 to 3 and of the shim's own


class Launch(Value):
    """A command as it is really started: with its launcher in front, its descriptors, and who it runs as.

    The descriptors belong to the launch; `spawn` closes them in the parent."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    directory: str = "/"
    keep: tuple[int, ...] = ()  # descriptors for the launcher, under the numbers they have
    pass_on: tuple[int, ...] = ()  # descriptors for the command, which finds them at 4, 5 and so on
    uid: int | None = None
    gid: int | None = None
    stage: tuple[staged_root.Source, ...] | None = None  # root's small root, made before stepping down
    scratch_bytes: int = 0  # of a space from which nothing can be executed, made before the launcher starts
    scratch: str = ""  # where that is, without a stage
    no_exec: tuple[str, ...] = ()  # paths from which nothing can be executed, without a stage
    rlimits: tuple[tuple[int, int], ...] = ()  # for a program that has no shim to set them
    reports: bool = False  # a shim reports the start; otherwise the success of exec is all there is to know
    holder: int | None = None  # start in the user and mount namespaces of this process
    guarded: bool = False  # a process namespace around the launcher itself, see `_guard`
    # bubblewrap's door: it tells its child's id on `info` and waits until something arrives on `gate`
    info: int | None = None
    gate: int | None = None
    # a launch may be a function of ours instead of a program: a process that stands for a command which runs elsewhere.
    # It gets SIGTERM itself, and passes it on
    body: Callable[[], object] | None = None
    told: int | None = None  # from whoever really runs it: JSON lines, and their end when nothing of it is left
    ear: int | None = None  # a listening socket that the run's proxy is to serve


class Child(Value):
    """A process that was spawned, and the pipe on which it reports."""

    pid: int
    report: int


def keep(descriptor: int) -> int:
    """Move a descriptor out of the way of the standard ones, so that its number can be used inside."""
    import fcntl

    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_KEPT)
    os.close(descriptor)
    return high


def keep_bytes(data: bytes, name: str = "workstead") -> int:
    """A descriptor from which a program can read these bytes."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return keep(descriptor)


def die_with(lifeline: int, signal: int = SIGKILL) -> None:
    """Have the kernel end this process when its parent thread ends.

    The lifeline is a pipe's end whose other end only the parent has: broken, it tells that the parent ended before we
    asked. The parent's id would not do, it is 0 for the first process of a namespace."""
    import select

    libc.prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0)
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # POLLERR or POLLHUP
        os._exit(125)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies, so that none can get away."""
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hide_memory() -> None:
    """Keep other processes of the same user away from our memory and descriptors."""
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def step_down(uid: int, gid: int) -> None:
    """Become an ordinary user for good."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def close_above(last: int, keep: Iterable[int] = ()) -> None:
    """Close every descriptor above `last` but those to keep, in a fresh child; /dev/null holds their numbers.

    Who opened them there does not know: libuv closes its own in every forked child, and a cycle that the collector
    finds closes what it owns. With their numbers free, those would be ours."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in {int(name) for name in os.listdir("/proc/self/fd")}.difference(keep):
        if descriptor > last and descriptor != null:
            os.dup2(null, descriptor, inheritable=False)


def spawn(
    launch: Launch, stdin: int, stdout: int, stderr: int, *, terminal: bool = False, groups: Sequence[str] = ()
) -> Child:
    """Start a program with these three descriptors in these control groups; the report tells what went wrong."""
    # loaded here, because the child cannot find modules once it has changed its root
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
            os.execve(launch.argv[0], launch.argv, launch.environment)  # an absolute path, or the caller looked it up
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
    """Put this process, which has one thread, into a control group.

    A thread that moves itself needs no lock of the whole machine, for which the kernel waits some 10 ms; version 2 has
    no such door for a process."""
    try:
        descriptor = os.open(f"{group}/tasks", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = os.open(f"{group}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    os.write(descriptor, b"0")
    os.close(descriptor)


# bubblewrap's first inner process waits for its parent, without a signal for the parent's death: if both supervisor and
# launcher are killed in that moment, it waits for ever (seen). A process namespace around the launcher closes the gap:
# with its first process, the launcher, dies everything in it.


def _fork_guarded() -> int:
    """Fork a child that is the first process of a new namespace; our later children are born in the old one again."""
    old = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(_CLONE_NEWPID) != 0:
            return os.fork()  # a container without that right: the group is the net
        try:
            pid = os.fork()
        finally:
            if os.getpid() != 1:
                libc.setns(old, _CLONE_NEWPID)
    finally:
        os.close(old)
    return pid


def _guard(*, mounts: bool = False) -> int:
    """For an ordinary user: a user namespace to be allowed the process namespace, and a parent outside that waits.

    Gives the lifeline to that parent. Where unknown programs may not do this, as on Ubuntu, the launcher stays as it
    is, and a kill of everything in the wrong millisecond may leave a process that waits and does nothing. With
    `mounts` there is a mount namespace too, and no going on without."""
    uid, gid = os.geteuid(), os.getegid()
    wanted = _CLONE_NEWUSER | _CLONE_NEWPID | (_CLONE_NEWNS if mounts else 0)
    if _is_restricted() or libc.unshare(wanted) != 0:
        if mounts:
            raise PermissionError(1, "a mount namespace to forbid execution in is not allowed")
        return REPORT_FD
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self is root's
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
    """Default handlers and nothing blocked, as a new program expects.

    But for one: a write that a limit forbids is to fail, as on a full disk, and not to end the program."""
    import signal

    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):  # SIGKILL, SIGSTOP and the C library's own cannot be set
            signal.signal(number, signal.SIG_IGN if number == signal.SIGXFSZ else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def start_detached(argv: Sequence[str], environment: dict[str, str], *, output: int | None = None) -> int:
    """Start a program that outlives us, in its own session, with nothing of ours open; it is not ours to wait for.

    The program between is `setsid`-ed by the spawn itself; the caller must reap the id if it wants no zombie."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    sink = null if output is None else output
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, sink, 1), (os.POSIX_SPAWN_DUP2, sink, 2)]
        return os.posix_spawn(argv[0], tuple(argv), environment, file_actions=actions, setsid=True)
    finally:
        os.close(null)


def fork_detached(body: Callable[[], object], *, keep: Iterable[int] = ()) -> int:
    """Run the function in a grandchild that outlives us, with its own session and no descriptor but these.

    For a small caller without threads, such as the command line: a millisecond, against fifteen for a new interpreter.
    Gives the id of the process. The body's exceptions end it with status 1 and a traceback on `sys.stderr`: a body
    that lives on its own sends that to a file first, see `crash_log`."""
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
    """When it started, in clock ticks since boot: with the id it names a process for good. None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def identity(pid: int) -> str:
    """What tells a process from every other one that has or had its id: when it began, in which boot; '' if none is
    there."""
    started = read_start_time(pid)
    if started is None:
        return ""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{started} {file.read().strip()}"


def is_alive(pid: int, start_time: int) -> bool:
    """Whether the very process is still there."""
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
    """Every process below this one, parents first."""
    found: list[int] = []
    waiting = _children(pid)
    while waiting:
        child = waiting.pop()
        if child not in found:
            found.append(child)
            waiting += _children(child)
    return found


def has_open_files(pids: Iterable[int], most: int) -> bool:
    """Whether these processes have more than so many descriptors; those shared by several count for each."""
    count = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/fd"))
        if count > most:
            return True
    return False


def send(pids: Iterable[int], signal: int) -> None:
    """Signal each; those that are gone or not ours are passed over, because the set changes while we walk it."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal)


def kill_descendants(*, wait_seconds: float = 5.0) -> bool:
    """End everything below this process, which must have adopted orphans; False if something lingers."""
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
    """Collect every child that has ended: id to wait status."""
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
    """A pseudo-terminal of this size: our end and the program's end."""
    ours, theirs = os.openpty()
    ours, theirs = keep(ours), keep(theirs)
    resize(ours, rows, columns)
    if owner is not None:
        os.fchown(theirs, owner, -1)  # so that the program may open /dev/stdin and its kin by name
    return ours, theirs


def resize(terminal: int, rows: int, columns: int) -> None:
    """Set the size of a terminal; its foreground group gets SIGWINCH."""
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows & 0xFFFF, columns & 0xFFFF, 0, 0))
