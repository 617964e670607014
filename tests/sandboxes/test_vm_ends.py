"""Everything that can go wrong with a machine is told, and leaves nothing behind; and root in a guest gets nowhere.

Root in the guest is ours to play by a guest that was tampered with: its agent does, as root, what a variable of the
command says.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from scene import GUESTS, Outcome, Scene, a_host, need_guest

from needs import need_root
from waiting import wait_until
from workstead.model.enforcement import Limits
from workstead.sandboxes import Machines
from workstead.sandboxes.vm import agent, driver, guest, kvm, machines
from workstead.sandboxes.vm.initramfs import Archive
from workstead.system.kernel import cgroups
from workstead.system.process import spawn

OWNER = f"frail-{os.getpid()}"  # other processes test too
SABOTAGE = """
import os as _os
_order_start = Agent._start
def _start(self, number, order):
    code = order["environment"].get("SABOTAGE", "")
    if code:
        try:
            exec(code, {"agent": self, "libc": libc, "mount": mount, "os": os, "struct": struct, "time": time})
        except Exception as error:
            order["environment"]["SAID"] = repr(error)
    _order_start(self, number, order)
Agent._start = _start
"""


@pytest.fixture(scope="module")
def host() -> Iterator[Scene]:
    with a_host("root" if os.geteuid() == 0 else "ordinary", "vm/tcg") as scene:
        need_guest(scene)
        yield scene
        machines.forget(scene.machines, OWNER)


@pytest.fixture
def frail(host: Scene) -> Iterator[Machines]:
    """Machines that are there to be broken."""
    yield host.kept(owner=OWNER, patience_seconds=60.0)
    machines.forget(host.machines, OWNER)
    assert left(host) == []


@pytest.fixture(scope="module")
def tampered(host: Scene) -> Machines:
    """A guest whose agent does as root what it is told, saved like any other."""
    cache = f"{host.base}/tampered"
    tamper(cache, SABOTAGE)
    asked = host.kept(owner=OWNER, cache=cache, patience_seconds=60.0)
    assert driver.make_ready(asked, host.agent, lambda _: None).state is not None
    return asked


def tamper(cache: str, more: str) -> None:
    """The guest again, with an agent that has some lines more: the kernel takes the later of two archives."""
    found = guest.find(GUESTS)
    assert found is not None
    shutil.copytree(GUESTS, cache, ignore=shutil.ignore_patterns("state-*", "lock", "kvm-*", "kernel-*"))
    os.symlink(os.path.dirname(found.kernel), f"{cache}/{os.path.basename(os.path.dirname(found.kernel))}")
    with open(agent.__file__) as file:
        text = file.read() + more
    with open(f"{cache}/{os.path.basename(found.directory)}/initramfs", "ab") as image:
        image.write(bytes(-image.tell() % 512))
        archive = Archive(image)
        archive.file("agent/workstead/sandboxes/vm/agent.py", text.encode())
        archive.end()


def left(host: Scene) -> list[str]:
    """What is left of machines: processes, control groups, sockets, mounts."""
    found = [f"process {pid}" for pid in _qemus() if OWNER in _group(pid)]
    for _, parent in cgroups.find_parents().values():
        found += [name for name in os.listdir(parent) if name.startswith(f"aw-vm-{OWNER}.")]
    for folder, _, names in os.walk(host.machines):
        found += [name for name in names if OWNER in folder and name not in ("lock", "use", "start")]
    with open("/proc/mounts") as file:
        return found + [line for line in file if host.machines in line]


def _qemus() -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
            if file.read().startswith("qemu-system"):
                found.append(int(pid))
    return found


def _group(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cgroup") as file:
        return file.read()
    return ""


def during(host: Scene, asked: Machines, deed: Callable[[machines.Found], None]) -> Outcome:
    """A command that would go on for ever, and what happens to it when the deed is done."""
    flag = f"{host.work}/going"

    def later() -> None:
        wait_until(lambda: os.path.exists(flag))
        (found,) = machines.find_all(host.machines, asked.owner)
        deed(found)

    thread = threading.Thread(target=later)
    thread.start()
    try:
        return host.inside("touch going; sleep 300", machines=asked, limits=Limits(grace_seconds=1))
    finally:
        thread.join()
        host.reset()


def the_qemu(found: machines.Found) -> int:
    (pid,) = [pid for pid in spawn.descendants(found.pid) if pid in _qemus()]
    return pid


# -- the ends ----------------------------------------------------------------------------------------------------------


def test_a_killed_machine_is_told_and_the_next_command_gets_another(host: Scene, frail: Machines) -> None:
    outcome = during(host, frail, lambda found: os.kill(the_qemu(found), signal.SIGKILL))
    assert outcome.result.state == "failed"
    assert "the machine has ended" in outcome.result.reason
    wait_until(lambda: left(host) == [])
    assert host.inside("echo again", machines=frail).stdout == b"again\n"


def test_a_hung_guest_is_told(host: Scene, frail: Machines) -> None:
    impatient = frail.replace(patience_seconds=4.0)
    outcome = during(host, impatient, lambda found: os.kill(the_qemu(found), signal.SIGSTOP))
    assert outcome.result.state == "failed"
    assert "has not answered" in outcome.result.reason
    wait_until(lambda: left(host) == [])


@pytest.mark.parametrize("who", ["keeper", "relay"])
def test_killing_who_keeps_it_ends_it(host: Scene, frail: Machines, who: str) -> None:
    def deed(found: machines.Found) -> None:
        relay = next(pid for pid in spawn._children(found.pid) if pid not in (found.qemu,))
        os.kill(found.pid if who == "keeper" else relay, signal.SIGKILL)

    outcome = during(host, frail, deed)
    assert outcome.result.state == "failed"
    wait_until(lambda: [pid for pid in _qemus() if OWNER in _group(pid)] == [])
    assert host.inside("echo again", machines=frail).stdout == b"again\n"


def test_killing_the_supervisor_ends_the_command_and_not_the_machine(host: Scene, frail: Machines) -> None:
    """The machine is there for others; it ends by itself when it is idle."""
    os.makedirs(f"{host.base}/runs", exist_ok=True)
    directory = f"{host.base}/runs/killed-{os.getpid()}"
    os.makedirs(directory)
    os.chown(directory, host.uid, -1)
    from scene import supervise

    asked = host.confinement(machines=frail)
    script = "while :; do date +%N > tick; sleep 0.05; done"
    limits = Limits(grace_seconds=1)

    def body() -> None:
        if host.uid != os.geteuid():
            spawn.step_down(host.uid, host.uid)
        supervise(directory, asked, ["/bin/bash", "-c", script], sandbox="vm/tcg", limits=limits)

    pid = spawn.fork_detached(body)
    wait_until(lambda: os.path.exists(f"{host.work}/tick"))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "tick" not in host.inside("cat /proc/*/cmdline", machines=frail).text)
    before = _read(f"{host.work}/tick")
    time.sleep(0.5)
    assert _read(f"{host.work}/tick") == before
    assert len(machines.find_all(host.machines, OWNER)) == 1
    host.reset()


def test_an_idle_machine_leaves(host: Scene, frail: Machines) -> None:
    brief = frail.replace(idle_seconds=0.5)
    assert host.inside("true", machines=brief).result.state == "completed"
    wait_until(lambda: machines.find_all(host.machines, OWNER) == [] and left(host) == [])


def test_a_state_that_does_not_work_is_told_and_replaced(host: Scene, frail: Machines) -> None:
    cache = f"{host.base}/broken"
    shutil.copytree(GUESTS, cache, symlinks=True)
    ready = driver.make_ready(frail.replace(cache=cache), host.agent, lambda _: None)
    assert ready.state is not None
    with open(ready.state, "r+b") as file:
        file.truncate(1 << 20)
    outcome = host.inside("echo came up", machines=frail.replace(cache=cache))
    assert outcome.stdout == b"came up\n"
    notes = outcome.events[0][3]["notes"]  # type: ignore[index,call-overload]
    assert any("started cold: the saved state did not come up" in note for note in notes)
    assert not os.path.exists(ready.state)
    shutil.rmtree(cache)


def test_a_machine_that_cannot_start_says_why(host: Scene, frail: Machines) -> None:
    """Also where nothing can be saved: too little memory, and its kernel panics."""
    outcome = host.inside("true", machines=frail.replace(memory_mb=40), timeout=300)
    assert outcome.result.exit_code == 125
    assert outcome.result.error["code"] == "sandbox_unavailable"  # type: ignore[index]
    assert "the machine did not come up" in outcome.result.reason
    for name in os.listdir(GUESTS):
        for why in (
            [name for name in os.listdir(f"{GUESTS}/{name}") if name.endswith(".why")] if "guest-" in name else ()
        ):
            os.unlink(f"{GUESTS}/{name}/{why}")


def test_a_full_disk_is_the_commands_error(host: Scene, frail: Machines) -> None:
    need_root()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", host.work], check=True)
    try:
        os.chown(host.work, host.agent, -1)
        outcome = host.inside("head -c 8M /dev/zero > big; rm big; echo still here", machines=frail)
        machines.forget(host.machines, OWNER)
    finally:
        subprocess.run(["umount", host.work], check=True)
    assert outcome.stdout == b"still here\n"
    assert b"No space left on device" in outcome.stderr


# -- what a machine wakes with -----------------------------------------------------------------------------------------


def test_machines_from_one_state_draw_different_numbers_and_know_the_time(host: Scene, frail: Machines) -> None:
    drawn = set()
    for _ in range(3):
        outcome = host.inside(
            "cat /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1; date +%s", machines=frail
        )
        uuid, numbers, seconds = outcome.stdout.decode().splitlines()
        drawn |= {uuid, numbers}
        assert abs(int(seconds) - outcome.result.finished_at) < 60
        assert machines.find_all(host.machines, OWNER)[0].warm
        machines.forget(host.machines, OWNER)
    assert len(drawn) == 6


def test_without_fresh_randomness_it_does_not_start(host: Scene, frail: Machines) -> None:
    cache = f"{host.base}/stale"
    tamper(cache, "\ndef reseed(seed): raise OSError(5, 'no randomness here')\n")
    outcome = host.inside("echo ran", machines=frail.replace(cache=cache), timeout=300)
    assert outcome.stdout == b""
    assert outcome.result.exit_code == 125
    assert "no randomness here" in outcome.result.reason


# -- root in the guest -------------------------------------------------------------------------------------------------


def test_a_panic_is_told(host: Scene, tampered: Machines) -> None:
    panic = {"SABOTAGE": "open('/proc/sysrq-trigger', 'w').write('c')"}
    outcome = host.inside("echo never", machines=tampered, environment=panic)
    assert outcome.result.state == "failed"
    assert "Kernel panic" in outcome.result.reason, outcome.result
    wait_until(lambda: left(host) == [])


@pytest.mark.parametrize(
    "sent",
    ["os.urandom(400)", "struct.pack('<BxHII', 24, 1, 0, 1 << 31)", "b'\\xff' * 70000"],
    ids=["noise", "a huge frame", "a flood"],
)
def test_a_guest_that_talks_nonsense_is_ended(host: Scene, tampered: Machines, sent: str) -> None:
    outcome = host.inside("sleep 60", machines=tampered, environment={"SABOTAGE": f"agent.send_frame({sent})"})
    assert outcome.result.state == "failed"
    assert "the guest sent what no guest of ours sends" in outcome.result.reason, outcome.result
    wait_until(lambda: left(host) == [])


ROOT = """
said = []
def attempt(name, deed):
    try: deed(); said.append(name)
    except OSError: pass
