"""Kill at every effect, reopen, check: each workspace is wholly there or wholly not, in the log and on disk alike."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workstead
from needs import need, need_program
from situations import check_after_crash, fork, killed_at_effect, names_in, remove_home, tree_of, wait
from workstead.local import Local
from workstead.settings import Settings

LIMITED = {"max_size_mb": 16}
CONTENT = "work that nobody wants to lose"


class Step:
    """Something that may be killed: what is there before, what is done, and what must hold after either end."""

    def __init__(
        self, before: Callable[[Local], object], act: Callable[[Local], object], after: Callable[[Local, bool], object]
    ) -> None:
        self.before = before
        self.act = act
        self.after = after  # gets whether the act was done to its end


def fill(workspaces: Local, *ids: str) -> None:
    for id in ids:
        desk = workspaces.create(id=id, config={"claude_md": "be kind"})
        Path(desk.path, "work", "file").write_text(f"{CONTENT} {id}")


def fill_limited(workspaces: Local, *ids: str) -> None:
    """Workspaces with a file system of their own, where there can be one."""
    for id in ids:
        desk = workspaces.create(id=id, config=LIMITED)
        Path(desk.path, "work", "file").write_text(f"{CONTENT} {id}")


def destroyed_limited(workspaces: Local) -> None:
    fill_limited(workspaces, "t/a")
    workspaces.destroy("t/a")


def after_undo_limited(workspaces: Local, done: bool) -> None:
    if not workspaces.exists("t/a"):
        assert not done
        workspaces.undo()
    assert holds_its_work(workspaces, "t/a")


def after_sweep_limited(workspaces: Local, done: bool) -> None:
    if workspaces.trash():
        assert not done
        workspaces.restore_trashed("t/a")
        assert holds_its_work(workspaces, "t/a")
        workspaces.destroy("t/a")
    workspaces.sweep(everything=True)
    assert {workspace.state for workspace in workspaces.list(all=True)} == {"purged"}


def holds_its_work(workspaces: Local, id: str) -> bool:
    """A workspace is whole with its files, or not there at all."""
    if not workspaces.exists(id):
        return False
    assert Path(workspaces.path(id), "work", "file").read_text() == f"{CONTENT} {id}"
    return True


def nothing(_: Local) -> None:
    """Only the opening itself."""


def after_open(workspaces: Local, _: bool) -> None:
    workspaces.create(id="t/a")


def after_create(workspaces: Local, done: bool) -> None:
    assert workspaces.exists("t/a") or not done
    if workspaces.exists("t/a"):
        workspaces.destroy("t/a")
    workspaces.create(id="t/a")  # the id is free, and so is its place
    assert len(workspaces.list()) == 1


def after_materialise(workspaces: Local, done: bool) -> None:
    assert workspaces.get("t/a").state in (("ready",) if done else ("planned", "ready"))
    assert names_in(workspaces.path("t/a")) == [".aw", "output", "tmp", "work"]


def after_destroy(workspaces: Local, done: bool) -> None:
    there = holds_its_work(workspaces, "t/a")
    assert not (there and done)
    assert holds_its_work(workspaces, "t/other")
    if there:
        workspaces.destroy("t/a")
    assert [workspace.id for workspace in workspaces.trash()] == ["t/a"]
    workspaces.undo()
    assert holds_its_work(workspaces, "t/a")


def after_destroy_of_several(workspaces: Local, _: bool) -> None:
    for id in ("t/a", "t/b"):
        holds_its_work(workspaces, id)
    gone = {workspace.id for workspace in workspaces.trash()}
    assert gone | {workspace.id for workspace in workspaces.list()} == {"t/a", "t/b"}
    if gone:
        workspaces.undo()
    assert all(holds_its_work(workspaces, id) for id in ("t/a", "t/b"))


def destroyed(workspaces: Local) -> None:
    fill(workspaces, "t/a", "t/b")
    workspaces.destroy("t/a", "t/b")


def after_undo(workspaces: Local, done: bool) -> None:
    there = [holds_its_work(workspaces, id) for id in ("t/a", "t/b")]
    if not all(there):
        assert not done
        workspaces.undo()  # takes back the rest
    assert all(holds_its_work(workspaces, id) for id in ("t/a", "t/b"))
    with pytest.raises(workstead.errors.OperationNotFound):
        workspaces.undo()


def after_restore_elsewhere(workspaces: Local, done: bool) -> None:
    if not workspaces.exists("new/place"):
        assert not done
        assert "t/a" in [workspace.id for workspace in workspaces.trash()]
        workspaces.restore_trashed("t/a", new_id="new/place")
    assert Path(workspaces.path("new/place"), "work", "file").read_text() == f"{CONTENT} t/a"
    workspaces.undo()
    assert holds_its_work(workspaces, "t/b")


def after_sweep(workspaces: Local, done: bool) -> None:
    for workspace in workspaces.trash():
        assert not done
        assert Path(workspace.trash_path, "work", "file").read_text() == f"{CONTENT} {workspace.id}"
    workspaces.sweep(everything=True)
    assert workspaces.trash() == []
    assert {workspace.state for workspace in workspaces.list(all=True)} == {"purged"}


def unused_and_used(workspaces: Local) -> None:
    fill(workspaces, "t/used")
    desk = workspaces.create(id="t/unused")
    Path(desk.path, "tmp", "scratch").write_text(CONTENT)


def after_retention(workspaces: Local, done: bool) -> None:
    assert holds_its_work(workspaces, "t/used")
    if not workspaces.exists("t/unused"):
        assert [workspace.id for workspace in workspaces.trash()] == ["t/unused"]
        workspaces.undo()
    else:
        assert not done
    assert Path(workspaces.path("t/unused"), "tmp", "scratch").read_text() == CONTENT


def after_pin(workspaces: Local, done: bool) -> None:
    assert workspaces.get("t/a").pinned or not done
    workspaces.pin("t/a")
    assert not any(each.goes for each in workspaces.sweep(free_bytes=1 << 40))


def after_template(workspaces: Local, done: bool) -> None:
    found = [template.name for template in workspaces.templates()]
    assert found == ["python"] if done else len(found) <= 1
    if not found:
        workspaces.add_template("python", folder="skeleton")
    with pytest.raises(workstead.errors.TemplateExists):
        workspaces.add_template("python", folder="skeleton")
    workspaces.remove_template("python")
    assert workspaces.templates() == []


def after_removal(workspaces: Local, done: bool) -> None:
    assert not (done and workspaces.templates())
    after_template(workspaces, False)


STEPS = {
    "create": Step(nothing, lambda w: w.create(id="t/a", config={"claude_md": "x"}), after_create),
    "create of limited size": Step(nothing, lambda w: w.create(id="t/a", config=LIMITED), after_create),
    "destroy of limited size": Step(
        lambda w: fill_limited(w, "t/a", "t/other"), lambda w: w.destroy("t/a"), after_destroy
    ),
    "first use": Step(lambda w: w.create(id="t/a", lazy=True), lambda w: w.path("t/a"), after_materialise),
    "destroy": Step(lambda w: fill(w, "t/a", "t/other"), lambda w: w.destroy("t/a"), after_destroy),
    "destroy several": Step(
        lambda w: fill(w, "t/a", "t/b"), lambda w: w.destroy("t/a", "t/b"), after_destroy_of_several
    ),
    "undo": Step(destroyed, lambda w: w.undo(), after_undo),
    "restore elsewhere": Step(
        destroyed, lambda w: w.restore_trashed("t/a", new_id="new/place"), after_restore_elsewhere
    ),
    "empty the trash": Step(destroyed, lambda w: w.sweep(everything=True), after_sweep),
    "sweep workspaces": Step(unused_and_used, lambda w: w.sweep(free_bytes=1 << 40), after_retention),
    "pin": Step(lambda w: w.create(id="t/a"), lambda w: w.pin("t/a"), after_pin),
    "add a template": Step(nothing, lambda w: w.add_template("python", folder="skeleton"), after_template),
    "remove a template": Step(
        lambda w: w.add_template("python", folder="skeleton"), lambda w: w.remove_template("python"), after_removal
    ),
}


if os.environ.get("AW_LOAD") == "full":
    STEPS["undo of limited size"] = Step(destroyed_limited, lambda w: w.undo(), after_undo_limited)
    STEPS["empty the trash of limited size"] = Step(
        destroyed_limited, lambda w: w.sweep(everything=True), after_sweep_limited
    )


@pytest.fixture(autouse=True)
def _a_skeleton() -> None:
    os.makedirs("skeleton/src")
    Path("skeleton", "src", "main.py").write_text("print()\n")


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Fresh homes, in memory where there is some: what a kill leaves behind is the same on every disk."""
    shared = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    top = shared / f"workstead-{os.getpid()}-{os.urandom(4).hex()}"
    top.mkdir()
    numbers = itertools.count()
    yield lambda: str(top / str(next(numbers)))
    remove_home(top)


