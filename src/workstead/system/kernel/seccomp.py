"""Seccomp filter: the system calls denied to a confined program, as a classic BPF program.

It is a deny list: a development tool uses several hundred calls, and a missing one breaks it in ways that are hard to
diagnose. Denied are calls that reach past the namespaces (ptrace, keyrings, mounts, handles), calls that have been the
target of kernel exploits and that no build needs (io_uring, bpf, userfaultfd, perf), calls that create new namespaces,
and all calls newer than this list. Denied calls return errors that programs already handle; only a foreign instruction
set kills the process, because its numbers mean other calls.

`ioctl` is the exception, an allow list: its requests are as many as there are drivers and file systems, and some of
them change a file's content without updating its ctime (EXT4_IOC_MOVE_EXT, the exchange calls of xfs), so that
snapshot, diff and restore would miss it; others reserve space that the quota meter does not see (FS_IOC_RESVSP), move a
file to another quota (FS_IOC_FSSETXATTR) or type into a terminal. A request that is not in the table returns ENOTTY, as
from a file that does not support it.

`clone3` passes its flags by pointer, which a filter cannot read: it returns ENOSYS, and every C library then falls back
to `clone`, whose flags are an argument.
"""

from __future__ import annotations

import os
import struct
from errno import EAFNOSUPPORT, ENOSYS, ENOTTY, EOPNOTSUPP, EPERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOW = 0x7FFF0000
KILL = 0x80000000
_ERRNO = 0x00050000

# offsets in struct seccomp_data; arguments are 64 bits wide, low half first (both architectures are little-endian)
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _GREATER_OR_EQUAL, _HAS_BITS = 0x15, 0x35, 0x45

_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020000 | 0x00000080  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET; CLONE_NEWTIME
_SET_UID = 0o4000
_LAST_KNOWN = 467  # open_tree_attr; later calls are unknown to this list

# AF_UNIX, AF_INET, AF_INET6, AF_NETLINK; of netlink only the routing family, which getaddrinfo uses
_FAMILIES, _NETLINK, _NETLINK_ROUTE = (1, 2, 10, 16), 16, 0

