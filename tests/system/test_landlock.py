"""Rulesets for every version of the interface, and those that this kernel has are taken by it."""

from __future__ import annotations

import ctypes
import os
import struct

import pytest

from needs import need
from workstead.system.kernel import landlock
from workstead.system.kernel.libc import syscall

SIZES = {0: 0, 1: 8, 2: 8, 3: 8, 4: 16, 5: 16, 6: 24, 7: 24, 8: 24}


@pytest.mark.parametrize(("version", "size"), SIZES.items())
def test_each_version_gets_what_it_knows(version: int, size: int) -> None:
    ruleset = landlock.ruleset(version)
    assert len(ruleset) == size
    if size:
        handled = struct.unpack_from("<Q", ruleset)[0]
        assert handled.bit_length() == {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)
        for rights in (landlock.READ, landlock.WRITE, landlock.USE, landlock.FILE_ONLY):
            assert landlock.grant(rights, version) & ~handled == 0


def test_the_kernel_takes_every_version_it_claims() -> None:
    version = landlock.find_version()
    need(version > 0, "landlock")
    for each in range(1, min(version, 7) + 1):
        ruleset = landlock.ruleset(each)
        os.close(syscall(444, ruleset, ctypes.c_size_t(len(ruleset)), 0))


def test_device_nodes_are_never_granted() -> None:
    make_char, make_block = 1 << 6, 1 << 11
    for rights in (landlock.READ, landlock.WRITE, landlock.USE):
        assert rights & (make_char | make_block) == 0
