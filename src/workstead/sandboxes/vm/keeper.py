"""The VM daemon: start a virtual machine, keep it between commands, and end it.

Two processes. The daemon starts QEMU, waits for its end and cleans up; started by root it stays root, and never reads a
byte that came from the guest. The relay, its child, has dropped root privileges and does all communication. QEMU and
the relay die with the daemon, and the daemon exits when its relay or QEMU has ended.

All files are in the machine's directory, which no agent can write:

    lock      locked while the daemon lives; contains its process id and start time
    use       locked, shared, by every user of the machine; an exiting daemon locks it exclusively
    door      a unix socket for clients with a command; they wait there until the machine is up
    machine   a description as JSON, informational only
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback

from workstead.model.enforcement import Limits
from workstead.model.value import Value
from workstead.sandboxes.vm import qemu, wire
from workstead.sandboxes.vm.pokes import Pokes
from workstead.system.kernel import cgroups
from workstead.system.process import crash_log, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from workstead.sandboxes.vm.guest import Guest
    from workstead.sandboxes.vm.machine import Machine

_PING_SECONDS = 2.0
_POKE_SECONDS = 0.05  # repeated changes of a path are reported once in this time
_OFF_SECONDS = 5.0
_LINGER_SECONDS = 10.0  # wait for processes that lock the machine and have not connected yet
_COLD_SECONDS = {True: 240.0, False: 60.0}  # emulated or not
_WARM_SECONDS = {True: 60.0, False: 15.0}
_OVERHEAD_MB = {True: 512, False: 256}  # QEMU's own memory beside the guest's
_PENDING = 4 << 20  # bytes queued for the guest, above which no client may send more
_CLIENT_PENDING = 24 << 20  # queue limit of one run: more than all its windows
_TAIL = 4096
_TRACE = 16384  # maximum bytes of a traceback: less than a pipe holds
_CLIENT_KINDS = frozenset(
    (wire.INPUT, wire.INPUT_ENDS, wire.SIGNAL, wire.RESIZE, wire.KILL, wire.GRANT, wire.DATA, wire.SHUT, wire.CLOSE)
)
_RUN_KINDS = frozenset((wire.REPORT, wire.STDOUT, wire.STDERR, wire.GRANT, wire.OPEN, wire.DATA, wire.SHUT, wire.CLOSE))


class Order(Value):
    """The configuration of a VM daemon."""

    directory: str
    machine: Machine
    guest: Guest
    state: str | None = None  # a saved state to start from
    idle_seconds: float = 600.0
    notes: tuple[str, ...] = ()


# -- the VM daemon -----------------------------------------------------------------------------------------------------


def start(order: Order) -> None:
    """Start a VM daemon that is not our child; it holds its lock and listens when this returns."""
    listener = _listen(order.directory, order.machine.uid if os.geteuid() == 0 else None)
    lock = os.open(f"{order.directory}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # flock belongs to the open file, which the fork shares
    try:
        spawn.fork_detached(lambda: _keep(order, listener, lock), keep=(listener.fileno(), lock))
    finally:
        os.close(lock)
        listener.close()


def _listen(directory: str, owner: int | None) -> socket.socket:
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink("door", dir_fd=folder)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"/proc/self/fd/{folder}/door")
        os.chmod("door", 0o600, dir_fd=folder)
        if owner is not None:
            os.chown("door", owner, -1, dir_fd=folder)  # for a command server that has dropped root
        listener.listen(128)
        return listener
    finally:
        os.close(folder)


def _keep(order: Order, listener: socket.socket, lock: int) -> None:
    log = f"{order.directory}/keeper.log"
    crash_log.install(log, "daemon of a virtual machine,")
    spawn.hide_memory()
    spawn.adopt_orphans()
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()} {spawn.read_start_time(os.getpid())}\n".encode(), 0)
    use = os.open(f"{order.directory}/use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _Keeper(order, listener, use, lock).run()
    except Exception as error:  # waiting clients must be told
        traceback.print_exc()
        _refuse(listener, use, f"its daemon failed: {error!r} (traceback in {log})")
    finally:
        for name in ("door", "machine"):
            with contextlib.suppress(OSError):
                os.unlink(f"{order.directory}/{name}")


class _Keeper:
    def __init__(self, order: Order, listener: socket.socket, use: int, lock: int) -> None:
        self.order = order
        self.listener = listener
        self.use = use
        self.lock = lock
        self.is_leaving = False
        self.relay = 0
        name = f"aw-vm-{os.path.basename(order.directory)}"
        left = cgroups.find(name)  # left by a daemon that was killed
        cgroups.kill(left)
        cgroups.remove(left)
        memory = (order.machine.memory_mb + _OVERHEAD_MB[order.machine.emulated]) << 20
        self.group = cgroups.make(name, Limits(memory_bytes=memory, processes=256))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._leave)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _leave(self, *_: object) -> None:
        self.is_leaving = True
        if self.relay:
            spawn.send([self.relay], signal.SIGTERM)

    def run(self) -> None:
        """Run one machine, and another one for clients that connect when it has just ended."""
        notes, state = self.order.notes, self.order.state
        try:
            while True:
                came_up, reason = self._attempt(state, notes)
                if self.is_leaving:
                    return
                if came_up:
                    if not self._is_wanted():
                        return
                elif state is not None:
                    with contextlib.suppress(OSError):
                        os.unlink(state)  # built again the next time
                    notes = (*notes, f"started cold: the saved state did not come up ({reason})")
                    state = None
                else:
                    _refuse(self.listener, self.use, reason)
                    return
        finally:
            spawn.kill_descendants()
            cgroups.kill(self.group)
            cgroups.remove(self.group)

    def _is_wanted(self) -> bool:
        """Return whether a client waits; if False because the machine is unused, none can come until we have exited."""
        waiting = select.poll()
        waiting.register(self.listener, select.POLLIN)
        end = time.monotonic() + _LINGER_SECONDS
        while time.monotonic() < end and not self.is_leaving:
            if waiting.poll(10):
                return True
            if _is_alone(self.use):
                return False
        return False

    def _attempt(self, state: str | None, notes: tuple[str, ...]) -> tuple[bool, str]:
        """Run one QEMU to its end; return whether it came up, and why it ended."""
        machine = self.order.machine
        ours, theirs = [], []
        for _ in range(3):
            one, other = socket.socketpair()
            ours.append(one)
            theirs.append(spawn.keep(other.detach()))
        errors, errors_end = os.pipe2(os.O_CLOEXEC)
        told, tell = os.pipe2(os.O_CLOEXEC)
        kept = None
        if state is not None:
            kept = spawn.keep(os.open(state, os.O_RDONLY | os.O_CLOEXEC))
        launch = qemu.launch(
            machine, self.order.guest, serial=theirs[0], control=theirs[1], console=theirs[2], state=kept
        )
        try:
            pid = qemu.spawn(launch, errors_end, self.group.paths)
        except OSError as error:
            return False, f"QEMU could not be started: {error}"
        finally:
            os.close(errors_end)
        self._describe(pid, warm=state is not None, notes=notes)
        self.relay = os.fork()
        if self.relay == 0:
            self._become_relay(ours, errors, told, tell, notes, warm=state is not None)
        for one in ours:
            one.close()
        os.close(errors)
        os.close(tell)
        if self.is_leaving:
            self._leave()
        os.waitpid(self.relay, 0)
        self.relay = 0
        spawn.send([pid], signal.SIGKILL)  # ends its namespace, and the machine
        spawn.kill_descendants()
        words = b""
        while chunk := os.read(told, 65536):
            words += chunk
        os.close(told)
        words, _, trace = words.partition(b"\0")
        if trace:
            print(trace.decode(errors="replace"), file=sys.stderr)
        came_up, _, reason = words.decode(errors="replace").rpartition("up\n")
        return bool(came_up) or words.startswith(b"up\n"), reason[-1000:]

    def _describe(self, pid: int, *, warm: bool, notes: tuple[str, ...]) -> None:
        """Write the description of the machine: informational only."""
        machine = self.order.machine
        body = {
            "pid": os.getpid(), "qemu": pid, "mode": machine.mode, "memory_mb": machine.memory_mb,
            "cpus": machine.cpus, "workspace": machine.workspace, "public_mount": machine.public_mount,
            "started_at": time.time(), "warm": warm, "notes": list(notes),
        }  # fmt: skip
        with contextlib.suppress(OSError):
            with open(f"{self.order.directory}/machine.new", "w") as file:
                json.dump(body, file)
            os.rename(f"{self.order.directory}/machine.new", f"{self.order.directory}/machine")

    def _become_relay(
        self, ours: list[socket.socket], errors: int, told: int, tell: int, notes: tuple[str, ...], *, warm: bool
    ) -> None:
        status = 1
        try:
            os.close(told)
            os.close(self.lock)
            lifeline = tell  # the daemon has the other end
            workspace = self._open_workspace()
            if os.geteuid() == 0:
                spawn.step_down(self.order.machine.uid, self.order.machine.gid)
            spawn.die_with(lifeline)
            spawn.hide_memory()
            relay = Relay(self.order, self.listener, self.use, ours, errors, tell, notes, workspace, warm=warm)
            relay.run()
            status = 0
        except BaseException as error:
            with contextlib.suppress(OSError):
                # The daemon writes it to the log: we have dropped that permission.
                os.write(tell, f"the relay failed: {error!r}\0{traceback.format_exc()[-_TRACE:]}".encode())
        finally:
            os._exit(status)

    def _open_workspace(self) -> int | None:
        """Open the workspace while its path is accessible; None if only the mount daemon sees it."""
        if self.order.machine.holder is not None:
            return None
        return os.open(self.order.machine.workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _refuse(listener: socket.socket, use: int, reason: str) -> None:
    """Tell waiting clients why the machine does not start, until no process is left that might connect."""
    listener.settimeout(0.05)
    body = wire.pack(wire.GONE, data=json.dumps({"reason": reason or "the machine did not come up"}).encode())
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(1.0)
                connection.sendall(body)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):  # closing with unread data would discard our message
                    pass
            continue
        if _is_alone(use):
            return


def _is_alone(use: int) -> bool:
    """Return whether the machine is unused; from then on no process can begin to use it until we have exited."""
    try:
        fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# -- the relay ---------------------------------------------------------------------------------------------------------


class _Client:
    """A client with a command, and the pipe on which the supervisor gets its result."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection: socket.socket | None = connection
        self.told = -1
        self.run = 0
        self.incoming = bytearray()
        self.outgoing = bytearray()


