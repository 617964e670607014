"""Client of a run's supervisor, for other processes: find it, read its result, connect to it.

All information is in the run's directory, see `supervisor.py`. A supervisor is alive as long as it has the lock: the
kernel releases it when the process ends for any reason.
"""

from __future__ import annotations

import os
import time

from workstead.model.value import Value
from workstead.system.kernel import cgroups
from workstead.system.process import frames, spawn
from workstead.system.process.supervisor import Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from workstead.system.kernel.sockets import Stream


class Supervisor(Value):
    """The process that has a run's lock."""

    pid: int
    start_time: int
    beat_at: float


def find_supervisor(directory: str) -> Supervisor | None:
    """Return the supervisor of the run in this directory; None if there is none, or it has ended."""
    import fcntl

    try:
        lock = os.open(os.path.join(directory, "lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pid, _, start_time = os.pread(lock, 64, 0).partition(b" ")
            beat_at = os.fstat(lock).st_mtime
            return Supervisor(pid=int(pid or 0), start_time=int(start_time or 0), beat_at=beat_at)
        return None
    finally:
        os.close(lock)


def find_result(directory: str) -> Result | None:
    """Return the result of the run, if its supervisor wrote one."""
    import json

    try:
        with open(os.path.join(directory, "result"), "rb") as file:
            return Result(**json.loads(file.read()))
    except (FileNotFoundError, ValueError, TypeError):  # a power failure may leave an empty file: it was not synced
        return None


def wait_ready(directory: str, pid: int, *, wait_seconds: float = 10.0) -> bool:
    """Wait until a supervisor that was just started has the run's lock and can be followed; return False if it died."""
    end = time.monotonic() + wait_seconds
    path = os.path.join(directory, "output")  # created after the lock is taken
    while not os.path.exists(path):
        if spawn.read_start_time(pid) is None or time.monotonic() > end:
            return os.path.exists(path)
        time.sleep(0.0005)
    return True


def connect(directory: str, *, wait_seconds: float = 5.0) -> Stream:
    """Connect to the supervisor's control socket; raise OSError if there is none, or it has ended.

    Retries for a moment: a new supervisor creates its socket shortly after it has started the command."""
    from workstead.system.kernel.sockets import Stream

    end = time.monotonic() + wait_seconds
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while True:
            connection = Stream()
            try:
                connection.connect(f"/proc/self/fd/{folder}/control")
                return connection
            except OSError:
                connection.close()
                if time.monotonic() > end or find_supervisor(directory) is None:
                    raise
                time.sleep(0.001)
            except BaseException:
                connection.close()
                raise
    finally:
        os.close(folder)


def request_stop(directory: str, *, at_once: bool = False) -> bool:
    """Ask the supervisor to stop the run; return False if there is none."""
    try:
        with connect(directory) as connection:
            connection.sendall(frames.pack(frames.STOP, b"now" if at_once else b""))
            return True
    except OSError:
        supervisor = find_supervisor(directory)
        if supervisor is None or not spawn.is_alive(supervisor.pid, supervisor.start_time):
            return False
        os.kill(supervisor.pid, spawn.SIGTERM)
        return True


def forget(name: str) -> bool:
    """Remove the control group that a dead supervisor left, after killing all processes in it."""
    group = cgroups.find(name)
    return cgroups.kill(group) and cgroups.remove(group)


def follow(directory: str, *, offset: int = 0) -> Iterator[frames.Frame]:
    """Yield the frames of the run's output, live, until its end or its supervisor's."""
    return frames.follow(os.path.join(directory, "output"), lambda: find_supervisor(directory) is None, offset=offset)
