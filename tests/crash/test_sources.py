"""Kill at every effect of making and forking, unmount behind our back, reboot: nothing lost, nothing leaked."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workstead
from crash.test_lifecycle import Step
from needs import need_program, need_root
from situations import check_after_crash, killed_at_effect, names_in
from sources.yard import listing, mounts_in, repository
from workstead.errors import WorkspaceBusy
from workstead.local import Local
from workstead.settings import Settings
from workstead.system.overlay import stack

MANY = 1000 if os.environ.get("AW_LOAD") == "full" else 200  # read now: a test's environment is empty
TEXT = "work that nobody wants to lose"


@pytest.fixture(autouse=True)
def _origin(tmp_path: Path) -> None:
    """A repository with files that are not committed, where every source of a test finds it."""
    need_root()
    need_program("git")
    repository("origin")
    Path("origin", "draft").write_text("not committed")
    Path("origin", ".awignore").write_text("secret\n")
    Path("origin", "secret").write_text("secret")


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Fresh homes, in memory where there is some; nothing of them stays mounted."""
    shared = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    top = shared / f"workstead-{os.getpid()}-{os.urandom(4).hex()}"
    top.mkdir()
    numbers = itertools.count()
    yield lambda: str(top / str(next(numbers)))
    unmount_all(str(top))
    shutil.rmtree(top)


def unmount_all(directory: str) -> None:
    for point in mounts_in(directory):
        subprocess.run(["umount", "-l", point], check=True)


def files(workspaces: Local, id: str) -> dict[bytes, tuple[object, ...]]:
    return listing(f"{workspaces.path(id)}/work", skip=(".git",))


def check_nothing_leaked(workspaces: Local, home: str) -> None:
    """Mounts, layers and shared layers are those of the workspaces that there are, and of no others."""
    every = [each for each in workspaces.list(all=True) if each.state in ("ready", "destroyed")]
    live = {f"{each.path}/work" for each in every if each.state == "ready"}
    points = mounts_in(home)
    assert sorted(points) == sorted(set(points))
    assert set(points) <= live
    private = f"{home}/workspaces/.carrel"
    assert set(names_in(f"{private}/layers")) <= {each.uid for each in every}
    if os.path.isdir(f"{home}/snapshots"):
        workspaces.sweep()  # what was to be shared and is nobody's now goes with the next one
        assert stack.sweep(private, remove=False) == []


# -- kills -------------------------------------------------------------------------------------------------------------


def made(source: str) -> Step:
    """A workspace is wholly there or wholly not, can be made again, and its origin is untouched."""

    def before(workspaces: Local) -> None:
        workspaces.add_template("made", folder="origin")

    def after(workspaces: Local, done: bool) -> None:
        assert workspaces.exists("t/a") or not done
        if not workspaces.exists("t/a"):
            workspaces.create(source, id="t/a")
        found = files(workspaces, "t/a")
        assert b"README" in found
        assert (b"draft" in found) == source.startswith(("overlay", "template"))
        assert b"secret" not in found
        assert Path("origin", "secret").read_text() == "secret"
        workspaces.write_file("t/a", "work/README", TEXT)
        assert Path("origin", "README").read_text() == "read me\n"

    return Step(before, lambda w: w.create(source, id="t/a", config={"git_config": True}), after)


def with_work(source: str) -> Callable[[Local], None]:
    def before(workspaces: Local) -> None:
        desk = workspaces.create(source, id="t/a")
        workspaces.write_file(desk.id, "work/new", TEXT)
        workspaces.write_file(desk.id, "output/report", TEXT)

    return before


def after_fork(workspaces: Local, done: bool) -> None:
    assert workspaces.read_text("t/a", "work/new") == TEXT
    assert workspaces.exists("t/b") or not done
    if not workspaces.exists("t/b"):
        workspaces.fork("t/a", new_id="t/b")
    assert files(workspaces, "t/b") == files(workspaces, "t/a")
    assert workspaces.read_text("t/b", "output/report") == TEXT
    workspaces.write_file("t/b", "work/new", "by the fork")
    assert workspaces.read_text("t/a", "work/new") == TEXT
    assert "new" in [change.path for change in workspaces.diff("t/b").changes]


