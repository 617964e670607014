"""The birth time of a file by `statx`, for which Python has no function yet."""

from __future__ import annotations

import struct

_EMPTY_PATH, _NO_FOLLOW, _NO_AUTOMOUNT = 0x1000, 0x100, 0x800
_WANTS_BIRTH = 0x800
_BYTES, _BIRTH_AT = 256, 80


def birth_time(fd: int) -> float:
    """Return seconds since the epoch, or 0 if the kernel or the file system does not know."""
    import ctypes

    from workstead.system.kernel.libc import libc

    found = ctypes.create_string_buffer(_BYTES)
    flags = _EMPTY_PATH | _NO_FOLLOW | _NO_AUTOMOUNT
    if not hasattr(libc, "statx") or libc.statx(fd, b"", flags, ctypes.c_uint(_WANTS_BIRTH), found) != 0:
        return 0.0
    (mask,) = struct.unpack_from("=I", found)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BIRTH_AT)
    return float(seconds + nanoseconds / 1e9) if mask & _WANTS_BIRTH else 0.0
