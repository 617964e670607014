"""The last program before the command: it sets what only the inside can set, says so, and becomes the command.

Landlock forbids mounting, so it cannot be in force before bubblewrap has built its root; and a process limit counts all
processes of the user unless it is set in the new user namespace. Both therefore need a program of ours inside. Python
would cost 15 ms a run and has to be installed in there; this is 488 bytes of machine code and half a millisecond. It
is written down as an assembler's listing, and a test assembles the right column and compares it with the left.

What it reports on descriptor 3 are pairs of 32-bit numbers, stage and error: (0, 0) when every wall stands, then either
the end of the pipe, because the command runs, or (5, errno), because it cannot. Nothing at all means that the sandbox
was not built.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

STAGES = ("ready", "resource limit", "landlock ruleset", "landlock rule", "landlock", "command")
REPORT_FD = 3
FIRST_FREE_FD = 4

_LISTINGS = {
    "x86_64": """
                     # the stack holds argc, argv, envp; r12 walks through the table
4989e5                 mov r13, rsp
4c8d25de010000         lea r12, [rip + table]
                     # fcntl(3, F_SETFD, FD_CLOEXEC): the report ends where the command begins
b848000000             mov eax, 72
bf03000000             mov edi, 3
be02000000             mov esi, 2
ba01000000             mov edx, 1
0f05                   syscall
                     # close_range(first, ~0, 0)
b8b4010000             mov eax, 436
418b3c24               mov edi, dword ptr [r12]
beffffffff             mov esi, -1
31d2                   xor edx, edx
0f05                   syscall
498b5c2408             mov rbx, qword ptr [r12 + 8]
4983c410               add r12, 16
                     # setrlimit(resource, {soft, hard}) for each
                     limits:
bd01000000             mov ebp, 1
4885db                 test rbx, rbx
7422                   jz ruleset
b8a0000000             mov eax, 160
418b3c24               mov edi, dword ptr [r12]
498d742408             lea rsi, [r12 + 8]
0f05                   syscall
4885c0                 test rax, rax
0f8852010000           js fail
4983c418               add r12, 24
48ffcb                 dec rbx
ebd4                   jmp limits
                     # landlock_create_ruleset(attr, size, 0), unless its size is 0
                     ruleset:
bd02000000             mov ebp, 2
498b3424               mov rsi, qword ptr [r12]
498d7c2408             lea rdi, [r12 + 8]
4983c420               add r12, 32
4885f6                 test rsi, rsi
0f84a4000000           jz ready
b8bc010000             mov eax, 444
31d2                   xor edx, edx
0f05                   syscall
4885c0                 test rax, rax
0f881c010000           js fail
4889c3                 mov rbx, rax
                     # open(path, O_PATH|O_CLOEXEC) and landlock_add_rule(ruleset, 1, {access, fd}, 0);
                     # what is not there gets no rule
                     rules:
bd03000000             mov ebp, 3
4d8b3424               mov r14, qword ptr [r12]
4d85f6                 test r14, r14
745f                   jz restrict
4d8b7c2408             mov r15, qword ptr [r12 + 8]
498d7c2410             lea rdi, [r12 + 16]
be00002800             mov esi, 0x280000
31d2                   xor edx, edx
b802000000             mov eax, 2
0f05                   syscall
4f8d643c10             lea r12, [r12 + r15 + 16]
4885c0                 test rax, rax
78d0                   js rules
4883ec10               sub rsp, 16
4c893424               mov qword ptr [rsp], r14
4889442408             mov qword ptr [rsp + 8], rax
4989c6                 mov r14, rax
b8bd010000             mov eax, 445
89df                   mov edi, ebx
be01000000             mov esi, 1
4889e2                 mov rdx, rsp
4531d2                 xor r10d, r10d
0f05                   syscall
4883c410               add rsp, 16
4885c0                 test rax, rax
0f88b8000000           js fail
b803000000             mov eax, 3
4489f7                 mov edi, r14d
0f05                   syscall
eb93                   jmp rules
                     # landlock_restrict_self(ruleset, 0)
                     restrict:
bd04000000             mov ebp, 4
b8be010000             mov eax, 446
89df                   mov edi, ebx
31f6                   xor esi, esi
0f05                   syscall
4885c0                 test rax, rax
0f8893000000           js fail
b803000000             mov eax, 3
89df                   mov edi, ebx
0f05                   syscall
                     ready:
4983c408               add r12, 8
                     # prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, {length, steps}), unless its length is 0