# The requests that programs need; the numbers are the same on both architectures. Missing on purpose although some
# programs use them: TIOCSTI, TIOCLINUX (type into a terminal), TIOCCONS (takes over the console), TIOCSETD (loads line
# disciplines), FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR (flags and quotas of a file), FS_IOC_RESVSP (a fallocate that the
# rule on fallocate does not see), FIDEDUPERANGE, and every request specific to one file system.
IOCTLS = {
    # terminals
    "TCGETS": 0x5401, "TCSETS": 0x5402, "TCSETSW": 0x5403, "TCSETSF": 0x5404, "TCGETA": 0x5405, "TCSETA": 0x5406,
    "TCSETAW": 0x5407, "TCSETAF": 0x5408, "TCSBRK": 0x5409, "TCXONC": 0x540A, "TCFLSH": 0x540B, "TIOCEXCL": 0x540C,
    "TIOCNXCL": 0x540D, "TIOCSCTTY": 0x540E, "TIOCGPGRP": 0x540F, "TIOCSPGRP": 0x5410, "TIOCOUTQ": 0x5411,
    "TIOCGWINSZ": 0x5413, "TIOCSWINSZ": 0x5414, "TIOCPKT": 0x5420, "TIOCNOTTY": 0x5422, "TIOCGETD": 0x5424,
    "TCSBRKP": 0x5425, "TIOCSBRK": 0x5427, "TIOCCBRK": 0x5428, "TIOCGSID": 0x5429, "TCGETS2": 0x802C542A,
    "TCSETS2": 0x402C542B, "TCSETSW2": 0x402C542C, "TCSETSF2": 0x402C542D, "TIOCGPTN": 0x80045430,
    "TIOCSPTLCK": 0x40045431, "TIOCSIG": 0x40045436, "TIOCGPKT": 0x80045438, "TIOCGPTLCK": 0x80045439,
    "TIOCGEXCL": 0x80045440, "TIOCGPTPEER": 0x5441,
    # any descriptor
    "FIONREAD": 0x541B, "FIONBIO": 0x5421, "FIONCLEX": 0x5450, "FIOCLEX": 0x5451, "FIOASYNC": 0x5452,
    "FIOQSIZE": 0x5460,
    # files: queries, and the two that share blocks and update ctime as a write does
    "FIGETBSZ": 0x2, "FS_IOC_FIEMAP": 0xC020660B, "FS_IOC_GETFLAGS": 0x80086601, "FS_IOC_GETVERSION": 0x80087601,
    "FS_IOC_FSGETXATTR": 0x801C581F, "FICLONE": 0x40049409, "FICLONERANGE": 0x4020940D,
    # sockets: queries
    "FIOSETOWN": 0x8901, "SIOCSPGRP": 0x8902, "FIOGETOWN": 0x8903, "SIOCGPGRP": 0x8904, "SIOCATMARK": 0x8905,
    "SIOCGSTAMP": 0x8906, "SIOCGSTAMPNS": 0x8907, "SIOCGIFNAME": 0x8910, "SIOCGIFCONF": 0x8912,
    "SIOCGIFFLAGS": 0x8913, "SIOCGIFADDR": 0x8915, "SIOCGIFDSTADDR": 0x8917, "SIOCGIFBRDADDR": 0x8919,
    "SIOCGIFNETMASK": 0x891B, "SIOCGIFMETRIC": 0x891D, "SIOCGIFMTU": 0x8921, "SIOCGIFHWADDR": 0x8927,
    "SIOCGIFINDEX": 0x8933, "SIOCGIFTXQLEN": 0x8942, "SIOCETHTOOL": 0x8946, "SIOCOUTQNSD": 0x894B,
    "SIOCGIFMAP": 0x8970,
    "RNDGETENTCNT": 0x80045200,
}  # fmt: skip
# TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD: the terminal supports them, so the correct error is EPERM
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x541D, 0x5423)

# numbers since 424 are the same on every architecture
_REFUSED_EVERYWHERE = {
    "pidfd_getfd": 438, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
    "quotactl_fd": 443, "open_tree_attr": 467, "lsm_set_self_attr": 460,
}  # fmt: skip

_REFUSED = {
    "x86_64": {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "bpf": 321,
        "perf_event_open": 298, "userfaultfd": 323, "add_key": 248, "request_key": 249, "keyctl": 250, "mount": 165,
        "umount2": 166, "pivot_root": 155, "chroot": 161, "swapon": 167, "swapoff": 168, "open_by_handle_at": 304,
        "fanotify_init": 300, "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313,
        "delete_module": 176, "create_module": 174, "get_kernel_syms": 177, "query_module": 178, "reboot": 169,
        "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159, "quotactl": 179,
        "syslog": 103, "acct": 163, "vhangup": 153, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "uselib": 134,
        "sysfs": 139, "lookup_dcookie": 212, "nfsservctl": 180, "sethostname": 170, "setdomainname": 171,
        "setns": 308, "_sysctl": 156, "vserver": 236,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "bpf": 280,
        "perf_event_open": 241, "userfaultfd": 282, "add_key": 217, "request_key": 218, "keyctl": 219, "mount": 40,
        "umount2": 39, "pivot_root": 41, "chroot": 51, "swapon": 224, "swapoff": 225, "open_by_handle_at": 265,
        "fanotify_init": 262, "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273,
        "delete_module": 106, "reboot": 142, "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266,
        "adjtimex": 171, "quotactl": 60, "syslog": 116, "acct": 89, "vhangup": 58, "lookup_dcookie": 18,
        "nfsservctl": 42, "sethostname": 161, "setdomainname": 162, "setns": 268,
    },
}  # fmt: skip

_CLONE3 = 435
_LANDLOCK = (444, 446)

