"""Mount and unmount by system calls on descriptors.

No `mount` program is called, no text is quoted, and no path can change between a check and its use: layers are opened,
and the kernel gets descriptors. A new mount is *detached* at first, a descriptor that no other process can see, and
becomes visible by one `move_mount` onto an open directory. A process that dies in between leaves nothing behind.

Since Linux 6.15 the new mount API accepts detached mounts as layers. For such a layer mountinfo shows the path within
that mount, `/` or `/upper.0`, so an agent that reads its own mountinfo sees no path of the host. On an older kernel the
fallback is `mount(2)` in a private directory, with lower layers attached beside it while the overlay is made (it keeps
clones of its own), and mountinfo shows `/proc/self/fd/N`; idmapped layers below an overlay need 5.19.

Importing this module loads ctypes: import it where a mount is made, not at the top of a module.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import ExitStack, contextmanager

from workstead.system.kernel.libc import libc, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# System call numbers of the unified table, the same on every architecture.
_OPEN_TREE = 428
_MOVE_MOUNT = 429
_FSOPEN = 430
_FSCONFIG = 431
_FSMOUNT = 432
_MOUNT_SETATTR = 442
_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}  # s390x swaps the first two arguments, so it is not supported

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_SYMLINK_NOFOLLOW = 0x100
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 0x04
_MOVE_MOUNT_T_EMPTY_PATH = 0x40
_FSOPEN_CLOEXEC = 1
_FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG = 0
_FSCONFIG_SET_STRING = 1
_FSCONFIG_SET_FD = 5
_FSCONFIG_CMD_CREATE = 6
_MOUNT_ATTR_NOSUID = 0x2
_MOUNT_ATTR_NODEV = 0x4
_MOUNT_ATTR_IDMAP = 0x00100000
_MS_NOSUID = 0x2
_MS_NODEV = 0x4
_MS_SLAVE = 1 << 19
_MS_REC = 1 << 14
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNS = 0x00020000
_WALL = 0x40000000
_BTRFS_MAGIC = 0x9123683E

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    )


class Lower:
    """A lower layer: a directory, and optionally the user namespace that maps its owners."""

    def __init__(self, path: str, userns: int | None = None) -> None:
        self.path = path
        self.userns = userns

    def open(self, *, detached: bool) -> int:
        """Return a descriptor of the layer; a detached mount if owners are mapped, or if `detached`."""
        if self.userns is not None:
            return idmapped(self.path, self.userns)
        if detached:
            try:
                return _clone_tree(self.path)
            except OSError as error:
                if error.errno != errno.EINVAL:  # in a user namespace: the layer contains another mount
                    raise
        return os.open(self.path, _DIRECTORY)


def overlay(
    lowers: Sequence[Lower],
    *,
    upper: str,
    work: str,
    options: Mapping[str, str | None],
    scratch: str,
    modern: bool = True,
) -> int:
    """Return a detached overlay mount, lowers from top to bottom, with nosuid and nodev.

    `upper` and `work` are in the same directory, one of ours. `scratch` is a private directory that old kernels need
    temporarily; `modern=False` forces their code path in a test.
    """
    refused = OSError(errno.ENOSYS, "the old way was asked for")
    if modern:
        try:
            with _opened(lowers, upper, work, detached=True) as (below, top, aside):
                return _overlay_by_descriptors(below, top, aside, options)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EBADF):
                raise
            refused = error
    with _opened(lowers, upper, work, detached=False) as (below, top, aside):
        parked = [lower.userns is not None for lower in lowers]
        return _overlay_by_path(below, parked, top, aside, options, scratch, refused)


@contextmanager
def _opened(lowers: Sequence[Lower], upper: str, work: str, *, detached: bool) -> Iterator[tuple[list[int], int, int]]:
    """Open the lower layers, the upper layer and the work directory; the kernel requires the last two on one mount."""
    with ExitStack() as stack:

        def held(descriptor: int) -> int:
            stack.callback(os.close, descriptor)
            return descriptor

        below = [held(lower.open(detached=detached)) for lower in lowers]
        folder = os.path.dirname(upper)
        around = held(_clone_tree(folder) if detached else os.open(folder, _DIRECTORY))
        inside = (held(os.open(os.path.basename(path), _DIRECTORY, dir_fd=around)) for path in (upper, work))
        yield below, next(inside), next(inside)


def _overlay_by_descriptors(lowers: Sequence[int], upper: int, work: int, options: Mapping[str, str | None]) -> int:
    context = syscall(_FSOPEN, ctypes.c_char_p(b"overlay"), ctypes.c_uint(_FSOPEN_CLOEXEC))
    try:
        for name, value in options.items():
            if value is None:
                _configure(context, _FSCONFIG_SET_FLAG, name, None, 0)
            else:
                _configure(context, _FSCONFIG_SET_STRING, name, value.encode(), 0)
        for lower in lowers:
            _configure(context, _FSCONFIG_SET_FD, "lowerdir+", None, lower)
        _configure(context, _FSCONFIG_SET_FD, "upperdir", None, upper)
        _configure(context, _FSCONFIG_SET_FD, "workdir", None, work)
        _configure(context, _FSCONFIG_CMD_CREATE, None, None, 0)
        attributes = ctypes.c_uint(_MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV)
        return syscall(_FSMOUNT, ctypes.c_int(context), ctypes.c_uint(_FSMOUNT_CLOEXEC), attributes)
    finally:
        os.close(context)


def _configure(context: int, command: int, key: str | None, value: bytes | None, auxiliary: int) -> None:
    name = ctypes.c_char_p(key.encode()) if key is not None else None
    try:
        syscall(
            _FSCONFIG,
            ctypes.c_int(context),
            ctypes.c_uint(command),
            name,
            ctypes.c_char_p(value),
            ctypes.c_int(auxiliary),
        )
    except OSError as error:
        raise OSError(error.errno, _explanation(context) or error.strerror) from None


def _explanation(context: int) -> str:
    """Return the kernel's message about the last failure, without its `e overlay:` prefix."""
    lines = []
    while True:
        try:
            lines.append(os.read(context, 4096).decode(errors="replace").strip())
        except OSError:  # ENODATA: nothing more to read
            break
    return "; ".join(line.partition(": ")[2] or line for line in lines)


