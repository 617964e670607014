"""The last program before the command: the shipped bytes are what the source compiles to, and do what it says.

How the bytes are proved:

- The digest of the source is beside them: a change of the source that nobody compiled is seen everywhere.
- With the compiler and linker that made them they are compiled again and are the same, byte for byte.
- Any other compiler makes other code of the same source. Its code and the shipped code then go through the same tests
  here, and make the same system calls with the same arguments (`strace`); the foreign machine's runs in an emulator.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import resource
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from needs import need, need_program
from workstead.system.kernel import landlock, seccomp
from workstead.system.process import shim, shim_code

MACHINE = os.uname().machine
COMPILE = str(Path(__file__).parents[2] / "requirements" / "shim")
CODES = ["shipped", "compiled here"]


def tool(arch: str, name: str) -> str:
    return need_program(name if arch == MACHINE else f"{arch}-linux-gnu-{name}")


def compiled(arch: str, directory: Path) -> bytes:
    """What the compiler of this machine makes of the source."""
    for name in ("gcc", "ld", "objcopy"):
        tool(arch, name)
    subprocess.run(["sh", COMPILE, arch, str(directory / "code")], check=True)
    return (directory / "code").read_bytes()


def test_the_bytes_were_compiled_after_the_last_change_of_the_source() -> None:
    folder = Path(shim.__file__).parent
    parts = (folder / "shim.c", folder / "shim.ld")
    assert hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest() == shim_code.SOURCE


@pytest.mark.parametrize("arch", shim_code.CODE)
def test_the_shipped_bytes_are_what_the_source_compiles_to(arch: str, tmp_path: Path) -> None:
    made = compiled(arch, tmp_path)
    here = subprocess.run(["sh", COMPILE, arch], check=True, capture_output=True, text=True).stdout.splitlines()
    if tuple(line.rpartition("gcc ")[2] for line in here) == shim_code.TOOLS[arch]:
        assert made == shim.code(arch)
    else:  # the tests below hold both to the same behaviour
        assert len(made) % 8 == 0


def test_other_source_compiles_to_other_bytes(tmp_path: Path) -> None:
    """The comparison sees a single changed number."""
    shutil.copytree(Path(shim.__file__).parent, tmp_path / "src/workstead/system/process", ignore=lambda top, names: {
        name for name in names if not name.startswith("shim.")})  # fmt: skip
    (tmp_path / "requirements").mkdir()
    script = shutil.copy(COMPILE, tmp_path / "requirements/shim")
    source = tmp_path / "src/workstead/system/process/shim.c"
    made = []
    for old, new in (("FAILED = 125", "FAILED = 125"), ("FAILED = 125", "FAILED = 0")):
        assert old in source.read_text()
        source.write_text(source.read_text().replace(old, new))
        tool(MACHINE, "gcc")
        subprocess.run(["sh", script, MACHINE, str(tmp_path / "code")], check=True)
        made.append((tmp_path / "code").read_bytes())
    assert made[0] == compiled(MACHINE, tmp_path) != made[1]


@pytest.fixture(params=CODES)
def code(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    """Both are held to everything below."""
    need(shim.is_supported(), "an x86_64 or aarch64 machine")
    return compiled(MACHINE, tmp_path) if request.param == "compiled here" else shim.code(MACHINE)


def write_program(tmp_path: Path, code: bytes, arch: str = MACHINE, **options: object) -> str:
    program = tmp_path / "enter"
    program.write_bytes(shim.executable(code, shim.table(**options), arch))  # type: ignore[arg-type]
    program.chmod(0o755)
    return str(program)


def enter(
    tmp_path: Path, code: bytes, *words: str, arch: str = MACHINE, before: tuple[str, ...] = (), **options: object
) -> tuple[str, int, list[int]]:
    """Run the shim and return the output of the command, its exit code, and the report."""
    program = write_program(tmp_path, code, arch, **options)
    read_end, write_end = os.pipe()
    try:
        if write_end != shim.REPORT_FD:
            os.dup2(write_end, shim.REPORT_FD)
        done = subprocess.run([*before, program, *words], pass_fds=(shim.REPORT_FD,), capture_output=True, text=True)
    finally:
        for descriptor in {write_end, shim.REPORT_FD}:
            os.close(descriptor)
    report = os.read(read_end, 100)
    os.close(read_end)
    return done.stdout, done.returncode, list(struct.unpack(f"<{len(report) // 4}I", report))


def run_apart(body: object) -> object:
    """In a child, because descriptor 3 belongs to somebody in the test process."""
    import json

    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        out = os.dup(write_end)
        try:
            os.write(out, json.dumps(body()).encode())  # type: ignore[operator]
        finally:
            os._exit(0)
    os.close(write_end)
    text = b""
    while chunk := os.read(read_end, 65536):
        text += chunk
    os.close(read_end)
    os.waitpid(pid, 0)
    return json.loads(text)


def test_it_becomes_the_first_program_that_exists(tmp_path: Path, code: bytes) -> None:
    found = run_apart(
        lambda: enter(tmp_path, code, "echo", "a b", "c", candidates=["/no/echo", "/usr/bin/echo", "/usr/bin/true"])
    )
    assert found == ["a b c\n", 0, [0, 0]]


def test_it_tells_why_it_could_not(tmp_path: Path, code: bytes) -> None:
    assert run_apart(lambda: enter(tmp_path, code, "x", candidates=["/no/x"])) == ["", 125, [0, 0, 5, errno.ENOENT]]
    plain = tmp_path / "plain"
    plain.write_text("no program")
    found = run_apart(lambda: enter(tmp_path, code, "x", candidates=["/no/x", str(plain), "/also/not"]))
    assert found == ["", 125, [0, 0, 5, errno.EACCES]]


def test_it_sets_limits(tmp_path: Path, code: bytes) -> None:
    limits = [(resource.RLIMIT_NOFILE, 77), (resource.RLIMIT_CORE, 0)]
    found = run_apart(
        lambda: enter(tmp_path, code, "sh", "-c", "ulimit -n; ulimit -Hn", candidates=["/bin/sh"], rlimits=limits)
    )
    assert found == ["77\n77\n", 0, [0, 0]]


def test_it_leaves_no_descriptor_open(tmp_path: Path, code: bytes) -> None:
    def body() -> object:
        extra = os.open("/dev/null", os.O_RDONLY)
        os.dup2(extra, 50, inheritable=True)
        return enter(tmp_path, code, "ls", "/proc/self/fd", candidates=["/bin/ls"])

    assert run_apart(body) == ["0\n1\n2\n3\n", 0, [0, 0]]  # 3 is the listing's own


def test_landlock_is_in_force_behind_it(tmp_path: Path, code: bytes) -> None:
    version = landlock.find_version()
    need(version > 0, "landlock")
    (tmp_path / "open").mkdir()
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "f").write_text("hidden")
    script = f"cat {tmp_path}/closed/f; echo x > {tmp_path}/open/new && cat {tmp_path}/open/new; touch {tmp_path}/y"

    def body(version: int) -> object:
        read, write = (landlock.grant(rights, version) for rights in (landlock.READ, landlock.WRITE))
        rules = [("/usr", read), ("/lib64", read), ("/etc", read), ("/nonexistent", read), (f"{tmp_path}/open", write)]
        ruleset = landlock.ruleset(version)
        return enter(tmp_path, code, "sh", "-c", script, candidates=["/usr/bin/sh"], ruleset=ruleset, rules=rules)

    assert run_apart(lambda: body(version)) == ["x\n", 1, [0, 0]]
    assert not (tmp_path / "y").exists()
    assert run_apart(lambda: enter(tmp_path, code, "sh", "-c", script, candidates=["/usr/bin/sh"])) == [
        "hiddenx\n",
        0,
        [0, 0],
    ]


def test_a_broken_rule_stops_everything(tmp_path: Path, code: bytes) -> None:
    need(landlock.find_version() > 0, "landlock")
    ruleset = landlock.ruleset(1)
    found = run_apart(
        lambda: enter(tmp_path, code, "echo", candidates=["/bin/echo"], ruleset=ruleset, rules=[("/usr", 1 << 60)])
    )
    assert found == ["", 125, [3, errno.EINVAL]]


def trace(tmp_path: Path, code: bytes) -> list[str]:
    """Every system call of the program when it has everything to do, and no candidate exists."""
    version = landlock.find_version()
    read = landlock.grant(landlock.READ, version) if version else 0
    program = write_program(
        tmp_path,
        code,
        candidates=["/no/x", "/etc/passwd/x", "/etc/passwd"],
        rlimits=[(resource.RLIMIT_NOFILE, 77), (resource.RLIMIT_CORE, 0)],
        ruleset=landlock.ruleset(version) if version else b"",
        rules=[("/usr", read), ("/nonexistent", read), ("/etc", read)],
        calls=seccomp.without_landlock(),
        keep=2,
    )
    log = tmp_path / "trace"
    subprocess.run([need_program("strace"), "-o", str(log), program], check=False)
    return [re.sub(r"0x[0-9a-f]{6,}", "ADDRESS", line) for line in log.read_text().splitlines()[1:]]


def test_the_shipped_and_the_compiled_code_make_the_same_system_calls(tmp_path: Path, code: bytes) -> None:
    found = trace(tmp_path, code)
    assert found == trace(tmp_path, shim.code(MACHINE))
    text = "\n".join(found)
    for name in ("fcntl", "close_range", "rlimit", "openat", "prctl", "execve", "write", "exit_group"):
        assert name in text, text


@pytest.mark.parametrize("which", CODES)
def test_it_works_on_the_other_machine(tmp_path: Path, which: str) -> None:
    (arch,) = shim_code.CODE.keys() - {MACHINE}
    emulator = need_program(f"qemu-{arch}")
    code = compiled(arch, tmp_path) if which == "compiled here" else shim.code(arch)

    def run(*words: str, **options: object) -> object:
        return run_apart(lambda: enter(tmp_path, code, *words, arch=arch, before=(emulator,), **options))

    limits = [(resource.RLIMIT_NOFILE, 77)]
    candidates = ["/no/sh", "/bin/sh"]
    assert run("sh", "-c", "ulimit -Hn; echo $1", "x", "a b", candidates=candidates, rlimits=limits) == [
        "77\na b\n",
        0,
        [0, 0],
    ]
    assert run("x", candidates=["/no/x", "/etc/passwd"]) == ["", 125, [0, 0, 5, errno.EACCES]]
