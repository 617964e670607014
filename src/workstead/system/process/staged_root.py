"""Staged root: a minimal root directory with only the sources of a sandbox, for a launcher that drops root privileges.

Started by root, bubblewrap runs as an unprivileged user that cannot traverse root's 0700 directories to the workspace.
So root first makes a mount namespace whose root is a new tmpfs with clones of the source mounts at their own paths, and
only then drops its privileges. It also prevents the launcher, which stays in this namespace during the run, from
holding other workspaces' mounts: an overlay that is copied into a live namespace cannot be unmounted elsewhere.

Everything happens in the forked child, before exec; none of it is visible to other processes.
"""

from __future__ import annotations

import ctypes
import os
import struct

from workstead.model.value import Value
from workstead.system.kernel.libc import libc, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CLONE_NEWNS = 0x00020000
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, 0o2000000
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 2, 4, 16384, 1 << 18
_MNT_DETACH = 2
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC = 1, 2, 4, 8  # MOUNT_ATTR_*
_MS_NOEXEC = 8
SCRATCH = "/scratch"  # in the staged root
SCRATCH_NAMES = ("tmp", "shm", "home")


class Source(Value):
    """One host path that the sandbox is built from."""

    path: str
    writable: bool = False
    devices: bool = False
    recursive: bool = True
    executable: bool = True
    as_it_is: bool = False  # /proc: any added attribute would have to be repeated by the new one inside


def outermost(sources: dict[str, Source]) -> tuple[Source, ...]:
    """Return the sources sorted by path, without those that are included in another."""
    return tuple(source for path, source in sources.items() if not _is_beneath_another(path, sources))


def _is_beneath_another(path: str, sources: dict[str, Source]) -> bool:
    """Return whether a source is included in one above it, with the required write permission."""
    parts = path.split("/")
    above = ("/".join(parts[:count]) for count in range(len(parts) - 1, 1, -1))
    nearest = next((sources[folder] for folder in above if folder in sources and sources[folder].recursive), None)
    if nearest is None:
        return False
    return (nearest.writable, nearest.executable) == (sources[path].writable, sources[path].executable)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _clone(source: Source) -> int:
    """Return a detached copy of the mounts at the path, with nosuid, nodev and (mostly) read-only."""
    recursive = _AT_RECURSIVE if source.recursive else 0
    path = os.fsencode(source.path)
    tree = syscall(_OPEN_TREE, _AT_FDCWD, path, ctypes.c_uint(_OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | recursive))
    if not source.as_it_is:
        wanted = _NO_SUID | (0 if source.devices else _NO_DEV) | (0 if source.writable else _READ_ONLY)
        _set_attributes(tree, wanted | (0 if source.executable else _NO_EXEC), recursive)
    return tree


def _set_attributes(tree: int, wanted: int, recursive: int) -> None:
    attributes = struct.pack("<QQQQ", wanted, 0, 0, 0)
    flags = ctypes.c_uint(_AT_EMPTY_PATH | recursive)
    syscall(_MOUNT_SETATTR, tree, b"", flags, attributes, ctypes.c_size_t(len(attributes)))


def _mount_scratch(path: str, size: int, owner: int) -> None:
    """Mount a noexec tmpfs with the private directories of a sandbox."""
    options = f"mode=0755,size={size}".encode()
    _check(
        libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, options),
        "mount the scratch space",
    )
    for name in SCRATCH_NAMES:
        os.mkdir(f"{path}/{name}")
        os.chmod(f"{path}/{name}", 0o700 if name == "home" else 0o1777)
        if owner >= 0:
            os.chown(f"{path}/{name}", owner, owner)


def forbid_execution(paths: Iterable[str], scratch: str, scratch_bytes: int) -> None:
    """For an ordinary user, in a mount namespace of our own: bind-mount each path over itself with noexec, and make a
    noexec scratch tmpfs. Later mounts of these are noexec too."""
    for path in paths:
        raw = os.fsencode(path)
        tree = syscall(_OPEN_TREE, _AT_FDCWD, raw, ctypes.c_uint(_OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE))
        _set_attributes(tree, _NO_EXEC, _AT_RECURSIVE)
        syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, raw, ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH))
        os.close(tree)
    _mount_scratch(scratch, scratch_bytes, -1)


def _make_point(path: str, *, directory: bool) -> None:
    """Make an empty directory or file as mount point, below the current directory, which is the new root."""
    relative = path.lstrip("/")
    os.makedirs(relative if directory else os.path.dirname(relative) or ".", 0o755, exist_ok=True)
    if not directory:
        os.close(os.open(relative, os.O_CREAT | os.O_CLOEXEC, 0o444))


def enter(sources: tuple[Source, ...], scratch_bytes: int = 0, owner: int = -1) -> None:
    """Move this process to the staged root. Sources below another one are included in it and must not be listed.

    With a size, make a noexec scratch tmpfs too, which belongs to the owner."""
    _check(libc.unshare(_CLONE_NEWNS), "unshare mounts")
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "make mounts private")
    # clones first: the new root is mounted over /tmp, and a source may be below that
    trees = [(source.path, _clone(source)) for source in sources]
    old_umask = os.umask(0o022)
    _check(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=0755,size=1m"), "mount the new root")
    os.chdir("/tmp")
    os.mkdir("tmp")  # bubblewrap builds there
    for link in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{link}"):
            os.symlink(os.readlink(f"/{link}"), link)
    for path, tree in sorted(trees):
        _make_point(path, directory=os.path.isdir(f"/proc/self/fd/{tree}"))
        target = os.fsencode(path.lstrip("/"))
        syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, target, ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH))
        os.close(tree)
    if scratch_bytes:
        os.mkdir(SCRATCH[1:])
        _mount_scratch(SCRATCH[1:], scratch_bytes, owner)
    syscall(_PIVOT_ROOT[os.uname().machine], b".", b".")  # the old root is now mounted on top of the new one
    _check(libc.umount2(b".", _MNT_DETACH), "leave the old root")
    os.chdir("/")
    os.umask(old_umask)