def _overlay_by_path(
    lowers: Sequence[int],
    parked: Sequence[bool],
    upper: int,
    work: int,
    options: Mapping[str, str | None],
    scratch: str,
    refused: OSError,
) -> int:
    """Return a detached overlay by `mount(2)`: mount on a directory of ours, clone the mount, and unmount it there."""
    places: list[str] = []
    reopened: list[int] = []
    mounted = os.path.join(scratch, "mounted")
    try:
        names = []
        for number, lower in enumerate(lowers):
            if parked[number]:
                place = os.path.join(scratch, f"lower.{number}")
                os.makedirs(place, exist_ok=True)
                attach(lower, place)
                places.append(place)
                lower = os.open(place, _DIRECTORY)
                reopened.append(lower)
            names.append(f"/proc/self/fd/{lower}")
        text = [f"lowerdir={':'.join(names)}", f"upperdir=/proc/self/fd/{upper}", f"workdir=/proc/self/fd/{work}"]
        text += [name if value is None else f"{name}={value}" for name, value in options.items()]
        os.makedirs(mounted, exist_ok=True)
        try:
            _mount("overlay", mounted, "overlay", _MS_NOSUID | _MS_NODEV, ",".join(text))
        except OSError as error:
            # Both APIs failed: the error of the newer one has the reason, unless it is only unsupported.
            raise (error if refused.errno in (errno.ENOSYS, errno.EBADF) else refused) from None
        places.append(mounted)
        return _clone_tree(mounted)
    finally:
        for descriptor in reopened:
            os.close(descriptor)
        for place in reversed(places):
            unmount(place, lazily=True)
        for name in (mounted, *places):
            _remove_empty(name)


def _remove_empty(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:
        return  # never made, or removed already


def _mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    arguments = [ctypes.c_char_p(os.fsencode(text)) for text in (source, target, kind)]
    if libc.mount(*arguments, ctypes.c_ulong(flags), ctypes.c_char_p(os.fsencode(data))) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _clone_tree(path: str, *, nofollow: bool = False) -> int:
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | (_AT_SYMLINK_NOFOLLOW if nofollow else 0))
    return syscall(_OPEN_TREE, ctypes.c_int(_AT_FDCWD), ctypes.c_char_p(os.fsencode(path)), flags)


def clone(path: str) -> int:
    """Return a detached mount of the directory at `path`, without mounts below it."""
    return _clone_tree(path, nofollow=True)


def mount_device(device: str, target: str, kind: str, options: str) -> None:
    """Mount the file system on a device, with nosuid and nodev."""
    _mount(device, target, kind, _MS_NOSUID | _MS_NODEV, options)


