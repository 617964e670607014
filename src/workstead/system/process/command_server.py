"""Command server: the first process of a sandbox that is built once and used for many commands, one after the other.

The server takes a command and three descriptors from a unix socket, starts it, and answers with its result. The socket
is in the run's directory, outside: only the listening end was passed in. All restrictions of the cell apply to the
server and so to its commands. As process 1 the server cannot be killed from inside, its memory and descriptors are
protected from the others, and between two commands it kills every other process. A command leaves only its files: in
the workspace, /tmp and its home.

A command costs one message and one spawn, about as much as a plain spawn. A command is killed when its client
disconnects. Commands are queued; a workspace has one user at a time.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time

from workstead.errors import Invalid, SandboxUnavailable
from workstead.model.value import Value
from workstead.system.process.spawn import keep

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

_ANSWER = struct.Struct("<ii")  # error number of the start or 0; wait status
_TAKEN = b"a"  # the server has received the request
_MAX_REQUEST = 120_000
_CHUNK = 1 << 16

# Runs inside, on any installed Python 3.9 or later, without site and without this package.
_SERVER = """
import os, select, signal, socket, struct, sys
import ctypes
idle = float(sys.argv[1])
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
signal.signal(signal.SIGINT, signal.SIG_IGN)
listener = socket.socket(fileno=4)
listener.set_inheritable(False)
own = dict(os.environb)
defaults = [signal.SIGINT, signal.SIGPIPE]
waiting = select.poll()
waiting.register(listener, select.POLLIN)
def clear():
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass
def serve(client):
    message, files, _, _ = socket.recv_fds(client, 131072, 3)
    for file in files:
        os.set_inheritable(file, False)
    pid = 0
    try:
        if len(files) != 3:
            return
        client.send(b"a")
        directory, count, *words = message.split(b"\\0")
        command, settings = words[:int(count)], words[int(count):]
        environment = {**own, **dict(setting.split(b"=", 1) for setting in settings)}
        os.environb[b"PATH"] = environment.get(b"PATH", b"/usr/bin:/bin")
        os.chdir(directory)
        actions = [(os.POSIX_SPAWN_DUP2, file, number) for number, file in enumerate(files)]
        pid = os.posix_spawnp(command[0], command, environment, file_actions=actions, setsid=True, setsigdef=defaults)
    except OSError as error:
        client.send(struct.pack("<ii", error.errno or 5, 0))
        return
    finally:
        for file in files:
            os.close(file)
    process = os.pidfd_open(pid)
    both = select.poll()
    both.register(process, select.POLLIN)
    both.register(client, select.POLLIN)
    status = 9
    while True:
        ready = [file for file, _ in both.poll()]
        if process in ready:
            status = os.waitpid(pid, 0)[1]
            break
        word = client.recv(1)
        if word != b"t":
            break
        try:
            os.kill(-1, signal.SIGTERM)
            os.kill(-1, signal.SIGCONT)
        except ProcessLookupError:
            pass
    os.close(process)
    clear()
    client.send(struct.pack("<ii", 0, status))
while True:
    if not waiting.poll(idle * 1000 if idle else None):
        sys.exit(0)
    connection, _ = listener.accept()
    try:
        serve(connection)
    except (OSError, ValueError):
        clear()
    finally:
        connection.close()
"""


class Answer(Value):
    """The result of a command."""

    exit_code: int  # 128 + n for a signal, 124 for a timeout
    signal: int | None = None
    timed_out: bool = False
    stdout: bytes = b""
    stderr: bytes = b""
    output_bytes: int = 0
    dropped_bytes: int = 0


def find_interpreter() -> tuple[str, str]:
    """Return a Python for the server, by its path inside, and the directory that must be mounted for it, or ''."""
    import sys

    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(path):
            return path, ""
    prefix = sys.base_prefix
    return os.path.join(prefix, "bin", f"python3.{sys.version_info.minor}"), prefix


def server_command(idle_seconds: float = 0) -> list[str]:
    """Return the command to launch as the first process of a cell, with a listener from `listen` as its descriptor 4.

    It exits after this many seconds without a command; 0 means never."""
    return [find_interpreter()[0], "-I", "-S", "-c", _SERVER, str(idle_seconds)]


def listen(directory: str) -> int:
    """Listen on the socket `box` in the run's directory; return the descriptor, for `pass_on`."""
    import socket

    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink("box", dir_fd=folder)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"/proc/self/fd/{folder}/box")
            os.chmod("box", 0o600, dir_fd=folder)
            listener.listen(128)
            return keep(listener.detach())
    finally:
        os.close(folder)


