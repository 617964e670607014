"""A host worth attacking: secrets, neighbours, sockets, processes, and a way to run commands with and without a wall.

Everything lives in one private directory and belongs to one user: root, or an ordinary one that root lends. `inside`
runs a command through the driver and the supervisor, as the product does; `outside` runs the same words as a plain
process.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence

from needs import need
from workstead.errors import SandboxUnavailable
from workstead.model.enforcement import Limits
from workstead.sandboxes import Confinement, Machines, contract, driver
from workstead.sandboxes.vm import driver as vm
from workstead.sandboxes.vm import machines
from workstead.system.process import frames, proxy, spawn, supervisor, supervisor_client
from workstead.system.process.supervisor import Hooks, Order, Result
from workstead.system.process.supervisor_client import find_result

ORDINARY = 12345
# built once, for all tests and test runs of this checkout
GUESTS = f"{tempfile.gettempdir()}/workstead-test-guests-{os.geteuid()}-{zlib.crc32(__file__.encode()):08x}"

# loaded before a child changes its user: the checkout and Python itself may lie where that user cannot read
for _name in (
    "encodings.ascii", "encodings.idna", "encodings.latin_1", "fcntl", "ipaddress", "resource", "select", "ssl",
    "termios", "threading", "traceback", "workstead.sandboxes.none", "workstead.sandboxes.bubblewrap",
    "workstead.sandboxes.vm.driver", "workstead.system.process.command_server",
    "workstead.system.kernel.landlock", "workstead.system.process.shim", "workstead.system.process.staged_root",
    "workstead.system.process.proxy",
):  # fmt: skip
    importlib.import_module(_name)


def in_child(uid: int, body: Callable[[], object], *, timeout: float = 60) -> object:
    """Call a function in a forked process of this user and give its value, which must be JSON."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer: object = None
        try:
            os.close(read_end)
            if uid != os.geteuid():
                spawn.step_down(uid, uid)
            os.setsid()
            answer = {"value": body()}
        except BaseException as error:
            import traceback

            answer = {"error": f"{error!r}\n{traceback.format_exc()}"}
        finally:
            with contextlib.suppress(BaseException), os.fdopen(write_end, "w") as file:
                json.dump(answer, file)
            os._exit(0)
    os.close(write_end)
    text = b""
    end = time.monotonic() + timeout
    os.set_blocking(read_end, False)
    try:
        while True:
            try:
                chunk = os.read(read_end, 1 << 20)
                if not chunk:
                    break
                text += chunk
            except BlockingIOError:
                if time.monotonic() > end:
                    os.kill(pid, signal.SIGKILL)
                    raise TimeoutError(f"no answer within {timeout} seconds") from None
                time.sleep(0.001)
    finally:
        os.close(read_end)
        os.waitpid(pid, 0)
    answer = json.loads(text)
    if "error" in answer:
        raise AssertionError(answer["error"])
    return answer["value"]


class Outcome:
    """What came of a run."""

    def __init__(self, result: Result, directory: str, events: list[list[object]], supervisor: int) -> None:
        self.result = result
        self.supervisor = supervisor  # its process id, and that of its session
        self.events = events
        self.frames = list(frames.read(os.path.join(directory, "output")))
        self.stdout = b"".join(frame.data for frame in self.frames if frame.stream == frames.STDOUT)
        self.stderr = b"".join(frame.data for frame in self.frames if frame.stream == frames.STDERR)
        self.text = (self.stdout + self.stderr).decode(errors="replace")


