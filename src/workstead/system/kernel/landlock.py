"""Landlock: restrict a program's file access, independent of the mounts.

It is the second line of defence: it does not cover sockets bound to a path, `stat`, or open descriptors, so it is never
used alone. Rules only grant rights; a right granted for a directory cannot be revoked beneath it. Each version of the
kernel interface adds rights, and rights it does not know are not checked, so the version found is part of the run's
enforcement record.
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
# no device nodes: a confined program does not need them, and the mounts are nodev anyway
WRITE = (
    READ | WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
    | _REFER | _TRUNCATE
)  # fmt: skip
USE = READ_FILE | READ_DIR | WRITE_FILE | _TRUNCATE | IOCTL_DEV  # devices and /proc: use only, no creation or execution
FILE_ONLY = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | IOCTL_DEV  # the rights that apply to a single file


def find_version() -> int:
    """Return the Landlock ABI version; 0 if the kernel has none or it is disabled."""
    try:
        return syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def _up_to(version: int, since: dict[int, int]) -> int:
    return sum(rights for first, rights in since.items() if first <= version)


def ruleset(version: int) -> bytes:
    """Return `struct landlock_ruleset_attr` of this version: all file rights and scopes; ports are left to the network
    namespace."""
    if version < 1:
        return b""
    handled = _up_to(version, _HANDLED_SINCE)
    if version < 4:
        return struct.pack("<Q", handled)
    if version < 6:
        return struct.pack("<QQ", handled, 0)
    return struct.pack("<QQQ", handled, 0, _up_to(version, _SCOPED_SINCE))


def grant(rights: int, version: int) -> int:
    """Return the rights that this version knows; the kernel rejects a rule with others."""
    return rights & _up_to(version, _HANDLED_SINCE)
