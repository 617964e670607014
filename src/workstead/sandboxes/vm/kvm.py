"""Test whether /dev/kvm really runs a guest here, at hardware speed.

That it can be opened is not enough: nested and paravirtual hosts offer a /dev/kvm whose guests go through an
instruction emulator a thousand times slower, and stock kernels die in it. So a few instructions are run in a tiny
machine of our own: a loop of 100,000 turns takes a tenth of a millisecond on hardware, and hundreds under an emulator.

The result is valid until the next boot and is cached with the boot's id. Written for x86-64.
"""

from __future__ import annotations

import json
import os

from workstead.model.value import Value

DEVICE = "/dev/kvm"
_API_VERSION, _CREATE_VM, _VCPU_MMAP_SIZE, _CREATE_VCPU, _RUN = 0xAE00, 0xAE01, 0xAE04, 0xAE41, 0xAE80
_SET_USER_MEMORY_REGION, _SET_TSS_ADDR = 0x4020AE46, 0xAE47
_SET_REGS, _GET_SREGS, _SET_SREGS = 0x4090AE82, 0x8138AE83, 0x4138AE84
_EXIT_IO, _EXIT_HLT = 2, 5
_EXIT_NAMES = {0: "unknown", 6: "memory access", 8: "shutdown", 9: "entry failed", 17: "internal error"}
_TURNS = 100_000
_SLOWEST = 0.010  # seconds
_PATIENCE = 20.0


class Answer(Value):
    """Whether machines run by hardware here, and the details."""

    works: bool
    found: str