def prepare(home: str, settings: Settings, step: Step) -> None:
    with workstead.open(home, settings=settings) as workspaces:
        step.before(workspaces)


def check(home: str, settings: Settings, step: Step, *, done: bool) -> None:
    check_after_crash(home, settings)
    with workstead.open(home, settings=settings) as workspaces:
        step.after(workspaces, done)
    check_after_crash(home, settings)


@pytest.mark.parametrize("name", STEPS)
def test_a_kill_at_any_effect_leaves_nothing_torn(name: str, homes: Callable[[], str], settings: Settings) -> None:
    step = STEPS[name]
    for number in itertools.count(1):
        home = homes()
        prepare(home, settings, step)

        def act(home: str = home) -> None:
            step.act(workstead.open(home, settings=settings))

        killed = killed_at_effect(number, act)
        check(home, settings, step, done=not killed)
        remove_home(home)
        if not killed:
            break
    assert number > 5


def test_a_kill_while_the_home_is_made_leaves_a_home_or_none(homes: Callable[[], str], settings: Settings) -> None:
    for number in itertools.count(1):
        home = homes()
        killed = killed_at_effect(number, lambda home=home: workstead.open(home, settings=settings))  # type: ignore[misc]
        check(home, settings, Step(nothing, nothing, after_open), done=not killed)
        if not killed:
            break
    assert number > 5


