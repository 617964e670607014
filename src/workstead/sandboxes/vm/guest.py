"""The guest: a kernel from a Debian package, and a small initramfs with a copy of this host's Python.

    <cache>/kernel-NAME/      vmlinux and the few modules that are needed, from the package
    <cache>/guest-DIGEST/     initramfs, and guest.json: its inputs
    <cache>/guest-DIGEST/state-KEY    a machine saved at READY, see `qemu.py`

Both are built in a staging directory and renamed into place, once for all workspaces, without root. The digest is over
all inputs: a new version of ours, another Python on the host or another kernel package produce another guest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from functools import cache

from workstead.errors import SandboxUnavailable
from workstead.model.digest import blake2b
from workstead.model.value import Value
from workstead.sandboxes.vm import packages
from workstead.sandboxes.vm.initramfs import Archive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MODULES = ("virtio_mmio", "virtio_console", "virtio_rng", "9pnet_virtio", "9p")
# directories of possibly needed modules; the rest of the package is not even read
_MODULE_PLACES = ("/drivers/virtio/", "/drivers/char/", "/fs/9p/", "/net/9p/", "/fs/netfs/", "/fs/fscache/", "/lib/")
_PYTHON_MODULES = (
    "__future__ _socket binascii contextlib ctypes fcntl json os select signal struct sys time traceback "
    "encodings.ascii encodings.latin_1 encodings.utf_8"
).split()
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_DEVICES = (("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9))
_NAME = re.compile(r"[A-Za-z0-9.+~_-]+")


class Guest(Value):
    """A guest that is built."""

    directory: str
    kernel: str  # path of vmlinux
    initramfs: str
    version: str  # of the kernel


def find(cache: str) -> Guest | None:
    """Return the guest that was built last, if all its inputs are unchanged."""
    try:
        with open(f"{cache}/current") as file:
            directory = os.path.join(cache, file.read().strip())
        with open(f"{directory}/guest.json") as file:
            made = json.load(file)
    except (OSError, ValueError):
        return None
    if made["recipe"] != _recipe() or any(_stamp(path) != stamp for path, stamp in made["python"].items()):
        return None
    guest = _guest(cache, directory, made)
    return guest if os.path.exists(guest.kernel) and os.path.exists(guest.initramfs) else None


def _guest(cache: str, directory: str, made: dict[str, str]) -> Guest:
    return Guest(
        directory=directory,
        kernel=f"{cache}/kernel-{made['kernel']}/vmlinux",
        initramfs=f"{directory}/initramfs",
        version=made["kernel"],
    )


def build(cache: str, package_directory: str | None, progress: Callable[[str], None]) -> Guest:
    """Build the missing parts, with the kernel from a directory of packages or from apt; return the guest.

    The caller holds the cache's lock. Raise SandboxUnavailable with the remedy.
    """
    os.makedirs(cache, mode=0o755, exist_ok=True)
    try:
        kernel = _kernel(cache, package_directory, progress)
        return _build(cache, kernel, progress)
    except OSError as error:
        raise SandboxUnavailable(
            f"the guest could not be built: {error}", hint="see aw usage for room on the disk"
        ) from error
    except ValueError as error:
        raise SandboxUnavailable(
            f"the guest could not be built: {error}", hint="name other packages in sandbox.vm_packages"
        ) from error


# -- the kernel --------------------------------------------------------------------------------------------------------


def _kernel(cache: str, package_directory: str | None, progress: Callable[[str], None]) -> str:
    """Return the name of an unpacked kernel in the cache."""
    if package_directory:
        found = packages.find_kernel(package_directory) if os.path.isdir(package_directory) else None
        if found is None:
            raise SandboxUnavailable(
                f"there is no linux-image-*_amd64.deb in {package_directory}",
                hint="put Debian's kernel package there, or leave sandbox.vm_packages empty to use apt",
            )
        return _unpack(cache, found, progress)
    present = [name.removeprefix("kernel-") for name in os.listdir(cache) if name.startswith("kernel-")]
    if present:
        return max(present, key=packages.version_key)
    import tempfile

    with tempfile.TemporaryDirectory(prefix=".packages-", dir=cache) as directory:
        return _unpack(cache, packages.fetch_kernel(directory, progress), progress)


def _unpack(cache: str, package: str, progress: Callable[[str], None]) -> str:
    name = os.path.basename(package).removesuffix("_amd64.deb").removeprefix("linux-image-")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{package} has an odd name")
    target = f"{cache}/kernel-{name}"
    if os.path.isdir(target):
        return name
    progress(f"unpacking {os.path.basename(package)}")
    with _aside(target) as directory:
        modules = dict(_take_out(package, directory))
        order = _order(modules)
        for module in order:
            with open(f"{directory}/{module}.ko", "wb") as file:
                file.write(modules[module])
        with open(f"{directory}/order", "w") as file:
            file.write("".join(f"{module}.ko\n" for module in order))
        if not os.path.exists(f"{directory}/vmlinux"):
            raise ValueError(f"{package} holds no kernel")
        if "9p" not in order:
            raise ValueError(f"{package} is a kernel without 9P")
    return name


def _take_out(package: str, directory: str) -> Iterator[tuple[str, bytes]]:
    """Yield the modules that may be needed; also write the kernel to the directory."""
    import lzma

    with packages.open_package(package) as files:
        for member in files:
            name = member.name.lstrip("./")
            file = files.extractfile(member) if member.isfile() else None
            if file is None:
                continue
            if name.startswith("boot/vmlinuz-"):
                with open(f"{directory}/vmlinux", "wb") as kernel:
                    kernel.write(packages.unpack_kernel(file.read()))
            elif ".ko" in name and any(place in name for place in _MODULE_PLACES):
                body = file.read()
                plain = os.path.basename(name).split(".ko")[0].replace("-", "_")
                yield plain, lzma.decompress(body) if name.endswith(".xz") else body


def _order(modules: dict[str, bytes]) -> list[str]:
    """Sort modules after their dependencies; a missing dependency is built into the kernel."""
    order: list[str] = []

    def need(name: str) -> None:
        if name in order or name not in modules:
            return
        found = re.search(rb"\0depends=([^\0]*)\0", modules[name])
        for other in found.group(1).decode().split(",") if found and found.group(1) else ():
            need(other.replace("-", "_"))
        order.append(name)

    for name in _MODULES:
        need(name)
    return order


# -- initramfs ---------------------------------------------------------------------------------------------------------


def _build(cache: str, kernel: str, progress: Callable[[str], None]) -> Guest:
    python = _python_files()
    made = {"recipe": _recipe(), "kernel": kernel, "python": {path: _stamp(path) for path in python}}
    digest = blake2b(json.dumps(made, sort_keys=True).encode(), digest_size=12).hexdigest()
    target = f"{cache}/guest-{digest}"
    if not os.path.isdir(target):
        progress("building the guest")
        with _aside(target) as directory:
            with open(f"{directory}/initramfs", "wb") as file:
                _write_initramfs(Archive(file), f"{cache}/kernel-{kernel}", python)
            with open(f"{directory}/guest.json", "w") as text:
                json.dump(made, text)
    with open(f"{cache}/current.new", "w") as text:
        text.write(f"guest-{digest}\n")
    os.rename(f"{cache}/current.new", f"{cache}/current")
    _remove_others(cache, f"guest-{digest}", f"kernel-{kernel}")
    return _guest(cache, target, {"kernel": kernel})


def _write_initramfs(archive: Archive, kernel: str, python: list[str]) -> None:
    interpreter = python[0]
    for folder in ("proc", "sys", "dev", "run", "tmp"):
        archive.folder(folder)
    archive.device("dev/console", 5, 1, 0o600)
    archive.device("dev/null", 1, 3, 0o666)
    archive.device("dev/urandom", 1, 9, 0o666)  # Python needs it before anything is mounted
    for name in _TOP:
        if os.path.islink(f"/{name}"):
            archive.link(name, os.readlink(f"/{name}"))
            archive.link(f"newroot/{name}", os.readlink(f"/{name}"))
    for path in python:
        where = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))  # /lib is a link
        with open(path, "rb") as file:
            archive.file(where, file.read(), 0o755 if path == interpreter or ".so" in path else 0o644, _mtime(path))
    for name in _own_files():
        with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
            archive.file(f"agent/workstead/sandboxes/vm/{name}", file.read())
    for package in ("workstead", "workstead/sandboxes", "workstead/sandboxes/vm"):
        archive.file(f"agent/{package}/__init__.py", b"")
    start = "import sys; sys.path.insert(0, '/agent'); from workstead.sandboxes.vm.agent import main; main()\n"
    archive.file("init", f"#!{interpreter} -IS\n{start}".encode(), 0o755)
    with open(f"{kernel}/order") as order:
        names = order.read().split()
    for name in (*names, "order"):
        with open(f"{kernel}/{name}", "rb") as file:
            archive.file(f"modules/{name}", file.read())
    _write_root(archive)
    archive.end()


def _write_root(archive: Archive) -> None:
    """Write the directory skeleton that commands see; the rest is mounted."""
    for folder in ("usr", "etc", "proc", "dev/pts", "run", "mnt", "home", "var", "root"):
        archive.folder(f"newroot/{folder}", 0o700 if folder == "root" else 0o755)
    for name, minor in _DEVICES:
        archive.device(f"newroot/dev/{name}", 1, minor, 0o666)
    archive.device("newroot/dev/tty", 5, 0, 0o666)
    for name, target in (
        ("dev/fd", "/proc/self/fd"),
        ("dev/stdin", "fd/0"),
        ("dev/stdout", "fd/1"),
        ("dev/stderr", "fd/2"),
        ("dev/ptmx", "pts/ptmx"),
        ("var/tmp", "../tmp"),
        ("var/run", "../run"),
    ):
        archive.link(f"newroot/{name}", target)


def _own_files() -> tuple[str, ...]:
    return ("agent.py", "pins.py", "wire.py")


def _python_files() -> list[str]:
    """Return all files that this host's Python needs to run the agent, by asking it; the interpreter first."""
    import subprocess

    from workstead.system.process.command_server import find_interpreter

    interpreter = os.path.realpath(find_interpreter()[0])
    ask = (
        f"import {', '.join(_PYTHON_MODULES)}\n"
        "for m in list(sys.modules.values()):\n"
        "    for n in (getattr(m, '__file__', None), getattr(m, '__cached__', None)):\n"
        "        print(n) if n else None\n"
    )
    try:
        told = subprocess.run(
            [interpreter, "-I", "-S", "-c", ask], capture_output=True, text=True, check=True, timeout=30, env={}
        ).stdout.split("\n")
        files = dict.fromkeys(path for path in told if path.startswith("/") and os.path.exists(path))
        for binary in [interpreter, *(path for path in files if path.endswith(".so"))]:
            for library in re.findall(r"(/\S+) \(0x", _run([_loader(interpreter), "--list", binary])):
                files[library] = None
    except (subprocess.SubprocessError, OSError) as error:
        raise SandboxUnavailable(
            f"the Python at {interpreter} cannot be put into a guest: {error}", hint="apt install python3"
        ) from None
    files.pop(interpreter, None)
    cache = [path for path in ("/etc/ld.so.cache",) if os.path.exists(path)]
    return [interpreter, *files, *cache]


