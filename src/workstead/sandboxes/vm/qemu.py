"""The QEMU process of a virtual machine: never as root, inside a bubblewrap of its own.

The guest sees of the host only what QEMU sees: the jail has two small trees, built from bind mounts, and each is one
share. So read-only is enforced by the kernel of the host, even against root in the guest, and the number of shares is
constant, as a saved state requires.

    /x/system     programs: /usr, tools, files that programs read in /etc; the share is read-only too
    /x/work       the workspace and its additional mounts, each writable or read-only as requested

There is no network device, no disk and no display. With `-sandbox` QEMU drops the system calls that start programs. The
machine type is microvm: it starts fastest, and has the smallest attack surface.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import time
from functools import cache

from workstead.errors import SandboxUnavailable
from workstead.model.digest import blake2b
from workstead.system.process import spawn as process
from workstead.system.process.spawn import Launch, keep_bytes
from workstead.system.process.staged_root import Source, outermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from workstead.sandboxes.vm.guest import Guest
    from workstead.sandboxes.vm.machine import Machine

PROGRAM = "/usr/bin/qemu-system-x86_64"
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# the same as in the bubblewrap sandbox
ETC = (
    "alternatives", "ssl/certs", "pki/tls", "pki/ca-trust", "crypto-policies",
    "ld.so.cache", "localtime", "ssl/openssl.cnf", "protocols", "services",
)  # fmt: skip
_KERNEL_WORDS = (
    "quiet loglevel=4 console=hvc0 reboot=t panic=-1 oops=panic tsc=reliable no_timer_check random.trust_cpu=on "
    "cryptomgr.notests 8250.nr_uarts=0 nokaslr"
)


def find_program() -> str:
    """Return the path of QEMU; raise SandboxUnavailable with the remedy if it is missing."""
    if os.uname().machine != "x86_64":
        raise SandboxUnavailable(
            f"the vm sandbox is made for x86-64, and this is {os.uname().machine}", hint="use --sandbox bubblewrap"
        )
    if not os.access(PROGRAM, os.X_OK):
        raise SandboxUnavailable("QEMU is not installed", hint="apt install qemu-system-x86")
    return PROGRAM


def state_key(machine: Machine, guest: Guest) -> str:
    """Return the key of a saved state: a digest of everything that the state depends on."""
    program = os.stat(find_program())
    parts = [program.st_size, program.st_mtime_ns, guest.directory, machine.mode, machine.memory_mb, machine.cpus]
    parts += [_recipe(), _processor()]
    return blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


@cache
def _recipe() -> str:
    with open(__file__, "rb") as file:
        return blake2b(file.read(), digest_size=8).hexdigest()


def _processor() -> str:
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


def launch(machine: Machine, guest: Guest, *, serial: int, control: int, console: int, state: int | None) -> Launch:
    """Return how to start QEMU, with its sockets and a saved state. The launch owns the descriptors."""
    descriptors = [serial, control, console, *([state] if state is not None else [])]
    command = [
        find_program(), "-name", "workstead", "-M", "microvm,acpi=on,pcie=off,rtc=on,x-option-roms=off,isa-serial=off",
        "-smp", str(machine.cpus), "-m", str(machine.memory_mb), *_processor_options(machine),
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none", "-serial", "none",
        "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        "-kernel", "/x/kernel", "-initrd", "/x/initramfs", "-append", _kernel_line(machine),
        "-device", "virtio-rng-device", "-device", "virtio-serial-device,max_ports=4",
        "-chardev", f"socket,id=console,fd={console}", "-device", "virtconsole,chardev=console",
        "-chardev", f"socket,id=serial,fd={serial}", "-device", "virtserialport,chardev=serial,name=workstead",
        "-chardev", f"socket,id=control,fd={control}", "-mon", "chardev=control,mode=control",
        *_share("system", ",readonly=on"), *_share("work", ""),
        *(["-incoming", f"fd:{state}"] if state is not None else []),
    ]  # fmt: skip
    options = [*_jail(machine), *_shares(machine), "--ro-bind", guest.kernel, "/x/kernel"]
    options += ["--ro-bind", guest.initramfs, "/x/initramfs", "--remount-ro", "/", "--chdir", "/"]
    descriptors.append(keep_bytes(b"".join(os.fsencode(option) + b"\0" for option in options), "options"))
    as_root = os.geteuid() == 0
    return Launch(
        argv=(machine.launcher, "--args", str(descriptors[-1]), "--", *command),
        environment={},
        keep=tuple(descriptors),
        uid=machine.uid if as_root else None,
        gid=machine.gid if as_root else None,
        stage=_sources(machine, guest) if as_root else None,
        guarded=True,
        holder=machine.holder if not as_root else None,
    )


def spawn(ready: Launch, errors: int, groups: Sequence[str] = ()) -> int:
    """Start QEMU with its stderr going to `errors`; return the launcher's process id. Raise OSError on failure."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        child = process.spawn(ready, null, errors, errors, groups=groups)
    finally:
        os.close(null)
    report = b""
    while data := os.read(child.report, 4096):  # EOF when the launcher is executed
        report += data
    os.close(child.report)
    if report:
        os.waitpid(child.pid, 0)
        code = int.from_bytes(report[4:8], "little")
        raise OSError(code, report[8:].decode(errors="replace") or os.strerror(code))
    return child.pid