def test_a_kill_of_the_repair_itself_is_repaired(homes: Callable[[], str], settings: Settings) -> None:
    """Die while creating, then again at each effect of clearing that away."""
    for first in (12, 16, 20, 24):
        for second in itertools.count(1):
            home = homes()
            prepare(home, settings, STEPS["create"])
            create = lambda home=home: STEPS["create"].act(workstead.open(home, settings=settings))  # noqa: E731
            assert killed_at_effect(first, create)
            killed = killed_at_effect(second, lambda home=home: workstead.open(home, settings=settings))  # type: ignore[misc]
            check(home, settings, STEPS["create"], done=False)
            remove_home(home)
            if not killed:
                break


# -- the same, at every system call ------------------------------------------------------------------------------------

CALLS = (
    "openat,mkdir,mkdirat,rename,renameat,renameat2,"
    "unlink,unlinkat,rmdir,link,linkat,symlink,symlinkat,chown,fchown,fchownat,"
    "chmod,fchmod,fchmodat,write,pwrite64,pwritev,fsync,fdatasync,ftruncate,fallocate,flock,fcntl,utimensat,mknod,mknodat"
)


def traced(act: Callable[[], object], *options: str) -> tuple[int, str]:
    """Do `act` in a child under strace, which is attached before it begins; gives how it ended and what was seen."""
    begin, go = os.pipe()

    def child() -> None:
        os.close(go)
        os.read(begin, 1)
        act()

    pid = fork(child)
    os.close(begin)
    tracer = subprocess.Popen(
        ["strace", "-f", "-p", str(pid), "-e", f"trace={CALLS}", *options], stderr=subprocess.PIPE, text=True
    )
    assert tracer.stderr
    first = tracer.stderr.readline()
    os.write(go, b"x")
    os.close(go)
    code = wait(pid)
    seen = tracer.stderr.read()
    tracer.stderr.close()
    tracer.wait(60)
    need("attached" in first, f"permission to trace a process: {first.strip()}")
    return code, seen


@pytest.mark.parametrize("name", ["create", "destroy", "undo"])
def test_a_kill_at_any_system_call_leaves_nothing_torn(name: str, homes: Callable[[], str], settings: Settings) -> None:
    need_program("strace")
    step = STEPS[name]

    def fresh() -> tuple[str, Callable[[], object]]:
        home = homes()
        prepare(home, settings, step)
        return home, lambda: step.act(workstead.open(home, settings=settings))

    _, act = fresh()
    code, seen = traced(act)
    assert code == 0
    counted = Counter(re.findall(r"^(?:\[pid +\d+\] )?(\w+)\(", seen, flags=re.MULTILINE))
    assert counted["mkdir"] + counted["rename"] > 0
    assert counted["pwrite64"] > 0
    kills = 0
    for call, times in counted.items():
        for number in range(1, times + 1):
            home, act = fresh()
            code, _ = traced(act, "-e", f"inject={call}:signal=SIGKILL:when={number}")
            assert code in (0, -signal.SIGKILL)
            kills += code != 0
            check(home, settings, step, done=code == 0)
            remove_home(home)
    assert kills >= sum(counted.values()) - len(counted)


def test_undo_after_a_crash_is_byte_for_byte(homes: Callable[[], str], settings: Settings) -> None:
    home = homes()
    with workstead.open(home, settings=settings) as workspaces:
        fill(workspaces, "t/a")
        path = workspaces.path("t/a")
        before = tree_of(path)
    number = 0
    while killed_at_effect(number := number + 1, lambda: workstead.open(home, settings=settings).destroy("t/a")):
        with workstead.open(home, settings=settings) as workspaces:
            if not workspaces.exists("t/a"):
                workspaces.undo()
            assert tree_of(path) == before
    with workstead.open(home, settings=settings) as workspaces:
        workspaces.undo()
        assert tree_of(path) == before
