"""What a sweep keeps of old states, and what it gives back to the disk."""

from __future__ import annotations

import os
import random
import time
from functools import partial
from pathlib import Path

import pytest

import workstead
from origins import make_desk, make_origin, read, unapplied, write
from situations import check_whole, fork, names_in, wait_all
from workstead.core.states import find_stack, open_store
from workstead.errors import Conflict, OperationNotFound, SnapshotNotFound, StoreDamaged
from workstead.local import Local
from workstead.model.workspace import Workspace
from workstead.settings import Settings
from workstead.snapshots.entries import FILE
from workstead.snapshots.gc import verify
from workstead.snapshots.trees import Tree, compare

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


class Clock:
    """The clock of the log and of those who sweep: it begins long ago and goes on when it is told to."""

    def __init__(self) -> None:
        self.behind = 400 * DAY

    def __call__(self, seconds: float) -> None:
        self.behind -= seconds
        assert self.behind > 0

    def time(self) -> float:
        return time.time() - self.behind

    def timestamp(self) -> str:
        now = self.time()
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1e6):06d}Z"


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("workstead.store.log._timestamp", clock.timestamp)
    monkeypatch.setattr("workstead.core.retention.time", clock)
    monkeypatch.setattr("workstead.flows.sweep.time", clock)
    monkeypatch.setattr("workstead.core.idle.time", clock)
    return clock


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return make_origin(tmp_path / "origin")


@pytest.fixture
def desk(workspaces: Local, origin: Path, pass_time: Clock) -> Workspace:
    return make_desk(workspaces, origin)


def kept(workspaces: Local, id: str = "fix/a") -> list[str]:
    return [each.id for each in workspaces.snapshots(id)]


def check_store(workspaces: Local) -> None:
    with open_store(workspaces._home) as store:
        roots = [each.root for desk in workspaces.list() for each in workspaces.snapshots(desk.id)]
        assert verify(store, roots) == []
    workspaces.verify()


def contents(workspaces: Local, root: str) -> dict[str, str]:
    """The files of a kept state."""
    home = workspaces._home
    finder = partial(find_stack, home)
    with open_store(home) as store, Tree(store, "empty") as empty, Tree(store, root, finder) as tree:
        return {
            delta.path.removeprefix("work/"): tree.read(delta.new).decode()
            for delta in compare(empty, tree, ["work"])
            if delta.new is not None and delta.new.kind == FILE and "/.git/" not in f"/{delta.path}/"
        }


def files(folder: Path) -> dict[str, str]:
    return {name: text for name, text in read(folder).items() if not name.endswith("/")}


def test_snapshots_thin_out_and_their_contents_go_with_them(
    workspaces: Local, desk: Workspace, pass_time: Clock
) -> None:
    work = Path(desk.path, "work")
    taken = []
    for number in range(10):
        (work / "large.bin").write_bytes(os.urandom(100_000 + number))
        taken.append(workspaces.snapshot(desk.id, label="release" if number == 3 else ""))
        pass_time(10 * MINUTE)
    assert not any(each.goes for each in workspaces.sweep())
    pass_time(3 * DAY)
    planned = workspaces.sweep(dry_run=True)
    # The first hour has four of them, with a labelled one, and the last of each hour stays.
    snapshots = [candidate for candidate in planned if candidate.kind == "snapshot"]
    (objects,) = [candidate for candidate in planned if candidate.kind == "objects"]
    assert len(kept(workspaces)) == 11
    assert {candidate.name for candidate in snapshots} < {each.id for each in taken}
    assert objects.bytes > 95_000 * len(snapshots)
    done = workspaces.sweep()
    assert [candidate.name for candidate in done if candidate.kind == "snapshot"] == [each.name for each in snapshots]
    assert [candidate.bytes for candidate in done if candidate.kind == "objects"] == [objects.bytes]
    left = kept(workspaces)
    assert left[0] == "base"
    assert {taken[3].id, taken[-1].id} <= set(left)
    assert len(left) == 11 - len(snapshots)
    assert len(snapshots) >= 5
    check_store(workspaces)
    with pytest.raises(SnapshotNotFound):
        workspaces.restore(desk.id, snapshots[0].name)
    pass_time(100 * DAY)
    workspaces.sweep()
    assert kept(workspaces) == ["base", taken[3].id, taken[-1].id]
    assert [each.kind for each in workspaces.sweep() if each.goes] == []
    check_store(workspaces)