def _run(argv: list[str]) -> str:
    import subprocess

    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30, env={}).stdout


def _loader(program: str) -> str:
    """Return the path of a program's dynamic loader, as its ELF file names it."""
    with open(program, "rb") as file:
        found = re.search(rb"/lib[0-9a-z_/-]*/ld-[\w.-]+\.so\.\d+", file.read(1 << 16))
    if found is None:
        raise OSError("it names no loader")
    return found.group().decode()


@cache
def _recipe() -> str:
    """Return a digest of all files that we add ourselves."""
    digest = blake2b(digest_size=12)
    for name in (*_own_files(), "guest.py"):
        with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
            digest.update(file.read())
    digest.update(repr([os.readlink(f"/{name}") for name in _TOP if os.path.islink(f"/{name}")]).encode())
    return digest.hexdigest()


def _stamp(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


def _mtime(path: str) -> int:
    return int(os.stat(path).st_mtime)


@contextlib.contextmanager
def _aside(target: str) -> Iterator[str]:
    """Yield a staging directory that is renamed to the target when complete, or removed."""
    import shutil

    building = f"{target}.new"
    shutil.rmtree(building, ignore_errors=True)
    os.mkdir(building, 0o755)
    try:
        yield building
        os.rename(building, target)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _remove_others(cache: str, *keep: str) -> None:
    """Remove older guests and kernels: a running machine has read its own already."""
    import shutil

    for name in os.listdir(cache):
        if name.startswith(("guest-", "kernel-")) and name not in keep:
            shutil.rmtree(f"{cache}/{name}", ignore_errors=True)