def _processor_options(machine: Machine) -> list[str]:
    if not machine.emulated:
        return ["-accel", "kvm", "-cpu", "host"]
    # Nehalem is translated a quarter faster than the full emulated CPU, and has what distributions require
    return ["-accel", "tcg,thread=multi,tb-size=128", "-cpu", "Nehalem,check=off"]


def _kernel_line(machine: Machine) -> str:
    if not machine.emulated:
        return _KERNEL_WORDS
    # without a reference clock, an emulated microvm would calibrate its TSC forever
    return f"{_KERNEL_WORDS} init_on_alloc=0 mitigations=off tsc_early_khz={_tick_rate()}"


def _tick_rate() -> int:
    """Measure the TSC rate in kHz: /proc/cpuinfo shows another rate when idle."""
    # rdtsc; shl rdx, 32; or rax, rdx; ret
    code = bytes.fromhex("0f31 48c1e220 4809d0 c3")
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory[: len(code)] = code
    counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    began, first = time.monotonic_ns(), counter()
    time.sleep(0.02)
    ended, last = time.monotonic_ns(), counter()
    return 1000 * round((int(last) - int(first)) * 1000 / (ended - began))


def _share(name: str, options: str) -> list[str]:
    """Return the options of a share: QEMU is unprivileged, so files keep owner and mode, and devices cannot be made."""
    path = f"local,id={name},path=/x/{name},security_model=none,multidevs=remap{options}"
    return ["-fsdev", path, "-device", f"virtio-9p-device,fsdev={name},mount_tag={name}"]


