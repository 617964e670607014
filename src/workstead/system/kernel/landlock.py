"""Landlock: what a program may do with files, enforced beneath the mounts and without them.

The second wall. It does not see sockets bound to a path, `stat`, or descriptors that are open already, so it never
stands alone. Rules grant; nothing can be taken away beneath a granted directory. Each version of the kernel interface
knows more rights, and a right that is not handled is not checked: the version found belongs in the statement.
"""

from __future__ import annotations

import struct

from workstead.system.kernel.libc import syscall

_CREATE_RULESET = 444
_VERSION_FLAG = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8
_MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = 1 << 9, 1 << 10, 1 << 11, 1 << 12
_REFER, _TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1

_HANDLED_SINCE = {1: (1 << 13) - 1, 2: _REFER, 3: _TRUNCATE, 5: IOCTL_DEV}
_SCOPED_SINCE = {6: _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS}

READ = EXECUTE | READ_FILE | READ_DIR
# no device nodes: a confined program has no use for them and the mounts are nodev anyway
WRITE = (
    READ | WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
    | _REFER | _TRUNCATE
)  # fmt: skip
USE = READ_FILE | READ_DIR | WRITE_FILE | _TRUNCATE | IOCTL_DEV  # devices and /proc: used, not made or executed
FILE_ONLY = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | IOCTL_DEV  # the rights that make sense for a single file


def find_version() -> int:
    """The version of the kernel's interface, 0 where there is none or it is switched off."""
    try:
        return syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def _up_to(version: int, since: dict[int, int]) -> int:
    return sum(rights for first, rights in since.items() if first <= version)


def ruleset(version: int) -> bytes:
    """`struct landlock_ruleset_attr` as this version takes it: every right to files, every scope; ports are left to
    the network namespace."""
    if version < 1:
        return b""
    handled = _up_to(version, _HANDLED_SINCE)
    if version < 4:
        return struct.pack("<Q", handled)
    if version < 6:
        return struct.pack("<QQ", handled, 0)
    return struct.pack("<QQQ", handled, 0, _up_to(version, _SCOPED_SINCE))


def grant(rights: int, version: int) -> int:
    """The part of the rights that this version handles; it refuses the others."""
    return rights & _up_to(version, _HANDLED_SINCE)
