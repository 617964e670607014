"""Confine a run in a virtual machine: a kernel of its own, with the workspace shared into it.

The layers of confinement, outermost first:

    user        the QEMU process belongs to an unprivileged user, never root
    jail        a bubblewrap around it, in which it sees only the programs and the workspace
    hardware    the guest's kernel is not ours; root in the guest can reach only the QEMU process
    guest       in the guest every command is confined again as in the bubblewrap sandbox

There is no network device. A machine is kept for its workspace between commands, and several may run in it at once.

Hardware is KVM, if guests really run in it. Emulation (TCG) is some fifteen times slower, and QEMU does not treat its
faults as security bugs: it is as strong as the jail around it. It is used only on request, never silently.
"""

from __future__ import annotations

import base64
import contextlib
import os
from functools import partial
from resource import RLIMIT_DATA, RLIMIT_NOFILE, RLIMIT_NPROC

from workstead.errors import Invalid, SandboxUnavailable
from workstead.installation import install_command
from workstead.model.enforcement import Enforcement
from workstead.sandboxes import Confinement, Machines, Promises
from workstead.sandboxes.contract import candidates, check, check_command, environment_inside
from workstead.sandboxes.vm import client, keeper, kvm, machines, prepare, qemu, wire
from workstead.sandboxes.vm.machine import Machine
from workstead.system.kernel import seccomp
from workstead.system.process import find_bwrap, shim, spawn
from workstead.system.process.spawn import Launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PROMISES = Promises(files=True, network=True, processes=True, kernel=True)

# File watchers are notified of changes on the other side of a share (see `pokes`), but only within limits; polling has
# none.
_POLLING = {
    "CHOKIDAR_USEPOLLING": "1",
    "WATCHPACK_POLLING": "true",
    "WATCHFILES_FORCE_POLLING": "true",
    "TSC_WATCHFILE": "DynamicPriorityPolling",
    "TSC_WATCHDIRECTORY": "DynamicPriorityPolling",
}
_MOST_CPUS = 4


def probe() -> str | None:
    """Return the missing requirements for hardware machines; whether the guest starts is tested when it is built."""
    import tempfile

    try:
        _find_launcher("")
        qemu.find_program()
    except SandboxUnavailable as error:
        return f"{error.message}; {error.hint}"
    with tempfile.TemporaryDirectory(prefix="workstead-probe-") as directory:
        answer = kvm.ask(directory)
    return None if answer.works else f"{answer.found}; --sandbox vm/tcg emulates a machine, some fifteen times slower"


def explain(errors: str, report: bytes = b"") -> SandboxUnavailable:
    """Return why the command did not start, from the report of the VM daemon."""
    words = report[8:].decode(errors="replace").strip() or errors.strip()
    return SandboxUnavailable(
        f"the machine did not come up: {words or 'it gave no reason'}",
        hint="aw doctor checks this machine; --sandbox bubblewrap needs none",
    )


def make_ready(asked: Machines, uid: int, progress: Callable[[str], None], *, again: bool = False) -> prepare.Ready:
    """Build the guest and save a state of it, if that was not done yet: some ten seconds, once."""
    confinement = Confinement(workspace="", read_only=(), uid=uid, gid=uid, machines=asked)
    return prepare.prepare(asked.cache, asked.packages, _machine(confinement, asked), progress, again=again)


@contextlib.contextmanager
def enter(confinement: Confinement) -> Iterator[_Cell]:
    """Open a cell in the workspace's machine, starting it if there is no matching one."""
    check(confinement)
    asked = _machines(confinement)
    machine = _machine(confinement, asked)
    ready = prepare.find(asked.cache, machine)
    if ready is None:
        ready = prepare.prepare(asked.cache, asked.packages, machine, lambda _: None)
    directory = f"{asked.directory}/{asked.owner}.{machine.shape()}"
    order = keeper.Order(
        directory=directory,
        machine=machine,
        guest=ready.guest,
        state=ready.state,
        idle_seconds=asked.idle_seconds,
        notes=(ready.note,) if ready.note else (),
    )
    _stop_others(asked, os.path.basename(directory))
    with machines.use(order):
        yield _Cell(confinement, machine, directory)


