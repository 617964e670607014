"""Mount daemon: a small process with a user and mount namespace in which an ordinary user can mount overlays.

An ordinary user may mount an overlay only inside a user namespace, and such a mount is visible nowhere else. So one
daemon per home enters a namespace and stays: it holds the mounts of all workspaces of the home, and mounts and unmounts
on request, over a socket in the home. Other processes of the same user reach the files through `/proc/PID/root`, and a
sandbox enters the namespace. If the daemon is killed, the mounts are gone and no data is lost; the next `attach` starts
another daemon.

Run as a program, this file is that daemon. It exits when it has had no mounts for a while, or when its home is gone. A
request is one packet, words separated by NUL: a verb and paths. The answer is `ok`, or `error`, errno and text.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import time

if __name__ == "__main__":  # started with -I -S, which ignore where the package is installed
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from workstead.errors import Unavailable, WorksteadError
from workstead.system.kernel.locks import Held, describe, is_stopped, take
from workstead.system.overlay import mounter
from workstead.system.overlay.mounter import ROOTLESS, Mounter
from workstead.system.overlay.stack import work_of
from workstead.system.process import crash_log

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from workstead.model.source import Place
    from workstead.system.overlay.stack import Stack

    T = TypeVar("T")

_IDLE_SECONDS = 60.0
_ANSWER_SECONDS = 60.0
_STEP_SECONDS = 5.0  # after this time a client checks whether the daemon is stopped, and again each time
_SOCKET = "holder.sock"
_PACKET = 65536
_TIMEOUT = struct.pack("ll", int(_STEP_SECONDS), 0)  # struct timeval
_BACKLOG = 1024  # connections waiting to be accepted; more of them block in `connect`


class Holder(Mounter):
    """Client of the mount daemon of one home; the daemon is started on first use."""

    def __init__(self, private: str) -> None:
        self.private = private

    def prepare(self, place: Place, stack: Stack | None = None) -> None:
        del stack  # the daemon reads the stack itself
        self._ask("prepare", place.layers)

    def discard(self, place: Place) -> None:
        if self.find_process() is not None:
            self._ask("discard", place.layers)

    def is_prepared(self, place: Place) -> bool:
        return False  # the daemon may have exited since; preparing again costs little beside a request

    def is_mounted(self, place: Place) -> bool:
        process = self.find_process()
        if process is None:
            return False
        root = os.path.realpath(place.root)
        return mounter.has_mount(f"/proc/{process}/root{root}", f"/proc/{process}/root{root}/work")

    def mount(self, place: Place) -> None:
        self._ask("mount", place.layers, work_of(place))

    def unmount(self, place: Place, *, lazily: bool = False) -> None:
        self._ask("unmount", work_of(place), "lazily" if lazily else "")

    def is_in_use(self, place: Place, directory: str) -> bool:
        return self._ask("used", place.layers, directory) == "yes"

    def path(self, place: Place) -> str:
        return f"/proc/{self.process()}/root{os.path.realpath(place.root)}/work"

    def stop(self) -> None:
        """Stop the daemon, and with it every mount that it has."""
        if self.find_process() is not None:
            self._ask("stop")

    def find_process(self) -> int | None:
        """Return the daemon's process id, or None if it is not running."""
        connection = self._connect()
        if connection is None:
            return None
        with connection:
            return _peer_of(connection)

    def process(self) -> int:
        """Return the daemon's process id; start it if necessary."""
        asked = time.time()
        found = self.find_process()
        if found is None:
            _start(self.private)
            found = self.find_process()
        if found is None:
            message = crash_log.explain("the mount daemon ended at once", log_of(self.private), since=asked)
            raise Unavailable(message, hint="aw doctor checks this machine")
        return found

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The kernel's own timeouts: with `settimeout` Python makes the socket non-blocking, and such a connect does not
        # wait for room in a full backlog, but fails at once with EAGAIN.
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, _TIMEOUT)
        try:
            directory = os.open(self.private, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # The path of a unix socket is limited to 107 bytes; a home may be deeper.
                _patiently(lambda: connection.connect(f"/proc/self/fd/{directory}/{_SOCKET}"), self.private)
            finally:
                os.close(directory)
        except OSError as error:
            connection.close()
            if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
                return None
            raise
        except Unavailable:
            connection.close()
            raise
        return connection

    def _ask(self, *words: str) -> str:
        asked = time.time()
        for _ in range(3):
            connection = self._connect()
            if connection is None:
                _start(self.private)
                continue
            with connection:
                process = _peer_of(connection)
                try:
                    connection.send(b"\0".join(os.fsencode(word) for word in words))
                    answer = os.fsdecode(_patiently(lambda: connection.recv(_PACKET), self.private, process, asked))  # noqa: B023
                except ConnectionError:
                    continue  # the daemon was about to exit
            kind, _, rest = answer.partition("\0")
            if kind == "ok":
                return rest
            if kind == "error":
                number, _, text = rest.partition("\0")
                raise OSError(int(number), text)
        raise _no_answer(self.private, asked)


def log_of(private: str) -> str:
    """Return the path of the crash log of the mount daemon."""
    return f"{private}/mount-daemon.log"


def _peer_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process: int = struct.unpack("3i", credentials)[0]
    return process


def _patiently(act: Callable[[], T], private: str, process: int = 0, asked: float = float("inf")) -> T:
    """Retry `act` until the timeout of an answer; raise Unavailable then, or earlier if the daemon is stopped."""
    end = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            return act()
        except BlockingIOError:
            if time.monotonic() >= end or is_stopped(process):
                raise _no_answer(private, asked, process) from None


def _no_answer(private: str, asked: float = float("inf"), process: int = 0) -> Unavailable:
    who = f": {describe(process)}" if process else ""
    message = crash_log.explain(f"the mount daemon does not answer{who}", log_of(private), since=asked)
    stopped = bool(process) and is_stopped(process)
    hint = f"let it continue: kill -CONT {process}" if stopped else "try again; aw doctor checks this machine"
    return Unavailable(message, hint=hint)


def _start(private: str) -> None:
    """Start a daemon and wait until it listens; of several concurrent starts, one wins and the others exit."""
    os.makedirs(private, 0o700, exist_ok=True)
    reader, writer = os.pipe()
    try:
        child = os.posix_spawn(
            sys.executable or "/usr/bin/python3",
            [sys.executable or "python3", "-I", "-S", os.path.abspath(__file__), private, "3"],
            {"LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
                (os.POSIX_SPAWN_DUP2, writer, 3),  # also when it is 3 already: dup2 clears CLOEXEC
            ],
            setsid=True,
        )
        os.close(writer)
        writer = -1
        os.waitpid(child, 0)  # the daemon forks away from it at once
        with open(reader, "rb", closefd=False) as file:
            said = file.read().decode(errors="replace")
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    number, _, text = said.partition(" ")
    if number != "0":
        raise OSError(int(number or errno.EIO), text or "the mount daemon did not start")


# -- the process itself ------------------------------------------------------------------------------------------------


class _Server:
    def __init__(self, private: str, listener: socket.socket) -> None:
        self.private = private
        self.listener = listener
        self.identity = os.stat(f"{private}/{_SOCKET}").st_ino
        self.made: dict[str, int] = {}
        self.mounted: dict[str, int] = {}  # work -> number of our mounts on it
        self.layers: dict[str, str] = {}  # work -> its mounted layers
        self.stopping = False

    def serve(self) -> None:
        self.listener.settimeout(_IDLE_SECONDS)
        while not self.stopping:
            try:
                connection, _ = self.listener.accept()
            except TimeoutError:
                if self._is_idle():
                    break
                continue
            with connection:
                connection.settimeout(_ANSWER_SECONDS)
                try:
                    packet = connection.recv(_PACKET)
                    if packet:  # otherwise the client only wanted our process id
                        connection.send(self._answer(packet))
                except OSError:
                    continue  # the client disconnected
        if self._is_ours():
            os.unlink(f"{self.private}/{_SOCKET}")

    def _is_ours(self) -> bool:
        try:
            return os.stat(f"{self.private}/{_SOCKET}").st_ino == self.identity
        except OSError:
            return False

    def _is_idle(self) -> bool:
        if not self._is_ours():
            return True  # the home is gone, or another daemon replaced us
        return not any(self.mounted.values()) and not self.made

    def _answer(self, packet: bytes) -> bytes:
        verb, *words = (os.fsdecode(word) for word in packet.split(b"\0"))
        try:
            return b"ok\0" + getattr(self, f"do_{verb}")(*words).encode()  # type: ignore[no-any-return]
        except OSError as error:
            return f"error\0{error.errno or errno.EIO}\0{error.strerror or error}".encode(errors="surrogateescape")
        except WorksteadError as error:
            return f"error\0{errno.EIO}\0{error.message}".encode(errors="surrogateescape")

    def do_prepare(self, layers: str) -> str:
        mount = mounter.make_mount(ROOTLESS, layers, None)
        self.do_discard(layers)
        self.made[layers] = mount
        return ""

    def do_discard(self, layers: str) -> str:
        mount = self.made.pop(layers, None)
        if mount is not None:
            os.close(mount)
        return ""

    def do_mount(self, layers: str, work: str) -> str:
        from workstead.system.kernel import mounts

        mount = self.made.pop(layers, None)
        if mount is None:
            mount = mounter.make_mount(ROOTLESS, layers, None)
        try:
            mounts.attach(mount, work)
        finally:
            os.close(mount)
        self.mounted[work] = self.mounted.get(work, 0) + 1
        self.layers[work] = layers
        return ""

    def do_unmount(self, work: str, how: str) -> str:
        mounter.unmount(work, self.layers.get(work, ""), lazily=how == "lazily")
        self.mounted[work] = self.mounted.get(work, 1) - 1
        return ""

    def do_used(self, layers: str, directory: str) -> str:
        return "yes" if mounter.is_in_use(ROOTLESS, layers, directory) else "no"

    def do_stop(self) -> str:
        self.stopping = True
        return ""


def _become_holder(private: str) -> _Server | None:
    """Enter the namespaces and listen; return None if another daemon was first."""
    from workstead.system.kernel import mounts

    lock = os.open(f"{private}/holder.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        take(lock, private)
        if Holder(private).find_process() is not None:
            return None
        mounts.enter_namespaces(os.getuid(), os.getgid())
        os.chdir(private)
        if os.path.lexists(_SOCKET):
            os.unlink(_SOCKET)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.umask(0o077)
        listener.bind(_SOCKET)
        listener.listen(_BACKLOG)
        os.chdir("/")
        return _Server(private, listener)
    finally:
        os.close(lock)


def main(private: str, ready: int) -> None:
    """Run the mount daemon of this home; report success or the error on descriptor `ready`."""
    if os.fork():
        os._exit(0)
    crash_log.install(log_of(private), "mount daemon,")
    try:
        server = _become_holder(private)
    except OSError as error:
        os.write(ready, f"{error.errno or errno.EIO} {error.strerror}".encode())
        return
    except Held as held:
        os.write(ready, f"{errno.EBUSY} another process starts one: {held.holder}".encode())
        return
    os.write(ready, b"0 ")
    os.close(ready)
    if server is not None:
        server.serve()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
