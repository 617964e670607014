"""Shim: the last program before the command; it sets limits from inside the sandbox, reports, and executes the command.

Landlock forbids mounting, so it cannot be in force before bubblewrap has built its root; and a process limit counts all
processes of the user unless it is set in the new user namespace. Both therefore need a program of ours inside. Python
would cost 15 ms per run and has to be installed inside; this is half a kilobyte of compiled C and half a millisecond.
`shim.c` is its source and `shim_code.py` has the compiled bytes, which are used with or without a compiler installed:
`sh requirements/shim` writes them, and `tests/system/test_shim.py` proves that they match the source.

It reports pairs of 32-bit numbers on descriptor 3, stage and error: (0, 0) when all restrictions are in force, then
either the end of the pipe, because the command runs, or (5, errno), because it cannot. No report at all means that the
sandbox was not built.
"""

from __future__ import annotations

import os
import struct

from workstead.system.process.shim_code import CODE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

STAGES = ("ready", "resource limit", "landlock ruleset", "landlock rule", "landlock", "command")
REPORT_FD = 3
FIRST_FREE_FD = 4

_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine
_BASE = 0x400000
_HEADERS = 64 + 2 * 56  # shim.ld places the code after them


def is_supported() -> bool:
    """Return whether the program exists for this architecture."""
    return os.uname().machine in CODE


def code(arch: str) -> bytes:
    """Return the compiled bytes for an architecture; the table of a run follows them."""
    return bytes.fromhex(CODE[arch])


def _text(text: str) -> bytes:
    """Return a C string, preceded by its padded length."""
    raw = os.fsencode(text) + b"\0"
    raw += bytes(-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw


def build(
    candidates: Iterable[str],
    *,
    rlimits: Iterable[tuple[int, int]] = (),
    ruleset: bytes = b"",
    rules: Iterable[tuple[str, int]] = (),
    calls: bytes = b"",
    keep: int = 0,
    arch: str = "",
) -> bytes:
    """Return an executable that keeps `keep` descriptors after the report, sets the limits, the Landlock rules and a
    last filter of `calls`, and executes the first existing candidate path, with its own arguments shifted by one."""
    arch = arch or os.uname().machine
    return executable(code(arch), table(candidates, rlimits, ruleset, rules, calls, keep), arch)


def table(
    candidates: Iterable[str],
    rlimits: Iterable[tuple[int, int]] = (),
    ruleset: bytes = b"",
    rules: Iterable[tuple[str, int]] = (),
    calls: bytes = b"",
    keep: int = 0,
) -> bytes:
    """Return the table that the program reads; `shim.c` documents its layout."""
    limits = list(rlimits)
    made = struct.pack("<QQ", FIRST_FREE_FD + keep, len(limits))
    made += b"".join(struct.pack("<QQQ", resource, value, value) for resource, value in limits)
    made += struct.pack("<Q", len(ruleset)) + ruleset.ljust(24, b"\0")
    if ruleset:
        made += b"".join(struct.pack("<Q", access) + _text(path) for path, access in rules)
    made += bytes(8) + struct.pack("<Q", len(calls) // 8) + calls
    return made + b"".join(map(_text, candidates)) + bytes(8)


def executable(code: bytes, table: bytes, arch: str) -> bytes:
    """Return code and table as an ELF program: one read-execute segment, and a mark for a non-executable stack."""
    size = _HEADERS + len(code) + len(table)
    header = struct.pack("<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 2, _MACHINES[arch], 1,
                         _BASE + _HEADERS, 64, 0, 0, 64, 56, 2, 0, 0, 0)  # fmt: skip
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x10000)
    stack = struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    return header + load + stack + code + table