def _jail(machine: Machine) -> list[str]:
    options = ["--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--die-with-parent"]
    options += ["--new-session", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for name in _TOP:
        if os.path.islink(f"/{name}"):
            options += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            options += ["--ro-bind", f"/{name}", f"/{name}"]
    if os.path.exists("/etc/ld.so.cache"):
        options += ["--ro-bind", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    if not machine.emulated:
        options += ["--dev-bind", "/dev/kvm", "/dev/kvm"]
    return options


def _shares(machine: Machine) -> list[str]:
    options = ["--dir", "/x/system", "--dir", "/x/work"]
    if not machine.workspace:
        return options
    for source, name in system_binds(machine):
        options += ["--ro-bind", source, f"/x/system/{name}"]
    workspace = os.path.realpath(machine.workspace)
    options += ["--bind", workspace, "/x/work/workspace"]
    for name in machine.parts:
        options += ["--bind", os.path.join(workspace, name), f"/x/work/workspace/{name}"]
    for name in machine.read_only:
        if os.path.lexists(os.path.join(workspace, name)):
            options += ["--ro-bind", os.path.join(workspace, name), f"/x/work/workspace/{name}"]
    for number, (source, _, writable, _) in enumerate(machine.mounts):
        options += ["--bind" if writable else "--ro-bind", os.path.realpath(source), f"/x/work/mounts/{number}"]
    return options


def system_binds(machine: Machine) -> list[tuple[str, str]]:
    """Return the bind mounts of the share `system`: host path, path in the share."""
    found = [("/usr", "usr")]
    found += [(f"/{name}", name) for name in _TOP if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")]
    found += [(f"/etc/{name}", f"etc/{name}") for name in ETC if os.path.exists(f"/etc/{name}")]
    return found + [(tool, f"tools/{number}") for number, tool in enumerate(machine.tools)]


def order(machine: Machine) -> dict[str, object]:
    """Return the mounts that the guest has to make; it adds the rest by itself."""
    home = f"/home/{machine.user}"
    binds: list[tuple[str, str, bool, bool]] = []
    for source, name in system_binds(machine):
        binds.append((f"system/{name}", source, True, False))
    binds.append(("work/workspace", machine.public_mount.rstrip("/"), False, not machine.executable))
    for number, (_, target, writable, executable) in enumerate(machine.mounts):
        binds.append((f"work/mounts/{number}", target.rstrip("/"), not writable, not executable))
    user, host = machine.user, machine.hostname
    nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    files = {
        "/etc/passwd": f"root:x:0:0::/root:/usr/sbin/nologin\n"
        f"{user}:x:{machine.uid}:{machine.gid}::{home}:/bin/bash\n{nobody}",
        "/etc/group": f"root:x:0:\ntty:x:5:\n{user}:x:{machine.gid}:\nnogroup:x:65534:\n",
        "/etc/hosts": f"127.0.0.1 localhost {host}\n::1 localhost ip6-localhost ip6-loopback\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "/etc/resolv.conf": "",
        # 9P inode numbers differ from the host's, and git would read every file again on each side in turn
        "/etc/gitconfig": "[core]\n\tcheckStat = minimal\n\ttrustctime = false\n",
    }
    return {
        "uid": machine.uid,
        "gid": machine.gid,
        "hostname": host,
        "files": files,
        "executable": machine.executable,
        "private": [["/tmp", "1777"], ["/dev/shm", "1777"], [home, "755"]],
        "binds": binds,
    }


def _sources(machine: Machine, guest: Guest) -> tuple[Source, ...]:
    """Return the paths that root must bind into the small root: every bind source, and bubblewrap's own files."""
    sources = {"/usr": Source(path="/usr")}
    for path in (guest.kernel, guest.initramfs, "/etc/ld.so.cache"):
        if os.path.exists(path):
            sources[path] = Source(path=path)
    if machine.workspace:
        sources.update({path: Source(path=path) for path, _ in system_binds(machine)})
        for path, _, writable, _ in machine.mounts:
            real = os.path.realpath(path)
            sources[real] = Source(path=real, writable=writable)
        workspace = os.path.realpath(machine.workspace)
        sources[workspace] = Source(path=workspace, writable=True)
    for name in _TOP:
        if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"):
            sources[f"/{name}"] = Source(path=f"/{name}")
    sources["/proc"] = Source(path="/proc", recursive=False, as_it_is=True)
    sources["/dev"] = Source(path="/dev", recursive=False, devices=True, writable=True)
    if not machine.launcher.startswith("/usr/"):
        folder = os.path.dirname(os.path.dirname(machine.launcher))
        for path in (folder, f"{folder}.libs"):
            if os.path.isdir(path):
                sources[path] = Source(path=path)
    return outermost(sources)
