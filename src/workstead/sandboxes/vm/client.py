"""The client of one run in a virtual machine: a process that the supervisor treats as the command.

It sends the command's order to the VM daemon's `door` socket and forwards both directions: input, output, the size of a
terminal, a request to end, connections to the run's proxy. It exits as the command does. When it is killed, the VM
daemon ends the command.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import termios
import tty

from workstead.model.value import Value
from workstead.sandboxes.vm import wire
from workstead.system.process import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

DOOR_FD, TOLD_FD, PROXY_FD = 4, 5, 6  # as passed on by `process.spawn`
_CONNECTIONS = 64


class Errand(Value):
    """The input of the client."""

    order: dict[str, Any]
    has_proxy: bool = False


def connect(directory: str) -> int:
    """Connect to the machine's `door` socket; raise OSError if no process listens."""
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(f"/proc/self/fd/{folder}/door")
        except OSError:
            connection.close()
            raise
        return spawn.keep(connection.detach())
    finally:
        os.close(folder)


def open_ear(directory: str, uid: int | None) -> tuple[int, int]:
    """Return a listening unix socket without a path: its descriptor, and one to connect by."""
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    name = f"ear-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"/proc/self/fd/{folder}/{name}")
        try:
            if uid is not None:
                os.chown(name, uid, -1, dir_fd=folder)
            listener.listen(64)
            way = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.unlink(name, dir_fd=folder)
        return spawn.keep(listener.detach()), spawn.keep(way)
    finally:
        os.close(folder)


def run(errand: Errand) -> NoReturn:
    """Run the client in a process that `process.spawn` made, and exit as the command did."""
    os._exit(_Client(errand).run())


# -- command server ----------------------------------------------------------------------------------------------------

LISTENER_FD, WAY_FD = 4, 5  # and PROXY_FD
_ANSWER = struct.Struct("<ii")  # as read by `box.py`


def open_way(directory: str) -> int:
    """Return a descriptor by which a user without permission on the path can connect to the `door` socket."""
    return spawn.keep(os.open(f"{directory}/door", os.O_PATH | os.O_CLOEXEC))


def serve(
    make_order: Callable[[list[str], dict[str, str], str], dict[str, Any]], idle: float, has_proxy: bool
) -> NoReturn:
    """Act as a command server: take commands from a listener, in the protocol of `box.py`, and run each in the machine.

    Their files in /tmp and the home stay for the next command; nothing else does. Exit after `idle` seconds without a
    command, and when the machine ends.
    """
    listener = socket.socket(fileno=LISTENER_FD)
    _report(bytes(8))
    _report(b"")
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    while waiting.poll(idle * 1000 if idle else None):
        connection, _ = listener.accept()
        with connection:
            message, files, _, _ = socket.recv_fds(connection, 131072, 3)
            try:
                if len(files) == 3 and not _Command(connection, make_order, has_proxy).run(message, files):
                    break
            except (OSError, ValueError):
                continue  # the caller is gone, or sent an invalid request
            finally:
                for file in files:
                    os.close(file)
    os._exit(0)


class _Command:
    """One command of a command server, run by a forked client."""

    def __init__(self, connection: socket.socket, make_order: Callable[..., dict[str, Any]], has_proxy: bool) -> None:
        self.connection = connection
        self.make_order = make_order
        self.has_proxy = has_proxy

    def run(self, message: bytes, files: list[int]) -> bool:
        """Run it to its end; return False if the machine has ended."""
        self.connection.send(b"a")
        directory, count, *words = map(os.fsdecode, message.split(b"\0"))
        argv, settings = words[: int(count)], words[int(count) :]
        order = self.make_order(argv, dict(text.split("=", 1) for text in settings), directory)
        report, report_end = os.pipe2(os.O_CLOEXEC)
        told, tell = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            self._become_client(order, files, report_end, tell)
        os.close(report_end)
        os.close(tell)
        try:
            status = self._watch(pid)
            said = os.read(report, 4096)
            while os.read(told, 65536):  # until no process of the command is left in the machine
                pass
        finally:
            os.close(report)
            os.close(told)
        stage, code = struct.unpack("<II", said[8:16] if len(said) == 16 else said[:8].ljust(8, b"\xff"))
        if stage == 5:
            self.connection.send(_ANSWER.pack(code, 0))
            return True
        if said[:8] != bytes(8):
            return False
        self.connection.send(_ANSWER.pack(0, status))
        return True

    def _become_client(self, order: dict[str, Any], files: list[int], report: int, tell: int) -> NoReturn:
        try:
            door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            door.connect(f"/proc/self/fd/{WAY_FD}")
            given = [*files, report, door.detach(), tell]
            high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 20) for descriptor in given]
            for number, descriptor in enumerate(high):
                os.dup2(descriptor, number)
            os.closerange(PROXY_FD + 1 if self.has_proxy else PROXY_FD, 1024)
            spawn.die_with(spawn.REPORT_FD)
            run(Errand(order=order, has_proxy=self.has_proxy))
        except OSError as error:
            _report(struct.pack("<II", 1, error.errno or 1) + str(error).encode(errors="replace"))
        finally:
            os._exit(125)

    def _watch(self, pid: int) -> int:
        """Wait for its end, or for a request to end it; return its wait status."""
        child = os.pidfd_open(pid)
        both = select.poll()
        both.register(child, select.POLLIN)
        both.register(self.connection, select.POLLIN)
        try:
            while child not in (ready := [file for file, _ in both.poll()]):
                if ready and self.connection.recv(1) == b"t":
                    os.kill(pid, signal.SIGTERM)
                    continue
                os.kill(pid, signal.SIGKILL)
                break
            return os.waitpid(pid, 0)[1]
        finally:
            os.close(child)


