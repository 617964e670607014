"""A machine around a run: its start, the next command, files on its share; beside bubblewrap and the bare host.

By hardware where KVM runs guests here, else emulated: the name of the first arm says which.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

from harness import Row

import workstead
from workstead.core import runs
from workstead.local import Local
from workstead.sandboxes.vm import driver, kvm, machines, prepare
from workstead.settings import load_settings
from workstead.system.process import spawn

WRITE = "dd if=/dev/zero of=big bs=1M count=200 conv=fsync status=none"
READ = "cat big > /dev/null"


def rows(scratch: str) -> Iterator[Row]:
    settings = load_settings({"HOME": scratch, "AW_SNAPSHOTS__AROUND_RUNS": "false"}, scratch)
    uid = settings.sandbox.uid
    home = f"{scratch}/home"
    kind = "vm/kvm" if kvm.ask(f"{home}/cache/guest", uid).works else "vm/tcg"
    with workstead.open(home, settings=settings) as workspaces:
        asked = runs.machines_of(workspaces._home, "", kind)
        ready = driver.make_ready(asked, uid, lambda text: print(f"      ({text})") if text else None)
        try:
            yield from _starts(workspaces, kind, ready)
            yield from _commands(workspaces, kind)
            _weigh(workspaces, kind, home)
        finally:
            for found in machines.find_all(f"{home}/machines"):
                machines.stop(f"{home}/machines", found.name)


def _run(workspaces: Local, kind: str, script: str, name: str = "t/a") -> None:
    done = workspaces.wait(workspaces.run(name, ["sh", "-c", script], sandbox=kind).id)
    assert done.exit_code == 0, done


def _starts(workspaces: Local, kind: str, ready: prepare.Ready) -> Iterator[Row]:
    workspaces.create(id="t/a")
    assert ready.state is not None, ready.note
    state = ready.state

    def start() -> None:
        workspaces.unmount("t/a")
        _run(workspaces, kind, "true")

    def start_cold() -> None:
        """As on a machine where no state can be saved."""
        os.rename(state, f"{state}.aside")
        with open(f"{state}.why", "w") as file:
            file.write("to measure it")
        try:
            workspaces.unmount("t/a")
            _run(workspaces, kind, "true")
        finally:
            os.unlink(f"{state}.why")
            os.rename(f"{state}.aside", state)

    yield Row(
        "from no machine to the end of `true`, snapshots apart",
        {
            f"{kind}, saved state": start,
            f"{kind}, cold": start_cold,
            "bubblewrap": lambda: _run(workspaces, "bubblewrap", "true"),
        },
        rounds=5,
    )


def _commands(workspaces: Local, kind: str) -> Iterator[Row]:
    path = f"{workspaces.get('t/a').path}/work"
    _run(workspaces, "bubblewrap", _REPOSITORY)

    def arms(script: str) -> dict[str, Callable[[], object]]:
        return {
            kind: lambda: _run(workspaces, kind, script),
            "bubblewrap": lambda: _run(workspaces, "bubblewrap", script),
            "the host": lambda: subprocess.run(["sh", "-c", script], cwd=path, check=True, capture_output=True),
        }

    yield Row("the next command: `true`", arms("true"), rounds=9)
    yield Row("write 200 MB and have it on the disk", arms(WRITE), rounds=3)
    yield Row("read 200 MB", arms(READ), rounds=3)
    yield Row("git status on 2,000 files", arms("cd r && git -c safe.directory='*' status --short"), rounds=3)


_REPOSITORY = """
set -e
git init -q r && cd r
for i in $(seq 40); do mkdir d$i; for j in $(seq 50); do echo $i $j > d$i/f$j; done; done
git add . && git -c user.name=a -c user.email=a@b commit -qm all
"""


def _weigh(workspaces: Local, kind: str, home: str) -> None:
    """What four machines cost in memory, each after a command."""
    workspaces.unmount("t/a")
    for number in range(4):
        workspaces.create(id=f"four/{number}")
        _run(workspaces, kind, "true", f"four/{number}")
    sizes: list[dict[str, int]] = []
    for found in machines.find_all(f"{home}/machines"):
        for pid in spawn.descendants(found.pid):
            with open(f"/proc/{pid}/comm") as file:
                if not file.read().startswith("qemu-system"):
                    continue
            with open(f"/proc/{pid}/smaps_rollup") as file:
                lines = [line.split() for line in file if line.startswith(("Rss:", "Pss:"))]
            sizes.append({words[0]: int(words[1]) // 1024 for words in lines})
    for name in ("Rss:", "Pss:"):
        each = ", ".join(f"{told[name]} MB" for told in sizes)
        print(f"      memory of each of {len(sizes)} machines at once, {name} {each}")
