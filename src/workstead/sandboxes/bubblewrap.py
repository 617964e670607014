"""Confine a run with bubblewrap: its own namespaces, a read-only system, one writable directory.

The layers of confinement, outermost first:

    user        started by root: a dedicated user; otherwise the user's own, in a user namespace
    mounts      a new root: /usr read-only, an /etc we write, own /proc, /dev, /tmp; only the workspace is writable
    processes   own process, IPC, host name and control group namespaces; outside processes cannot be seen or signalled
    network     own namespace with a loopback device, unless the caller asks for the host's
    kernel      no capability, no new privileges, no further namespaces, the system calls that seccomp.py refuses
    landlock    read, write and execute permissions once more, by path, beneath the mounts

bubblewrap gets its options through a descriptor and starts with an empty environment, because the inside can read the
command line and the environment of process 1 (measured). Only descriptors 0 to 2 are passed inside.
"""

from __future__ import annotations

import contextlib
import os

from workstead.errors import SandboxUnavailable
from workstead.model.enforcement import Enforcement
from workstead.sandboxes import Confinement, Promises
from workstead.sandboxes.contract import TOP, candidates, check, check_command, environment_inside, home_inside
from workstead.system.kernel import landlock, seccomp
from workstead.system.process import find_bwrap, shim
from workstead.system.process.spawn import Launch, keep, keep_bytes
from workstead.system.process.staged_root import SCRATCH, SCRATCH_NAMES, Source, outermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROMISES = Promises(files=True, network=True, processes=True, kernel=False)

_RLIMIT_FSIZE = 1
# harmless files that programs read in /etc; never passwd, shadow, or files that may hold a token (pip.conf, gitconfig).
# Files are copied, because every mount costs more than copying 40 kB.
_ETC_FOLDERS = ("alternatives", "ssl/certs", "pki/tls", "pki/ca-trust", "crypto-policies")
_ETC_FILES = ("ld.so.cache", "localtime", "ssl/openssl.cnf", "protocols", "services")
_ENTER = "/run/enter"


def probe() -> str | None:
    """Try it: start `true` in a sandbox with every layer of confinement."""
    import tempfile

    from workstead.system.process import spawn

    with tempfile.TemporaryDirectory(prefix="workstead-probe-") as directory:
        os.chmod(directory, 0o755)
        try:
            with enter(Confinement(workspace=directory, directory="", read_only=())) as cell:
                launch = cell.launch(["/usr/bin/true"])
        except SandboxUnavailable as error:
            return f"{error.message}; {error.hint}"
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            child = spawn.spawn(launch, null, null, write_end)
            os.close(write_end)
            errors = os.read(read_end, 4096)
            report = os.read(child.report, 4096)
            os.close(child.report)
            _, status = os.waitpid(child.pid, 0)
        finally:
            os.close(null)
            os.close(read_end)
    if status == 0 and report == bytes(8):
        return None
    refusal = explain(errors.decode(errors="replace"), report)
    return f"{refusal.message}; {refusal.hint}"


