"""System calls without a function in Python's standard library.

One prepared `syscall` that turns errno into OSError, as the `os` module does. Numbers are those of the unified table
(424 and up), which are the same on every architecture; older calls are defined in the module that needs them.
"""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
_syscall = libc.syscall
_syscall.restype = ctypes.c_long


def syscall(number: int, *arguments: object) -> int:
    """Make one system call; integers must be wrapped (c_int, c_long, c_size_t) where the width matters."""
    result: int = _syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