def test_what_an_operation_needs_stays_while_it_can_be_undone(
    workspaces: Local, desk: Workspace, origin: Path, pass_time: Clock, settings: Settings
) -> None:
    work = Path(desk.path, "work")
    before, origin_before = files(work), files(origin)
    applied = workspaces.apply(desk.id).operation_id
    restored, _ = workspaces.restore(desk.id, "base")
    pass_time(6.9 * DAY)
    for _ in range(3):
        workspaces.snapshot(desk.id)
    workspaces.sweep()
    workspaces.undo(restored)
    assert files(work) == before
    workspaces.undo(applied)
    assert files(origin) == origin_before
    assert unapplied(workspaces)
    redo = workspaces.operations()[0].operation_id
    workspaces.undo(redo)
    pass_time(8 * DAY)
    workspaces.snapshot(desk.id)
    pass_time(2 * DAY)
    workspaces.sweep()
    assert os.listdir(f"{workspaces._home.path}/applied") == []
    for operation in workspaces.operations():
        with pytest.raises(Conflict, match=operation.operation_id):
            workspaces.undo(operation.operation_id)
    with pytest.raises(OperationNotFound):
        workspaces.undo()
    check_store(workspaces)
    assert files(work) == before


def test_the_trash_keeps_its_states_until_it_is_emptied(
    workspaces: Local, desk: Workspace, pass_time: Clock, home_path: str
) -> None:
    work = Path(desk.path, "work")
    for number in range(3):
        (work / "large.bin").write_bytes(os.urandom(200_000 + number))
        workspaces.snapshot(desk.id)
    held = files(work) if not (work / "large.bin").unlink() else {}
    every = kept(workspaces)
    pass_time(5 * DAY)
    workspaces.destroy(desk.id, force=True)
    pass_time(6 * DAY)
    assert [candidate.kind for candidate in workspaces.sweep()] == ["trash"]
    workspaces.undo()
    assert kept(workspaces)[: len(every)] == every
    assert files(work) == held
    check_store(workspaces)
    workspaces.destroy(desk.id, force=True)
    pass_time(8 * DAY)
    planned = workspaces.sweep(dry_run=True)
    assert {candidate.kind for candidate in planned} == {"trash", "objects"}
    assert sum(candidate.bytes for candidate in planned) > 600_000
    workspaces.sweep()
    assert workspaces._home.log.find_all("snapshot") == []
    with open_store(workspaces._home) as store:
        assert store.index().execute("SELECT COUNT(*) FROM objects").fetchone() == (0,)
    assert names_in(f"{home_path}/snapshots/caches") == []
    workspaces.verify()


def test_forks_share_layers_until_the_last_state_on_them_goes(
    workspaces: Local, desk: Workspace, pass_time: Clock, home_path: str
) -> None:
    frozen = Path(home_path, "workspaces", ".carrel", "frozen")
    work = Path(desk.path, "work")
    workspaces.snapshot(desk.id, label="before the fork")
    before = files(work)
    (fork,) = workspaces.fork(desk.id)
    write(work, {"after.txt": "x"})
    workspaces.snapshot(desk.id, label="after the fork")
    after = files(work)
    assert os.listdir(frozen)
    workspaces.sweep(everything=True)
    for label, state in (("before the fork", before), ("after the fork", after)):
        workspaces.restore(desk.id, label)
        assert files(work) == state
    workspaces.destroy(desk.id, force=True)
    workspaces.sweep(everything=True)
    assert os.listdir(frozen)
    assert files(Path(fork.path, "work")) == before
    workspaces.destroy(fork.id, force=True)
    workspaces.sweep(everything=True)
    assert os.listdir(frozen) == []
    check_whole(workspaces, home_path)


