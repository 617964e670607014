"""The filter, read by a small machine of its own: every call has the answer that the list says."""

from __future__ import annotations

import errno
import struct

import pytest

from workstead.system.kernel import seccomp

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = seccomp.ALLOW, seccomp.KILL


def answer(arch: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """What the filter says: ALLOW, KILL, or an error number."""
    data = struct.pack("<IIQ", number, AUDIT[arch] if audit is None else audit, 0)
    data += b"".join(struct.pack("<Q", argument & (1 << 64) - 1) for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6])
    steps = list(struct.iter_unpack("<HBBI", seccomp.program(arch)))
    register = position = 0
    while True:
        code, if_true, if_false, operand = steps[position]
        position += 1
        if code == 0x20:
            register = struct.unpack_from("<I", data, operand)[0]
        elif code == 0x06:
            return operand & 0xFFFF if operand & 0xFFFF0000 == 0x00050000 else operand
        else:
            holds = {0x15: register == operand, 0x35: register >= operand, 0x45: bool(register & operand)}[code]
            position += if_true if holds else if_false


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_everything_in_the_list_is_refused(arch: str) -> None:
    for name, number in {**seccomp._REFUSED[arch], **seccomp._REFUSED_EVERYWHERE}.items():
        assert answer(arch, number) == errno.EPERM, name
    assert answer(arch, seccomp._CLONE3) == errno.ENOSYS


@pytest.mark.parametrize(
    ("arch", "plain"), [("x86_64", (0, 1, 3, 9, 39, 57, 59, 231, 262, 437)), ("aarch64", (63, 64, 57, 221, 79, 437))]
)
def test_ordinary_calls_pass(arch: str, plain: tuple[int, ...]) -> None:
    assert {answer(arch, number) for number in plain} == {ALLOW}


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_unknown_and_foreign_calls(arch: str) -> None:
    assert answer(arch, 468) == errno.ENOSYS
    assert answer(arch, 0xFFFFFFFF) == errno.ENOSYS
    assert answer(arch, 0, audit=0x40000003) == KILL  # 32-bit x86
    if arch == "x86_64":
        assert answer(arch, 0x40000000 + 101) == errno.ENOSYS  # x32


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_calls_with_arguments(arch: str) -> None:
    table = seccomp._ARCHES[arch]
    new_user, new_time, new_net = 0x10000000, 0x80, 0x40000000
    assert answer(arch, table["clone"], 0x01200011) == ALLOW
    assert answer(arch, table["clone"], new_user | 17) == errno.EPERM
    assert answer(arch, table["clone"], 0x80) == ALLOW  # there it is part of the exit signal
    assert answer(arch, table["unshare"], new_time) == errno.EPERM
    assert answer(arch, table["unshare"], new_net) == errno.EPERM
    assert answer(arch, table["unshare"], 0x200) == ALLOW
    for request in (0x5412, 0x541C, 0x541D, 0x5423):
        assert answer(arch, table["ioctl"], 0, request) == errno.EPERM
        # the kernel looks at the low half only (CVE-2019-10063)
        assert answer(arch, table["ioctl"], 0, request | 0xDEAD00000000) == errno.EPERM
    assert answer(arch, table["ioctl"], 0, 0x5401) == ALLOW
    for family in (1, 2, 10):
        assert answer(arch, table["socket"], family, 1, 0) == ALLOW
        assert answer(arch, table["socketpair"], family, 1, 0) == ALLOW
    for family in (0, 3, 17, 29, 31, 38, 40):
        assert answer(arch, table["socket"], family, 1, 0) == errno.EAFNOSUPPORT
    assert answer(arch, table["socket"], 16, 3, 0) == ALLOW
    assert answer(arch, table["socket"], 16, 3, 12) == errno.EAFNOSUPPORT
    assert answer(arch, table["personality"], 0) == ALLOW
    assert answer(arch, table["personality"], 0x0400000) == errno.EPERM
    for number, position in seccomp._MODES[arch].values():
        arguments = [0, 0, 0, 0]
        arguments[position] = 0o755
        assert answer(arch, number, *arguments) == ALLOW
        arguments[position] = 0o4755
        assert answer(arch, number, *arguments) == errno.EPERM
    for number, flags, position in seccomp._OPENS[arch]:
        arguments = [0, 0, 0, 0]
        arguments[position] = 0o4755
        assert answer(arch, number, *arguments) == ALLOW  # nothing is created: that is no mode
        arguments[flags] = 0o101
        assert answer(arch, number, *arguments) == errno.EPERM


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_only_the_listed_requests_reach_a_driver_or_a_file_system(arch: str) -> None:
    refused = {
        "EXT4_IOC_MOVE_EXT": 0xC028660F, "XFS_IOC_SWAPEXT": 0xC0C0586D, "XFS_IOC_EXCHANGE_RANGE": 0x40285881,
        "EXT4_IOC_SWAP_BOOT": 0x6611, "EXT4_IOC_MIGRATE": 0x6609, "FS_IOC_RESVSP": 0x40305828,
        "FS_IOC_RESVSP64": 0x4030582A, "FS_IOC_ZERO_RANGE": 0x40305839, "FS_IOC_SETFLAGS": 0x40086602,
        "FS_IOC_FSSETXATTR": 0x401C5820, "FS_IOC_ENABLE_VERITY": 0x40806685, "FIDEDUPERANGE": 0xC0189436,
        "BTRFS_IOC_SNAP_CREATE_V2": 0x50009417, "BTRFS_IOC_DEFRAG": 0x50009402, "FITRIM": 0xC0185879,
        "FS_IOC_SET_ENCRYPTION_POLICY": 0x800C6613, "TIOCVHANGUP": 0x5437, "NS_GET_USERNS": 0xB701,
    }  # fmt: skip
    call = seccomp._ARCHES[arch]["ioctl"]
    for name, request in refused.items():
        assert answer(arch, call, 0, request) == errno.ENOTTY, name
        assert answer(arch, call, 0, request | 0xDEAD00000000) == errno.ENOTTY, name
    for name, request in seccomp.IOCTLS.items():
        assert answer(arch, call, 0, request) == ALLOW, name
    assert len(set(seccomp.IOCTLS.values())) == len(seccomp.IOCTLS)


def test_the_program_fits_the_kernel() -> None:
    for arch in ("x86_64", "aarch64"):
        assert len(seccomp.program(arch)) // 8 < 4096