498b1c24               mov rbx, qword ptr [r12]
4983c408               add r12, 8
4885db                 test rbx, rbx
7429                   jz stands
bd04000000             mov ebp, 4
4154                   push r12
53                     push rbx
b89d000000             mov eax, 157
bf16000000             mov edi, 22
be02000000             mov esi, 2
4889e2                 mov rdx, rsp
0f05                   syscall
4883c410               add rsp, 16
4885c0                 test rax, rax
7854                   js fail
4d8d24dc               lea r12, [r12 + rbx*8]
                     # every wall stands: report stage 0, then try one path after the other;
                     # the error that counts is another than "no such file"
                     stands:
31ed                   xor ebp, ebp
31c0                   xor eax, eax
e858000000             call report
bd05000000             mov ebp, 5
49c7c7feffffff         mov r15, -2
                     candidate:
4d8b3424               mov r14, qword ptr [r12]
4d85f6                 test r14, r14
742f                   jz none
498d7c2408             lea rdi, [r12 + 8]
498d7510               lea rsi, [r13 + 16]
498b5500               mov rdx, qword ptr [r13]
498d54d510             lea rdx, [r13 + rdx*8 + 16]
b83b000000             mov eax, 59
0f05                   syscall
4f8d643408             lea r12, [r12 + r14 + 8]
4883f8fe               cmp rax, -2
74d3                   je candidate
4883f8ec               cmp rax, -20
74cd                   je candidate
4989c7                 mov r15, rax
ebc8                   jmp candidate
                     none:
4c89f8                 mov rax, r15
                     # report the stage and end with 125
                     fail:
e80c000000             call report
b8e7000000             mov eax, 231
bf7d000000             mov edi, 125
0f05                   syscall
                     # write(3, {stage, error}, 8)
                     report:
f7d8                   neg eax
50                     push rax
48c1e020               shl rax, 32
4809e8                 or rax, rbp
48890424               mov qword ptr [rsp], rax
b801000000             mov eax, 1
bf03000000             mov edi, 3
4889e6                 mov rsi, rsp
ba08000000             mov edx, 8
0f05                   syscall
58                     pop rax
c3                     ret
0f1f00                 .balign 8
                     table:
""",
    "aarch64": """
                     # the stack holds argc, argv, envp; x20 walks through the table
f5030091               mov x21, sp
340f0010               adr x20, table
                     # fcntl(3, F_SETFD, FD_CLOEXEC): the report ends where the command begins
280380d2               mov x8, #25
600080d2               mov x0, #3
410080d2               mov x1, #2
220080d2               mov x2, #1
010000d4               svc #0
                     # close_range(first, ~0, 0)