def _machines(confinement: Confinement) -> Machines:
    if confinement.machines is None:
        raise Invalid("nobody said where machines are kept")
    if confinement.network == "host":
        raise SandboxUnavailable(
            "a machine has no network device, and cannot use the host's network",
            hint="name the hosts that it may reach: --network example.org,…",
        )
    return confinement.machines


def _machine(confinement: Confinement, asked: Machines) -> Machine:
    as_root = os.geteuid() == 0
    uid, gid = (confinement.uid, confinement.gid) if as_root else (os.geteuid(), os.getegid())
    if uid == 0 or gid == 0:
        raise SandboxUnavailable("root cannot stand behind a sandbox", hint="set sandbox.uid to an unused user id")
    emulated = is_emulated(asked, uid)
    return Machine(
        workspace=confinement.workspace,
        public_mount=confinement.public_mount,
        read_only=confinement.read_only,
        parts=confinement.parts,
        mounts=tuple(
            (
                mount.source,
                mount.target,
                mount.writable,
                confinement.executable or (mount.executable and not mount.writable),
            )
            for mount in confinement.mounts
        ),
        executable=confinement.executable,
        tools=tuple(tool for tool in confinement.tools if os.path.isdir(tool)),
        uid=uid,
        gid=gid,
        user=confinement.user,
        hostname=confinement.hostname,
        memory_mb=asked.memory_mb,
        cpus=asked.cpus or (1 if emulated else min(_MOST_CPUS, os.cpu_count() or 1)),
        emulated=emulated,
        holder=confinement.holder if not as_root else None,
        launcher=_find_launcher(confinement.launcher),
        patience_seconds=asked.patience_seconds,
    )


def is_emulated(asked: Machines, uid: int) -> bool:
    """Return whether a machine is emulated here; raise SandboxUnavailable if it would have to be, and may not."""
    qemu.find_program()
    _find_launcher("")
    if asked.emulation == "only":
        return True
    answer = kvm.ask(asked.cache, uid)
    if answer.works:
        return False
    if asked.emulation == "allow":
        return True
    raise SandboxUnavailable(
        f"KVM runs no guests here: {answer.found}",
        hint="--sandbox vm/tcg, or sandbox.vm_emulation: allow, emulates the machine, some fifteen times slower; "
        "--sandbox bubblewrap needs none",
    )


def _find_launcher(given: str) -> str:
    found = given or find_bwrap.find_launcher()
    if not found:
        raise SandboxUnavailable(
            "bubblewrap is not installed, and a machine's process runs in one",
            hint=f"apt install bubblewrap, dnf install bubblewrap, or {install_command('sandbox')}",
        )
    return found


def _stop_others(asked: Machines, name: str) -> None:
    """Stop unused machines of the same workspace with another configuration: they cost memory."""
    for other in machines.find_all(asked.directory, asked.owner):
        if other.name != name and not machines.is_used(asked.directory, other.name):
            machines.stop(asked.directory, other.name)