def test_what_another_home_keeps_in_the_same_log_is_left_alone(
    tmp_path: Path, settings: Settings, postgres_url: str
) -> None:
    shared = settings.replace(store=settings.store.replace(url=postgres_url))
    first, second = (workstead.open(str(tmp_path / name), settings=shared) for name in ("one", "two"))
    with first as one, second as two:
        for number, each in enumerate((one, two)):
            desk = each.create(id=f"t/{number}")
            write(Path(desk.path, "work"), {"x": str(number) * 1000})
            each.snapshot(desk.id)
        one.sweep()
        two.sweep()
        check = [contents(each, each.snapshots(f"t/{number}")[-1].root) for number, each in enumerate((one, two))]
        assert check == [{"x": "0" * 1000}, {"x": "1" * 1000}]


def test_a_sweep_beside_busy_workspaces_takes_nothing_that_is_needed(
    home_path: str, settings: Settings, origin: Path
) -> None:
    keep_nothing = settings.snapshots.replace(keep_all_days=0, keep_hourly_days=0, keep_daily_days=0)
    impatient = settings.replace(snapshots=keep_nothing)

    def work_on(number: int) -> None:
        with workstead.open(home_path, settings=impatient) as workspaces:
            desk = workspaces.create("empty" if number else f"overlay:{origin}", id=f"t/{number}")
            work = Path(desk.path, "work")
            for turn in range(12):
                write(work, {f"{turn % 4}.txt": f"{number} {turn} " * 500})
                workspaces.snapshot(desk.id)
                if turn % 4 == 3:
                    before = files(work)
                    workspaces.apply(desk.id, to=f"folder:{origin}-{number}")
                    operation, _ = workspaces.restore(desk.id, "base")
                    workspaces.undo(operation)
                    assert files(work) == before

    def keep_sweeping() -> None:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            with workstead.open(home_path, settings=impatient) as workspaces:
                workspaces.sweep()

    for number in range(3):
        os.mkdir(f"{origin}-{number}")
    wait_all([fork(keep_sweeping), *(fork(lambda n=n: work_on(n)) for n in range(3))])  # type: ignore[misc]
    with workstead.open(home_path, settings=impatient) as workspaces:
        assert len(workspaces.list()) == 3
        workspaces.sweep()
        check_store(workspaces)
        assert workspaces.repair() == []


def test_damage_to_the_store_is_named_and_nothing_is_dropped_then(
    workspaces: Local, desk: Workspace, home_path: str
) -> None:
    Path(desk.path, "work", "large.bin").write_bytes(os.urandom(300_000))
    taken = workspaces.snapshot(desk.id)
    assert workspaces.repair() == []
    packs = Path(home_path, "snapshots", "packs")
    largest = max(packs.iterdir(), key=lambda path: path.stat().st_size)
    largest.unlink()
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        Path(home_path, "snapshots", name).unlink(missing_ok=True)
    (finding,) = workspaces.repair()
    assert taken.id in finding.what
    left = sorted(packs.iterdir())
    with pytest.raises(StoreDamaged):
        workspaces.sweep()
    assert sorted(packs.iterdir()) == left


# -- against a model ---------------------------------------------------------------------------------------------------