ws, system = "/run/share/work/workspace", "/run/share/system"
def write(path):
    with open(path, "w") as file: file.write("pwned")
attempt("records", lambda: write(ws + "/.aw/run.json"))
attempt("new record", lambda: write(ws + "/.aw/new"))
attempt("records away", lambda: os.rename(ws + "/.aw", ws + "/away"))
attempt("system", lambda: write(system + "/usr/aw-pwned"))
libc.mount(b"none", b"/run/share/system", None, 32, None)
attempt("system after a remount", lambda: write(system + "/usr/aw-pwned"))
attempt("beside the workspace", lambda: write("/run/share/work/aw-pwned"))
attempt("above the share", lambda: write("/run/share/work/../../../../etc/aw-pwned-host"))
write(ws + "/work/mine")
attempt("device", lambda: os.mknod(ws + "/work/device", 0o60666, os.makedev(7, 0)))
attempt("owner", lambda: os.chown(ws + "/work/mine", 0, 0))
write(ws + "/work/suid")
attempt("mode", lambda: os.chmod(ws + "/work/suid", 0o4755))
attempt("link", lambda: os.symlink("/etc/shadow", ws + "/work/link"))
os.makedirs("/run/again")
more = b"trans=virtio,version=9p2000.L,aname=/"
if libc.mount(b"work", b"/run/again", b"9p", 0, more) == 0 and "etc" in os.listdir("/run/again"): said.append("aname")
order["environment"]["SAID"] = ",".join(said)
"""


def test_root_in_the_guest_gets_nowhere(host: Scene, tampered: Machines) -> None:
    code = ROOT.replace('order["environment"]["SAID"] = ', "os.environ['SAID'] = ")
    outcome = host.inside(
        "true",
        machines=tampered,
        environment={"SABOTAGE": code + "\nopen(ws + '/work/said', 'w').write(os.environ['SAID'])"},
    )
    assert outcome.result.state == "completed", (outcome.result, outcome.text)
    succeeded = set(_read(f"{host.work}/said").split(","))
    # what it may do to the workspace's own files it did: the others had their chance
    assert {"mode", "link"} <= succeeded
    assert succeeded - {"mode", "link", "above the share"} == set()
    assert not os.path.exists("/etc/aw-pwned-host")  # `..` led to the guest's own /etc
    assert not os.path.exists("/usr/aw-pwned")
    suid = os.lstat(f"{host.work}/suid")
    assert suid.st_uid == host.agent != 0
    assert not stat.S_ISBLK(os.lstat(f"{host.work}/mine").st_mode)
    assert os.listdir(f"{host.workspace}/.aw") == ["run.json"]
    assert _read(f"{host.workspace}/.aw/run.json") == "{}"
    assert host.damage() == []
    machines.forget(host.machines, OWNER)
    host.reset()


# -- who may have one --------------------------------------------------------------------------------------------------


def test_without_hardware_it_is_refused_unless_emulation_was_asked_for(
    host: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvm, "ask", lambda *_: kvm.Answer(works=False, found="nothing runs in it"))
    with pytest.raises(AssertionError, match="KVM runs no guests here: nothing runs in it"):
        host.inside("true", machines=host.kept(emulation="refuse"))
    allowed = driver._machine(host.confinement(), host.kept(emulation="allow"))
    assert allowed.mode == "vm/tcg"
    monkeypatch.setattr(kvm, "ask", lambda *_: kvm.Answer(works=True, found="it runs"))
    assert driver._machine(host.confinement(), host.kept(emulation="allow")).mode == "vm/kvm"
    assert driver._machine(host.confinement(), host.kept(emulation="only")).mode == "vm/tcg"


def test_the_question_about_hardware_is_asked_once_per_boot(host: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = f"{host.base}/asked"
    first = kvm.ask(cache, host.agent)
    assert first.found
    monkeypatch.setattr(kvm, "_try", lambda _: pytest.fail("asked again"))
    assert kvm.ask(cache, host.agent) == first
    with open(f"{cache}/kvm-{host.agent if os.geteuid() == 0 else os.geteuid()}", "r+") as file:
        kept = json.load(file)
        file.seek(0)
        json.dump({**kept, "boot": "another"}, file)
        file.truncate()
    monkeypatch.setattr(kvm, "_try", lambda _: kvm.Answer(works=False, found="asked again"))
    assert kvm.ask(cache, host.agent).found == "asked again"


def test_a_loop_that_takes_too_long_is_an_emulators() -> None:
    assert kvm._judge((0.0002, "")).works
    assert not kvm._judge((0.153, "")).works
    assert not kvm._judge((0.0, "internal error")).works


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