def explain(errors: str, report: bytes = b"") -> SandboxUnavailable:
    """Return why bubblewrap failed to start, and the remedy, from its last error output."""
    words = errors.strip().splitlines()[-1] if errors.strip() else ""
    if not words and len(report) >= 8:
        number = int.from_bytes(report[4:8], "little")
        at = shim.STAGES[min(int.from_bytes(report[:4], "little"), len(shim.STAGES) - 1)]
        words = f"{at}: {report[8:].decode(errors='replace') or os.strerror(number)}"
    hint = "aw doctor checks this machine; --sandbox none runs unconfined"
    if _read_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1:
        hint = (
            "Ubuntu's AppArmor forbids user namespaces to unknown programs: install bubblewrap and a profile "
            f"that allows them (abi <abi/4.0>; profile bwrap {find_bwrap.PLACES[0]} flags=(unconfined) {{ userns, }}), "
            "or sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        )
    elif _read_number("/proc/sys/kernel/unprivileged_userns_clone") == 0:
        hint = "user namespaces are switched off: sysctl kernel.unprivileged_userns_clone=1"
    elif _read_number("/proc/sys/user/max_user_namespaces") == 0:
        hint = "user namespaces are switched off: sysctl user.max_user_namespaces=10000"
    elif "proc" in words or "namespace" in words.lower() or "uid map" in words:
        hint = (
            "inside a container it needs user namespaces and an unmasked /proc: docker run "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
        )
    return SandboxUnavailable(f"bubblewrap could not build the sandbox: {words or 'it gave no reason'}", hint=hint)


def _read_number(path: str) -> int | None:
    try:
        with open(path, "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def enter(confinement: Confinement) -> Iterator[_Cell]:
    """Open a cell around the workspace; refuse links at bind sources, since a mount follows them on the host."""
    program = confinement.launcher or find_bwrap.find_launcher()
    if not program:
        from workstead.installation import install_command

        raise SandboxUnavailable(
            "bubblewrap is not installed",
            hint=f"apt install bubblewrap, dnf install bubblewrap, or {install_command('sandbox')}",
        )
    if not seccomp.is_supported():
        raise SandboxUnavailable(
            f"there is no system call filter for {seccomp.machine()}",
            hint="use an x86_64 or aarch64 machine, or --sandbox vm",
        )
    check(confinement)
    workspace = os.open(confinement.workspace, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield _Cell(confinement, program, workspace)
    finally:
        os.close(workspace)


class _Cell:
    def __init__(self, confinement: Confinement, program: str, workspace: int) -> None:
        self._confinement = confinement
        self._launcher = program
        self._workspace = workspace
        self._features = find_bwrap.features(program)
        self._home = home_inside(confinement)
        self._as_root = os.geteuid() == 0
        self._abi = landlock.find_version() if shim.is_supported() else 0
        if self._as_root and (confinement.uid == 0 or confinement.gid == 0):
            raise SandboxUnavailable("root cannot stand behind a sandbox", hint="set sandbox.uid to an unused user id")
        self.enforcement = self._statement()

    def _statement(self) -> Enforcement:
        by_landlock = (f"landlock {self._abi}",) if self._abi else ()
        scoped = (f"landlock {self._abi} scopes",) if self._abi >= 6 else ()
        network = {"none": ("network namespace",), "proxy": ("network namespace", "filtering proxy"), "host": scoped}
        notes = [] if self._abi else ["landlock is not available: the mount namespace stands alone"]
        if self._confinement.network == "host":
            notes.append("the command uses the host's network")
        return Enforcement(
            sandbox="bubblewrap",
            files=("mount namespace", *by_landlock),
            network=network[self._confinement.network],
            processes=("process namespace", "ipc namespace", *scoped),
            kernel=("seccomp", "no capabilities", "no new privileges", "user namespaces disabled"),
            execute=() if self._confinement.executable else ("noexec mounts", *by_landlock, "seccomp"),
            uid=self._confinement.uid if self._as_root else os.geteuid(),
            landlock=self._abi,
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
        """Return a bubblewrap launch of the command, with all its input in memory files."""
        check_command(argv)
        descriptors: list[int] = []
        try:
            return self._launch(argv, rlimits, terminal, first, pass_on, descriptors)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def serve(self, listener: int, *, idle_seconds: float, rlimits: Sequence[tuple[int, int]] = ()) -> Launch:
        """Return a launch of the command server as process 1, with full confinement."""
        from workstead.system.process import command_server

        return self.launch(
            command_server.server_command(idle_seconds), rlimits=rlimits, first=True, pass_on=(listener,)
        )

    def _launch(
        self,
        argv: Sequence[str],
        rlimits: Sequence[tuple[int, int]],
        terminal: bool,
        first: bool,
        pass_on: Sequence[int],
        descriptors: list[int],
    ) -> Launch:
        def data(content: bytes, name: str) -> str:
            descriptors.append(keep_bytes(content, name))
            return str(descriptors[-1])

        environment = environment_inside(self._confinement, terminal=terminal)
        options = [
            *self._namespaces(terminal),
            *self._system(),
            *self._etc(data),
            *self._workspace_options(descriptors),
        ]
        if first:
            options.append("--as-pid-1")
        for name, value in environment.items():
            options += ["--setenv", name, value]
        rules = seccomp.program(
            executable=self._confinement.executable, metered=self._confinement.limits.stops_at_quota
        )
        options += ["--seccomp", data(rules, "seccomp")]
        front: tuple[str, ...] = ()
        # RLIMIT_FSIZE is set before the seccomp filter if the filter forbids setting it.
        early = [each for each in rlimits if self._confinement.limits.stops_at_quota and each[0] == _RLIMIT_FSIZE]
        if shim.is_supported():
            body = shim.build(
                candidates(argv[0], environment["PATH"]),
                rlimits=[each for each in rlimits if each not in early],
                ruleset=landlock.ruleset(self._abi),
                rules=self._rules(),
                calls=seccomp.without_landlock() if self._confinement.limits.stops_at_quota else b"",
                keep=len(pass_on),
            )
            options += ["--perms", "0555", "--file", data(body, "enter"), _ENTER]
            front = (_ENTER,)
        info = gate = None
        if self._confinement.network == "proxy":
            info, info_inside = map(keep, os.pipe2(os.O_CLOEXEC))
            gate_inside, gate = map(keep, os.pipe2(os.O_CLOEXEC))
            descriptors += [info_inside, gate_inside]
            options += ["--info-fd", str(info_inside), "--block-fd", str(gate_inside)]
        options += ["--remount-ro", "/", "--chdir", _join(self._confinement.public_mount, self._confinement.directory)]
        arguments = data(b"".join(os.fsencode(option) + b"\0" for option in options), "options")
        return Launch(
            argv=(self._launcher, "--args", arguments, "--", *front, *argv),
            environment={},
            keep=tuple(descriptors),
            pass_on=tuple(pass_on),
            uid=self._confinement.uid if self._as_root else None,
            gid=self._confinement.gid if self._as_root else None,
            stage=self._sources() if self._as_root else None,
            scratch_bytes=0 if self._confinement.executable else self._confinement.tmp_bytes,
            scratch=self._scratch,
            no_exec=() if self._as_root else self._closed(),
            rlimits=tuple(early if front else rlimits),
            reports=bool(front),
            guarded=True,
            holder=self._confinement.holder if not self._as_root else None,
            info=info,
            gate=gate,
        )

    def _namespaces(self, terminal: bool) -> list[str]:
        options = ["--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--die-with-parent"]
        options += ["--hostname", self._confinement.hostname]
        if not terminal:
            options.append("--new-session")  # with a terminal of its own, the seccomp rule on TIOCSTI has to do
        if self._confinement.network == "host":
            options.append("--share-net")
        return options

    def _system(self) -> list[str]:
        size = str(self._confinement.tmp_bytes)
        options = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
        for name in TOP:
            if os.path.islink(f"/{name}"):
                options += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
            elif os.path.isdir(f"/{name}"):
                options += ["--ro-bind", f"/{name}", f"/{name}"]
        if self._confinement.executable:
            options += ["--perms", "1777", "--size", size, "--tmpfs", "/tmp", "--perms", "1777", "--size", size]
            options += ["--tmpfs", "/dev/shm", "--size", size, "--tmpfs", self._home]
        else:
            for name, target in zip(SCRATCH_NAMES, ("/tmp", "/dev/shm", self._home), strict=True):
                options += ["--bind", f"{self._scratch}/{name}", target]
        options += ["--remount-ro", "/dev", "--dir", "/run", "--dir", "/var"]
        options += ["--symlink", "../tmp", "/var/tmp", "--symlink", "../run", "/var/run"]
        for tool in self._tools():
            options += ["--ro-bind", tool, tool]
        for mount in self._confinement.mounts:
            options += ["--bind" if mount.writable else "--ro-bind", os.path.realpath(mount.source), mount.target]
        return options

    @property
    def _scratch(self) -> str:
        """Return the mount point of the no-exec space that replaces /tmp, /dev/shm and the home.

        An ordinary user needs an existing directory of the host as mount point, one that contains nothing the sandbox
        mounts.
        """
        if self._as_root or self._confinement.executable:
            return SCRATCH
        mounts = (mount.source for mount in self._confinement.mounts)
        used = [os.path.realpath(path) for path in (self._confinement.workspace, *self._tools(), *mounts)]
        for folder in ("/mnt", "/media", "/srv", "/opt", "/home"):
            if os.path.isdir(folder) and not any(f"{path}/".startswith(f"{folder}/") for path in used):
                return folder
        raise SandboxUnavailable(
            "there is no place to mount a space on from which nothing can be executed",
            hint="make an empty directory /mnt, or let the policy allow execute",
        )

    def _closed(self) -> tuple[str, ...]:
        """Return the host paths from which nothing can be executed inside."""
        if self._confinement.executable:
            return ()
        mounts = (mount.source for mount in self._confinement.mounts if mount.writable or not mount.executable)
        return tuple(os.path.realpath(path) for path in (self._confinement.workspace, *mounts))

    def _tools(self) -> list[str]:
        """Return the tool directories; each is listed, and not the user's home that may contain them."""
        return [tool for tool in self._confinement.tools if os.path.isdir(tool)]

    def _etc(self, data: _Data) -> list[str]:
        user, host = self._confinement.user, self._confinement.hostname
        uid, gid = (self._confinement.uid, self._confinement.gid) if self._as_root else (os.geteuid(), os.getegid())
        nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        texts = {
            "passwd": f"root:x:0:0::/root:/usr/sbin/nologin\n{user}:x:{uid}:{gid}::{self._home}:/bin/bash\n{nobody}",
            "group": f"root:x:0:\n{user}:x:{gid}:\nnogroup:x:65534:\n",
            "hosts": f"127.0.0.1 localhost {host}\n::1 localhost ip6-localhost ip6-loopback\n",
            "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
            "resolv.conf": _read("/etc/resolv.conf").decode(errors="replace")
            if self._confinement.network == "host"
            else "",
        }
        files = {name: text.encode() for name, text in texts.items()}
        files.update({name: content for name in _ETC_FILES if (content := _read(f"/etc/{name}"))})
        options = ["--perms", "0755", "--dir", "/mnt", "--perms", "0755", "--dir", "/etc/ssl"]
        for name, content in files.items():
            options += ["--perms", "0444", "--file", data(content, "etc"), f"/etc/{name}"]
        for path in self._etc_paths():
            options += ["--ro-bind", path, path]
        return options

    @staticmethod
    def _etc_paths() -> list[str]:
        return [f"/etc/{name}" for name in _ETC_FOLDERS if os.path.isdir(f"/etc/{name}")]

    def _workspace_options(self, descriptors: list[int]) -> list[str]:
        public = self._confinement.public_mount.rstrip("/")
        # not by descriptor if the mount is in another namespace: there only the path leads to the merged mount
        by_descriptor = "--bind-fd" in self._features and not self._as_root and self._confinement.executable
        if by_descriptor and self._confinement.holder is None:
            descriptors.append(keep(os.dup(self._workspace)))
            options = ["--bind-fd", str(descriptors[-1]), public]
        else:
            options = ["--bind", os.path.realpath(self._confinement.workspace), public]
        for name in self._confinement.parts:  # mount points: the kernel does not allow to rename or remove them
            options += ["--bind", os.path.join(os.path.realpath(self._confinement.workspace), name), f"{public}/{name}"]
        for name in self._confinement.read_only:
            source = os.path.join(os.path.realpath(self._confinement.workspace), name)
            if os.path.lexists(source):
                options += ["--ro-bind", source, f"{public}/{name}"]
        return options

    def _rules(self) -> list[tuple[str, int]]:
        """Return the same confinement as landlock rules."""
        read, write, use = (
            landlock.grant(rights, self._abi) for rights in (landlock.READ, landlock.WRITE, landlock.USE)
        )
        lists = landlock.grant(landlock.READ_DIR, self._abi)
        rules = [("/", lists), ("/usr", read), ("/etc", read), ("/run", read), ("/dev", use), ("/proc", use)]
        rules += [(f"/{name}", read) for name in TOP if not os.path.islink(f"/{name}")]
        if not self._confinement.executable:
            write &= ~landlock.EXECUTE
        rules += [(path, write) for path in ("/tmp", "/dev/shm", self._home, self._confinement.public_mount)]
        rules += [(tool, read) for tool in self._tools()]
        for mount in self._confinement.mounts:
            only = -1 if os.path.isdir(mount.source) else landlock.FILE_ONLY
            rights = write if mount.writable else read
            if not (self._confinement.executable or mount.executable):
                rights &= ~landlock.EXECUTE
            rules.append((mount.target, rights & only))
        return rules

    def _sources(self) -> tuple[Source, ...]:
        """Return the paths that root must bind into the small root: every bind source, and bubblewrap's own files."""
        sources = {path: Source(path=path) for path in ("/usr", *self._etc_paths(), *self._tools())}
        sources.update(
            {
                f"/{name}": Source(path=f"/{name}")
                for name in TOP
                if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")
            }
        )
        closed = self._closed()
        for mount in self._confinement.mounts:
            path = os.path.realpath(mount.source)
            sources[path] = Source(path=path, writable=mount.writable, executable=path not in closed)
        workspace = os.path.realpath(self._confinement.workspace)
        sources[workspace] = Source(path=workspace, writable=True, executable=self._confinement.executable)
        sources["/proc"] = Source(path="/proc", recursive=False, as_it_is=True)
        sources["/dev"] = Source(path="/dev", recursive=False, devices=True, writable=True)
        if not self._launcher.startswith("/usr/"):
            folder = os.path.dirname(os.path.dirname(self._launcher))
            for path in (folder, f"{folder}.libs"):  # the wheel's program and its library
                if os.path.isdir(path):
                    sources[path] = Source(path=path)
        return outermost(sources)


def _join(*parts: str) -> str:
    return os.path.join(*parts).rstrip("/")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return b""


if TYPE_CHECKING:
    from collections.abc import Callable

    _Data = Callable[[bytes, str], str]