def after_fork_of_a_state(workspaces: Local, done: bool) -> None:
    assert workspaces.read_text("t/a", "work/new") == "later"
    assert workspaces.exists("t/b") or not done
    if workspaces.exists("t/b"):
        assert workspaces.read_text("t/b", "work/new") == TEXT


def before_fork_of_a_state(workspaces: Local) -> None:
    with_work("overlay:origin")(workspaces)
    workspaces.snapshot("t/a", label="first")
    workspaces.write_file("t/a", "work/new", "later")


def before_sweep(workspaces: Local) -> None:
    with_work("overlay:origin")(workspaces)
    workspaces.fork("t/a", new_id="t/b")
    workspaces.fork("t/b", new_id="t/c")
    workspaces.destroy("t/a", "t/b", force=True)


def after_sweep(workspaces: Local, _: bool) -> None:
    workspaces.sweep(everything=True)
    assert workspaces.trash() == []
    assert workspaces.read_text("t/c", "work/new") == TEXT


def after_destroy(workspaces: Local, done: bool) -> None:
    assert not (done and workspaces.exists("t/a"))
    if not workspaces.exists("t/a"):
        workspaces.undo()
    assert workspaces.read_text("t/a", "work/new") == TEXT


# name -> the step, and how many effects to go on by: those of a first clone are many, and most of them are git's
STEPS = {
    "overlay": (made("overlay:origin"), 1),
    "clone": (made("clone:origin"), 7),
    "template": (made("template:made"), 1),
    "worktree": (made("worktree:origin"), 5),
    "fork": (Step(with_work("overlay:origin"), lambda w: w.fork("t/a", new_id="t/b"), after_fork), 1),
    "fork of plain files": (Step(with_work("empty"), lambda w: w.fork("t/a", new_id="t/b"), after_fork), 1),
    "fork of a state": (
        Step(
            before_fork_of_a_state,
            lambda w: w.fork("t/a", new_id="t/b", snapshot="first"),
            after_fork_of_a_state,
        ),
        3,
    ),
    "destroy": (Step(with_work("overlay:origin"), lambda w: w.destroy("t/a", force=True), after_destroy), 2),
    "sweep": (Step(before_sweep, lambda w: w.sweep(everything=True), after_sweep), 2),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_kill_at_any_effect_loses_and_leaks_nothing(name: str, homes: Callable[[], str], settings: Settings) -> None:
    step, stride = STEPS[name]
    kills = 0
    for number in itertools.count(1, stride):
        home = homes()
        before = listing("origin", skip=(".git",))
        with workstead.open(home, settings=settings) as workspaces:
            step.before(workspaces)

        def act(home: str = home) -> None:
            step.act(workstead.open(home, settings=settings))

        killed = killed_at_effect(number, act)
        kills += killed
        with workstead.open(home, settings=settings) as workspaces:
            workspaces.repair()
            assert workspaces.repair() == []
            check_nothing_leaked(workspaces, home)
            step.after(workspaces, not killed)
            check_nothing_leaked(workspaces, home)
        check_after_crash(home, settings)
        assert listing("origin", skip=(".git",)) == before
        unmount_all(home)
        shutil.rmtree(home)
        if not killed:
            break
    assert kills > 5


# -- mounts that go away -----------------------------------------------------------------------------------------------


@pytest.fixture
def several(workspaces: Local) -> dict[str, dict[bytes, tuple[object, ...]]]:
    """One workspace of each kind with work in it, a fork of each, and what they hold."""
    workspaces.add_template("made", folder="origin")
    found = {}
    for number, source in enumerate(("overlay:origin", "clone:origin", "template:made", "worktree:origin", "empty")):
        desk = workspaces.create(source, id=f"t/{number}")
        workspaces.write_file(desk.id, "work/new", f"{TEXT} {number}")
        (fork,) = workspaces.fork(desk.id)
        workspaces.write_file(fork.id, "work/more", "x")
        found |= {each: files(workspaces, each) for each in (desk.id, fork.id)}
    return found


Several = dict[str, dict[bytes, tuple[object, ...]]]


def test_whatever_is_unmounted_is_mounted_again_by_the_next_use(
    workspaces: Local, several: Several, home_path: str
) -> None:
    for id, held in several.items():
        unmount_all(home_path)
        assert files(workspaces, id) == held
    unmount_all(home_path)
    for id in several:
        assert workspaces.read_text(id, "work/new").startswith(TEXT)
    unmount_all(home_path)
    assert all("new" in [change.path for change in workspaces.diff(id).changes] for id in several)
    unmount_all(home_path)
    run = workspaces.wait(workspaces.run("t/0", ["cat", "new"]).id)
    assert run.exit_code == 0
    unmount_all(home_path)
    (fork,) = workspaces.fork("t/0")
    assert files(workspaces, fork.id) == several["t/0"]
    unmount_all(home_path)
    workspaces.destroy(*several, force=True)
    workspaces.undo()
    assert {id: files(workspaces, id) for id in several} == several
    unmount_all(home_path)
    assert workspaces.repair() == []
    assert {id: files(workspaces, id) for id in several} == several


def test_after_a_reboot_everything_is_there(
    workspaces: Local, several: Several, home_path: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspaces.destroy("t/1", force=True)
    workspaces.let_go()
    unmount_all(home_path)
    monkeypatch.setattr("workstead.system.kernel.boot._ids", ["another-boot"])
    with workstead.open(home_path, settings=settings) as again:
        workspaces_left = [each.id for each in again.list()]
        assert {id: files(again, id) for id in workspaces_left} == {id: several[id] for id in workspaces_left}
        again.undo()
        assert files(again, "t/1") == several["t/1"]
        assert again.repair() == []
        check_nothing_leaked(again, home_path)
        again.destroy(*(each.id for each in again.list()), force=True)
        again.sweep(everything=True)
        check_nothing_leaked(again, home_path)
        assert mounts_in(home_path) == []
        assert names_in(f"{home_path}/workspaces/.carrel/layers") == []


def test_a_busy_mount_goes_to_the_trash_and_comes_back_when_it_is_free(workspaces: Local, home_path: str) -> None:
    with_work("overlay:origin")(workspaces)
    desk = workspaces.get("t/a")
    # Somebody's shell, not a run of ours: it keeps the mount alive when it is taken away.
    shell = subprocess.Popen(["sleep", "60"], cwd=f"{desk.path}/work")
    try:
        workspaces.destroy(desk.id, force=True)
        assert mounts_in(home_path) == []
        assert not os.path.exists(desk.path)
        with pytest.raises(WorkspaceBusy):
            workspaces.undo()
    finally:
        shell.kill()
        shell.wait()
    with workstead.open(home_path) as again:
        if not again.exists("t/a"):
            again.undo()
        assert again.read_text("t/a", "work/new") == TEXT
        assert again.repair() == []
        with open(f"{desk.path}/work/new"):  # a file that is open is in nobody's way either
            again.destroy("t/a", force=True)
            again.sweep(everything=True)
            assert again.trash() == []
        check_nothing_leaked(again, home_path)


# -- many --------------------------------------------------------------------------------------------------------------


def test_many_live_workspaces(workspaces: Local, home_path: str, settings: Settings) -> None:
    """1,000 with AW_LOAD=full."""
    count = MANY
    started = time.monotonic()
    for number in range(count // 2):
        workspaces.create("overlay:origin" if number % 2 else "clone:origin", id=f"many/{number}")
    forks = workspaces.fork("many/0", count=count // 2)
    made_in = time.monotonic() - started
    assert len(mounts_in(home_path)) == count
    workspaces.write_file(forks[-1].id, "work/new", "x")
    assert "new" not in os.listdir(f"{forks[0].path}/work")
    own = [path for each in forks for path in (each.path, f"{home_path}/workspaces/.carrel/layers/{each.uid}")]
    used = subprocess.run(["du", "-xsck", *own], capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    assert int(used.split()[0]) < 200 * len(forks)  # kilobytes each: nothing of what they share
    unmount_all(home_path)
    started = time.monotonic()
    with workstead.open(home_path, settings=settings) as again:
        assert again.repair() == []
        assert len(mounts_in(home_path)) == count
        healed_in = time.monotonic() - started
        started = time.monotonic()
        again.destroy_task("many", force=True)
        again.sweep(everything=True)
        gone_in = time.monotonic() - started
        check_nothing_leaked(again, home_path)
    assert mounts_in(home_path) == []
    print(f"{count} workspaces: made in {made_in:.2f} s, healed in {healed_in:.2f} s, gone in {gone_in:.2f} s")
