"""The guest agent, process 1 of the guest: initialize the machine, and run commands for the host.

The kernel starts it from the initramfs, which has a copy of the host's Python. Everything up to READY needs no share,
because a machine with a mounted share cannot be saved: a state that was saved at READY serves every workspace. MOUNT
then brings the time, fresh randomness (clones of one state would otherwise draw the same numbers) and the two shares:
`system`, the host's programs, and `work`, the workspace and its additional mounts.

A command gets the same confinement as in bubblewrap: namespaces for processes, mounts, network and IPC, a read-only
root, its own /tmp and home, an unprivileged user without capabilities, the same seccomp filter and the same shim as
last program in front of it. Its limits are those of a control group. Process 1 of its namespace is a fork of this
program that waits; when it dies, all processes of the command die.

Loaded in the guest, where `pins` and `wire` are our only other modules.
"""

from __future__ import annotations

import _socket
import binascii
import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import struct
import time

from workstead.sandboxes.vm import pins, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

ROOT = "/newroot"
SHARES = "/run/share"
_CGROUPS = "/sys/fs/cgroup"
_PROXY_PORT = 3128
_NEWNS, _NEWUTS, _NEWIPC, _NEWPID, _NEWNET = 0x00020000, 0x04000000, 0x08000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_FINIT_MODULE = 313
_TIOCSCTTY, _TIOCSWINSZ, _TIOCGPTN, _TIOCSPTLCK = 0x540E, 0x5414, 0x80045430, 0x40045431
_RNDADDENTROPY, _RNDRESEEDCRNG = 0x40085203, 0x5207
_CONNECTIONS = 64  # simultaneous connections of one run to the proxy
_RESERVE = 64 << 20  # memory reserved for this program and the kernel

libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system; raise OSError with its name."""
    done = libc.mount(source.encode(), os.fsencode(target), kind.encode() or None, flags, options.encode() or None)
    _check(done, f"mount {source} at {target}")


def write(path: str, text: str) -> None:
    """Write to a file of the kernel."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


# -- start -------------------------------------------------------------------------------------------------------------


def bring_up() -> int:
    """Do all initialization that needs no share; return the port to the host."""
    mount("proc", "/proc", "proc")
    mount("sysfs", "/sys", "sysfs")
    mount("dev", "/dev", "devtmpfs")
    mount("tmpfs", "/run", "tmpfs", _NOSUID | _NODEV, "mode=755")
    with open("/modules/order") as file:
        for name in file.read().split():
            descriptor = os.open(f"/modules/{name}", os.O_RDONLY)
            libc.syscall(_FINIT_MODULE, descriptor, b"", 0)
            os.close(descriptor)
    write("/proc/self/oom_score_adj", "-1000")
    for name, value in (
        ("user/max_user_namespaces", "0"),
        ("kernel/dmesg_restrict", "1"),
        ("kernel/panic_on_oops", "1"),
    ):
        write(f"/proc/sys/{name}", value)
    mount("cgroup", _CGROUPS, "cgroup2", _NOSUID | _NODEV | _NOEXEC)
    write(f"{_CGROUPS}/cgroup.subtree_control", "+memory +pids +cpu")
    mount(ROOT, ROOT, "", _BIND)
    mount("devpts", f"{ROOT}/dev/pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=666,mode=620")
    return _open_port("workstead")


