"""What the driver refuses, says and finds, beside the walls themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from needs import need
from workstead.errors import Invalid, NotADirectory, Refused, SandboxUnavailable, WorksteadError
from workstead.sandboxes import Confinement, Mount, bubblewrap, choose, driver
from workstead.system.process import find_bwrap


@pytest.fixture
def workspace(tmp_path: Path) -> str:
    (tmp_path / "ws" / "work").mkdir(parents=True)
    (tmp_path / "ws" / ".aw").mkdir()
    return str(tmp_path / "ws")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"public_mount": "relative"}, Invalid),
        ({"public_mount": "/"}, Invalid),
        ({"public_mount": "/usr/x"}, Invalid),
        ({"public_mount": "/a/../b"}, Invalid),
        ({"network": "some"}, Invalid),
        ({"environment": {"A": "b\0--bind\0/\0/host"}}, Invalid),
        ({"environment": {"A=B": "c"}}, Invalid),
        ({"environment": {"": "c"}}, Invalid),
        ({"directory": "work\0--bind"}, Invalid),
        ({"mounts": (Mount(source="/usr", target="/mnt/workspace/work/x"),)}, Invalid),
        ({"mounts": (Mount(source="/usr", target="/mnt"),)}, Invalid),
        ({"mounts": (Mount(source="/usr", target="/x/../etc"),)}, Invalid),
        ({"mounts": (Mount(source="/nonexistent", target="/x"),)}, Invalid),
        ({"read_only": ("../x",)}, Invalid),
        ({"read_only": ("..",)}, Invalid),
        ({"workspace": "/nonexistent"}, NotADirectory),
    ],
)
def test_what_makes_no_sense_is_refused(workspace: str, fields: dict[str, object], error: type[WorksteadError]) -> None:
    with pytest.raises(error), bubblewrap.enter(Confinement(**{"workspace": workspace, **fields})):  # type: ignore[arg-type]
        pass


def test_a_link_where_it_would_mount_is_refused(workspace: str) -> None:
    os.rmdir(os.path.join(workspace, ".aw"))
    os.symlink("/etc", os.path.join(workspace, ".aw"))
    with pytest.raises(Refused), bubblewrap.enter(Confinement(workspace=workspace)):
        pass
    os.symlink(workspace, f"{workspace}-link")
    with pytest.raises(NotADirectory), bubblewrap.enter(Confinement(workspace=f"{workspace}-link")):
        pass


def test_a_command_with_nothing_or_nul_is_refused_and_leaks_nothing(workspace: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with bubblewrap.enter(Confinement(workspace=workspace)) as cell:
        for argv in ([], ["a\0b"]):
            with pytest.raises(Invalid):
                cell.launch(argv)
    assert len(os.listdir("/proc/self/fd")) == before


def test_root_is_never_behind_it(workspace: str) -> None:
    need(os.geteuid() == 0, "root")
    with pytest.raises(SandboxUnavailable), bubblewrap.enter(Confinement(workspace=workspace, uid=0)):
        pass


def test_the_launcher_starts_clean(workspace: str) -> None:
    with bubblewrap.enter(Confinement(workspace=workspace, environment={"TOKEN": "hush"})) as cell:
        launch = cell.launch(["echo", "x"])
        for descriptor in launch.keep:
            os.close(descriptor)
    assert launch.environment == {}
    assert "hush" not in " ".join(launch.argv)
    assert workspace not in " ".join(launch.argv)
    assert launch.argv[0].startswith("/")


def test_a_launcher_that_others_could_change_is_not_taken(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_bytes(b"--disable-userns --size")
    program.chmod(0o777)
    assert not find_bwrap.is_trusted(str(program))
    program.chmod(0o755)
    assert find_bwrap.is_trusted(str(program))
    assert not find_bwrap.is_trusted(str(tmp_path))
    assert not find_bwrap.is_trusted(str(tmp_path / "absent"))


def test_without_a_launcher_it_is_unavailable(workspace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_bwrap, "PLACES", ())
    monkeypatch.setattr(find_bwrap, "find_bundled", lambda: "")
    with pytest.raises(SandboxUnavailable) as caught, bubblewrap.enter(Confinement(workspace=workspace)):
        pass
    assert "apt install bubblewrap" in caught.value.hint
    assert "not installed" in (bubblewrap.probe() or "")
    with pytest.raises(SandboxUnavailable) as caught:
        choose("auto")
    assert "bubblewrap: bubblewrap is not installed" in caught.value.message


def test_a_broken_launcher_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_bwrap, "find_launcher", lambda: "/bin/false")
    reason = bubblewrap.probe()
    assert reason is not None
    assert "could not build the sandbox" in reason


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 1, "AppArmor"),
        ("/proc/sys/kernel/unprivileged_userns_clone", 0, "kernel.unprivileged_userns_clone=1"),
        ("/proc/sys/user/max_user_namespaces", 0, "user.max_user_namespaces"),
        ("none of them", 0, "docker run"),
    ],
)
def test_the_remedy_fits_the_cause(monkeypatch: pytest.MonkeyPatch, setting: str, value: int, remedy: str) -> None:
    monkeypatch.setattr(bubblewrap, "_read_number", lambda path: value if path == setting else None)
    error = bubblewrap.explain("bwrap: Creating new namespace failed: Operation not permitted\n")
    assert error.code == "sandbox_unavailable"
    assert remedy in error.hint
    assert "Operation not permitted" in error.message


def test_drivers_are_found_by_name() -> None:
    assert driver("bubblewrap").PROMISES.files
    assert not any(driver("none").PROMISES.as_dict().values())
    assert driver("none").probe() is None
    with pytest.raises(Invalid):
        driver("chroot")


def test_auto_never_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "probe", lambda: "broken here")
    with pytest.raises(SandboxUnavailable):
        choose("auto")