class Attendant(threading.Thread):
    """Somebody who reads what a run says, from its start, and answers; what goes wrong with them is told at the end."""

    def __init__(self, directory: str, act: Callable[[Attendant], None]) -> None:
        super().__init__(daemon=True)
        self.directory = directory
        self.act = act
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._wait(lambda: os.path.exists(f"{self.directory}/control"), "its control socket")
            with supervisor_client.connect(self.directory) as self.connection:
                self.send(frames.HELLO, b"i")
                self.act(self)
                self._wait(lambda: False, "its end")  # whoever goes takes the input along
        except _Ended as error:
            self.error = error if "its end" not in str(error) else None
        except BaseException as error:
            self.error = error

    def send(self, kind: int, data: bytes = b"") -> None:
        self.connection.sendall(frames.pack(kind, data))

    def wait_for(self, words: bytes) -> None:
        self._wait(lambda: self.has_said(words), repr(words))

    def has_said(self, words: bytes, within: float = 0) -> bool:
        """Whether the command has said that, or does so soon."""
        end = time.monotonic() + within
        while words not in b"".join(each.data for each in self._said()):
            if time.monotonic() >= end:
                return False
            time.sleep(0.02)
        return True

    def _said(self) -> Iterator[frames.Frame]:
        return (each for each in frames.read(f"{self.directory}/output") if each.stream == frames.STDOUT)

    def _wait(self, is_so: Callable[[], bool], what: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            if find_result(self.directory) is not None:
                raise _Ended(f"the run ended before {what}")
            assert time.monotonic() < end, f"waited {seconds} seconds for {what}"
            time.sleep(0.02)

    def finish(self) -> None:
        self.join(60)
        assert not self.is_alive(), "the attendant still waits"
        if self.error is not None:
            raise self.error


class _Ended(Exception):
    pass


class _Recorder(Hooks):
    def __init__(self) -> None:
        self.events: list[list[object]] = []

    def on_started(self, pid: int, start_time: int, enforcement: object) -> None:
        self.events.append(["started", pid, start_time, enforcement.as_dict()])  # type: ignore[attr-defined]

    def on_denied(self, denial: dict[str, str]) -> None:
        self.events.append(["denied", denial])

    def on_finished(self, result: Result) -> None:
        self.events.append(["finished", result.state])


class Scene:
    """The host."""

    ENV_TEXT = "env-secret-9f31"
    MARKER = "host-process-marker-77"
    SECRET_TEXT = "top-secret-4711"
    OTHER_TEXT = "neighbour-note-0815"
    TOKEN_TEXT = "token-deadbeef"

    def __init__(self, uid: int, sandbox: str = "bubblewrap") -> None:
        self.uid = uid
        self.sandbox = sandbox
        self.agent = 64042 if uid == 0 else uid  # whose the workspace's files are
        self.base = tempfile.mkdtemp(prefix="aw-scene-")
        self.runs = 0
        self.counter = 0
        self.workspace = os.path.join(self.base, "workspaces", "mine")
        self.work = os.path.join(self.workspace, "work")
        self.out = os.path.join(self.base, "out")
        self.secret = os.path.join(self.base, "secret.txt")
        self.other = os.path.join(self.base, "workspaces", "other")
        self.state = os.path.join(self.base, "state")
        self.machines = f"{self.base}/machines"
        os.makedirs(self.machines)
        os.makedirs(os.path.join(self.base, "runs"))
        self.host: subprocess.Popen[bytes] | None = None
        mark = os.path.basename(self.base)  # a process may have several scenes
        self.abstract = f"aw-abstract-{mark}"
        self.shm = f"/dev/shm/{mark}"
        self.ipc_key = 0x5AFE0000 + int.from_bytes(os.urandom(2), "little")
        self._listen()
        self.reset()

    def _listen(self) -> None:
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.abstract_socket = socket.socket(socket.AF_UNIX)
        self.abstract_socket.bind(f"\0{self.abstract}")
        self.abstract_socket.listen(8)
        self.api = os.path.join(self.base, "api.sock")
        self.path_socket = socket.socket(socket.AF_UNIX)
        self.path_socket.bind(self.api)
        self.path_socket.listen(8)
        self.sinks = (self.tcp, self.udp, self.abstract_socket, self.path_socket)
        for sink in self.sinks:
            sink.setblocking(False)
        libc = ctypes.CDLL(None, use_errno=True)
        self.segment = libc.shmget(self.ipc_key, 4096, 0o1666)

    def reset(self) -> None:
        """Put everything back as it was."""
        records = os.path.join(self.workspace, ".aw")
        for path in (self.other, self.state, self.out):
            shutil.rmtree(path, ignore_errors=True)
            os.makedirs(path)
        for path in (self.workspace, self.work, records):  # the directories stay: a machine may have them open
            os.makedirs(path, exist_ok=True)
            for name in os.listdir(path):
                inner = os.path.join(path, name)
                if inner not in (self.work, records):
                    shutil.rmtree(inner) if os.path.isdir(inner) and not os.path.islink(inner) else os.unlink(inner)
        for path, text in (
            (self.secret, self.SECRET_TEXT),
            (os.path.join(self.other, "note.txt"), self.OTHER_TEXT),
            (os.path.join(self.state, "token"), self.TOKEN_TEXT),
            (os.path.join(self.workspace, ".aw", "run.json"), "{}"),
            (self.shm, self.SECRET_TEXT),
        ):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            with open(path, "w") as file:
                file.write(text)
            os.chmod(path, 0o600)
        for folder, folders, files in os.walk(self.base):
            if folder.startswith(self.machines):
                continue
            for name in (".", *folders, *files):
                path = os.path.join(folder, name)
                os.lchown(path, self.agent if path.startswith(self.workspace) else self.uid, -1)
        if self.uid != os.geteuid() or self.uid:
            os.chown(self.shm, self.uid, -1)
        os.chmod(self.base, 0o700)
        self._plant_setuid()
        if self.host is None or self.host.poll() is not None:
            who = {"user": self.uid, "group": self.uid, "extra_groups": []} if os.geteuid() == 0 else {}
            sleeper = ["/usr/bin/python3", "-c", "import time; time.sleep(7200)", self.MARKER]
            secret = {"AW_TEST_SECRET": self.ENV_TEXT}
            self.host = subprocess.Popen(sleeper, env=secret, cwd="/", **who)  # type: ignore[call-overload]
        self.hear()

    def _plant_setuid(self) -> None:
        """A set-uid program of root's in the workspace, as an archive or a careless copy may leave one."""
        if os.geteuid() == 0:
            path = os.path.join(self.workspace, "idroot")
            shutil.copy("/usr/bin/id", path)
            os.chown(path, 0, 0)
            os.chmod(path, 0o4755)

    def hear(self) -> list[str]:
        """What reached the host's sockets since last asked."""
        heard = []
        for name, sink in zip(("tcp", "udp", "abstract", "unix"), self.sinks, strict=True):
            with contextlib.suppress(BlockingIOError):
                while True:
                    if name == "udp":
                        sink.recv(100)
                    else:
                        sink.accept()[0].close()
                    heard.append(name)
        return heard

    def damage(self) -> list[str]:
        """What an attack changed."""
        found = []
        for path, text in (
            (self.secret, self.SECRET_TEXT),
            (os.path.join(self.other, "note.txt"), self.OTHER_TEXT),
            (os.path.join(self.state, "token"), self.TOKEN_TEXT),
        ):
            try:
                with open(path) as file:
                    found += [] if file.read() == text else [f"{path} changed"]
            except OSError as error:
                found.append(str(error))
        found += [f"{name} appeared" for folder in (self.out,) for name in os.listdir(folder)]
        found += ["neighbour"] if os.listdir(self.other) != ["note.txt"] else []
        found += ["state"] if os.listdir(self.state) != ["token"] else []
        found += ["the host process died"] if self.host is None or self.host.poll() is not None else []
        return found + self.hear()

    def fill(self, text: str) -> str:
        """The words of an attack with the names of this scene."""
        self.counter += 1
        handle = _file_handle(self.secret)
        for token, value in {
            "SECRET": self.secret, "BASE": self.base, "OTHER": self.other, "STATE": self.state, "OUT": self.out,
            "HOST_PID": str(self.host.pid if self.host else 0), "MARKER_PATTERN": "[h]" + self.MARKER[1:],
            "ENV_TEXT": self.ENV_TEXT,
            "SECRET_TEXT": self.SECRET_TEXT, "OTHER_TEXT": self.OTHER_TEXT, "TOKEN_TEXT": self.TOKEN_TEXT,
            "PORT": str(self.tcp.getsockname()[1]), "UDP_PORT": str(self.udp.getsockname()[1]), "API": self.api,
            "ABSTRACT": self.abstract, "SHM": self.shm, "IPC_KEY": str(self.ipc_key), "HANDLE": handle,
            "NONCE": f"{os.getpid()}-{self.counter}", "RUN": os.path.join(self.base, "runs"),
        }.items():  # fmt: skip
            text = text.replace("{" + token + "}", value)
        return text

    def inside(
        self,
        command: str | Sequence[str],
        *,
        sandbox: str = "",
        limits: Limits | None = None,
        terminal: bool = False,
        timeout: float = 60,
        rules: tuple[proxy.Rule, ...] = (),
        attended: Callable[[Attendant], None] | None = None,
        stdin: bool = False,
        keep_open: Sequence[int] = (),
        **confinement: object,
    ) -> Outcome:
        """Run behind the wall, to the end."""
        self.runs += 1
        directory = os.path.join(self.base, "runs", f"{os.getpid()}-{self.runs}")
        os.makedirs(directory, 0o700)
        for path in (os.path.dirname(directory), directory):
            os.chown(path, self.uid, -1)
        asked = self.confinement(limits, **confinement)
        sandbox = sandbox or self.sandbox
        argv = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)

        def body() -> object:
            for descriptor in keep_open:
                os.set_inheritable(descriptor, True)
            return supervise(
                directory, asked, argv, sandbox=sandbox, limits=limits, terminal=terminal, rules=rules, stdin=stdin
            )

        attendant = Attendant(directory, attended) if attended is not None else None
        if attendant is not None:
            attendant.start()
        result, events, pid = in_child(self.uid, body, timeout=timeout)  # type: ignore[misc]
        if attendant is not None:
            attendant.finish()
        return Outcome(Result(**result), directory, events, pid)

    def confinement(self, limits: Limits | None = None, **fields: object) -> Confinement:
        """Around the workspace, with what the sandbox of this scene needs."""
        if self.sandbox.startswith("vm"):
            fields.setdefault("machines", self.kept())
            fields.setdefault("limits", limits or Limits())
        return Confinement(workspace=self.workspace, **fields)  # type: ignore[arg-type]

    def kept(self, **fields: object) -> Machines:
        """Where this scene keeps machines."""
        return Machines(
            **{  # type: ignore[arg-type]
                "directory": self.machines,
                "cache": GUESTS,
                "owner": "mine",
                "emulation": "only",
                "patience_seconds": 60.0,
                **fields,
            }
        )

    def outside(self, script: str, *, root: bool = False, prefix: Sequence[str] = (), **options: object) -> str:
        """The same words as a plain process of the host."""
        uid = 0 if root else self.uid
        who = {"user": uid, "group": uid, "extra_groups": []} if os.geteuid() == 0 else {}
        done = subprocess.run(
            [*prefix, "/bin/bash", "-c", script],
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=30,
            env={"PATH": contract.PATH},
            **who,  # type: ignore[call-overload]
            **options,
        )
        return done.stdout.decode(errors="replace")

    def close(self) -> None:
        machines.forget(self.machines, "mine")
        for sink in self.sinks:
            sink.close()
        if self.host is not None:
            self.host.kill()
            self.host.wait()
        with contextlib.suppress(OSError):
            os.unlink(self.shm)
        ctypes.CDLL(None).shmctl(self.segment, 0, None)
        shutil.rmtree(self.base, ignore_errors=True)