class Lost(Exception):
    """The machine has ended, or does not answer."""


class Relay:
    """One poll loop over the guest, QEMU and the clients. Data from the guest is untrusted: it is limited, and only
    forwarded.
    """

    def __init__(
        self,
        order: Order,
        listener: socket.socket,
        use: int,
        sockets: list[socket.socket],
        errors: int,
        tell: int,
        notes: tuple[str, ...],
        workspace: int | None,
        *,
        warm: bool,
    ) -> None:
        self.order = order
        self.workspace = workspace
        self.pokes: Pokes | None = None  # for a guest in which a process watches files
        self.poke_at: float | None = None
        self.listener = listener
        self.use = use
        self.serial, self.control, self.console = sockets
        self.errors = errors
        self.tell = tell
        self.notes = notes
        self.warm = warm
        self.poll = select.poll()
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.to_guest = bytearray()
        self.from_guest = bytearray()
        self.tails = {"console": b"", "errors": b"", "control": b""}
        self.shutdown = ""
        self.clients: dict[int, _Client] = {}  # by descriptor
        self.runs: dict[int, _Client] = {}  # by number
        self.last_number = 0
        self.is_up = False
        self.is_leaving = False
        self.heard = time.monotonic()
        self.used = time.monotonic()
        self.next_ping = 0.0
        emulated = order.machine.emulated
        self.deadline = self.heard + (_WARM_SECONDS if warm else _COLD_SECONDS)[emulated]

    def run(self) -> None:
        for one in (self.serial, self.control, self.console):
            one.setblocking(False)
        os.set_blocking(self.errors, False)
        self._catch_signals()
        self._watch(self.serial.fileno(), self._hear_guest)
        self._watch(self.control.fileno(), lambda _: self._hear_control())
        self._watch(self.console.fileno(), lambda _: self._hear_tail("console", self.console.fileno()))
        self._watch(self.errors, lambda _: self._hear_tail("errors", self.errors))
        self.control.send(b'{"execute": "qmp_capabilities"}\n')
        if self.warm:
            self._mount()
        try:
            while not self.is_leaving:
                self._turn()
            self._power_off()
            self._end("the machine was stopped")
        except Lost as lost:
            self._listen_to_the_end()
            self._end(self._explain(str(lost)))

    def _catch_signals(self) -> None:
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

        def woken(_: int) -> None:
            if signal.SIGTERM in os.read(read_end, 64):
                self.is_leaving = True

        self._watch(read_end, woken)

    def _watch(self, descriptor: int, handler: Callable[[int], None], events: int = select.POLLIN) -> None:
        self.handlers[descriptor] = handler
        self.poll.register(descriptor, events)

    def _forget(self, descriptor: int) -> None:
        if self.handlers.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    def _turn(self) -> None:
        for descriptor, event in self.poll.poll(500 if self.poke_at is None else 1000 * _POKE_SECONDS):
            handler = self.handlers.get(descriptor)
            if handler is not None:
                handler(event)
        now = time.monotonic()
        if self.poke_at is not None and now >= self.poke_at:
            self._poke()
        if not self.is_up:
            if now > self.deadline:
                raise Lost("the machine did not come up in time")
            return
        if now >= self.next_ping:
            self.next_ping = now + _PING_SECONDS
            self._send(wire.pack(wire.PING, data=struct.pack("<d", time.time())))
        if now - self.heard > self.order.machine.patience_seconds:
            raise Lost(f"the guest has not answered for {now - self.heard:.0f} seconds")
        if self.clients or self.runs:
            self.used = now
        elif now - self.used > self.order.idle_seconds and _is_alone(self.use):
            self.is_leaving = True

    # -- the guest -----------------------------------------------------------------------------------------------------

    def _send(self, frame: bytes) -> None:
        self.to_guest += frame
        self._flush()

    def _flush(self) -> None:
        try:
            while self.to_guest:
                del self.to_guest[: self.serial.send(self.to_guest[:65536])]
        except BlockingIOError:
            pass
        except OSError as error:
            raise Lost("the machine's process has ended") from error
        if self.serial.fileno() in self.handlers:
            self.poll.modify(self.serial.fileno(), select.POLLIN | (select.POLLOUT if self.to_guest else 0))
        self._rearm_all()

    def _rearm_all(self) -> None:
        full = len(self.to_guest) > _PENDING
        for descriptor, client in self.clients.items():
            self.poll.modify(descriptor, (0 if full else select.POLLIN) | (select.POLLOUT if client.outgoing else 0))

    def _hear_guest(self, event: int) -> None:
        if event & select.POLLOUT:
            self._flush()
        if not event & ~select.POLLOUT:
            return
        try:
            data = self.serial.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise Lost("the machine has ended")
        self.heard = time.monotonic()
        self.from_guest += data
        try:
            while (frame := wire.take(self.from_guest)) is not None:
                self._obey(*frame)
        except ValueError as error:
            raise Lost(f"the guest sent what no guest of ours sends: {error}") from None

    def _obey(self, kind: int, number: int, channel: int, data: bytes) -> None:
        if kind == wire.READY and not self.is_up and not self.warm:
            self._mount()
        elif kind == wire.MOUNTED and not self.is_up:
            self._come_up()
        elif kind == wire.FAILED:
            raise Lost(f"the guest could not be set up: {data.decode(errors='replace')}")
        elif kind in (wire.WATCH, wire.FORGET):
            self._watch_folder(kind, data)
        elif number in self.runs and kind in _RUN_KINDS:
            self._pass_to_client(self.runs[number], wire.pack(kind, 0, channel, data))
        elif number in self.runs and kind == wire.EXIT:
            self._finish(number, data)

    def _mount(self) -> None:
        order = qemu.order(self.order.machine)
        order |= {"time": time.time(), "seed": base64.b64encode(os.urandom(64)).decode()}
        self._send(wire.pack(wire.MOUNT, data=json.dumps(order).encode()))

    def _come_up(self) -> None:
        self.is_up = True
        self.used = self.heard
        os.write(self.tell, b"up\n")
        self.listener.setblocking(False)
        self._watch(self.listener.fileno(), lambda _: self._accept())

    def _finish(self, number: int, data: bytes) -> None:
        """Pass on the end of a run: the guest reports that no process of it is left."""
        client = self.runs.pop(number)
        found = json.loads(data)
        usage = {name: found["usage"].get(name) for name in _USAGE} if isinstance(found.get("usage"), dict) else {}
        usage = {name: value for name, value in usage.items() if isinstance(value, int) and 0 <= value < 1 << 62}
        code = found.get("code")
        code = code if isinstance(code, int) and 0 <= code < 256 else 125
        self._tell_supervisor(client, {"usage": usage}, last=True)
        self._pass_to_client(client, wire.pack(wire.EXIT, 0, 0, bytes([code])))

    # -- folders watched in the guest ----------------------------------------------------------------------------------

    def _watch_folder(self, kind: int, path: bytes) -> None:
        if self.pokes is None and self.workspace is not None:
            try:
                self.pokes = Pokes(self.workspace)
            except OSError:  # the user has no inotify instance left: polling programs still see changes
                self.workspace = None
                return
            self._watch(self.pokes.fileno(), lambda _: self._poke_soon())
        if self.pokes is not None:
            (self.pokes.watch if kind == wire.WATCH else self.pokes.forget)(path)

    def _poke_soon(self) -> None:
        assert self.pokes is not None
        self._forget(self.pokes.fileno())
        self.poke_at = time.monotonic() + _POKE_SECONDS

    def _poke(self) -> None:
        assert self.pokes is not None
        self.poke_at = None
        for path in self.pokes.take():
            self._send(wire.pack(wire.POKE, data=path))
        self._watch(self.pokes.fileno(), lambda _: self._poke_soon())

    # -- QEMU ----------------------------------------------------------------------------------------------------------

    def _hear_tail(self, name: str, descriptor: int) -> None:
        """Keep the last bytes of an output."""
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._forget(descriptor)
        self.tails[name] = (self.tails[name] + data)[-_TAIL:]

    def _hear_control(self) -> None:
        self._hear_tail("control", self.control.fileno())
        for line in self.tails["control"].split(b"\n"):
            if b'"SHUTDOWN"' in line:
                with contextlib.suppress(ValueError, AttributeError):
                    self.shutdown = str(json.loads(line)["data"].get("reason", ""))[:100]

    def _listen_to_the_end(self) -> None:
        """Read remaining messages that were sent before the end."""
        for name, descriptor in (("console", self.console.fileno()), ("errors", self.errors)):
            self._hear_tail(name, descriptor)
        self._hear_control()

    def _explain(self, reason: str) -> str:
        console = self.tails["console"].decode(errors="replace")
        lines = [line for line in console.splitlines() if "Kernel panic" in line or wire.AGENT_FAILED in line]
        panic = [line.partition("] ")[2] or line for line in lines]
        if panic:
            return f"{reason}: {panic[-1].strip()[:300]}"
        said = [line for line in self.tails["errors"].decode(errors="replace").splitlines() if "warning" not in line]
        if said:
            return f"{reason}: {said[-1].strip()[:300]}"
        if self.shutdown == "guest-reset":
            return f"{reason}: the guest restarted itself"
        return f"{reason}{': ' + self.shutdown if self.shutdown else ''}"

    # -- clients -------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        client = self.clients[connection.fileno()] = _Client(connection)
        self._watch(connection.fileno(), lambda event: self._serve(client, event))

    def _serve(self, client: _Client, event: int) -> None:
        connection = client.connection
        if connection is None:
            return
        try:
            if event & select.POLLOUT and client.outgoing:
                del client.outgoing[: connection.send(client.outgoing)]
                self._rearm_all()
            if event & ~select.POLLOUT:
                data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 1)
                if descriptors:
                    client.told = descriptors[0]
                if not data:
                    self._drop(client)
                    return
                client.incoming += data
                while (frame := wire.take(client.incoming, wire.MAX_ORDER)) is not None:
                    self._forward(client, *frame)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._drop(client)

    def _forward(self, client: _Client, kind: int, _: int, channel: int, data: bytes) -> None:
        if kind == wire.RUN and not client.run and client.told >= 0:
            client.run = self._number()
            self.runs[client.run] = client
            self._tell_supervisor(client, {"notes": list(self.notes)})
            self._pass_to_client(client, wire.pack(wire.TAKEN))
            self._send(wire.pack(kind, client.run, 0, data))
        elif client.run in self.runs and kind in _CLIENT_KINDS:
            self._send(wire.pack(kind, client.run, channel, data))

    def _number(self) -> int:
        while True:
            self.last_number = self.last_number % 65535 + 1
            if self.last_number not in self.runs:
                return self.last_number

    def _pass_to_client(self, client: _Client, frame: bytes) -> None:
        if client.connection is None:
            return
        client.outgoing += frame
        if len(client.outgoing) > _CLIENT_PENDING:
            self._drop(client)  # a guest that exceeds its window
            return
        self._serve(client, select.POLLOUT)
        if client.connection is not None and client.outgoing:
            self.poll.modify(client.connection.fileno(), select.POLLIN | select.POLLOUT)

    def _drop(self, client: _Client) -> None:
        """Kill the command of a client that disconnected; the supervisor is told when it has ended."""
        if client.connection is None:
            return
        descriptor = client.connection.fileno()
        self.clients.pop(descriptor, None)
        self._forget(descriptor)
        client.connection.close()
        client.connection = None
        if client.run in self.runs:
            self._send(wire.pack(wire.KILL, client.run))
        elif client.told >= 0:
            self._close_told(client)

    def _tell_supervisor(self, client: _Client, words: dict[str, Any], *, last: bool = False) -> None:
        if client.told >= 0:
            with contextlib.suppress(OSError):
                os.write(client.told, json.dumps(words).encode() + b"\n")
            if last:
                self._close_told(client)

    @staticmethod
    def _close_told(client: _Client) -> None:
        os.close(client.told)
        client.told = -1

    # -- the end -------------------------------------------------------------------------------------------------------

    def _power_off(self) -> None:
        """Let the guest write everything back; kill it if it does not."""
        end = time.monotonic() + _OFF_SECONDS
        with contextlib.suppress(Lost):
            self._send(wire.pack(wire.OFF))
            while time.monotonic() < end:
                for descriptor, event in self.poll.poll(100):
                    handler = self.handlers.get(descriptor)
                    if handler is not None and descriptor != self.listener.fileno():
                        handler(event)

    def _end(self, reason: str) -> None:
        if not self.is_up:
            os.write(self.tell, reason.encode(errors="replace"))
            return
        gone = wire.pack(wire.GONE, data=json.dumps({"reason": reason}).encode())
        for client in [*self.clients.values(), *self.runs.values()]:
            if client.run in self.runs:
                self._tell_supervisor(client, {"lost": reason}, last=True)
            if client.connection is not None:
                with contextlib.suppress(OSError):
                    client.connection.settimeout(0.5)
                    client.connection.sendall(bytes(client.outgoing) + gone)
                client.connection.close()
                client.connection = None


_USAGE = ("oom_kills", "refused_forks", "throttled_periods", "peak_memory_bytes")