# calls that are denied for some arguments only
_ARCHES = {
    "x86_64": {"audit": 0xC000003E, "clone": 56, "unshare": 272, "ioctl": 16, "socket": 41, "socketpair": 53,
               "personality": 135, "memfd_create": 319, "fallocate": 285, "setrlimit": 160,
               "prlimit64": 302},
    "aarch64": {"audit": 0xC00000B7, "clone": 220, "unshare": 97, "ioctl": 29, "socket": 198, "socketpair": 199,
                "personality": 92, "memfd_create": 279, "fallocate": 47, "setrlimit": 164,
                "prlimit64": 261},
}  # fmt: skip

# (call, position of the mode): a set-uid file left in a workspace could be executed by a user outside. The open calls
# have a mode only when they create; otherwise the register contains garbage. openat2 passes its mode by pointer, which
# a filter cannot read: the main protection is that only our user can access a workspace from outside.
_MODES = {
    "x86_64": {"chmod": (90, 1), "fchmod": (91, 1), "fchmodat": (268, 2), "fchmodat2": (452, 2), "creat": (85, 1),
               "mknod": (133, 1), "mknodat": (259, 2)},
    "aarch64": {"fchmod": (52, 1), "fchmodat": (53, 2), "fchmodat2": (452, 2), "mknodat": (33, 2)},
}  # fmt: skip
# call, position of the flags, position of the mode
_OPENS = {"x86_64": ((2, 1, 2), (257, 2, 3)), "aarch64": ((56, 2, 3),)}
_CREATES = 0x400040  # O_CREAT, O_TMPFILE
_PUNCH_HOLE = 0x2  # the mode of fallocate that only frees space
_RLIMIT_FSIZE = 1
_NOEXEC_SEAL = 0x8  # MFD_NOEXEC_SEAL: a memory file that can never be executed
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)


def machine() -> str:
    """Return the instruction set, as the kernel names it."""
    return os.uname().machine


def is_supported() -> bool:
    """Return whether there is a list for this architecture."""
    return machine() in _ARCHES


def _step(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, operand)


def _answer(error: int) -> bytes:
    return _step(_RETURN, _ERRNO | error)


def _argument(position: int) -> bytes:
    """Load the low half: the kernel uses the low 32 bits of flags, modes and ioctl requests, so the filter must too."""
    return _step(_LOAD, _ARGUMENTS + 8 * position)


def _for_call(number: int, body: list[bytes]) -> bytes:
    """Run the body for one call, and continue after it with the call number loaded again."""
    body = [*body, _step(_LOAD, _NUMBER)]
    assert len(body) < 256, "a jump reaches 255 steps"
    return _step(_EQUAL, number, 0, len(body)) + b"".join(body)


def _unless_one_of(values: tuple[int, ...], error: int) -> list[bytes]:
    """Deny any other value; the jumps lead past the denial."""
    count = len(values)
    return [*(_step(_EQUAL, value, count - index, 0) for index, value in enumerate(values)), _answer(error)]


