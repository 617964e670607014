"""Honest work gets done behind the wall."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import zipfile

import pytest
from scene import Scene

from needs import need, need_program
from workstead.model.enforcement import Limits
from workstead.sandboxes import Mount
from workstead.system.kernel.libc import libc
from workstead.system.process import spawn

GENEROUS = Limits(wall_seconds=60, memory_bytes=4 << 30, processes=1024, file_bytes=4 << 30, needs_cgroup=False)


def check(host: Scene, script: str, **options: object) -> str:
    outcome = host.inside(script, limits=GENEROUS, **options)  # type: ignore[arg-type]
    assert outcome.result.state == "completed", (outcome.result, outcome.text[-2000:])
    return outcome.stdout.decode()


@pytest.fixture
def wheels(host: Scene) -> str:
    """A directory with one wheel, as a policy without network would provide it."""
    directory = os.path.join(host.base, "wheels")
    os.makedirs(directory, exist_ok=True)
    with zipfile.ZipFile(os.path.join(directory, "greeting-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("greeting.py", "def greet(): return 'hello from a wheel'\n")
        wheel.writestr("greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        wheel.writestr("greeting-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("greeting-1.0.dist-info/RECORD", "")
    for path in (directory, os.path.join(directory, "greeting-1.0-py3-none-any.whl")):
        os.chmod(path, 0o755)
        os.chown(path, host.uid, -1)
    return directory


def test_a_virtual_environment_and_a_package(host: Scene, wheels: str) -> None:
    need(subprocess.run(["/usr/bin/python3", "-c", "import ensurepip"]).returncode == 0, "python3-venv")
    script = (
        "/usr/bin/python3 -m venv v && v/bin/pip install -q --no-index --find-links /wheels greeting && "
        "v/bin/python -c 'import greeting; print(greeting.greet())'"
    )
    assert check(host, script, mounts=(Mount(source=wheels, target="/wheels"),)) == "hello from a wheel\n"
    host.reset()


def test_a_node_script(host: Scene) -> None:
    need(os.path.exists("/usr/bin/node"), "node in /usr/bin")
    script = '/usr/bin/node -e \'new (require("worker_threads").Worker)("console.log(6*7)", {eval: true})\''
    assert check(host, script) == "42\n"


def test_a_commit(host: Scene) -> None:
    need_program("git")
    script = (
        "git init -q r && cd r && echo x > f && git add f && "
        "git -c user.name=a -c user.email=a@b commit -qm first && git log --format=%s && git fsck"
    )
    assert check(host, script).startswith("first\n")
    host.reset()


def test_a_c_build(host: Scene) -> None:
    need(os.path.exists("/usr/bin/gcc"), "gcc")
    script = "echo '#include <stdio.h>\nint main(){puts(\"built\");return 0;}' > a.c && gcc -O1 -o a a.c && ./a"
    assert check(host, script) == "built\n"


def test_processes_threads_and_shared_memory(host: Scene) -> None:
    body = (
        "import multiprocessing as m, threading, mmap, tempfile\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "p = m.Pool(2); print(p.map(abs, [-1, -2])); p.close()\n"
        "from multiprocessing import shared_memory as s\n"
        "x = s.SharedMemory(create=True, size=100); x.buf[0] = 7; print(x.buf[0]); x.close(); x.unlink()\n"
    )
    assert check(host, f"/usr/bin/python3 - <<'PY'\n{body}PY") == "thread\n[1, 2]\n7\n"


def test_a_large_file(host: Scene) -> None:
    script = "head -c 200M /dev/zero > big && stat -c %s big && rm big"
    assert check(host, script) == f"{200 << 20}\n"


def test_the_usual_places(host: Scene) -> None:
    out = check(
        host,
        "pwd; id -un; echo $HOME; cd && touch x; echo t > /tmp/t; echo v > /var/tmp/v; cat /tmp/v; "
        "echo o > /dev/stdout; echo hi > /dev/null; awk 'BEGIN{print 1}'; getent hosts localhost | cut -c1-3; "
        "date +%Z; mktemp | cut -c1-5; hostname; ls /mnt/workspace -A",
    )
    assert out.startswith("/mnt/workspace/work\nagent\n/home/agent\nv\no\n1\n")
    assert out.endswith("/tmp/\nworkstead\n.aw\nidroot\nwork\n") or "idroot" not in out


def test_certificates_are_there(host: Scene) -> None:
    need(os.path.isdir("/etc/ssl/certs") and len(os.listdir("/etc/ssl/certs")) > 10, "ca-certificates")
    out = check(host, "/usr/bin/python3 -c 'import ssl; print(len(ssl.create_default_context().get_ca_certs()) > 10)'")
    assert out == "True\n"


def test_files_belong_to_the_user_behind_the_sandbox(host: Scene) -> None:
    check(host, "echo x > owned && mkdir d")
    assert os.stat(os.path.join(host.work, "owned")).st_uid == host.agent
    host.reset()


def test_mounts_and_tools_appear_as_asked(host: Scene) -> None:
    for name in ("tool", "shared"):
        path = os.path.join(host.base, name)
        os.makedirs(path, exist_ok=True)
        os.chown(path, host.agent, -1)
        os.chmod(path, 0o755)
        with open(os.path.join(path, "hello"), "w") as file:
            file.write("#!/bin/sh\necho tool runs\n")
        os.chmod(os.path.join(path, "hello"), 0o755)
    tool, shared = os.path.join(host.base, "tool"), os.path.join(host.base, "shared")
    out = check(
        host,
        f"hello; touch {tool}/x || echo read-only; touch /shared/new && echo writable",
        tools=(tool,),
        mounts=(Mount(source=shared, target="/shared", writable=True),),
        environment={"PATH": f"{tool}:/usr/bin:/bin"},
    )
    assert out == "tool runs\nread-only\nwritable\n"
    assert os.path.exists(os.path.join(shared, "new"))


def test_a_mount_inside_the_workspace_appears(host: Scene) -> None:
    need(os.geteuid() == 0, "root")
    done = subprocess.run(["mount", "-t", "tmpfs", "none", host.work], check=False)
    need(done.returncode == 0, "the right to mount")
    try:
        with open(os.path.join(host.work, "from-mount"), "w") as file:
            file.write("seen")
        os.chown(host.work, host.agent, -1)
        shutil.copy("/usr/bin/id", os.path.join(host.work, "idroot"))
        os.chmod(os.path.join(host.work, "idroot"), 0o4755)
        out = check(host, "cat from-mount; touch new && echo; grep ' /mnt/workspace/work ' /proc/mounts; ./idroot -u")
    finally:
        subprocess.run(["umount", host.work], check=True)
    assert out.startswith("seen\n")
    assert "nosuid,nodev" in out
    assert out.splitlines()[-1] == str(host.agent)


def test_a_mount_that_a_process_of_the_user_holds_appears(host: Scene) -> None:
    """As an overlay of an ordinary user's does: in a namespace that only its holder is in."""
    need(os.geteuid() == 0, "root, to be an ordinary user")
    if host.uid == 0:
        return  # root mounts where everybody sees it
    ready, told = os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            spawn.step_down(host.uid, host.uid)
            libc.prctl(4, 1, 0, 0, 0)
            libc.unshare(0x10020000)
            maps = f"{host.uid} {host.uid} 1"
            for name, text in (("setgroups", "deny"), ("uid_map", maps), ("gid_map", maps)):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
            libc.mount(b"none", os.fsencode(host.work), b"tmpfs", 0, b"mode=0777")
            with open(os.path.join(host.work, "held"), "w") as file:
                file.write("held\n")
            os.write(told, b"x")
            time.sleep(60)
        finally:
            os._exit(1)
    os.close(told)
    try:
        assert os.read(ready, 1) == b"x"
        assert not os.path.exists(os.path.join(host.work, "held"))
        assert check(host, "cat held; echo x > new && rm new", holder=holder) == "held\n"
        assert check(host, "ls") == ""
    finally:
        os.kill(holder, 9)
        os.waitpid(holder, 0)
        os.close(ready)


def test_another_public_mount_and_no_records(host: Scene) -> None:
    assert check(host, "pwd; echo $AW_WORKSPACE", public_mount="/desk/blue") == "/desk/blue/work\n/desk/blue\n"


def test_a_terminal(host: Scene) -> None:
    outcome = host.inside("tty; stty size; [ -t 0 ] && [ -t 1 ] && echo is a terminal; echo > /dev/tty", terminal=True)
    assert b"is a terminal\r\n" in outcome.stdout
    assert b"24 80" in outcome.stdout
