"""Query the mount table: mounts, the namespaces that show them, and the processes that use them.

Reading `/proc/PID/mountinfo` costs some microseconds for every mount of the machine, and each workspace is one. So
where the kernel supports queries by mount id (`listmount` and `statmount`, Linux 6.8; for another namespace, 6.11),
only mounts newer than a known one are requested: ids only grow and are never reused. mountinfo is the fallback.
"""

from __future__ import annotations

import ctypes
import os

from workstead.model.value import Value
from workstead.system.kernel.libc import libc, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_STATMOUNT = 457
_LISTMOUNT = 458
_WHOLE_TREE = 0xFFFFFFFFFFFFFFFF
_NS_GET_MNTNS_ID = 0x8008B705
_DEVICE = 0x1  # fields requested from statmount: the device
_POINT = 0x10  # the mount point
_TEXT_AT = 512  # offset of the strings in its answer
_STATX_UNIQUE_ID = 0x4000
_STATX_MOUNT_ROOT = 0x2000
_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_PAGE = 512
_MANY_NEW = 16  # rewrite the cache file only after this many new mounts


class Mounted(Value):
    """The file system that is mounted at a path."""

    device: int
    number: int = 0  # id of the mount; 0 if the kernel has no unique ids


def mounted_at(path: str) -> Mounted:
    """Return the file system that is mounted at a path, or that contains it."""
    status = os.lstat(path)
    return Mounted(device=status.st_dev, number=_ask_statx(path)[0])


class _Statx(ctypes.Structure):
    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("block_size", ctypes.c_uint32),
        ("attributes", ctypes.c_uint64),
        ("not_asked_for", ctypes.c_uint8 * 128),
        ("mount", ctypes.c_uint64),
        ("rest", ctypes.c_uint8 * 104),
    )


def _ask_statx(path: str) -> tuple[int, bool]:
    """Return the id of the mount that a path is on, and whether the path is its root."""
    answer = _Statx()
    arguments = (ctypes.c_int(_AT_SYMLINK_NOFOLLOW), ctypes.c_uint(_STATX_UNIQUE_ID), ctypes.byref(answer))
    if libc.statx(ctypes.c_int(_AT_FDCWD), ctypes.c_char_p(os.fsencode(path)), *arguments) != 0:
        return 0, False
    return answer.mount if answer.mask & _STATX_UNIQUE_ID else 0, bool(answer.attributes & _STATX_MOUNT_ROOT)


class _Request(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("zero", ctypes.c_uint32),
        ("mount", ctypes.c_uint64),
        ("parameter", ctypes.c_uint64),
        ("namespace", ctypes.c_uint64),
    )


def _request(mount: int, parameter: int, namespace: int) -> _Request:
    return _Request(32 if namespace else 24, 0, mount, parameter, namespace)


def _newer_than(number: int, namespace: int = 0) -> list[int]:
    """Return the ids of all mounts of a namespace (0: ours) that are newer than this one."""
    found: list[int] = []
    page = (ctypes.c_uint64 * _PAGE)()
    while True:
        request = _request(_WHOLE_TREE, found[-1] if found else number, namespace)
        count = syscall(_LISTMOUNT, ctypes.byref(request), page, ctypes.c_size_t(_PAGE), ctypes.c_uint(0))
        found += page[:count]
        if count < _PAGE:
            return found


def _describe(number: int, wanted: int, size: int, namespace: int = 0) -> bytes:
    answer = ctypes.create_string_buffer(size)
    request = _request(number, wanted, namespace)
    syscall(_STATMOUNT, ctypes.byref(request), answer, ctypes.c_size_t(size), ctypes.c_uint(0))
    return answer.raw


def _point_of(number: int) -> bytes:
    answer = _describe(number, _POINT, _TEXT_AT + 8192)
    start = _TEXT_AT + int.from_bytes(answer[108:112], "little")
    return answer[start : answer.index(b"\0", start)]


def _device_of(number: int, namespace: int) -> int:
    answer = _describe(number, _DEVICE, _TEXT_AT, namespace)
    return os.makedev(int.from_bytes(answer[16:20], "little"), int.from_bytes(answer[20:24], "little"))


# -- mounts inside a folder --------------------------------------------------------------------------------------------


def mounts_below(path: str, *, memory: str, besides: Sequence[str] = ()) -> list[str]:
    """Return the mount points of other file systems inside a directory; an overlay of it does not show them.

    Every mount is queried once, and then cached in the file `memory`; mounts inside `besides` are ours, and left out.
    An old mount that was moved into the directory is not found.
    """
    prefix = os.fsencode(path.rstrip("/")) + b"/"
    try:
        points = _known_points(memory, [os.fsencode(each.rstrip("/")) + b"/" for each in besides])
    except OSError:  # an older kernel, or a seccomp filter that does not know these calls
        points = _points_in_text()
    return sorted({os.fsdecode(each) for each in _starting_with(prefix, points) if _ask_statx(os.fsdecode(each))[1]})


def _starting_with(prefix: bytes, points: bytes) -> Iterator[bytes]:
    """Yield the NUL-separated paths that begin with a prefix."""
    at = points.find(b"\0" + prefix)
    while at >= 0:
        yield points[at + 1 : points.index(b"\0", at + 1)]
        at = points.find(b"\0" + prefix, at + 1)