def ask(cache: str, uid: int | None = None) -> Answer:
    """Run the test as the machines' user, in a process that may hang; or return this boot's cached result."""
    boot = _boot_id()
    user = os.geteuid() if uid is None or os.geteuid() != 0 else uid
    path = f"{cache}/kvm-{user}"
    try:
        with open(path) as file:
            kept = json.load(file)
        if kept["boot"] == boot and kept["device"] == _device():
            return Answer(works=bool(kept["works"]), found=str(kept["found"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    answer = _try(user)
    _keep(path, {"boot": boot, "device": _device(), **answer.as_dict()})
    return answer


def _keep(path: str, body: dict[str, object]) -> None:
    """Write the cache; if that fails, the test is repeated next time."""
    import contextlib

    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with open(f"{path}.{os.getpid()}", "w") as file:
            json.dump(body, file)
        os.rename(f"{path}.{os.getpid()}", path)


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _device() -> list[int]:
    """Return the permissions of the device: a change of them invalidates the cached result."""
    try:
        found = os.stat(DEVICE)
    except OSError:
        return []
    return [found.st_mode, found.st_uid, found.st_gid, found.st_ctime_ns]


def _try(user: int) -> Answer:
    import subprocess

    from workstead.system.process import background

    if os.uname().machine != "x86_64":
        return Answer(works=False, found="the machines of this sandbox are x86-64")
    if not os.path.exists(DEVICE):
        return Answer(works=False, found=f"there is no {DEVICE}")
    program = "from workstead.sandboxes.vm.kvm import main; main()"
    try:
        done = subprocess.run(
            background.python_argv(program, str(user)),
            capture_output=True, text=True, timeout=_PATIENCE, check=False, stdin=subprocess.DEVNULL, env={},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Answer(works=False, found=f"{DEVICE} is there, but a guest in it hangs")
    try:
        return Answer(**json.loads(done.stdout))
    except (ValueError, TypeError):
        return Answer(works=False, found=f"{DEVICE} could not be tried: {done.stderr.strip()[-200:]}")


def main() -> None:
    """Run the test as the given user, and print the result."""
    import sys

    user = int(sys.argv[1])
    who = os.geteuid()
    try:
        answer = _judge(min(_loop() for _ in range(3)))
        if answer.works and who == 0 and user != 0:
            who = user
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        answer = Answer(works=False, found=f"{DEVICE}: {error.strerror} (as user {who})")
    print(json.dumps(answer.as_dict()))


def _judge(outcome: tuple[float, str]) -> Answer:
    seconds, ending = outcome
    if ending:
        return Answer(works=False, found=f"{DEVICE} opens, but a guest in it ends with: {ending}")
    speed = f"a loop of {_TURNS} turns took {seconds * 1000:.1f} ms"
    if seconds > _SLOWEST:
        return Answer(works=False, found=f"{DEVICE} opens, but its guests are emulated: {speed}")
    return Answer(works=True, found=speed)


def _loop() -> tuple[float, str]:
    """Run the loop in long mode in a machine with 2 MB; return its duration, and the error if it failed."""
    import ctypes
    import mmap
    import struct
    import time

    libc = ctypes.CDLL(None, use_errno=True)

    def ioctl(descriptor: int, request: int, argument: object = 0) -> int:
        value = ctypes.c_ulong(argument) if isinstance(argument, int) else argument
        result: int = libc.ioctl(descriptor, ctypes.c_ulong(request), value)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    kvm = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    if ioctl(kvm, _API_VERSION) != 12:
        return 0.0, "an unknown interface"
    machine = ioctl(kvm, _CREATE_VM)
    ioctl(machine, _SET_TSS_ADDR, 0xFFFBD000)
    memory = mmap.mmap(-1, 2 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    region = struct.pack("<IIQQQ", 0, 0, 0, 2 << 20, address)
    ioctl(machine, _SET_USER_MEMORY_REGION, ctypes.create_string_buffer(region, len(region)))
    processor = ioctl(machine, _CREATE_VCPU)
    shared = mmap.mmap(processor, ioctl(kvm, _VCPU_MMAP_SIZE))
    # one large page, identity-mapped: tables at 0x2000, 0x3000, 0x4000; the code at 0x5000
    for where, entry in ((0x2000, 0x3003), (0x3000, 0x4003), (0x4000, 0x83)):
        struct.pack_into("<Q", memory, where, entry)
    # mov ecx, turns; dec ecx; jnz back; mov al, 0x99; out 0x10, al; hlt
    code = b"\xb9" + struct.pack("<I", _TURNS) + b"\xff\xc9\x75\xfc\xb0\x99\xe6\x10\xf4"
    memory[0x5000 : 0x5000 + len(code)] = code
    special = ctypes.create_string_buffer(312)
    ioctl(processor, _GET_SREGS, special)
    raw = bytearray(special.raw)
    segment = struct.Struct("<QIHBBBBBBBBBB")  # base limit selector type present dpl db s l g avl unusable padding
    raw[0:24] = segment.pack(0, 0xFFFFFFFF, 8, 11, 1, 0, 0, 1, 1, 1, 0, 0, 0)
    for number in range(1, 6):
        raw[24 * number : 24 * number + 24] = segment.pack(0, 0xFFFFFFFF, 16, 3, 1, 0, 1, 1, 0, 1, 0, 0, 0)
    # cr0 with paging, cr2, cr3, cr4 with PAE, cr8, efer with long mode: after 8 segments and 2 tables
    struct.pack_into("<6Q", raw, 224, 0x80050033, 0, 0x2000, 0x20, 0, 0x500)
    ioctl(processor, _SET_SREGS, ctypes.create_string_buffer(bytes(raw), 312))
    registers = struct.pack("<18Q", *[0] * 6, 0x6000, *[0] * 9, 0x5000, 2)  # rsp, rip, rflags
    ioctl(processor, _SET_REGS, ctypes.create_string_buffer(registers, len(registers)))
    began = time.monotonic()
    while True:
        ioctl(processor, _RUN)
        reason = struct.unpack_from("<I", shared, 8)[0]
        if reason == _EXIT_HLT:
            return time.monotonic() - began, ""
        if reason != _EXIT_IO:
            return 0.0, _EXIT_NAMES.get(reason, f"exit {reason}")
