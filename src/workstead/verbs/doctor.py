"""Probe the capabilities of this machine, each by a real attempt, with their meaning and how to get them."""

from __future__ import annotations

import os
import sys

from workstead.installation import install_command, rebuild_command
from workstead.model.health import Probe
from workstead.system.overlay import mounter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.core.home import Home


def doctor(home: Home) -> list[Probe]:
    """Probe everything that Workstead can use; nothing is left behind."""
    from workstead.system.kernel import probes
    from workstead.system.overlay import layers

    workspaces = home.workspaces_path
    home.make_private()
    mechanisms = {name: (works, reason or "works") for name, works, reason in layers.probe(home.private)}
    tried: list[tuple[str, Callable[[], tuple[bool, str]], str, str]] = [
        (
            "kernel",
            probes.kernel,
            "5.6 or newer opens files beneath a directory safely (openat2)",
            "run a newer Linux kernel",
        ),
        (
            "openat2",
            probes.openat2,
            "paths are resolved by the kernel and cannot leave a workspace",
            "without it a slower walk with the same promise is used; some containers filter the call",
        ),
        (
            "landlock",
            probes.landlock,
            "a second wall around runs",
            "boot with landlock in the list of security modules (lsm=landlock,…)",
        ),
        (
            "overlay",
            lambda: mechanisms[layers.candidates()[0]],
            "workspaces are copy-on-write views, made in a millisecond whatever their size",
            "run as root, or allow user namespaces; put the home on ext4, xfs or btrfs, not on another overlay",
        ),
        (
            "reflink",
            lambda: mechanisms[mounter.REFLINK],
            "copies share their blocks until they are changed",
            "put the home on btrfs or xfs; without it an overlay or a plain copy is used",
        ),
        (
            "sharing",
            lambda: _chosen(home.settings.storage.mechanism, mechanisms),
            "what new workspaces are made by; storage.mechanism sets another",
            "see overlay and reflink; until then every workspace is a copy",
        ),
        (
            "quota",
            lambda: _quota(home),
            "what holds a run to max_size_mb: a file system of that size is exact, whatever the run does",
            "start Workstead as root, with e2fsprogs and loop devices (in a container --privileged); metering sees "
            "writes a moment later, so a run may be some megabytes over before growth is refused",
        ),
        (
            "owners",
            lambda: _owners(home),
            "files of root are the agent's in a workspace, without being touched",
            "put origins and the home on a file system with idmapped mounts (ext4, xfs, btrfs; Linux 5.19 or newer)",
        ),
        (
            "user namespaces",
            probes.user_namespaces,
            "sandboxes and copy-on-write views without root",
            "sysctl user.max_user_namespaces, or an AppArmor profile that allows userns for bwrap (Ubuntu 24.04)",
        ),
        (
            "cgroups",
            probes.cgroups,
            "memory, processor and process limits for runs",
            "run as root, or in a session with delegated cgroups (systemd-run --user --scope)",
        ),
        (
            "bubblewrap",
            probes.bubblewrap,
            "the default wall around an agent's commands",
            f"apt install bubblewrap, or {install_command('sandbox')}",
        ),
        (
            "git",
            lambda: probes.program("git", "--version"),
            "workspaces from repositories, and changes given back as branches",
            "apt install git",
        ),
        (
            "walker",
            _walker,
            "a snapshot, status or diff of 50,000 unchanged files asks the kernel alone; Python is not asked for each",
            f"install a C compiler (apt install gcc libc6-dev), then {rebuild_command()}; until then these take about "
            "four times as long",
        ),
        (
            "qemu",
            lambda: probes.program("qemu-system-x86_64", "--version"),
            "a virtual machine as a wall",
            "apt install qemu-system-x86",
        ),
        (
            "kvm",
            lambda: _kvm(home),
            "virtual machines at full speed: a few instructions were run in one",
            "enable (nested) virtualisation, and let the user of the sandbox open /dev/kvm: join the group kvm, or "
            f"setfacl -m u:{home.settings.sandbox.uid}:rw /dev/kvm",
        ),
        (
            "vm",
            lambda: _vm(home),
            "a machine of its own around a run: --sandbox vm",
            "see qemu and kvm; --sandbox vm/tcg, or sandbox.vm_emulation: allow, emulates the machine, slowly",
        ),
        (
            "disk",
            lambda: probes.disk(workspaces, home.settings.storage.min_free_mb),
            "room for workspaces",
            "aw usage shows what takes space, aw sweep frees it",
        ),
        ("event log", lambda: _log(home), "everything that happened", "check store.url, or the owner of the home"),
        (
            "verification",
            lambda: _verification(home),
            "what is kept is read again from time to time while aw serve runs",
            "aw verify --deep names each damaged thing, whom it affects and what to do",
        ),
        ("python", _python, "Workstead runs on 3.11 or newer", "install a newer Python"),
    ]
    return [_probe(*entry) for entry in tried]


