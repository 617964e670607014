"""Control groups of both versions: by files that look like the kernel's, and by the kernel's where we may."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from needs import need
from waiting import wait_until
from workstead.model.enforcement import Limits
from workstead.system.kernel import cgroups
from workstead.system.kernel.cgroups import Group

LIMITS = Limits(memory_bytes=100 << 20, processes=50, cpus=1.5, quota_bytes=1 << 30)


def fake(proc: Path, mounts: list[str], groups: list[str]) -> str:
    proc.mkdir()
    (proc / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    (proc / "cgroup").write_text("".join(f"{line}\n" for line in groups))
    return str(proc)


def version_2(root: Path, own: str, handed_out: dict[str, str]) -> str:
    """A hierarchy of version 2 in which these groups have handed these controllers out."""
    for path, controllers in handed_out.items():
        folder = root / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.subtree_control").write_text(controllers)
        (folder / "cgroup.controllers").write_text("")
    (root / own.strip("/")).mkdir(parents=True, exist_ok=True)
    return f"30 20 0:26 / {root} rw - cgroup2 cgroup2 rw"


def test_version_1_has_a_hierarchy_for_each_controller(tmp_path: Path) -> None:
    proc = fake(
        tmp_path / "proc",
        [
            f"31 20 0:27 / {tmp_path}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
            f"32 20 0:28 /docker/x {tmp_path}/mem\\040ory rw - cgroup cgroup rw,memory",
            f"33 20 0:29 / {tmp_path}/pids rw - cgroup cgroup rw,pids",
        ],
        ["3:cpu,cpuacct:/", "2:memory:/docker/x/inner", "1:pids:/a/b", "0::/"],
    )
    assert cgroups.find_parents(proc) == {
        "cpu": (1, f"{tmp_path}/cpu,cpuacct"),
        "memory": (1, f"{tmp_path}/mem ory/inner"),
        "pids": (1, f"{tmp_path}/pids/a/b"),
    }


def test_version_2_takes_the_nearest_group_that_hands_out(tmp_path: Path) -> None:
    root = tmp_path / "cg"
    own = "/user.slice/app.slice/terminal"
    mount = version_2(
        root, own, {"/": "cpu memory pids", "/user.slice": "memory pids", "/user.slice/app.slice": "memory pids"}
    )
    proc = fake(tmp_path / "proc", [mount], [f"0::{own}"])
    parent = f"{root}/user.slice/app.slice"
    assert cgroups.find_parents(proc) == {"memory": (2, parent), "pids": (2, parent)}


def test_mixed_versions_complete_each_other(tmp_path: Path) -> None:
    root = tmp_path / "cg"
    mount = version_2(root, "/", {"/": "memory pids"})
    version_1 = f"33 20 0:29 / {tmp_path}/pids rw - cgroup cgroup rw,pids"
    proc = fake(tmp_path / "proc", [version_1, mount], ["1:pids:/", "0::/"])
    assert cgroups.find_parents(proc) == {"pids": (1, f"{tmp_path}/pids"), "memory": (2, str(root))}


def test_nothing_mounted_is_nothing_found(tmp_path: Path) -> None:
    assert cgroups.find_parents(fake(tmp_path / "proc", [], ["0::/"])) == {}
    assert cgroups.find_parents(str(tmp_path / "absent")) == {}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (1, {"memory.limit_in_bytes": "104857600", "pids.max": "50", "cpu.cfs_quota_us": "150000"}),
        (2, {"memory.max": "104857600", "memory.swap.max": "0", "pids.max": "50", "cpu.max": "150000 100000"}),
    ],
)
def test_limits_are_written(tmp_path: Path, version: int, expected: dict[str, str]) -> None:
    group = tmp_path / "run"
    group.mkdir()
    names = [*expected, "cpu.cfs_period_us", "memory.oom.group"]
    for name in names:
        (group / name).write_text("")
    parents = {name: (version, str(tmp_path)) for name in ("memory", "pids", "cpu")}
    made = cgroups.make("run", LIMITS, parents)
    assert made.paths == (str(group),)
    assert {name: (group / name).read_text() for name in expected} == expected


def test_a_controller_that_refuses_is_not_in_the_group(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "pids.max").write_text("")
    parents = {"memory": (1, str(tmp_path / "closed")), "pids": (1, str(tmp_path)), "cpu": (2, "/nonexistent")}
    assert set(cgroups.make("run", LIMITS, parents).directories) == {"pids"}


def test_what_happened_is_read(tmp_path: Path) -> None:
    for name, text in {
        "memory.events": "low 0\noom 3\noom_kill 2\n", "memory.peak": "4096\n", "pids.events": "max 7\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", "memory.max_usage_in_bytes": "8192\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    directories = {"memory": str(tmp_path), "pids": str(tmp_path)}
    second = Group(name="x", directories=directories, version={"memory": 2, "pids": 2})
    assert cgroups.usage(second) == {"oom_kills": 2, "peak_memory_bytes": 4096, "refused_forks": 7}
    first = Group(name="x", directories=directories, version={"memory": 1, "pids": 1})
    assert cgroups.usage(first) == {"oom_kills": 5, "peak_memory_bytes": 8192, "refused_forks": 7}


def fill(group: Group) -> subprocess.Popen[bytes]:
    """A shell in the group that keeps forking a little."""
    join = "".join(f"echo $$ > {path}/cgroup.procs; " for path in group.paths)
    child = subprocess.Popen(["/bin/sh", "-c", f"{join} for i in 1 2 3; do setsid sleep 300 & done; sleep 300"])
    wait_until(lambda: len(cgroups.processes(group)) >= 5)
    return child


def test_a_real_group_is_killed_until_empty_and_removed() -> None:
    parents = cgroups.find_parents()
    need(os.geteuid() == 0 and bool(parents), "control groups that root can make")
    assert cgroups.make(f"aw-test-{os.getpid()}-none", Limits(), parents, listed=False).paths == ()
    assert len(cgroups.make(f"aw-test-{os.getpid()}-kill", Limits(), parents).paths) == 1
    group = cgroups.make(f"aw-test-{os.getpid()}-kill", LIMITS, parents)
    assert set(group.directories) == set(parents)
    child = fill(group)
    assert len(cgroups.processes(group)) == 5
    assert cgroups.find(group.name).directories == group.directories
    assert cgroups.kill(group)
    child.wait()
    assert cgroups.remove(group)
    assert not any(os.path.exists(path) for path in group.paths)
    assert cgroups.find(group.name).directories == {}


def test_a_real_group_of_version_2_is_killed_in_one_stroke() -> None:
    points = [
        line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line
    ]
    need(os.geteuid() == 0 and bool(points), "a hierarchy of version 2")
    directory = f"{points[0]}/aw-test-{os.getpid()}-v2"
    os.mkdir(directory)
    group = Group(name="v2", directories={"pids": directory}, version={"pids": 2})
    child = fill(group)
    assert cgroups.kill(group)
    assert child.wait() == -9
    assert cgroups.remove(group)


@pytest.mark.parametrize("version", [1, 2])
def test_a_real_group_is_frozen_goes_on_and_dies_also_when_frozen(version: int) -> None:
    need(os.geteuid() == 0, "root")
    if version == 1:
        parents = cgroups.find_parents()
        need(parents.get("freezer", (0, ""))[0] == 1, "a freezer of version 1")
        group = cgroups.make(f"aw-test-{os.getpid()}-freeze", Limits(quota_bytes=1), parents, listed=False)
        assert list(group.directories) == ["freezer"]
    else:
        table = Path("/proc/self/mountinfo").read_text().splitlines()
        points = [line.split()[4] for line in table if " - cgroup2 " in line]
        need(bool(points), "a hierarchy of version 2")
        directory = f"{points[0]}/aw-test-{os.getpid()}-freeze"
        os.mkdir(directory)
        group = Group(name="v2", directories={"pids": directory}, version={"pids": 2})
    assert cgroups.can_freeze(group)
    child = fill(group)
    for _ in range(3):
        cgroups.start_freezing(group)
        wait_until(lambda: cgroups.is_frozen(group), pause=0.001)
        cgroups.thaw(group)
        assert not cgroups.is_frozen(group)
    cgroups.start_freezing(group)
    assert cgroups.kill(group)
    child.wait()
    assert cgroups.remove(group)