def _known_points(memory: str, ours: Sequence[bytes]) -> bytes:
    namespace = f"{_boot()} {os.readlink('/proc/self/ns/mnt')}".encode()
    about, _, points = _read(memory).partition(b"\n")
    said, _, last = about.rpartition(b" ")
    if said != namespace:
        last, points = b"0", b"\0"
    new = _newer_than(int(last))
    for number in new:
        try:
            point = _point_of(number)
        except FileNotFoundError:  # unmounted since
            continue
        if not any(point.startswith(prefix) for prefix in ours):
            points += point + b"\0"
    if len(new) >= _MANY_NEW:
        _write(memory, b"%s %d\n%s" % (namespace, new[-1], points))
    return points


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _write(path: str, content: bytes) -> None:
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(content)
    os.rename(temporary, path)


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _points_in_text() -> bytes:
    with open("/proc/self/mountinfo", "rb") as file:
        points = [_unescaped(line.split(b" ", 5)[4]) for line in file]
    return b"\0".join([b"", *points, b""])


# -- namespaces and processes that use a mount -------------------------------------------------------------------------


def seen_elsewhere(mounted: Mounted, *, besides: int) -> list[int]:
    """Return one process for each mount namespace, except that of `besides`, in which this file system is visible.

    A sandbox binds the workspace into its own namespace. Our mount can then be unmounted without an error while the
    file system stays mounted there, so the absence of EBUSY does not prove that no process writes. The mount there is a
    copy of ours, so its id is higher.
    """
    return [process for process in _other_namespaces(besides) if _shows(process, mounted)]


def _shows(process: int, mounted: Mounted) -> bool:
    try:
        if mounted.number:
            return _shows_by_number(process, mounted)
    except OSError:  # it ended, access to its namespace is denied, or the kernel has no such query
        pass
    wanted = f" {os.major(mounted.device)}:{os.minor(mounted.device)} ".encode()
    return wanted in _mounts_of(process)


def _shows_by_number(process: int, mounted: Mounted) -> bool:
    from fcntl import ioctl

    descriptor = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespace = int.from_bytes(ioctl(descriptor, _NS_GET_MNTNS_ID, bytes(8)), "little")
    finally:
        os.close(descriptor)
    return any(_is_of(number, namespace, mounted.device) for number in _newer_than(mounted.number, namespace))


def _is_of(number: int, namespace: int, device: int) -> bool:
    try:
        return _device_of(number, namespace) == device
    except FileNotFoundError:
        return False  # unmounted since


def bound_elsewhere(paths: Sequence[str]) -> list[int]:
    """Like `seen_elsewhere` for plain directories: processes in whose mount namespace one of them is bind-mounted."""
    wanted = [b" %s %s " % _place_in_file_system(os.path.realpath(path)) for path in paths]
    return [
        process
        for process in _other_namespaces(os.getpid())
        if any(place in text for text in (_mounts_of(process),) for place in wanted)
    ]


def _place_in_file_system(path: str) -> tuple[bytes, bytes]:
    """Return device and path below the device's root, formatted as in mountinfo."""
    status = os.lstat(path)
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}".encode()
    name, best, root = os.fsencode(path), b"", b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            fields = line.split(b" ", 5)
            point = _unescaped(fields[4])
            covers = point == b"/" or name == point or name.startswith(point + b"/")
            if fields[2] == device and covers and len(point) >= len(best):
                best, root = point, _unescaped(fields[3])
    below = name[len(best.rstrip(b"/")) :]
    return device, _escaped((root.rstrip(b"/") + below) or b"/")


def _mounts_of(process: int) -> bytes:
    try:
        with open(f"/proc/{process}/mountinfo", "rb") as file:
            return file.read()
    except OSError:  # it ended meanwhile, or access is denied
        return b""


def _other_namespaces(besides: int) -> Iterator[int]:
    """Yield one process for each other mount namespace that we can access."""
    seen = {os.readlink(f"/proc/{besides}/ns/mnt")}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            namespace = os.readlink(f"/proc/{name}/ns/mnt")
        except OSError:  # it ended meanwhile, or access is denied
            continue
        if namespace not in seen:
            seen.add(namespace)
            yield int(name)


def users_of(path: str) -> list[int]:
    """Return processes with their working directory or an open file below a directory, as far as we have access."""
    inside = path.rstrip("/") + "/"

    def is_inside(link: str) -> bool:
        target = os.readlink(link)
        return target == path or target.startswith(inside)

    return _processes_with(is_inside)


def users_of_device(device: int) -> list[int]:
    """Return processes that have their working directory or an open file on a file system, in any namespace."""
    return _processes_with(lambda link: os.stat(link).st_dev == device)


def _processes_with(matches: Callable[[str], bool]) -> list[int]:
    """Return other processes whose working directory, root or an open file matches."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            links = [f"/proc/{name}/cwd", f"/proc/{name}/root"]
            links += [f"/proc/{name}/fd/{number}" for number in os.listdir(f"/proc/{name}/fd")]
        except OSError:  # it ended, or is another user's
            continue
        if any(_holds(matches, link) for link in links):
            found.append(int(name))
    return found


def _holds(matches: Callable[[str], bool], link: str) -> bool:
    try:
        return matches(link)
    except OSError:
        return False


def _escaped(path: bytes) -> bytes:
    for char in (b"\\", b" ", b"\t", b"\n"):
        path = path.replace(char, b"\\%03o" % char[0])
    return path


def _unescaped(path: bytes) -> bytes:
    for char in (b" ", b"\t", b"\n", b"\\"):
        path = path.replace(b"\\%03o" % char[0], char)
    return path