def _steps(arch: str, executable: bool, metered: bool) -> Iterator[bytes]:
    table = _ARCHES[arch]
    yield _step(_LOAD, _ARCH)
    yield _step(_EQUAL, table["audit"], 1, 0) + _step(_RETURN, KILL)
    yield _step(_LOAD, _NUMBER)
    if arch == "x86_64":
        yield _step(_GREATER_OR_EQUAL, _X32, 0, 1) + _answer(ENOSYS)
    yield _step(_GREATER_OR_EQUAL, _LAST_KNOWN + 1, 0, 1) + _answer(ENOSYS)
    yield _step(_EQUAL, _CLONE3, 0, 1) + _answer(ENOSYS)
    for number in sorted({**_REFUSED[arch], **_REFUSED_EVERYWHERE}.values()):
        yield _step(_EQUAL, number, 0, 1) + _answer(EPERM)
    # one bit of the mask, CLONE_NEWTIME, is in the byte where clone has its exit signal: only unshare uses it
    yield _for_call(table["clone"], [_argument(0), _step(_HAS_BITS, _NEW_NAMESPACES & ~0x80, 0, 1), _answer(EPERM)])
    yield _for_call(table["unshare"], [_argument(0), _step(_HAS_BITS, _NEW_NAMESPACES, 0, 1), _answer(EPERM)])
    requests = [part for request in _TERMINAL_REQUESTS for part in (_step(_EQUAL, request, 0, 1), _answer(EPERM))]
    yield _for_call(table["ioctl"], [_argument(1), *requests, *_unless_one_of(tuple(IOCTLS.values()), ENOTTY)])
    netlink = [_step(_EQUAL, _NETLINK, 0, 3), _argument(2), _step(_EQUAL, _NETLINK_ROUTE, 1, 0), _answer(EAFNOSUPPORT)]
    yield _for_call(table["socket"], [_argument(0), *_unless_one_of(_FAMILIES, EAFNOSUPPORT), *netlink])
    yield _for_call(table["socketpair"], [_argument(0), *_unless_one_of(_FAMILIES, EAFNOSUPPORT)])
    yield _for_call(table["personality"], [_argument(0), *_unless_one_of(_PERSONALITIES, EPERM)])
    if metered:
        yield _for_call(table["fallocate"], [_argument(1), _step(_HAS_BITS, _PUNCH_HOLE, 1, 0), _answer(EOPNOTSUPP)])
        is_file_size = _step(_EQUAL, _RLIMIT_FSIZE, 0, 1)
        yield _for_call(table["setrlimit"], [_argument(0), is_file_size, _answer(EPERM)])
        # a query is allowed: it has no new value
        asks = [_argument(2), _step(_EQUAL, 0, 0, 2), _step(_LOAD, _ARGUMENTS + 8 * 2 + 4), _step(_EQUAL, 0, 1, 0)]
        yield _for_call(
            table["prlimit64"], [_argument(1), _step(_EQUAL, _RLIMIT_FSIZE, 0, len(asks) + 1), *asks, _answer(EPERM)]
        )
    for number, position in _MODES[arch].values():
        yield _for_call(number, [_argument(position), _step(_HAS_BITS, _SET_UID, 0, 1), _answer(EPERM)])
    for number, flags, position in _OPENS[arch]:
        creates = [_argument(flags), _step(_HAS_BITS, _CREATES, 0, 3)]
        yield _for_call(number, [*creates, _argument(position), _step(_HAS_BITS, _SET_UID, 0, 1), _answer(EPERM)])
    if not executable:  # a memory file is on no mount that could be noexec
        sealed = [_argument(1), _step(_HAS_BITS, _NOEXEC_SEAL, 1, 0), _answer(EPERM)]
        yield _for_call(table["memfd_create"], sealed)
    yield _step(_RETURN, ALLOW)


def program(arch: str = "", *, executable: bool = True, metered: bool = False) -> bytes:
    """Return the filter for this architecture in the format of the kernel and of bubblewrap's `--seccomp`: eight bytes
    per step.

    Without `executable`, memory files have to be sealed against execution. If the run is `metered` by the quota meter,
    space cannot be reserved: `fallocate` returns "not supported", as on many file systems, and C libraries write zeros
    instead; and RLIMIT_FSIZE, by which growth is refused, cannot be changed from inside.
    """
    return b"".join(_steps(arch or machine(), executable, metered))


def without_landlock() -> bytes:
    """Return a filter to install after a program has set its own Landlock rules: Landlock then appears unsupported.

    A ruleset keeps references to its inodes, also removed ones, where no measurement finds them (see `nameless`)."""
    first, last = _LANDLOCK
    return b"".join(
        (
            _step(_LOAD, _NUMBER),
            _step(_GREATER_OR_EQUAL, first, 0, 2),
            _step(_GREATER_OR_EQUAL, last + 1, 1, 0),
            _answer(ENOSYS),
            _step(_RETURN, ALLOW),
        )
    )