def supervise(
    directory: str,
    asked: Confinement,
    argv: Sequence[str],
    *,
    sandbox: str = "bubblewrap",
    limits: Limits | None = None,
    terminal: bool = False,
    rules: tuple[proxy.Rule, ...] = (),
    stdin: bool = False,
) -> object:
    """What the product's runner does, without a log."""
    hooks = _Recorder()
    order = Order(
        directory=directory,
        name=f"aw-test-{os.path.basename(directory)}-{os.getpid()}",
        limits=limits or Limits(wall_seconds=30, grace_seconds=0.5, output_bytes=4 << 20),
        terminal=terminal,
        stdin=stdin,
        workspace=asked.workspace,
        rules=rules,
    )
    with driver(sandbox).enter(asked) as cell:
        result = supervisor.supervise(
            lambda rlimits: cell.launch(argv, rlimits=rlimits, terminal=terminal),
            order,
            cell.enforcement,
            hooks,
            getattr(driver(sandbox), "explain", None),
        )
    return result.as_dict(), hooks.events, os.getpid()


def _file_handle(path: str) -> str:
    """The kernel's handle of a file, by which root can open it without a path."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(128 + 8)
    ctypes.c_uint32.from_buffer(buffer).value = 128
    mount = ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(path), buffer, ctypes.byref(mount), 0) != 0:
        return ""
    size = ctypes.c_uint32.from_buffer(buffer).value
    return buffer.raw[: 8 + size].hex()


def need_guest(scene: Scene) -> None:
    """A guest to start machines from, built by whoever comes first; other users may read it."""
    os.makedirs(GUESTS, mode=0o755, exist_ok=True)
    try:
        ready = vm.make_ready(scene.kept(), scene.agent, lambda _: None)
    except SandboxUnavailable as error:
        need(False, f"a guest: {error.message}; {error.hint}")
    else:
        if ready.state is not None:
            os.chmod(ready.state, 0o644)


def find_processes(words: str) -> list[int]:
    """Every process with these words in its command line, and its arguments' own zero bytes read as spaces."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
            if words.encode() in file.read().replace(b"\0", b" "):
                found.append(int(name))
    return found


@contextlib.contextmanager
def a_host(kind: str, sandbox: str = "bubblewrap") -> Iterator[Scene]:
    """A scene of root's, or of an ordinary user's."""
    is_root = os.geteuid() == 0
    need(kind != "root" or is_root, "root")
    uid = (0 if kind == "root" else ORDINARY) if is_root else os.geteuid()
    scene = Scene(uid, sandbox)
    try:
        yield scene
    finally:
        scene.close()