def _open_port(name: str) -> int:
    """Open the port of this name: without udev there is no link to it."""
    folder = "/sys/class/virtio-ports"
    for _ in range(2000):
        with contextlib.suppress(FileNotFoundError):
            for port in os.listdir(folder):
                with open(f"{folder}/{port}/name") as file:
                    if file.read().strip() == name:
                        return os.open(f"/dev/{port}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        time.sleep(0.005)
    raise OSError(f"there is no port {name}")


def set_clock(now: float) -> None:
    """Set the clock to the host's; a restored guest is behind, and would see files with future times."""
    if abs(time.time() - now) > 0.2:
        time.clock_settime(time.CLOCK_REALTIME, now)


def reseed(seed: bytes) -> None:
    """Add fresh randomness from the host, credited as entropy at once."""
    descriptor = os.open("/dev/urandom", os.O_WRONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _RNDADDENTROPY, struct.pack("<ii", 8 * len(seed), len(seed)) + seed)
        fcntl.ioctl(descriptor, _RNDRESEEDCRNG)
    finally:
        os.close(descriptor)


class Place:
    """The mounts common to all commands of this machine, received once with MOUNT."""

    def __init__(self, order: dict[str, Any]) -> None:
        reseed(binascii.a2b_base64(order["seed"]))
        set_clock(order["time"])
        self.uid, self.gid = int(order["uid"]), int(order["gid"])
        self.flags = _NOSUID | _NODEV | (0 if order["executable"] else _NOEXEC)  # of writable mounts
        self.private = [(f"{ROOT}{path}", mode) for path, mode in order["private"]]
        os.makedirs(SHARES)
        # programs do not change while a machine runs; the workspace does, and only the cache mode mmap sees changes and
        # supports mmap
        for tag, flags, cache in (("system", _RDONLY, "loose"), ("work", 0, "mmap")):
            os.mkdir(f"{SHARES}/{tag}")
            options = f"trans=virtio,version=9p2000.L,msize=512000,access=client,cache={cache}"
            mount(tag, f"{SHARES}/{tag}", "9p", flags | _NOSUID | _NODEV, options)
        for path, text in order["files"].items():
            self._make_point(path, directory=False)
            with open(ROOT + path, "w") as file:
                file.write(text)
        for path, _ in order["private"]:
            self._make_point(path, directory=True)
        places = tuple(f"{path}/" for path, _ in order["private"])
        self.covered: list[tuple[str, str, bool, bool]] = []  # mounted in each command's own /tmp or home
        for share, target, read_only, no_exec in order["binds"]:
            shown = (f"{SHARES}/{share}", str(target), bool(read_only), bool(no_exec))
            if share == "work/workspace":
                self.workspace = f"{ROOT}{target}"
            if target.startswith(places):
                self.covered.append(shown)
            else:
                self.show(*shown)
        self.work = os.open(f"{SHARES}/work", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if order["hostname"]:
            write("/proc/sys/kernel/hostname", order["hostname"])

    def _make_point(self, path: str, *, directory: bool) -> None:
        whole = ROOT + path
        os.makedirs(whole if directory else os.path.dirname(whole), 0o755, exist_ok=True)
        if not directory and not os.path.lexists(whole):
            os.close(os.open(whole, os.O_CREAT | os.O_CLOEXEC, 0o644))

    def show(self, source: str, target: str, read_only: bool, no_exec: bool) -> None:
        """Bind a path inside. The server enforces read-only too; here it only produces the better error."""
        self._make_point(target, directory=os.path.isdir(source))
        mount(source, ROOT + target, "", _BIND)
        flags = _BIND | _REMOUNT | _NOSUID | _NODEV | (_RDONLY if read_only else 0) | (_NOEXEC if no_exec else 0)
        mount("none", ROOT + target, "", flags)


# -- one command -------------------------------------------------------------------------------------------------------


class Stream:
    """An output stream of a command to the host."""

    def __init__(self, descriptor: int, kind: int) -> None:
        self.descriptor = descriptor
        self.kind = kind
        self.room = wire.WINDOW


class Connection:
    """A connection of the command to the proxy."""

    def __init__(self, socket: _socket.socket) -> None:
        self.socket = socket
        self.room = wire.WINDOW
        self.pending = bytearray()
        self.ends = False  # the host sends no more
        self.ended = False  # the command sends no more


class Run:
    """A command and its resources."""

    def __init__(self, number: int, order: dict[str, Any], agent: Agent) -> None:
        self.number = number
        self.agent = agent
        self.group = f"{_CGROUPS}/r{number}"
        self.streams: dict[int, Stream] = {}
        self.stdin = -1
        self.stdin_pending = bytearray()
        self.stdin_ends = False
        self.terminal = -1
        self.status: int | None = None
        self.listener: _socket.socket | None = None
        self.connections: dict[int, Connection] = {}
        self.next_channel = 1
        self.room = order.get("room", "")
        self.report, report = os.pipe2(os.O_CLOEXEC)
        self.asking = -1  # descriptor on which its processes ask before adding an inotify watch
        self.asks, asks = _socket.socketpair()
        self._make_group(order)
        theirs = self._make_descriptors(order)
        try:
            self.pid = self._fork(order, theirs, report, asks.fileno())
        finally:
            asks.close()
            for descriptor in {*theirs, report}:
                os.close(descriptor)
        self.process = os.pidfd_open(self.pid)
        agent.watch(self.report, self._read_report)
        agent.watch(self.asks.fileno(), self._take_asking)
        agent.watch(self.process, self._ended)
        if self.listener is not None:
            agent.watch(self.listener.fileno(), self._accept)

    def _make_group(self, order: dict[str, Any]) -> None:
        os.mkdir(self.group)
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = min(order.get("memory_bytes") or total, total - _RESERVE)
        write(f"{self.group}/memory.max", str(memory))
        write(f"{self.group}/memory.oom.group", "1")
        if order.get("processes"):
            write(f"{self.group}/pids.max", str(order["processes"] + 1))  # plus the process that waits
        if order.get("cpus"):
            write(f"{self.group}/cpu.max", f"{max(1000, int(order['cpus'] * 100_000))} 100000")

    def _make_descriptors(self, order: dict[str, Any]) -> tuple[int, int, int]:
        if order["terminal"]:
            ours = os.open(f"{ROOT}/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            fcntl.ioctl(ours, _TIOCSPTLCK, struct.pack("i", 0))
            number = struct.unpack("i", fcntl.ioctl(ours, _TIOCGPTN, bytes(4)))[0]
            name = f"{ROOT}/dev/pts/{number}"
            os.chown(name, self.agent.place.uid, -1)
            theirs = os.open(name, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            os.set_blocking(ours, False)
            self.terminal = self.stdin = ours
            self.resize(*order["size"])
            self._add(ours, wire.STDOUT)
            return theirs, theirs, theirs
        ends = []
        for kind in (wire.STDOUT, wire.STDERR):
            ours, theirs = os.pipe2(os.O_CLOEXEC)
            os.fchown(theirs, self.agent.place.uid, -1)  # else `echo > /dev/stdout` is refused
            os.set_blocking(ours, False)
            self._add(ours, kind)
            ends.append(theirs)
        if not order["stdin"]:
            return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), ends[0], ends[1]
        theirs, self.stdin = os.pipe2(os.O_CLOEXEC)
        os.fchown(theirs, self.agent.place.uid, -1)
        os.set_blocking(self.stdin, False)
        return theirs, ends[0], ends[1]

    def _add(self, descriptor: int, kind: int) -> None:
        self.streams[descriptor] = Stream(descriptor, kind)
        self._rearm(self.streams[descriptor])

    def _fork(self, order: dict[str, Any], theirs: tuple[int, int, int], report: int, asks: int) -> int:
        """Fork the first process of new namespaces; our own namespaces are restored when this returns."""
        old_network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        old_processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(libc.unshare(_NEWNET | _NEWPID), "unshare")
            try:
                _loopback_up()
                if order["proxy"]:
                    self.listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
                    self.listener.bind(("127.0.0.1", _PROXY_PORT))
                    self.listener.listen(64)
                    self.listener.setblocking(False)
                pid = os.fork()
                if pid == 0:
                    self._become_init(order, theirs, report, asks)
            finally:
                libc.setns(old_network, _NEWNET)
                libc.setns(old_processes, _NEWPID)
        finally:
            os.close(old_network)
            os.close(old_processes)
        return pid

    def _become_init(self, order: dict[str, Any], theirs: tuple[int, int, int], report: int, asks: int) -> NoReturn:
        try:
            write(f"{self.group}/cgroup.procs", "0")
            write("/proc/self/oom_score_adj", "0")
            _check(libc.unshare(_NEWNS | _NEWIPC | _NEWUTS), "unshare")
            self._build_root(order)
            shim = os.memfd_create("enter", os.MFD_CLOEXEC)
            os.write(shim, binascii.a2b_base64(order["enter"]))
            command = os.fork()
            if command == 0:
                self._become_command(order, theirs, report, asks, shim)
            os.closerange(0, 1024)
            while True:
                pid, status = os.wait()
                if pid == command:
                    code = os.waitstatus_to_exitcode(status)
                    os._exit(128 - code if code < 0 else code)
        except OSError as error:
            _tell_failure(report, error.errno or 1, str(error))
        except BaseException as error:
            _tell_failure(report, 1, repr(error))
        finally:
            os._exit(125)

    def _build_root(self, order: dict[str, Any]) -> None:
        place = self.agent.place
        mount("none", "/", "", _REC | _PRIVATE)
        room = self.agent.rooms.get(self.room) if self.room else None
        size = f"size={order['tmp_bytes']}"
        for path, mode in place.private:
            if room:
                mount(room + path, path, "", _BIND)
                continue
            mount("tmpfs", path, "tmpfs", place.flags, f"mode={mode},uid={place.uid},gid={place.gid},{size}")
        for shown in place.covered:
            place.show(*shown)
        mount("proc", f"{ROOT}/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
        mount("none", ROOT, "", _BIND | _REMOUNT | _RDONLY | _NOSUID)
        os.chroot(ROOT)
        os.chdir("/")

    def _become_command(
        self, order: dict[str, Any], theirs: tuple[int, int, int], report: int, asks: int, shim: int
    ) -> NoReturn:
        stage = 1
        try:
            place = self.agent.place
            os.setsid()
            shim = fcntl.fcntl(shim, fcntl.F_DUPFD_CLOEXEC, 20)
            moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 30) for descriptor in (*theirs, report, asks)]
            for number, descriptor in enumerate(moved):
                os.dup2(descriptor, number)
            os.closerange(5, shim)
            os.closerange(shim + 1, 1024)
            if order["terminal"]:
                fcntl.ioctl(0, _TIOCSCTTY, 0)
            for number in range(1, signal.NSIG):
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            os.umask(0o022)
            for capability in range(64):
                libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
            os.setgroups([])
            os.setresgid(place.gid, place.gid, place.gid)
            os.setresuid(place.uid, place.uid, place.uid)
            os.chdir(order["directory"])
            _check(libc.prctl(38, 1, 0, 0, 0), "no new privileges")
            _pass_on(4, pins.ask_first())
            program = binascii.a2b_base64(order["seccomp"])
            kept = ctypes.create_string_buffer(program, len(program))
            pointer = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(kept))
            _check(libc.prctl(22, 2, ctypes.create_string_buffer(pointer, len(pointer)), 0, 0), "seccomp")
            stage = 5
            os.execve(shim, [os.fsencode(word) for word in ("enter", *order["argv"])], _environment(order))
        except OSError as error:
            _tell_failure(3, error.errno or 1, str(error), stage)
        except BaseException as error:
            _tell_failure(3, 1, repr(error), stage)
        finally:
            os._exit(125)

    # -- while it runs -------------------------------------------------------------------------------------------------

    def _read_report(self, _: int) -> None:
        data = os.read(self.report, 4096)
        self.agent.send(wire.REPORT, self.number, 0, data)
        if not data:
            self.agent.forget(self.report)
            os.close(self.report)
            self.report = -1

    def _take_asking(self, _: int) -> None:
        self.agent.forget(self.asks.fileno())
        given = self.asks.recvmsg(1, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC)[1]
        for _, _, data in given:
            self.asking = struct.unpack("i", data)[0]
            self.agent.watch(self.asking, self._answer)
        self.asks.close()

    def _answer(self, event: int) -> None:
        if not event & select.POLLIN:
            self.agent.forget(self.asking)  # no process is left that could ask
            return
        with contextlib.suppress(OSError):  # ENOENT: the process was killed meanwhile
            self.agent.pins.answer(self.number, self.asking)

    def _read_output(self, stream: Stream, event: int) -> None:
        if event & select.POLLOUT:
            self.write_stdin()
        if not event & ~select.POLLOUT or not stream.room:
            return
        try:
            data = os.read(stream.descriptor, min(stream.room, wire.MAX_DATA))
        except BlockingIOError:
            return
        except OSError:  # EIO: no process has the terminal's other end open any more
            data = b""
        if not data:
            self._end_stream(stream)
            return
        stream.room -= len(data)
        self.agent.send(stream.kind, self.number, 0, data)
        self._rearm(stream)

    def _end_stream(self, stream: Stream) -> None:
        self.agent.forget(stream.descriptor)
        del self.streams[stream.descriptor]
        os.close(stream.descriptor)
        if stream.descriptor == self.terminal:
            self.terminal = self.stdin = -1
        self.agent.finish_later(self)

    def _rearm(self, stream: Stream) -> None:
        wanted = select.POLLIN if stream.room else 0
        if stream.descriptor == self.terminal and self.stdin_pending:
            wanted |= select.POLLOUT
        self.agent.rearm(stream.descriptor, lambda event: self._read_output(stream, event), wanted)

    def grant(self, stream: int, size: int) -> None:
        for found in self.streams.values():
            if found.kind == stream:
                found.room += size
                self._rearm(found)

    def add_input(self, data: bytes) -> None:
        if self.stdin < 0 or self.stdin_ends:
            self.agent.send_frame(wire.grant(self.number, 0, wire.INPUT, len(data)))
            return
        self.stdin_pending += data
        self.write_stdin()

    def end_input(self) -> None:
        self.stdin_ends = True
        self.write_stdin()

    def write_stdin(self) -> None:
        if self.stdin < 0:
            return
        done = 0
        try:
            while self.stdin_pending:
                size = os.write(self.stdin, self.stdin_pending[:65536])
                del self.stdin_pending[:size]
                done += size
        except BlockingIOError:
            pass
        except OSError:  # the command closed it
            done += len(self.stdin_pending)
            self.stdin_pending.clear()
            self.stdin_ends = self.stdin_ends or self.terminal < 0
        if done:
            self.agent.send_frame(wire.grant(self.number, 0, wire.INPUT, done))
        if self.terminal >= 0:
            self._rearm(self.streams[self.terminal])
        elif self.stdin_pending:
            self.agent.watch(self.stdin, lambda _: self.write_stdin(), select.POLLOUT)
        else:
            self.agent.forget(self.stdin)
            if self.stdin_ends:
                os.close(self.stdin)
                self.stdin = -1

    def resize(self, rows: int, columns: int) -> None:
        if self.terminal >= 0:
            fcntl.ioctl(self.terminal, _TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def signal_all(self, number: int) -> None:
        """Signal every process except the one that waits; a stopped process gets the signal when it continues."""
        with open(f"{self.group}/cgroup.procs") as file:
            members = [int(line) for line in file if int(line) != self.pid]
        for each in (number, signal.SIGCONT):
            for pid in members:
                with contextlib.suppress(OSError):
                    os.kill(pid, each)

    def kill(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
        for stream in list(self.streams.values()):  # no reader is left
            self._end_stream(stream)

    def _ended(self, _: int) -> None:
        self.agent.forget(self.process)
        os.close(self.process)
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.agent.finish_later(self)

    @property
    def is_over(self) -> bool:
        return self.status is not None and self.report < 0 and not self.streams

    def finish(self) -> None:
        """Report the end: files are written back to the host (syncfs), and no process of the command is left."""
        libc.syncfs(self.agent.place.work)
        assert self.status is not None
        used = {"oom_kills": _field(f"{self.group}/memory.events", "oom_kill")}
        used["refused_forks"] = _field(f"{self.group}/pids.events", "max")
        used["throttled_periods"] = _field(f"{self.group}/cpu.stat", "nr_throttled")
        with contextlib.suppress(OSError), open(f"{self.group}/memory.peak") as file:
            used["peak_memory_bytes"] = int(file.read())
        for channel in list(self.connections):
            self.close_connection(channel)
        if self.listener is not None:
            self.agent.forget(self.listener.fileno())
            self.listener.close()
        if self.stdin >= 0:
            self.agent.forget(self.stdin)
            os.close(self.stdin)
        self.agent.forget(self.asks.fileno())
        self.asks.close()
        if self.asking >= 0:
            self.agent.forget(self.asking)
            os.close(self.asking)
        self.agent.pins.release(self.number)
        self._remove_group()
        code = 128 - self.status if self.status < 0 else self.status
        self.agent.send(wire.EXIT, self.number, 0, json.dumps({"code": code, "usage": used}).encode())

    def _remove_group(self) -> None:
        for _ in range(200):
            try:
                os.rmdir(self.group)
                return
            except OSError:
                time.sleep(0.005)  # the last process is just exiting

    # -- connections to the proxy --------------------------------------------------------------------------------------

    def _accept(self, _: int) -> None:
        assert self.listener is not None
        try:
            descriptor, _address = self.listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        socket = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM, 0, descriptor)
        if len(self.connections) >= _CONNECTIONS:
            socket.close()
            return
        socket.setblocking(False)
        channel = self.next_channel
        self.next_channel += 1
        self.connections[channel] = Connection(socket)
        self.agent.send(wire.OPEN, self.number, channel)
        self._rearm_connection(channel)

    def _serve(self, channel: int, event: int) -> None:
        connection = self.connections[channel]
        if event & select.POLLOUT:
            self._push(channel)
        if channel not in self.connections or not event & ~select.POLLOUT:
            return
        if connection.ended or not connection.room:
            return
        try:
            data = connection.socket.recv(min(connection.room, wire.MAX_DATA))
        except BlockingIOError:
            return
        except OSError:
            self.close_connection(channel)
            return
        if data:
            connection.room -= len(data)
            self.agent.send(wire.DATA, self.number, channel, data)
        else:
            connection.ended = True
            self.agent.send(wire.SHUT, self.number, channel)
            if connection.ends and not connection.pending:
                self.close_connection(channel)
                return
        self._rearm_connection(channel)

    def _rearm_connection(self, channel: int) -> None:
        connection = self.connections[channel]
        wanted = (select.POLLIN if connection.room and not connection.ended else 0) | (
            select.POLLOUT if connection.pending else 0
        )
        self.agent.rearm(connection.socket.fileno(), lambda event: self._serve(channel, event), wanted)

    def _push(self, channel: int) -> None:
        connection = self.connections[channel]
        done = 0
        try:
            while connection.pending:
                size = connection.socket.send(connection.pending)
                del connection.pending[:size]
                done += size
        except BlockingIOError:
            pass
        except OSError:
            self.close_connection(channel)
            return
        if done:
            self.agent.send_frame(wire.grant(self.number, channel, wire.DATA, done))
        if connection.ends and not connection.pending:
            with contextlib.suppress(OSError):
                connection.socket.shutdown(_socket.SHUT_WR)
            if connection.ended:
                self.close_connection(channel)
                return
        self._rearm_connection(channel)

    def hear(self, kind: int, channel: int, data: bytes) -> None:
        """Handle a frame from the host about a connection."""
        connection = self.connections.get(channel)
        if connection is None:
            return
        if kind == wire.CLOSE:
            self.close_connection(channel, told=True)
        elif kind == wire.GRANT:
            connection.room += wire.read_grant(data)[1]
            self._rearm_connection(channel)
        else:
            connection.pending += data
            connection.ends = connection.ends or kind == wire.SHUT
            self._push(channel)

    def close_connection(self, channel: int, *, told: bool = False) -> None:
        connection = self.connections.pop(channel)
        self.agent.forget(connection.socket.fileno())
        connection.socket.close()
        if not told:
            self.agent.send(wire.CLOSE, self.number, channel)


def _environment(order: dict[str, Any]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in order["environment"].items()}


def _pass_on(socket: int, descriptor: int) -> None:
    """Send the descriptor to the agent, and close both."""
    with_socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, socket)
    try:
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", descriptor))]
        with_socket.sendmsg([b"x"], rights)
    finally:
        with_socket.close()
        os.close(descriptor)


def _tell_failure(report: int, code: int, text: str, stage: int = 1) -> None:
    with contextlib.suppress(OSError):
        os.write(report, stage.to_bytes(4, "little") + code.to_bytes(4, "little") + text.encode(errors="replace"))


def _loopback_up() -> None:
    with_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    try:
        fcntl.ioctl(with_socket.fileno(), 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS: up, running
    finally:
        with_socket.close()


def _field(path: str, name: str) -> int:
    with contextlib.suppress(OSError), open(path) as file:
        for line in file:
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


# -- event loop --------------------------------------------------------------------------------------------------------


class Agent:
    """One poll loop over the port, the commands and their streams."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.poll = select.poll()
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.runs: dict[int, Run] = {}
        self.rooms: dict[str, str] = {}
        self.over: list[Run] = []
        self.watch(port, self._talk)

    def watch(self, descriptor: int, handler: Callable[[int], None], events: int = select.POLLIN) -> None:
        self.handlers[descriptor] = handler
        self.poll.register(descriptor, events)

    def rearm(self, descriptor: int, handler: Callable[[int], None], events: int) -> None:
        """Wait for these events; unregister if there are none, because a hang-up would be reported forever."""
        if not events:
            self.forget(descriptor)
        else:
            self.watch(descriptor, handler, events)

    def forget(self, descriptor: int) -> None:
        if self.handlers.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    def send(self, kind: int, run: int = 0, channel: int = 0, data: bytes = b"") -> None:
        self.send_frame(wire.pack(kind, run, channel, data))

    def send_frame(self, frame: bytes) -> None:
        self.outgoing += frame
        self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.outgoing:
                del self.outgoing[: os.write(self.port, self.outgoing[:32768])]
        self.poll.modify(self.port, select.POLLIN | (select.POLLOUT if self.outgoing else 0))

    def finish_later(self, run: Run) -> None:
        if run.is_over and run not in self.over:
            self.over.append(run)

    def _talk(self, event: int) -> None:
        if event & select.POLLOUT:
            self._flush()
        if event & select.POLLIN:
            with contextlib.suppress(BlockingIOError):
                self.incoming += os.read(self.port, 1 << 16)
            while (frame := wire.take(self.incoming, wire.MAX_ORDER)) is not None:
                self._obey(*frame)

    def _obey(self, kind: int, number: int, channel: int, data: bytes) -> None:
        if kind == wire.PING:
            set_clock(struct.unpack("<d", data)[0])
            self.send(wire.PONG)
        elif kind == wire.MOUNT:
            try:
                self.place = Place(json.loads(data))
                self.pins = pins.Pins(self.place.workspace, lambda kind, path: self.send(kind, 0, 0, path))
                self.watch(self.pins.own, lambda _: self.pins.hear_own())
            except (OSError, ValueError, KeyError) as error:
                self.send(wire.FAILED, 0, 0, repr(error).encode()[:2000])
                return
            self.send(wire.MOUNTED)
        elif kind == wire.RUN:
            self._start(number, json.loads(data))
        elif kind == wire.POKE:
            self.pins.poke(os.fsdecode(data))
        elif kind == wire.OFF:
            power_off()
        elif number in self.runs:
            self._pass_on(self.runs[number], kind, channel, data)

    def _start(self, number: int, order: dict[str, Any]) -> None:
        try:
            if order.get("room") and order["room"] not in self.rooms:
                self._furnish(order["room"], order["tmp_bytes"])
            self.runs[number] = Run(number, order, self)
        except OSError as error:
            code = error.errno or 1
            self.send(wire.REPORT, number, 0, struct.pack("<II", 1, code) + str(error).encode()[:2000])
            self.send(wire.REPORT, number)
            self.send(wire.EXIT, number, 0, json.dumps({"code": 125, "usage": {}}).encode())

    def _furnish(self, name: str, size: int) -> None:
        """Create the /tmp and home that consecutive commands share, so that each sees the files of those before it."""
        folder = f"/run/room{len(self.rooms)}"
        for path, mode in self.place.private:
            os.makedirs(folder + path)
            options = f"mode={mode},uid={self.place.uid},gid={self.place.gid},size={size}"
            mount("tmpfs", folder + path, "tmpfs", self.place.flags, options)
        self.rooms[name] = folder

    def _pass_on(self, run: Run, kind: int, channel: int, data: bytes) -> None:
        if channel:
            run.hear(kind, channel, data)
        elif kind == wire.INPUT:
            run.add_input(data)
        elif kind == wire.INPUT_ENDS:
            run.end_input()
        elif kind == wire.SIGNAL:
            run.signal_all(data[0])
        elif kind == wire.RESIZE:
            run.resize(*struct.unpack("<HH", data))
        elif kind == wire.KILL:
            run.kill()
        elif kind == wire.GRANT:
            run.grant(*wire.read_grant(data))

    def serve(self) -> NoReturn:
        self.send(wire.READY)
        while True:
            for descriptor, event in self.poll.poll():
                handler = self.handlers.get(descriptor)
                if handler is not None:
                    handler(event)
            while self.over:
                run = self.over.pop()
                if run.number in self.runs and run.is_over:
                    del self.runs[run.number]
                    run.finish()
            _reap(self.runs)


def _reap(runs: dict[int, Run]) -> None:
    """Reap orphans that were re-parented to us; the status of a run's own process is left to the run."""
    own = {run.pid for run in runs.values()}
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in own:
            return
        os.waitpid(found.si_pid, 0)


def power_off() -> None:
    """Sync all files to the host, then restart, which the host treats as power-off."""
    os.sync()
    libc.reboot(0x01234567)


def main() -> None:
    """Entry point, started by the kernel."""
    try:
        Agent(bring_up()).serve()
    except BaseException as error:
        with contextlib.suppress(OSError):
            write("/dev/kmsg", f"<0>{wire.AGENT_FAILED}: {error!r}")
            time.sleep(0.1)  # the console is slower than this program
    finally:
        libc.reboot(0x01234567)