class _Cell:
    def __init__(self, confinement: Confinement, machine: Machine, directory: str) -> None:
        self._confinement = confinement
        self._machine = machine
        self._directory = directory
        self.enforcement = self._statement()

    def _statement(self) -> Enforcement:
        asked = self._confinement.limits
        held = ("guest's cgroup v2", f"machine of {self._machine.memory_mb} MB")
        limits: dict[str, tuple[str, ...]] = {}
        if asked.memory_bytes is not None:
            limits["memory_bytes"] = held
        if asked.processes is not None:
            limits["processes"] = held[:1]
        if asked.cpus is not None:
            limits["cpus"] = (held[0], f"machine with {self._machine.cpus} processors")
        notes = []
        if self._machine.emulated:
            notes.append("the machine is emulated: slow, and as strong as the jail around its process")
        return Enforcement(
            sandbox=self._machine.mode,
            files=("9P shares", "jail's mount namespace", "guest's mount namespace"),
            network=("no network device", *(("filtering proxy",) if self._confinement.network == "proxy" else ())),
            processes=("machine", "guest's process namespace"),
            kernel=("kernel of its own", "guest's seccomp", "no capabilities", "no new privileges"),
            limits=limits,
            execute=() if self._confinement.executable else ("guest's noexec mounts", "guest's seccomp"),
            uid=self._machine.uid,
            notes=tuple(notes),
        )

    def launch(
        self,
        argv: Sequence[str],
        *,
        rlimits: Sequence[tuple[int, int]] = (),
        terminal: bool = False,
        first: bool = False,
        pass_on: Sequence[int] = (),
    ) -> Launch:
        """Return a launch of the client process that represents the command in the machine."""
        check_command(argv)
        if first or pass_on:
            raise Invalid("descriptors cannot be handed into a machine")
        order = self._order(argv, {}, self._directory_inside, rlimits=rlimits, terminal=terminal)
        told, tell = map(spawn.keep, os.pipe2(os.O_CLOEXEC))
        ready = self._launch((client.connect(self._directory), tell))
        errand = client.Errand(order=order, has_proxy=ready.ear is not None)
        return ready.replace(body=partial(client.run, errand), told=told)

    def serve(self, listener: int, *, idle_seconds: float, rlimits: Sequence[tuple[int, int]] = ()) -> Launch:
        """Return a launch of the process that acts as a command server, whose commands run in the machine."""
        make_order = partial(self._order, rlimits=rlimits, terminal=False)
        ready = self._launch((listener, client.open_way(self._directory)))
        return ready.replace(body=partial(client.serve, make_order, idle_seconds, ready.ear is not None))

    def _launch(self, given: tuple[int, ...]) -> Launch:
        as_root = os.geteuid() == 0
        ear = None
        if self._confinement.network == "proxy":
            ear, way = client.open_ear(self._directory, self._machine.uid if as_root else None)
            given = (*given, way)
        return Launch(
            argv=("aw-vm-client",),
            environment={},
            pass_on=given,
            uid=self._machine.uid if as_root else None,
            gid=self._machine.gid if as_root else None,
            reports=True,
            ear=ear,
        )

    @property
    def _directory_inside(self) -> str:
        return os.path.join(self._confinement.public_mount, self._confinement.directory).rstrip("/")

    def _order(
        self,
        argv: Sequence[str],
        more: dict[str, str],
        directory: str,
        *,
        rlimits: Sequence[tuple[int, int]],
        terminal: bool,
    ) -> dict[str, object]:
        asked = self._confinement
        environment = {**_POLLING, **environment_inside(asked, terminal=terminal), **more}
        # A process limit would count other commands of the user in the guest. Open files are the guest's own, and a
        # limit above that of its process 1 cannot be set.
        outside = (RLIMIT_NPROC, RLIMIT_DATA, RLIMIT_NOFILE)
        inside = [(kind, value) for kind, value in rlimits if kind not in outside]
        body = shim.build(candidates(argv[0], environment["PATH"]), rlimits=inside, arch="x86_64")
        order = {
            "argv": list(argv),
            "environment": environment,
            "directory": directory,
            "enter": base64.b64encode(body).decode(),
            "seccomp": base64.b64encode(seccomp.program(executable=asked.executable)).decode(),
            "terminal": terminal,
            "proxy": asked.network == "proxy",
            "memory_bytes": asked.limits.memory_bytes,
            "processes": asked.limits.processes,
            "cpus": asked.limits.cpus,
            "tmp_bytes": asked.tmp_bytes,
            "room": asked.room,
        }
        if sum(map(len, (*argv, *environment, *environment.values()))) > wire.MAX_ORDER // 4:
            raise Invalid("the command and its environment are too long", hint="pass large inputs in a file")
        return order
