"""The program of 424 bytes: what is written beside its bytes is what they are, and it does what it says."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from needs import need
from workstead.system.kernel import landlock
from workstead.system.process import shim

ASSEMBLERS = {"x86_64": "as", "aarch64": "aarch64-linux-gnu-as"}


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_the_bytes_are_what_the_listing_says(arch: str, tmp_path: Path) -> None:
    native = os.uname().machine == arch
    program = "as" if native else ASSEMBLERS[arch]
    need(
        shutil.which(program) is not None, f"the assembler {program} (binutils{'' if native else '-aarch64-linux-gnu'})"
    )
    copier = program.removesuffix("as") + "objcopy"
    source, made, raw = (str(tmp_path / name) for name in ("s.s", "s.o", "s.bin"))
    Path(source).write_text(shim.source(arch))
    subprocess.run([program, source, "-o", made], check=True)
    subprocess.run([copier, "-O", "binary", "-j", ".text", made, raw], check=True)
    assert Path(raw).read_bytes() == shim.code(arch)


def enter(tmp_path: Path, *words: str, **options: object) -> tuple[str, int, list[int]]:
    """Run the shim and give what the command printed, how it ended, and what was reported."""
    program = tmp_path / "enter"
    program.write_bytes(shim.build(**options))  # type: ignore[arg-type]
    program.chmod(0o755)
    read_end, write_end = os.pipe()
    try:
        if write_end != shim.REPORT_FD:
            os.dup2(write_end, shim.REPORT_FD)
        done = subprocess.run([str(program), *words], pass_fds=(shim.REPORT_FD,), capture_output=True, text=True)
    finally:
        for descriptor in {write_end, shim.REPORT_FD}:
            os.close(descriptor)
    report = os.read(read_end, 100)
    os.close(read_end)
    return done.stdout, done.returncode, list(struct.unpack(f"<{len(report) // 4}I", report))


@pytest.fixture(autouse=True)
def _needs_this_machine() -> None:
    need(shim.is_supported(), "an x86_64 or aarch64 machine")


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


def test_it_becomes_the_first_program_that_exists(tmp_path: Path) -> None:
    found = run_apart(
        lambda: enter(tmp_path, "echo", "a b", "c", candidates=["/no/echo", "/usr/bin/echo", "/usr/bin/true"])
    )
    assert found == ["a b c\n", 0, [0, 0]]


def test_it_tells_why_it_could_not(tmp_path: Path) -> None:
    assert run_apart(lambda: enter(tmp_path, "x", candidates=["/no/x"])) == ["", 125, [0, 0, 5, errno.ENOENT]]
    plain = tmp_path / "plain"
    plain.write_text("no program")
    found = run_apart(lambda: enter(tmp_path, "x", candidates=["/no/x", str(plain), "/also/not"]))
    assert found == ["", 125, [0, 0, 5, errno.EACCES]]


def test_it_sets_limits(tmp_path: Path) -> None:
    limits = [(resource.RLIMIT_NOFILE, 77), (resource.RLIMIT_CORE, 0)]
    found = run_apart(
        lambda: enter(tmp_path, "sh", "-c", "ulimit -n; ulimit -Hn", candidates=["/bin/sh"], rlimits=limits)
    )
    assert found == ["77\n77\n", 0, [0, 0]]


def test_it_leaves_no_descriptor_open(tmp_path: Path) -> None:
    def body() -> object:
        extra = os.open("/dev/null", os.O_RDONLY)
        os.dup2(extra, 50, inheritable=True)
        return enter(tmp_path, "ls", "/proc/self/fd", candidates=["/bin/ls"])

    assert run_apart(body) == ["0\n1\n2\n3\n", 0, [0, 0]]  # 3 is the listing's own


def test_landlock_is_in_force_behind_it(tmp_path: Path) -> None:
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
        return enter(tmp_path, "sh", "-c", script, candidates=["/usr/bin/sh"], ruleset=ruleset, rules=rules)

    assert run_apart(lambda: body(version)) == ["x\n", 1, [0, 0]]
    assert not (tmp_path / "y").exists()
    assert run_apart(lambda: enter(tmp_path, "sh", "-c", script, candidates=["/usr/bin/sh"])) == [
        "hiddenx\n",
        0,
        [0, 0],
    ]


def test_a_broken_rule_stops_everything(tmp_path: Path) -> None:
    need(landlock.find_version() > 0, "landlock")
    ruleset = landlock.ruleset(1)
    found = run_apart(
        lambda: enter(tmp_path, "echo", candidates=["/bin/echo"], ruleset=ruleset, rules=[("/usr", 1 << 60)])
    )
    assert found == ["", 125, [3, errno.EINVAL]]