def _probe(name: str, attempt: Callable[[], tuple[bool, str]], means: str, remedy: str) -> Probe:
    try:
        ok, found = attempt()
    except OSError as error:
        ok, found = False, error.strerror or str(error)
    return Probe(name=name, ok=ok, found=found, means=means, remedy="" if ok else remedy)


def _chosen(wanted: str, mechanisms: dict[str, tuple[bool, str]]) -> tuple[bool, str]:
    """Return the mechanism that a new workspace would get, and why not a better one."""
    from workstead.system.overlay import layers

    refused: list[str] = []
    for name in layers.candidates() if wanted == "auto" else (wanted,):
        works, said = mechanisms[name]
        if works:
            return name != mounter.COPY or wanted == name, "; ".join([f"by {name}", *refused])
        refused.append(f"{name}: {said}")
    return False, f"nothing works of what storage.mechanism allows: {'; '.join(refused)}"


def _quota(home: Home) -> tuple[bool, str]:
    from workstead.model.quota import IMAGE, IMAGE_BELOW_MB, IMAGE_FROM_MB, METERING
    from workstead.system.overlay import quota_image

    wanted = home.settings.storage.quota
    if wanted == METERING:
        return True, "metering, as storage.quota says"
    reason = quota_image.probe(home.private)
    if reason is not None:
        return False, f"no file system of limited size: {reason}" + ("; metering" if wanted != IMAGE else "")
    sizes = "" if wanted == IMAGE else f" from {IMAGE_FROM_MB} to below {IMAGE_BELOW_MB} MB, metering for the rest"
    return True, f"a file system of limited size{sizes}"


def _owners(home: Home) -> tuple[bool, str]:
    from workstead.system.overlay import layers

    if os.geteuid() != 0:
        return True, "not needed: agents are the user who starts them"
    uid = home.settings.sandbox.uid
    reason = layers.probe_idmap(home.private, (uid, uid))
    return reason is None, reason or f"mapped to {uid}"


def _kvm(home: Home) -> tuple[bool, str]:
    from workstead.sandboxes.vm import kvm

    answer = kvm.ask(f"{home.path}/cache/guest", home.settings.sandbox.uid)
    return answer.works, answer.found


def _vm(home: Home) -> tuple[bool, str]:
    from workstead.core.machines import probe

    return probe(home)


def _log(home: Home) -> tuple[bool, str]:
    kind = "PostgreSQL" if home.settings.store.url else f"SQLite at {os.path.join(home.path, 'log.db')}"
    return True, f"{kind}, {home.log.last_position()} events"


def _verification(home: Home) -> tuple[bool, str]:
    import time

    from workstead.core.verification import read_state

    state = read_state(home)
    if damage := state.found():
        return False, f"{len(damage)} things are damaged: {damage[0].what}"
    if not state.ended_at:
        return True, "not in the background yet: aw verify --deep"
    return True, f"all whole on {time.strftime('%Y-%m-%d', time.gmtime(state.ended_at))}"


def _walker() -> tuple[bool, str]:
    from workstead.snapshots.unchanged import find_library

    return find_library() is not None, "compiled" if find_library() is not None else "not compiled: in Python"


def _python() -> tuple[bool, str]:
    return sys.version_info >= (3, 11), sys.version.split()[0]
