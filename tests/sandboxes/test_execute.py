"""Files that nobody can execute: neither by name, nor by the loader, nor after copying them elsewhere.

Each attempt has its twin: in the same sandbox without that wall it works.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from sandboxes.scene import Scene, a_host
from workstead.sandboxes import Mount

LOADER = next(path for path in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1") if os.path.exists(path))

_MEMORY = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.memfd_create(b"x", 0)
if fd < 0:
    raise SystemExit(os.strerror(ctypes.get_errno()))
os.write(fd, open("prog", "rb").read())
os.execve(fd, ["echo", "EXECUTED"], {})
"""
_LIBRARY = "import ctypes; ctypes.CDLL('./lib.so'); print('EXECUTED')"

ATTEMPTS = {
    "by name": "./prog EXECUTED",
    "by its public path": "/mnt/workspace/work/prog EXECUTED",
    "a script by name": "./script",
    "by the loader": f"{LOADER} ./prog EXECUTED",
    "as a library": f'python3 -c "{_LIBRARY}"',
    "by preloading": "LD_PRELOAD=$PWD/lib.so sh -c 'grep -q r-xp.*/lib.so /proc/$$/maps && echo EXECUTED'",
    "copied to /tmp": "cp prog /tmp/p && /tmp/p EXECUTED",
    "copied to /tmp, by the loader": f"cp prog /tmp/p && {LOADER} /tmp/p EXECUTED",
    "copied to /dev/shm": "cp prog /dev/shm/p && /dev/shm/p EXECUTED",
    "copied to the home": "cp prog ~/p && ~/p EXECUTED",
    "copied to output": "cp prog ../output/p && ../output/p EXECUTED",
    "by a link in /tmp": "ln -s $PWD/prog /tmp/l && /tmp/l EXECUTED",
    "by a descriptor": "exec 9<prog; /proc/self/fd/9 EXECUTED",
    "from a memory file": f"python3 - <<'END'{_MEMORY}END",
    "from another shared area": "cp prog /mnt/shares/rw/p && /mnt/shares/rw/p EXECUTED",
    "what another agent left in one": "/mnt/shares/ro/prog EXECUTED",
    "after a change of mode": "cp prog q && chmod 777 q && ./q EXECUTED",
}


@pytest.fixture(scope="module", params=["root", "user"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with a_host(request.param) as host:
        prepare(host)
        yield host


def prepare(host: Scene) -> None:
    shutil.copy("/bin/echo", f"{host.work}/prog")
    library = next(path for path in _libraries() if os.path.exists(path))
    shutil.copy(library, f"{host.work}/lib.so")
    with open(f"{host.work}/script", "w") as file:
        file.write("#!/bin/sh\necho EXECUTED\n")
    os.makedirs(f"{host.workspace}/output", exist_ok=True)
    for name in ("ro", "rw"):
        os.makedirs(f"{host.base}/{name}")
        shutil.copy("/bin/echo", f"{host.base}/{name}/prog")
    for path in (f"{host.work}/prog", f"{host.work}/lib.so", f"{host.work}/script", f"{host.base}/ro/prog"):
        os.chmod(path, 0o755)
    for path in (host.work, f"{host.workspace}/output", f"{host.base}/ro", f"{host.base}/rw"):
        for folder, _, names in os.walk(path):
            for name in (".", *names):
                os.chown(os.path.join(folder, name), host.agent, host.agent)


def _libraries() -> list[str]:
    folders = [f"/lib/{machine}-linux-gnu" for machine in ("x86_64", "aarch64")]
    return [f"{folder}/{name}" for folder in (*folders, "/lib64") for name in ("libutil.so.1", "libdl.so.2")]


def attempt(scene: Scene, script: str, *, executable: bool) -> str:
    mounts = tuple(
        Mount(source=f"{scene.base}/{name}", target=f"/mnt/shares/{name}", writable=name == "rw", executable=executable)
        for name in ("ro", "rw")
    )
    return scene.inside(script, executable=executable, mounts=mounts).text


@pytest.mark.parametrize("how", ATTEMPTS)
def test_what_can_be_written_cannot_be_executed(scene: Scene, how: str) -> None:
    assert "EXECUTED" in attempt(scene, ATTEMPTS[how], executable=True), "the attempt itself is broken"
    said = attempt(scene, ATTEMPTS[how], executable=False)
    assert "EXECUTED" not in said, said


def test_the_rest_of_the_sandbox_is_as_usual(scene: Scene) -> None:
    script = """
    set -e
    echo written > new; cat new
    for place in /tmp /dev/shm ~ ../output; do echo x > $place/file; cat $place/file; done
    test "$(stat -c %a /tmp)" = 1777
    sh script  # reading a script is reading: that is what the policy on reading is for
    python3 -c 'print("python")'
    """
    done = scene.inside(script, executable=False)
    assert done.result.exit_code == 0, done.text
    assert done.text.split() == ["written", "x", "x", "x", "x", "EXECUTED", "python"]


def test_the_statement_says_so(scene: Scene) -> None:
    for executable, held in ((True, False), (False, True)):
        started = next(event for event in scene.inside("true", executable=executable).events if event[0] == "started")
        assert bool(started[3]["execute"]) is held  # type: ignore[index]
        if held:
            assert "noexec mounts" in started[3]["execute"]  # type: ignore[index]


def test_the_scratch_space_has_its_limit(scene: Scene) -> None:
    done = scene.inside("head -c 3M /dev/zero > /tmp/x; stat -c %s /tmp/x", executable=False, tmp_bytes=1 << 20)
    assert "No space left" in done.text