class Box:
    """Client of a command server: the directory with its socket, and the user of its commands."""

    def __init__(self, directory: str, uid: int | None = None) -> None:
        self._path = os.path.join(directory, "box")
        self._directory = directory
        self._uid = uid if os.geteuid() == 0 else None

    def run(
        self,
        argv: Sequence[str],
        *,
        directory: str,
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        grace_seconds: float = 1.0,
        output_bytes: int | None = 16 << 20,
        stdin: int | None = None,
        write: Callable[[int, bytes], None] | None = None,
    ) -> Answer:
        """Run one command to its end. Raise `Invalid` if it cannot be started, `SandboxUnavailable` if the server is
        gone.

        `write` is called with the stream, 1 or 2, and each piece of output as it arrives; the answer then contains no
        output. The details of `SandboxUnavailable` contain `started`: whether the server had received the command when
        it ended."""
        import socket

        words = [directory, str(len(argv)), *argv, *(f"{name}={value}" for name, value in (environment or {}).items())]
        if not argv or any("\0" in word for word in words):
            raise Invalid("the command is empty or holds a NUL byte")
        request = b"\0".join(map(os.fsencode, words))
        if len(request) > _MAX_REQUEST:
            raise Invalid("the command and its environment are too long", hint="pass large inputs in a file")
        theirs: list[int] = []
        ours: list[int] = []
        with contextlib.ExitStack() as stack, self._connect() as connection:
            for _ in range(2):
                read_end, write_end = os.pipe2(os.O_CLOEXEC)
                stack.callback(os.close, read_end)
                ours.append(read_end)
                theirs.append(write_end)
                os.set_blocking(read_end, False)
                if self._uid is not None:
                    os.fchown(write_end, self._uid, -1)
            given = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if stdin is None else os.dup(stdin)
            theirs.insert(0, given)
            try:
                socket.send_fds(connection, [request], theirs)
            except OSError as error:
                raise _gone(error) from None
            finally:
                for descriptor in theirs:
                    os.close(descriptor)
            return _Talk(connection, ours, timeout_seconds, grace_seconds, output_bytes, write).finish()

    def _connect(self) -> socket.socket:
        import socket

        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            if len(self._path) < 100:
                connection.connect(self._path)
            else:
                folder = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    connection.connect(f"/proc/self/fd/{folder}/box")
                finally:
                    os.close(folder)
        except OSError as error:
            connection.close()
            raise _gone(error) from None
        return connection


def _gone(error: OSError) -> SandboxUnavailable:
    return SandboxUnavailable(f"the box is gone: {error}", hint="start it again", details={"started": False})


class _Talk:
    """Read both streams and the answer of one command, and enforce its timeout."""

    def __init__(
        self,
        connection: socket.socket,
        streams: list[int],
        timeout: float | None,
        grace: float,
        output_bytes: int | None,
        write: Callable[[int, bytes], None] | None,
    ) -> None:
        self.connection = connection
        self.write = write
        self.taken = False  # by the server: from then on it is unknown whether the command ran
        self.parts: dict[int, list[bytes]] = {stream: [] for stream in streams}
        self.streams = streams
        self.room = output_bytes
        self.kept = 0
        self.dropped = 0
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.grace = grace
        self.timed_out = False

    def finish(self) -> Answer:
        import select

        poll = select.poll()
        for descriptor in (*self.streams, self.connection.fileno()):
            poll.register(descriptor, select.POLLIN)
        answer = b""
        waiting = len(self.streams) + 1
        while waiting:
            left = None if self.deadline is None else max(0.0, (self.deadline - time.monotonic()) * 1000)
            ready = poll.poll(left)
            if not ready and self.deadline is not None:
                self._lose_patience()
            for descriptor, _ in ready:
                if descriptor == self.connection.fileno():
                    answer = self._hear()
                    if answer == _TAKEN:
                        self.taken = True
                        continue
                    self.deadline = None
                elif self._read(descriptor):
                    continue
                poll.unregister(descriptor)
                waiting -= 1
        if len(answer) != _ANSWER.size:
            raise SandboxUnavailable(
                "the box ended while the command ran", hint="start it again", details={"started": self.taken}
            )
        return self._judge(*_ANSWER.unpack(answer))

    def _hear(self) -> bytes:
        try:
            return self.connection.recv(_ANSWER.size)
        except ConnectionError:  # the server ended without receiving the request
            return b""

    def _lose_patience(self) -> None:
        """Send SIGTERM to all processes at the timeout, and SIGKILL after the grace period."""
        with contextlib.suppress(OSError):
            self.connection.send(b"k" if self.timed_out else b"t")
        self.deadline = None if self.timed_out else time.monotonic() + self.grace
        self.timed_out = True

    def _read(self, descriptor: int) -> bool:
        """Read the available output; return False at the end."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return True
        taken = data if self.room is None else data[: self.room]
        if self.room is not None:
            self.room -= len(taken)
        self.kept += len(taken)
        self.dropped += len(data) - len(taken)
        if self.write is None:
            self.parts[descriptor].append(taken)
        elif taken:
            self.write(self.streams.index(descriptor) + 1, taken)
        return bool(data)

    def _judge(self, error: int, status: int) -> Answer:
        if error:
            raise Invalid(f"the command could not be started: {os.strerror(error).lower()}")
        code = os.waitstatus_to_exitcode(status)
        stdout, stderr = (b"".join(self.parts[stream]) for stream in self.streams)
        return Answer(
            exit_code=124 if self.timed_out else 128 - code if code < 0 else code,
            signal=-code if code < 0 else None,
            timed_out=self.timed_out,
            stdout=stdout,
            stderr=stderr,
            output_bytes=self.kept,
            dropped_bytes=self.dropped,
        )
