"""Runs in a machine through the front door: kept, listed, in nobody's way, and gone with the workspace."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import workstead
from needs import need
from sandboxes.scene import GUESTS, Scene, need_guest
from waiting import wait_until
from workstead.cli import main
from workstead.errors import SandboxUnavailable, WorkspaceBusy
from workstead.local import Local
from workstead.model.workspace import Workspace
from workstead.sandboxes.vm import guest, kvm, machines
from workstead.settings import Settings


@pytest.fixture
def desk(workspaces: Local, home_path: str, tmp_path: Path) -> Iterator[Workspace]:
    """A workspace over a folder, in a home that has the guest already."""
    need_guest(_anybody())
    os.makedirs(f"{home_path}/cache", exist_ok=True)
    os.symlink(GUESTS, f"{home_path}/cache/guest")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "file").write_text("hello\n")
    yield workspaces.create(f"overlay:{tmp_path}/project", id="t/a")
    for run in workspaces.runs():
        workspaces.stop(run.id, at_once=True)
    for found in machines.find_all(f"{home_path}/machines"):
        machines.stop(f"{home_path}/machines", found.name)


def _anybody() -> Scene:
    scene = Scene(os.geteuid(), "vm/tcg")
    scene.close()
    return scene


def said(workspaces: Local, run_id: str) -> bytes:
    return b"".join(data for _, _, data in workspaces.output(run_id, follow=True))


def test_a_run_its_machine_and_the_next_run(workspaces: Local, desk: Workspace) -> None:
    script = "cat file; echo new > made; echo $AW_WORKSPACE_ID; uname -n; exit 3"
    run = workspaces.run(desk.id, ["sh", "-c", script], sandbox="vm/tcg")
    assert said(workspaces, run.id) == b"hello\nt/a\nworkstead\n"
    done = workspaces.wait(run.id)
    assert (done.state, done.exit_code, done.enforcement["sandbox"]) == ("failed", 3, "vm/tcg")
    assert [change.path for change in workspaces.diff(desk.id).changes] == ["made"]
    (machine,) = workspaces.machines()
    assert (machine.workspace_id, machine.mode, machine.public_mount) == ("t/a", "vm/tcg", "/mnt/workspace")
    second = workspaces.wait(workspaces.run(desk.id, ["cat", "made"], sandbox="vm/tcg").id)
    assert second.exit_code == 0
    assert [each.pid for each in workspaces.machines(desk.id)] == [machine.pid]

    # who wants the workspace alone gets it: the idle machine goes
    workspaces.restore(desk.id, done.snapshot_before or "")
    assert workspaces.machines() == []
    again = workspaces.run(desk.id, ["sh", "-c", "ls"], sandbox="vm/tcg")
    assert said(workspaces, again.id) == b"file\n"
    workspaces.wait(again.id)
    workspaces.destroy(desk.id, force=True)
    assert workspaces.machines() == []


def test_mounting_beforehand_and_unmounting(
    workspaces: Local, desk: Workspace, home_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine,) = workspaces.mount(desk.id, sandbox="vm/tcg")
    assert not machine.busy
    assert main(["vm", "list", "--home", home_path]) == 0
    assert "t/a        vm/tcg   1024 MB" in capsys.readouterr().out
    run = workspaces.run(desk.id, ["sleep", "60"], sandbox="vm/tcg")
    _wait_until_started(workspaces, run.id)
    with pytest.raises(WorkspaceBusy):
        workspaces.unmount(desk.id)
    with pytest.raises(WorkspaceBusy):
        workspaces.restore(desk.id, run.snapshot_before or "")
    assert workspaces.stop(run.id).state == "cancelled"
    assert [each.pid for each in workspaces.unmount(desk.id)] == [machine.pid]
    assert workspaces.machines() == []
    assert workspaces.unmount(desk.id) == []


def _wait_until_started(workspaces: Local, run_id: str) -> None:
    wait_until(lambda: workspaces.get_run(run_id).enforcement)


def test_a_box_in_a_machine(workspaces: Local, desk: Workspace) -> None:
    first = workspaces.run_kept(desk.id, ["sh", "-c", "pwd; echo e >&2; echo x > /tmp/left; exit 3"], sandbox="vm/tcg")
    assert (first.exit_code, first.stdout, first.stderr) == (3, b"/mnt/workspace/work\n", b"e\n")
    script = "cat /tmp/left; echo $MORE; setsid sleep 300 & true"
    second = workspaces.run_kept(desk.id, ["sh", "-c", script], sandbox="vm/tcg", environment={"MORE": "yes"})
    assert (second.run_id, second.stdout) == (first.run_id, b"x\nyes\n")
    third = workspaces.run_kept(
        desk.id, ["sh", "-c", "cat /proc/[0-9]*/cmdline | grep -c 'sleep.30[0]'"], sandbox="vm/tcg"
    )
    assert third.stdout == b"0\n"
    late = workspaces.run_kept(desk.id, ["sleep", "300"], sandbox="vm/tcg", timeout_seconds=1)
    assert late.exit_code == 124
    missing = workspaces.run_kept(desk.id, ["nowhere-to-be-found"], sandbox="vm/tcg")
    assert (missing.exit_code, missing.error["code"]) == (125, "invalid")  # type: ignore[index]
    read_end, write_end = os.pipe()
    os.write(write_end, b"typed")
    os.close(write_end)
    assert workspaces.run_kept(desk.id, ["cat"], sandbox="vm/tcg", stdin=read_end).stdout == b"typed"
    os.close(read_end)


def test_several_runs_at_once(workspaces: Local, desk: Workspace) -> None:
    runs = [
        workspaces.run(desk.id, ["sh", "-c", f"sleep 1; exit {n}"], sandbox="vm/tcg", concurrent=True) for n in range(3)
    ]
    assert [workspaces.wait(run.id).exit_code for run in runs] == [0, 1, 2]
    assert len(workspaces.machines()) == 1


def test_without_hardware_nothing_is_started_and_nothing_written(workspaces: Local, desk: Workspace) -> None:
    need(not kvm.ask(GUESTS, 64042).works, "a host where KVM runs no guests")
    before = len(list(workspaces.events()))
    for name in ("vm", "vm/kvm"):
        with pytest.raises(SandboxUnavailable, match="KVM runs no guests here") as caught:
            workspaces.run(desk.id, ["true"], sandbox=name)
        assert "--sandbox vm/tcg" in caught.value.hint
    assert len(list(workspaces.events())) == before
    assert workspaces.runs() == []


def test_settings_may_allow_emulation(home_path: str, settings: Settings, workspaces: Local, desk: Workspace) -> None:
    need(not kvm.ask(GUESTS, 64042).works, "a host where KVM runs no guests")
    changed = settings.replace(sandbox=settings.sandbox.replace(vm_emulation="allow", default="vm", vm_idle_seconds=1))
    with workstead.open(home_path, settings=changed) as opened:
        done = opened.wait(opened.run(desk.id, ["true"]).id)
        assert done.enforcement["sandbox"] == "vm/tcg"
        probes = {probe.name: probe for probe in opened.doctor()}
        assert probes["vm"].ok
        assert "emulated" in probes["vm"].found
        wait_until(lambda: opened.machines() == [])


def test_the_guest_is_built_again_when_what_it_is_made_from_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_guest(_anybody())
    first = guest.find(GUESTS)
    assert first is not None
    monkeypatch.setattr(guest, "_recipe", lambda: "another")
    assert guest.find(GUESTS) is None
    monkeypatch.undo()
    real = guest._stamp
    monkeypatch.setattr(guest, "_stamp", lambda path: "1 1" if path.endswith("/json/__init__.py") else real(path))
    assert guest.find(GUESTS) is None
    monkeypatch.undo()
    assert guest.find(GUESTS) == first


def test_what_is_no_package_is_said(tmp_path: Path) -> None:
    for name, content in (("linux-image-6.1.0-1-amd64_6.1_amd64.deb", b"nonsense"), ("other.deb", b"!<arch>\n")):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SandboxUnavailable, match="not a Debian package"):
        guest.build(str(tmp_path / "cache"), str(tmp_path), lambda _: None)
    assert [name for name in os.listdir(tmp_path / "cache") if not name.startswith(".")] == []
    with pytest.raises(SandboxUnavailable, match="there is no linux-image"):
        guest.build(str(tmp_path / "cache"), str(tmp_path / "cache"), lambda _: None)


def test_two_runs_that_want_the_first_machine_share_it(workspaces: Local, desk: Workspace) -> None:
    ends: list[int | None] = []

    def run() -> None:
        started = workspaces.run(desk.id, ["true"], sandbox="vm/tcg", concurrent=True)
        ends.append(workspaces.wait(started.id).exit_code)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == [0, 0]
    assert len(workspaces.machines()) == 1