def idmapped(path: str, userns: int) -> int:
    """Return a detached clone of the mount at `path` that maps owners by the namespace; the directory is unchanged."""
    tree = _clone_tree(path)
    wanted = _MountAttr(_MOUNT_ATTR_IDMAP, 0, 0, userns)
    try:
        syscall(
            _MOUNT_SETATTR,
            ctypes.c_int(tree),
            ctypes.c_char_p(b""),
            ctypes.c_uint(_AT_EMPTY_PATH),
            ctypes.byref(wanted),
            ctypes.c_size_t(ctypes.sizeof(wanted)),
        )
    except OSError as error:
        os.close(tree)
        raise OSError(error.errno, f"this file system cannot map owners ({error.strerror})") from None
    return tree


def attach(mount: int, path: str) -> None:
    """Make a detached mount visible at a directory; a link as the last component is refused, not followed."""
    target = os.open(path, _DIRECTORY | os.O_NOFOLLOW)
    try:
        syscall(
            _MOVE_MOUNT,
            ctypes.c_int(mount),
            ctypes.c_char_p(b""),
            ctypes.c_int(target),
            ctypes.c_char_p(b""),
            ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH),
        )
    finally:
        os.close(target)


def unmount(path: str, *, lazily: bool = False) -> None:
    """Unmount the topmost mount at `path`; `lazily` also when it is in use: it then exists invisibly for its users."""
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazily else 0)
    if libc.umount2(ctypes.c_char_p(os.fsencode(path)), ctypes.c_int(flags)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)


def take_off(path: str) -> int:
    """Unmount the topmost mount at `path` if it is not in use; return it as a detached mount."""
    left = _clone_tree(path, nofollow=True)
    try:
        unmount(path)
    except OSError:
        os.close(left)
        raise
    return left


def user_namespace(uid_map: str, gid_map: str) -> int:
    """Return a descriptor of a new user namespace with these maps.

    A namespace needs a process to be created in. `clone` with CLONE_NEWUSER also works in a program with threads, where
    `unshare` fails. The child has no exit signal, so that no SIGCHLD handler sees it, and it does nothing: even if it
    blocks on a lock that another thread held at the moment of the clone, it is killed a moment later.
    """
    number = _CLONE.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "no clone call known for this architecture")
    zero = ctypes.c_long(0)
    child = syscall(number, ctypes.c_long(_CLONE_NEWUSER), zero, zero, zero, zero)
    if child == 0:
        while True:
            libc.pause()
    try:
        for name, text in (("uid_map", uid_map), ("gid_map", gid_map)):
            descriptor = os.open(f"/proc/{child}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(child, 9)
        os.waitpid(child, _WALL)


def map_one(inside: int, outside: int) -> str:
    """Return an id map that shows `inside` as `outside` and all other ids unchanged.

    Files of the user `outside` in the layer get the overflow id (nobody): a map must be one to one, and mapping them to
    `inside` would turn a set-uid file of that user into one of root's.
    """
    low, high = sorted((inside, outside))
    ranges = [(0, 0, low), (low + 1, low + 1, high - low - 1), (high + 1, high + 1, 0xFFFFFFFF - high - 1)]
    entries = [(inside, outside, 1)] + [entry for entry in ranges if entry[2] > 0]
    return "".join(f"{first} {second} {count}\n" for first, second, count in entries)


def enter_namespaces(uid: int, gid: int) -> None:
    """Move this process into a new user and mount namespace, in which it can mount and keeps its user id."""
    if libc.unshare(ctypes.c_int(_CLONE_NEWUSER | _CLONE_NEWNS)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"no user namespace to be had ({os.strerror(code).lower()})")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    # Our mounts do not propagate to the host, but an unmount on the host propagates here.
    if libc.mount(None, ctypes.c_char_p(b"/"), None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class _StatFs(ctypes.Structure):
    _fields_ = (("type", ctypes.c_long), ("rest", ctypes.c_long * 31))


def file_system(path: str) -> int:
    """Return the magic number of the file system at `path`."""
    answer = _StatFs()
    if libc.statfs(ctypes.c_char_p(os.fsencode(path)), ctypes.byref(answer)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return int(answer.type) & 0xFFFFFFFF


def is_btrfs(path: str) -> bool:
    """Return whether this directory is on btrfs."""
    return file_system(path) == _BTRFS_MAGIC