class Model:
    """Everything that should be there, as plain dicts."""

    def __init__(self) -> None:
        self.states: dict[str, dict[str, str]] = {}
        self.taken_at: dict[str, float] = {}
        self.labelled: set[str] = set()
        self.undo: list[tuple[str, float, dict[str, str], dict[str, str]]] = []  # what each operation found


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_is_promised_ever_goes(seed: int, workspaces: Local, origin: Path, pass_time: Clock) -> None:
    chance = random.Random(seed)
    desk = workspaces.create(id="fix/a")
    work = Path(desk.path, "work")
    model = Model()
    counter = 0

    def learn() -> None:
        for each in workspaces.snapshots(desk.id)[1:]:
            if each.id not in model.states:
                model.states[each.id] = contents(workspaces, each.root)
                model.taken_at[each.id] = each.taken_at

    def edit() -> None:
        nonlocal counter
        counter += 1
        name = f"f{chance.randrange(6)}/{chance.randrange(3)}.txt"
        if (work / name).exists() and chance.random() < 0.3:
            os.unlink(work / name)
        else:
            write(work, {name: f"{counter} " * chance.randrange(1, 500)})

    def snapshot() -> None:
        label = f"label {counter}" if chance.random() < 0.15 else ""
        taken = workspaces.snapshot(desk.id, label=label)
        assert contents(workspaces, taken.root) == files(work)
        if label:
            model.labelled.add(taken.id)

    def restore() -> None:
        wanted = chance.choice(workspaces.snapshots(desk.id)[1:] or workspaces.snapshots(desk.id))
        found = files(work), files(origin)
        operation, _ = workspaces.restore(desk.id, wanted.id)
        if wanted.id in model.states:
            assert files(work) == model.states[wanted.id]
        model.undo.append((operation, pass_time.time(), *found))

    def apply() -> None:
        found = files(work), files(origin)
        operation = workspaces.apply(desk.id, to=f"folder:{origin}").operation_id
        assert unapplied(workspaces) == []
        assert {name: text for name, text in files(origin).items() if name.startswith("f")} == files(work)
        if operation:
            model.undo.append((operation, pass_time.time(), *found))

    def undo() -> None:
        while model.undo and model.undo[-1][1] < pass_time.time() - 7 * DAY:
            model.undo.pop()
        if not model.undo:
            return
        operation, _, work_then, origin_then = model.undo.pop()
        was_restore = next(each for each in workspaces.operations() if each.operation_id == operation).kind == "restore"
        workspaces.undo(operation)
        assert (files(work) if was_restore else files(origin)) == (work_then if was_restore else origin_then)

    def sweep() -> None:
        planned = {each.name for each in workspaces.sweep(dry_run=True) if each.kind == "snapshot"}
        before = set(kept(workspaces))
        workspaces.sweep()
        left = set(kept(workspaces))
        assert before - left == planned
        assert model.labelled <= left
        assert max(model.taken_at, key=lambda each: model.taken_at[each], default="base") in left
        assert {each for each, when in model.taken_at.items() if when > pass_time.time() - DAY} <= left
        for each in workspaces.snapshots(desk.id)[1:]:
            assert contents(workspaces, each.root) == model.states[each.id]
        check_store(workspaces)

    acts = [edit] * 8 + [snapshot] * 4 + [restore, apply, undo, sweep]
    for _ in range(60):
        chance.choice(acts)()
        learn()
        pass_time(chance.choice((MINUTE, HOUR, HOUR, 5 * HOUR, DAY)))
    sweep()
    apply()


def test_layers_of_forks_go_also_before_any_state_was_kept(workspaces: Local, home_path: str) -> None:
    parent = workspaces.create(id="fix/a")
    write(Path(parent.path, "work"), {"large.bin": "x" * 100_000})
    workspaces.fork("fix/a", new_id="fix/b")
    frozen = Path(workspaces._home.private, "frozen")
    assert len(list(frozen.iterdir())) == 1
    assert not Path(home_path, "snapshots").exists()
    assert not any(each.goes for each in workspaces.sweep())  # both still lie on it
    workspaces.destroy("fix/a", "fix/b", force=True)
    workspaces.sweep(everything=True)
    assert list(frozen.iterdir()) == []
    assert not Path(home_path, "snapshots").exists()
