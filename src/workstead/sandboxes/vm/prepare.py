"""Build the inputs of virtual machines: the guest, and a state saved after its start.

This runs in a separate process, because a server that calls it may be large and have threads. Progress is one JSON
object per line on stdout, and the last line is the result.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time

from workstead.errors import SandboxUnavailable, WorksteadError
from workstead.model.value import Value
from workstead.sandboxes.vm import guest as guests
from workstead.sandboxes.vm import qemu, wire
from workstead.sandboxes.vm.machine import Machine
from workstead.system.files.durable import sync_file
from workstead.system.process import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from typing import Any

    from workstead.sandboxes.vm.guest import Guest

_BOOT_SECONDS = {True: 240.0, False: 60.0}  # emulated or not
_SAVE_SECONDS = 120.0


class Ready(Value):
    """The inputs to start a machine from; without a state it starts cold, and `note` says why."""

    guest: Guest
    state: str | None = None
    note: str = ""


def find(cache: str, machine: Machine) -> Ready | None:
    """Return the existing inputs; None if the guest has to be built, or saving a state was never tried."""
    guest = guests.find(cache)
    if guest is None:
        return None
    path = state_path(guest, machine)
    if os.path.exists(path):
        return Ready(guest=guest, state=path)
    with contextlib.suppress(OSError), open(f"{path}.why") as file:
        return Ready(guest=guest, note=f"started cold: no state could be saved ({file.read().strip()})")
    return None


def state_path(guest: Guest, machine: Machine) -> str:
    """Return the path of the saved state for machines like this one."""
    return f"{guest.directory}/state-{qemu.state_key(machine, guest)}"


def prepare(
    cache: str, packages: str | None, machine: Machine, progress: Callable[[str], None], *, again: bool = False
) -> Ready:
    """Build and save the missing parts: some ten seconds the first time, and nothing after that.

    A failed save of a state is retried only with `again`. Raise SandboxUnavailable with the remedy if there is no
    guest; without a state machines start cold.
    """
    found = find(cache, machine)
    if found is not None and not (found.note and again):
        return found
    import subprocess

    from workstead.system.process import background

    told = json.dumps({"cache": cache, "packages": packages, "machine": machine.as_dict()})
    argv = background.python_argv("from workstead.sandboxes.vm.prepare import main; main()", told)
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        answer: dict[str, Any] = {}
        for line in child.stdout:
            answer = json.loads(line)
            if "progress" in answer:
                progress(answer["progress"])
        errors = child.stderr.read()
    progress("")
    if "guest" in answer:
        return Ready(guest=guests.Guest(**answer["guest"]), state=answer["state"], note=answer["note"])
    raise SandboxUnavailable(
        str(answer.get("message") or f"the guest could not be made ready: {errors.strip()[-500:]}"),
        hint=str(answer.get("hint", "")),
    )


def main() -> None:
    """Entry point of the separate process."""
    import sys

    order = json.loads(sys.argv[1])
    machine = Machine(**{**order["machine"], "read_only": (), "parts": (), "mounts": (), "tools": ()})
    try:
        with _lock(order["cache"]):
            ready = _prepare(order["cache"], order["packages"], machine)
    except WorksteadError as error:
        _say({"message": error.message, "hint": error.hint})
        return
    _say(ready.as_dict())


def _say(words: dict[str, object]) -> None:
    print(json.dumps(words), flush=True)


@contextlib.contextmanager
def _lock(cache: str) -> Iterator[None]:
    os.makedirs(cache, mode=0o755, exist_ok=True)
    lock = os.open(f"{cache}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _prepare(cache: str, packages: str | None, machine: Machine) -> Ready:
    def progress(text: str) -> None:
        _say({"progress": text})

    guest = guests.find(cache) or guests.build(cache, packages, progress)
    path = state_path(guest, machine)
    if os.path.exists(path):
        return Ready(guest=guest, state=path)
    progress("starting a machine once, to save it")
    try:
        save(machine, guest, path)
    except (OSError, SandboxUnavailable) as error:
        text = error.message if isinstance(error, SandboxUnavailable) else str(error)
        with contextlib.suppress(OSError), open(f"{path}.why", "w") as file:
            file.write(text)
        return Ready(guest=guest, note=f"started cold: no state could be saved ({text})")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}.why")
    return Ready(guest=guest, state=path)


# -- saving a state ----------------------------------------------------------------------------------------------------


def save(machine: Machine, guest: Guest, path: str) -> None:
    """Start a machine without a workspace, and save its state to a file when it is up."""
    import socket

    ours, theirs = [], []
    for _ in range(3):
        one, other = socket.socketpair()
        one.settimeout(_BOOT_SECONDS[machine.emulated])
        ours.append(one)
        theirs.append(spawn.keep(other.detach()))
    serial, control, console = ours
    errors, errors_end = os.pipe2(os.O_CLOEXEC)
    spawn.adopt_orphans()
    nothing = machine.replace(workspace="")
    launch = qemu.launch(nothing, guest, serial=theirs[0], control=theirs[1], console=theirs[2], state=None)
    try:
        qemu.spawn(launch, errors_end)
        os.close(errors_end)
        _wait_ready(serial)
        _migrate(_Control(control), f"{path}.new")
        os.rename(f"{path}.new", path)
    except OSError as error:
        spawn.kill_descendants()
        words = os.read(errors, 4096).decode(errors="replace").strip().splitlines()
        said = [line for line in words if "warning" not in line]
        console.setblocking(False)
        with contextlib.suppress(OSError):
            said += console.recv(65536).decode(errors="replace").strip().splitlines()[-1:]
        raise SandboxUnavailable(
            f"a machine could not be started: {said[-1] if said else error}", hint="aw doctor checks this machine"
        ) from error
    finally:
        spawn.kill_descendants()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}.new")
        for one in ours:
            one.close()
        os.close(errors)


def _wait_ready(serial: socket.socket) -> None:
    buffer = bytearray()
    while (frame := wire.take(buffer)) is None:
        data = serial.recv(65536)
        if not data:
            raise OSError("it ended before it had come up")
        buffer += data
    if frame[0] != wire.READY:
        raise OSError("it said something else than that it is ready")


def _migrate(control: _Control, path: str) -> None:
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        control.ask("migrate-set-parameters", {"max-bandwidth": 1 << 40})
        control.ask("getfd", {"fdname": "state"}, descriptor=target)
        control.ask("migrate", {"uri": "fd:state"})
        end = time.monotonic() + _SAVE_SECONDS
        while (status := control.ask("query-migrate").get("status")) != "completed":
            if status in ("failed", "cancelled") or time.monotonic() > end:
                raise OSError(f"the state could not be written: {status}")
            time.sleep(0.01)
        sync_file(target)
    finally:
        os.close(target)


class _Control:
    """QEMU's control socket (QMP)."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.buffer = b""
        self._line()
        self.ask("qmp_capabilities")

    def _line(self) -> dict[str, Any]:
        while b"\n" not in self.buffer:
            data = self.link.recv(65536)
            if not data:
                raise OSError("QEMU ended")
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(
        self, command: str, arguments: dict[str, object] | None = None, descriptor: int | None = None
    ) -> dict[str, Any]:
        import socket

        body = json.dumps({"execute": command, "arguments": arguments or {}}).encode()
        if descriptor is None:
            self.link.sendall(body)
        else:
            socket.send_fds(self.link, [body], [descriptor])
        while True:
            answer = self._line()
            if "error" in answer:
                raise OSError(f"{command}: {answer['error'].get('desc')}")
            if "return" in answer:
                return answer["return"] if isinstance(answer["return"], dict) else {}