883680d2               mov x8, #436
800240f9               ldr x0, [x20]
01008012               mov w1, #-1
020080d2               mov x2, #0
010000d4               svc #0
960640f9               ldr x22, [x20, #8]
94420091               add x20, x20, #16
                     # setrlimit(resource, {soft, hard}) for each
                     limits:
330080d2               mov x19, #1
360100b4               cbz x22, ruleset
881480d2               mov x8, #164
800240f9               ldr x0, [x20]
81220091               add x1, x20, #8
010000d4               svc #0
e00af8b7               tbnz x0, #63, fail
94620091               add x20, x20, #24
d60600d1               sub x22, x22, #1
f7ffff17               b limits
                     # landlock_create_ruleset(attr, size, 0), unless its size is 0
                     ruleset:
530080d2               mov x19, #2
810240f9               ldr x1, [x20]
80220091               add x0, x20, #8
94820091               add x20, x20, #32
410500b4               cbz x1, ready
883780d2               mov x8, #444
020080d2               mov x2, #0
010000d4               svc #0
6009f8b7               tbnz x0, #63, fail
f60300aa               mov x22, x0
                     # open(path, O_PATH|O_CLOEXEC) and landlock_add_rule(ruleset, 1, {access, fd}, 0);
                     # what is not there gets no rule
                     rules:
730080d2               mov x19, #3
970240f9               ldr x23, [x20]
370300b4               cbz x23, restrict
980640f9               ldr x24, [x20, #8]
600c8092               mov x0, #-100
81420091               add x1, x20, #16
0205a052               mov w2, #0x280000
030080d2               mov x3, #0
080780d2               mov x8, #56
010000d4               svc #0
9402188b               add x20, x20, x24
94420091               add x20, x20, #16
80feffb7               tbnz x0, #63, rules
f703bfa9               stp x23, x0, [sp, #-16]!
f70300aa               mov x23, x0
e00316aa               mov x0, x22
210080d2               mov x1, #1
e2030091               mov x2, sp
030080d2               mov x3, #0
a83780d2               mov x8, #445
010000d4               svc #0
ff430091               add sp, sp, #16
6006f8b7               tbnz x0, #63, fail
e00317aa               mov x0, x23
280780d2               mov x8, #57
010000d4               svc #0
e6ffff17               b rules
                     # landlock_restrict_self(ruleset, 0)
                     restrict:
930080d2               mov x19, #4
e00316aa               mov x0, x22
010080d2               mov x1, #0
c83780d2               mov x8, #446
010000d4               svc #0
2005f8b7               tbnz x0, #63, fail
e00316aa               mov x0, x22
280780d2               mov x8, #57
010000d4               svc #0
                     ready:
94220091               add x20, x20, #8
                     # prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, {length, steps}), unless its length is 0
960240f9               ldr x22, [x20]
94220091               add x20, x20, #8
760100b4               cbz x22, stands
930080d2               mov x19, #4
f653bfa9               stp x22, x20, [sp, #-16]!
e81480d2               mov x8, #167
c00280d2               mov x0, #22
410080d2               mov x1, #2
e2030091               mov x2, sp
010000d4               svc #0
ff430091               add sp, sp, #16
2003f8b7               tbnz x0, #63, fail
940e168b               add x20, x20, x22, lsl #3
                     # every wall stands: report stage 0, then try one path after the other;
                     # the error that counts is another than "no such file"
                     stands:
130080d2               mov x19, #0
000080d2               mov x0, #0
19000094               bl report
b30080d2               mov x19, #5
38008092               mov x24, #-2
                     candidate:
970240f9               ldr x23, [x20]
170200b4               cbz x23, none
80220091               add x0, x20, #8
a1420091               add x1, x21, #16
a20240f9               ldr x2, [x21]
a20e028b               add x2, x21, x2, lsl #3
42400091               add x2, x2, #16
a81b80d2               mov x8, #221
010000d4               svc #0
9402178b               add x20, x20, x23
94220091               add x20, x20, #8
1f0800b1               cmn x0, #2
80feff54               b.eq candidate
1f5000b1               cmn x0, #20
40feff54               b.eq candidate
f80300aa               mov x24, x0
f0ffff17               b candidate
                     none:
e00318aa               mov x0, x24
                     # report the stage and end with 125
                     fail:
04000094               bl report
a00f80d2               mov x0, #125
c80b80d2               mov x8, #94
010000d4               svc #0
                     # write(3, {stage, error}, 8)
                     report:
e003004b               neg w0, w0
608200aa               orr x0, x19, x0, lsl #32
e00f1ff8               str x0, [sp, #-16]!
600080d2               mov x0, #3
e1030091               mov x1, sp
020180d2               mov x2, #8
080880d2               mov x8, #64
010000d4               svc #0
ff430091               add sp, sp, #16
c0035fd6               ret
1f2003d5               .balign 8
                     table:
""",
}
_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine
_BASE = 0x400000
_HEADERS = 64 + 2 * 56


def is_supported() -> bool:
    """Whether the program exists for this machine."""
    return os.uname().machine in _LISTINGS


def code(arch: str) -> bytes:
    """The left column of the listing."""
    return bytes.fromhex("".join(line[:20] for line in _LISTINGS[arch].splitlines()))


def source(arch: str) -> str:
    """The right column, for an assembler to check."""
    syntax = ".intel_syntax noprefix\n" if arch == "x86_64" else ""
    lines = (line[20:].strip() for line in _LISTINGS[arch].splitlines())
    return syntax + "".join(f"{line}\n" for line in lines if not line.startswith("#"))


def _text(text: str) -> bytes:
    """A C string with its padded length before it."""
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
    """An executable that keeps `keep` descriptors behind the report, sets the limits, the rules and a last filter of
    `calls`, and runs the first of the candidate paths that exists, with its own arguments shifted by one."""
    arch = arch or os.uname().machine
    limits = list(rlimits)
    table = struct.pack("<QQ", FIRST_FREE_FD + keep, len(limits))
    table += b"".join(struct.pack("<QQQ", resource, value, value) for resource, value in limits)
    table += struct.pack("<Q", len(ruleset)) + ruleset.ljust(24, b"\0")
    if ruleset:
        table += b"".join(struct.pack("<Q", access) + _text(path) for path, access in rules)
    table += bytes(8) + struct.pack("<Q", len(calls) // 8) + calls
    table += b"".join(map(_text, candidates)) + bytes(8)
    body = code(arch) + table
    size = _HEADERS + len(body)
    # one segment to read and execute, and the mark that the stack is not executable
    header = struct.pack("<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 2, _MACHINES[arch], 1,
                         _BASE + _HEADERS, 64, 0, 0, 64, 56, 2, 0, 0, 0)  # fmt: skip
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x10000)
    stack = struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    return header + load + stack + body