# -- one run -----------------------------------------------------------------------------------------------------------


class _Output:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.pending = bytearray()
        self.is_broken = False


class _Connection:
    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.room = wire.WINDOW
        self.pending = bytearray()
        self.ends = False
        self.ended = False


class _Client:
    def __init__(self, errand: Errand) -> None:
        self.errand = errand
        self.door = socket.socket(fileno=DOOR_FD)
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.poll = select.poll()
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.outputs = {wire.STDOUT: _Output(1), wire.STDERR: _Output(2)}
        self.connections: dict[int, _Connection] = {}
        self.room = wire.WINDOW  # send window for input
        self.reads = False  # whether there is more input
        self.code: int | None = None

    def run(self) -> int:
        terminal = bool(self.errand.order["terminal"])
        self._catch_signals()
        order = {**self.errand.order, "size": _size(0) if terminal else [24, 80]}
        order["stdin"] = terminal or not _is_null(0)
        frame = wire.pack(wire.RUN, data=json.dumps(order).encode())
        with contextlib.suppress(OSError):  # refused: the reason can still be read
            socket.send_fds(self.door, [frame[:1]], [TOLD_FD])
            self.door.sendall(frame[1:])
        os.close(TOLD_FD)
        self._wait_until_taken()
        if terminal:
            _make_raw(0)
        self.reads = bool(order["stdin"])
        self._set_up()
        while self.code is None:
            for descriptor, event in self.poll.poll():
                handler = self.handlers.get(descriptor)
                if handler is not None:
                    handler(event)
        for output in self.outputs.values():
            self._finish(output)
        return self.code

    def _wait_until_taken(self) -> None:
        """Wait until the command is accepted; the machine may still be starting, or has ended and reports why."""
        while (frame := wire.take(self.incoming)) is None:
            try:
                data = self.door.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                _refuse("the machine has ended")
            self.incoming += data
        kind, _, _, data = frame
        if kind == wire.GONE:
            _refuse(str(json.loads(data)["reason"]))

    def _catch_signals(self) -> None:
        """Install signal handlers before the terminal size is read, so that a later change is not lost."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGWINCH, lambda *_: None)
        self._watch(read_end, lambda _: self._signalled(os.read(read_end, 64)))

    def _set_up(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # not earlier: there would be no receiver
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.door.setblocking(False)
        self._watch(DOOR_FD, self._talk)
        for descriptor in (0, 1, 2):
            os.set_blocking(descriptor, False)
        if self.reads:
            self._watch(0, lambda _: self._read_input())
        self._hear()

    def _watch(self, descriptor: int, handler: Callable[[int], None], events: int = select.POLLIN) -> None:
        self.handlers[descriptor] = handler
        self.poll.register(descriptor, events)

    def _forget(self, descriptor: int) -> None:
        if self.handlers.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    def _signalled(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers:
            self._send(wire.pack(wire.SIGNAL, data=bytes([signal.SIGTERM])))
        if signal.SIGWINCH in numbers:
            self._send(wire.pack(wire.RESIZE, data=struct.pack("<HH", *_size(0))))

    # -- the `door` socket ---------------------------------------------------------------------------------------------

    def _send(self, frame: bytes) -> None:
        self.outgoing += frame
        self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.outgoing:
                del self.outgoing[: self.door.send(self.outgoing[:65536])]
        self.poll.modify(DOOR_FD, select.POLLIN | (select.POLLOUT if self.outgoing else 0))

    def _talk(self, event: int) -> None:
        try:
            if event & select.POLLOUT:
                self._flush()
            if not event & ~select.POLLOUT:
                return
            data = self.door.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.code = 125
            return
        self.incoming += data
        self._hear()

    def _hear(self) -> None:
        while self.code is None and (frame := wire.take(self.incoming)) is not None:
            kind, _, channel, data = frame
            if channel:
                self._hear_connection(kind, channel, data)
            elif kind in self.outputs:
                output = self.outputs[kind]
                output.pending += data
                self._write(kind, output)
            elif kind == wire.REPORT:
                _report(data)
            elif kind == wire.GRANT:
                self.room += wire.read_grant(data)[1]
                if self.reads:
                    self._watch(0, lambda _: self._read_input())
            elif kind == wire.EXIT:
                self.code = data[0]
            elif kind == wire.GONE:
                self.code = 125

    # -- the command's streams -----------------------------------------------------------------------------------------

    def _write(self, kind: int, output: _Output) -> None:
        done = 0
        try:
            while output.pending and not output.is_broken:
                size = os.write(output.descriptor, output.pending[:65536])
                del output.pending[:size]
                done += size
        except BlockingIOError:
            pass
        except OSError:
            output.is_broken = True
        if output.is_broken:
            done += len(output.pending)
            output.pending.clear()
        if done:
            self._send(wire.grant(0, 0, kind, done))
        if output.pending and output.descriptor not in self.handlers:
            self._watch(output.descriptor, lambda _: self._write(kind, output), select.POLLOUT)
        elif not output.pending:
            self._forget(output.descriptor)

    def _finish(self, output: _Output) -> None:
        os.set_blocking(output.descriptor, True)
        with contextlib.suppress(OSError):
            while output.pending:
                del output.pending[: os.write(output.descriptor, output.pending)]

    def _read_input(self) -> None:
        if not self.room:
            self._forget(0)
            return
        try:
            data = os.read(0, min(self.room, wire.MAX_DATA))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.reads = False
            self._forget(0)
            self._send(wire.pack(wire.INPUT_ENDS))
            return
        self.room -= len(data)
        self._send(wire.pack(wire.INPUT, data=data))

    # -- connections to the proxy --------------------------------------------------------------------------------------

    def _hear_connection(self, kind: int, channel: int, data: bytes) -> None:
        if kind == wire.OPEN:
            self._open(channel)
            return
        connection = self.connections.get(channel)
        if connection is None:
            return
        if kind == wire.CLOSE:
            self._close(channel, told=True)
        elif kind == wire.GRANT:
            connection.room += wire.read_grant(data)[1]
            self._rearm(channel)
        elif kind in (wire.DATA, wire.SHUT):
            if len(connection.pending) + len(data) > 2 * wire.WINDOW:
                self._close(channel)  # it exceeds its window
                return
            connection.pending += data
            connection.ends = connection.ends or kind == wire.SHUT
            self._push(channel)

    def _open(self, channel: int) -> None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if not self.errand.has_proxy or len(self.connections) >= _CONNECTIONS or channel in self.connections:
                raise OSError("no way out")
            link.connect(f"/proc/self/fd/{PROXY_FD}")
        except OSError:
            link.close()
            self._send(wire.pack(wire.CLOSE, 0, channel))
            return
        link.setblocking(False)
        self.connections[channel] = _Connection(link)
        self._rearm(channel)

    def _serve(self, channel: int, event: int) -> None:
        connection = self.connections[channel]
        if event & select.POLLOUT:
            self._push(channel)
        if channel not in self.connections or not event & ~select.POLLOUT:
            return
        if connection.ended or not connection.room:
            return
        try:
            data = connection.link.recv(min(connection.room, wire.MAX_DATA))
        except BlockingIOError:
            return
        except OSError:
            self._close(channel)
            return
        if data:
            connection.room -= len(data)
            self._send(wire.pack(wire.DATA, 0, channel, data))
        else:
            connection.ended = True
            self._send(wire.pack(wire.SHUT, 0, channel))
            if connection.ends and not connection.pending:
                self._close(channel)
                return
        self._rearm(channel)

    def _push(self, channel: int) -> None:
        connection = self.connections[channel]
        done = 0
        try:
            while connection.pending:
                size = connection.link.send(connection.pending)
                del connection.pending[:size]
                done += size
        except BlockingIOError:
            pass
        except OSError:
            self._close(channel)
            return
        if done:
            self._send(wire.grant(0, channel, wire.DATA, done))
        if connection.ends and not connection.pending:
            with contextlib.suppress(OSError):
                connection.link.shutdown(socket.SHUT_WR)
            if connection.ended:
                self._close(channel)
                return
        self._rearm(channel)

    def _rearm(self, channel: int) -> None:
        """Wait for the wanted events; unregister if there are none, because a hang-up would be reported forever."""
        connection = self.connections[channel]
        wanted = (select.POLLIN if connection.room and not connection.ended else 0) | (
            select.POLLOUT if connection.pending else 0
        )
        if wanted:
            self._watch(connection.link.fileno(), lambda event: self._serve(channel, event), wanted)
        else:
            self._forget(connection.link.fileno())

    def _close(self, channel: int, *, told: bool = False) -> None:
        connection = self.connections.pop(channel)
        self._forget(connection.link.fileno())
        connection.link.close()
        if not told:
            self._send(wire.pack(wire.CLOSE, 0, channel))


def _report(data: bytes) -> None:
    with contextlib.suppress(OSError):
        if data:
            os.write(spawn.REPORT_FD, data)
        else:
            os.close(spawn.REPORT_FD)


def _refuse(reason: str) -> NoReturn:
    """Report to the supervisor why the command never started."""
    _report(struct.pack("<II", 1, 0) + reason.encode(errors="replace")[:4000])
    os._exit(125)


def _is_null(descriptor: int) -> bool:
    return os.fstat(descriptor).st_rdev == os.makedev(1, 3)


def _size(descriptor: int) -> list[int]:
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8)))
    return [rows, columns]


def _make_raw(descriptor: int) -> None:
    """Pass every byte through: the guest's own terminal processes them."""
    tty.setraw(descriptor, termios.TCSANOW)
