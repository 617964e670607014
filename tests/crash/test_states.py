"""Kill while a state is kept, brought back or given back: afterwards everything is wholly old or wholly new."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workstead
from needs import need_root
from origins import git, make_desk, make_origin, read, unapplied, write
from situations import check_after_crash, fork, is_effect, wait
from workstead.core.snapshots import of_workspace
from workstead.core.states import open_store
from workstead.local import Local
from workstead.settings import Settings
from workstead.snapshots.gc import verify

MOST = int(os.environ.get("AW_CRASH_POINTS", "16"))  # kills of each act; more of them are spread over the same effects


class Scene:
    """A home and an origin of their own, with a workspace in which something was changed."""

    def __init__(self, top: Path, settings: Settings) -> None:
        self.top = top
        self.settings = settings
        self.home = str(top / "home")
        self.origin = top / "origin"
        make_origin(self.origin)
        with self.open() as workspaces:
            self.work = Path(make_desk(workspaces, self.origin).path, "work")

    def open(self) -> Local:
        return workstead.open(self.home, settings=self.settings)

    def states(self) -> tuple[dict[str, str], dict[str, str], str, list[str]]:
        """The workspace, the folder, the commits of the branch, and what is not applied."""
        with self.open() as workspaces:
            workspaces.path("fix/a")  # mounted
            left = unapplied(workspaces)
        branch = "agent" if git(self.origin, "branch", "--list", "agent") else ""
        return read(self.work), read(self.origin), branch and git(self.origin, "log", "--format=%s", branch), left


def check_states(scene: Scene) -> None:
    """Every kept state can be read in full, and nothing of ours is left in the origin."""
    check_after_crash(scene.home, scene.settings)
    with scene.open() as workspaces, open_store(workspaces._home) as store:
        roots = [each.root for each in of_workspace(workspaces._home, workspaces.get("fix/a"))]
        assert verify(store, roots) == []
        applies = {each.operation_id for each in workspaces.operations()}
    assert [name for name in os.listdir(scene.origin) if name.startswith(".aw")] == []
    for name in os.listdir(f"{scene.home}/applied") if os.path.isdir(f"{scene.home}/applied") else ():
        assert name.partition(".")[0] in applies


def nothing(_: Scene) -> None:
    """The workspace as it is."""


def with_snapshot(scene: Scene) -> None:
    with scene.open() as workspaces:
        workspaces.snapshot("fix/a", label="good")
        write(scene.work, {"README.md": "spoiled\n", "rubbish/deep/x": "x"})
        os.unlink(scene.work / "src/app.py")
        shutil.rmtree(scene.work / "new")


def restored(scene: Scene) -> None:
    with_snapshot(scene)
    with scene.open() as workspaces:
        workspaces.restore("fix/a", "good")


def applied(scene: Scene) -> None:
    with scene.open() as workspaces:
        workspaces.apply("fix/a")


def applied_after_snapshot(scene: Scene) -> None:
    with scene.open() as workspaces:
        workspaces.snapshot("fix/a", label="good")
        write(scene.work, {"README.md": "more\n", "rubbish/deep/x": "x"})
        os.unlink(scene.work / "src/app.py")
        workspaces.apply("fix/a")


def on_branch(scene: Scene) -> None:
    with scene.open() as workspaces:
        workspaces.apply("fix/a", to="branch:agent", message="one")
        write(scene.work, {"later.txt": "later\n"})


def on_branch_twice(scene: Scene) -> None:
    on_branch(scene)
    with scene.open() as workspaces:
        workspaces.apply("fix/a", to="branch:agent", message="two")


def with_waste(scene: Scene) -> None:
    with scene.open() as workspaces:
        for number in range(3):
            write(scene.work, {"waste.bin": str(number) * 50_000})
            workspaces.snapshot("fix/a")
        workspaces.create(id="gone/a")
        workspaces.destroy("gone/a")


ACTS: dict[str, tuple[Callable[[Scene], None], Callable[[Local], object]]] = {
    "snapshot": (nothing, lambda w: w.snapshot("fix/a", label="mine")),
    "restore": (with_snapshot, lambda w: w.restore("fix/a", "good")),
    "restore what was before an apply": (applied_after_snapshot, lambda w: w.restore("fix/a", "good")),
    "restore a path": (with_snapshot, lambda w: w.restore("fix/a", "good", ["work/new"])),
    "apply to the folder": (nothing, lambda w: w.apply("fix/a")),
    "apply some paths": (nothing, lambda w: w.apply("fix/a", ["new", "README.md"])),
    "apply to a branch": (nothing, lambda w: w.apply("fix/a", to="branch:agent", message="one")),
    "apply to a branch again": (on_branch, lambda w: w.apply("fix/a", to="branch:agent", message="two")),
    "undo a restore": (restored, lambda w: w.undo()),
    "undo an apply": (applied, lambda w: w.undo()),
    "undo a branch": (on_branch_twice, lambda w: w.undo()),
    "sweep": (with_waste, lambda w: w.sweep()),
}


@pytest.fixture
def scenes(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[Scene], None]], Scene]]:
    need_root()
    # What a stat cache learns depends on the clock, and a kill of one number must always hit the same effect.
    monkeypatch.setattr("workstead.snapshots.cache.save", lambda *_: None)
    numbers = itertools.count()
    disk = tmp_path / "disk"  # in memory: what a kill leaves is the same everywhere
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=True)
    # Everything that is kept is due at once, so that a sweep has something to do.
    keep_nothing = settings.snapshots.replace(keep_all_days=0, keep_hourly_days=0, keep_daily_days=0)
    impatient = settings.replace(snapshots=keep_nothing, workspaces=settings.workspaces.replace(trash_days=0))

    def make(prepare: Callable[[Scene], None], *, sweeps: bool = False) -> Scene:
        scene = Scene(disk / str(next(numbers)), impatient if sweeps else settings)
        prepare(scene)
        return scene

    return make


_SPAWNS = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.fork")


def act_in_child(scene: Scene, act: Callable[[Local], object], *, die_at: int = 0) -> tuple[bool, int]:
    """Do it in a child that kills itself before the effect of this number; gives whether it died, and the effects."""
    inside, outside = os.pipe()
    own = -1

    def child() -> None:
        nonlocal own
        own = os.getpid()
        workspaces = scene.open()
        seen = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            if os.getpid() == own and (event in _SPAWNS or is_effect(event, arguments)):
                seen += 1
                if seen == die_at:
                    os.kill(own, signal.SIGKILL)

        sys.addaudithook(hook)
        act(workspaces)
        os.write(outside, b"%d" % seen)

    code = wait(fork(child))
    assert code in (0, -signal.SIGKILL)
    os.close(outside)
    counted = os.read(inside, 20)
    os.close(inside)
    return code != 0, int(counted or b"0")


@pytest.mark.parametrize("name", ACTS)
def test_a_kill_leaves_the_old_state_or_the_new_one(name: str, scenes: Callable[..., Scene]) -> None:
    prepare, act = ACTS[name]
    is_sweep = name == "sweep"
    scene = scenes(prepare, sweeps=is_sweep)
    old = scene.states()
    died, effects = act_in_child(scene, act)
    assert not died
    new = scene.states()
    assert (old == new) == (name in ("snapshot", "sweep"))
    check_states(scene)
    assert effects > 5
    count = min(effects, MOST)
    ends = []
    for number in range(count):
        scene = scenes(prepare, sweeps=is_sweep)
        # Evenly, the first and the last among them: what makes it new may be one of the last.
        died, _ = act_in_child(scene, act, die_at=1 + round(number * (effects - 1) / (count - 1)))
        assert died
        check_states(scene)
        found = scene.states()
        assert found in (old, new)
        ends.append(found == new)
        _try_again(scene, act, name, old, new)
        subprocess.run(["umount", "-l", scene.work], check=True)
        shutil.rmtree(scene.top)
    if old != new:
        assert ends == sorted(ends)  # from some effect on it is new
        assert False in ends
        assert True in ends


def _try_again(scene: Scene, act: Callable[[Local], object], name: str, old: object, new: object) -> None:
    """Whoever tries again after the crash gets what they wanted, and can take it back."""
    was_new = scene.states() == new
    with scene.open() as workspaces:
        if not name.startswith("undo") or not was_new:
            act(workspaces)
    assert scene.states() == new
    check_states(scene)
    if name in ("snapshot", "sweep"):
        return
    with scene.open() as workspaces:
        if name.startswith("undo"):
            newest = workspaces.operations()[0]
            assert newest.kind == "undo"
            workspaces.undo(newest.operation_id)
        else:
            workspaces.undo()
            if was_new and name.startswith("restore"):
                workspaces.undo()  # it was done twice
    assert scene.states() == old
    check_states(scene)
