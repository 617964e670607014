"""Open a path beneath a directory without escaping it: two resolvers with the same guarantee.

`by_kernel` is one `openat2` with RESOLVE_BENEATH: the check is part of the open, so there is no race condition.
`by_walking` is the fallback for kernels without it (before 5.6, or behind a seccomp filter). It opens one component at
a time with O_PATH and O_NOFOLLOW, reads links itself, and returns the same descriptors and errno as the kernel. Its
rules:

- A step down is `openat` of a single name on a descriptor that we hold: there is no link to follow and no race.
- A step up goes back along the descriptors of the path so far. The kernel's `..` is never opened: the current directory
  can be moved up meanwhile, and then its `..` is outside. The earlier descriptor was inside and stays the same.
- A path that would step above the start fails with EXDEV before anything there is accessed, so that it reveals nothing
  about files outside.

Both return only descriptors that cannot cause side effects: O_PATH ones, or directories. The caller checks the file
type.
"""

from __future__ import annotations

import ctypes
import os
from errno import EAGAIN, ELOOP, ENOTDIR, EXDEV
from stat import S_ISDIR, S_ISLNK

from workstead.system.kernel.libc import libc, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Resolver(Protocol):
        """Open `raw` beneath `root_fd`; raise OSError (EXDEV when it leads out, ELOOP, ENOENT, ENOTDIR ...)."""

        def __call__(self, root_fd: int, raw: bytes, flags: int, *, links: bool = True) -> int: ...


NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH = 0x01, 0x02, 0x04, 0x08
_FOLLOW = BENEATH | NO_MAGICLINKS
_FOLLOW_NOT = _FOLLOW | NO_SYMLINKS

MAX_LINKS = 40  # the kernel's limit
_MAX_TRIES = 32  # EAGAIN: a rename, anywhere on the machine, while the kernel checks a `..`
_KEPT_LEVELS = 128  # how far back `by_walking` can step; more would exhaust the process's descriptors


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


# A separate function object without argument types: ctypes then passes ints and bytes as they are, and a call costs 0.4
# µs less. libffi widens the ints; everything here fits in 32 bits except the pointer, which is made once.
_openat2 = libc["syscall"]
openat2_unexplained = ctypes.CDLL(None)["syscall"]  # the same without errno, for callers that retry on failure
OPENAT2 = 437
SIZE = ctypes.sizeof(_OpenHow)
_hows: dict[tuple[int, int], object] = {}


def prepare(flags: int, resolve: int) -> object:
    """Return a pointer to a constant `open_how`, cached for each pair."""
    how = _hows.get((flags, resolve))
    if how is None:
        how = _hows[flags, resolve] = ctypes.byref(_OpenHow(flags | os.O_CLOEXEC, 0, resolve))
    return how


def by_kernel(root_fd: int, raw: bytes, flags: int, *, links: bool = True) -> int:
    """Open `raw` beneath `root_fd` with one system call; fall back to walking if concurrent renames never stop."""
    how = prepare(flags, _FOLLOW if links else _FOLLOW_NOT)
    for _ in range(_MAX_TRIES):
        fd: int = _openat2(OPENAT2, root_fd, raw, how, SIZE)
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code != EAGAIN:
            raise _os_error(code)
    return by_walking(root_fd, raw, flags, links=links)


def by_walking(root_fd: int, raw: bytes, flags: int, *, links: bool = True) -> int:
    """Open `raw` beneath `root_fd` one component at a time."""
    todo = raw.split(b"/")
    todo.reverse()
    trail = _Trail(root_fd)
    followed = 0
    try:
        while todo:
            name = todo.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                trail.step_back()
                continue
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=trail.here)
            mode = os.fstat(fd).st_mode
            if S_ISDIR(mode):
                trail.step_into(fd)
            elif S_ISLNK(mode) and (todo or not flags & os.O_NOFOLLOW):
                followed += 1
                todo += _steps_of_link(fd, allowed=links and followed <= MAX_LINKS)
            elif todo or flags & os.O_DIRECTORY:  # a trailing slash leaves an empty component in `todo`
                os.close(fd)
                raise _os_error(ENOTDIR)
            else:
                return fd
        if flags & os.O_PATH:
            return trail.take()
        return os.open(b".", flags | os.O_CLOEXEC, dir_fd=trail.here)
    finally:
        trail.close()


class _Trail:
    """The directories that a walk has passed, as descriptors."""

    def __init__(self, root_fd: int) -> None:
        self._root_fd = root_fd
        self._fds: list[int] = []
        self._dropped = 0  # levels above the first of `_fds` that have been closed

    @property
    def here(self) -> int:
        return self._fds[-1] if self._fds else self._root_fd

    def step_into(self, fd: int) -> None:
        self._fds.append(fd)
        if len(self._fds) > _KEPT_LEVELS:
            os.close(self._fds.pop(0))
            self._dropped += 1

    def step_back(self) -> None:
        if not self._fds:
            raise _os_error(EXDEV)
        if len(self._fds) == 1 and self._dropped:
            raise _os_error(ELOOP)  # a link that climbs more levels than we keep open
        os.close(self._fds.pop())

    def take(self) -> int:
        """Return the descriptor of the current directory; the caller closes it."""
        return self._fds.pop() if self._fds else os.open(b".", os.O_PATH | os.O_CLOEXEC, dir_fd=self._root_fd)

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)


def _steps_of_link(fd: int, *, allowed: bool) -> list[bytes]:
    """Return the components of a link's target, last first, and close the link's descriptor."""
    try:
        if not allowed:
            raise _os_error(ELOOP)
        target = os.readlink(b"", dir_fd=fd)  # the link that was opened, not the one that now has its name
    finally:
        os.close(fd)
    if target.startswith(b"/"):
        raise _os_error(EXDEV)
    return target.split(b"/")[::-1]


def _os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


RESOLVERS: dict[str, Resolver] = {"openat2": by_kernel, "walk": by_walking}

_probed = ""


def probe(root_fd: int) -> str:
    """Return the resolver that this kernel supports; cached per process."""
    global _probed
    if not _probed:
        try:
            os.close(by_kernel(root_fd, b".", os.O_PATH))
            _probed = "openat2"
        except OSError:  # ENOSYS, or EPERM from an old container's seccomp filter
            _probed = "walk"
    return _probed


# -- a mount of one's own ----------------------------------------------------------------------------------------------

_OPEN_TREE, _MOUNT_SETATTR = 428, 442
_CLONE, _EMPTY_PATH = 0x1, 0x1000
_NODEV = 0x4


def clone_without_devices(fd: int) -> int:
    """Return a detached nodev mount of the same directory; only root may make one.

    It is private, has no place in the mount tree, and goes with its descriptor.
    """
    flags = ctypes.c_uint(_CLONE | _EMPTY_PATH | os.O_CLOEXEC)
    clone = syscall(_OPEN_TREE, ctypes.c_int(fd), ctypes.c_char_p(b""), flags)
    attributes = (ctypes.c_uint64 * 4)(_NODEV, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    try:
        syscall(
            _MOUNT_SETATTR,
            ctypes.c_int(clone),
            ctypes.c_char_p(b""),
            ctypes.c_uint(_EMPTY_PATH),
            ctypes.byref(attributes),
            size,
        )
    except OSError:
        os.close(clone)
        raise
    return clone
