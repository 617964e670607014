"""Read the names in an index without git, which never sees an index that an agent can write."""

from __future__ import annotations

import os

_HEADER = 12
_STAT_AND_ID = 60  # before the flags of an entry, with SHA-1
_CHECKSUM = 20
_EXTENDED = 0x4000
_PREFIXED = 4  # the version in which a name shares its beginning with the one before


def tracked_in(index: bytes) -> set[str]:
    """Return the paths in an index, of version 2 to 4; raise ValueError for a damaged or incomplete (split) one."""
    version, count = int.from_bytes(index[4:8]), int.from_bytes(index[8:_HEADER])
    if index[:4] != b"DIRC" or not 2 <= version <= _PREFIXED:
        raise ValueError("not an index of a known version")
    found = set()
    at, name = _HEADER, b""
    for _ in range(count):
        flags = int.from_bytes(index[at + _STAT_AND_ID : at + _STAT_AND_ID + 2])
        start = at + _STAT_AND_ID + (4 if flags & _EXTENDED else 2)
        kept = 0
        if version == _PREFIXED:
            dropped, start = _number(index, start)
            kept = len(name) - dropped
        end = index.index(b"\0", start)
        if kept < 0:
            raise ValueError("a name shares more than the one before has")
        name = name[:kept] + index[start:end]
        found.add(os.fsdecode(name))
        at = end + 1 if version == _PREFIXED else at + ((end - at + 8) & ~7)
    while at < len(index) - _CHECKSUM:
        if index[at : at + 4] == b"link":
            raise ValueError("a part of the index is in another file")
        at += 8 + int.from_bytes(index[at + 4 : at + 8])
    if at != len(index) - _CHECKSUM:
        raise ValueError("the index does not end where it says")
    return found


def _number(index: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and the position after it."""
    value = -1
    while True:
        if at >= len(index):
            raise ValueError("the index ends within a number")
        value = ((value + 1) << 7) | (index[at] & 0x7F)
        at += 1
        if not index[at - 1] & 0x80:
            return value, at
