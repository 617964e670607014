"""A model decides what a sweep may take; on a real home nothing else ever goes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import workstead
from situations import check_whole
from workstead.local import Local
from workstead.model.event import RunStarting
from workstead.model.value import Value
from workstead.settings import load_settings

DAY = 86400.0
MIB = 1 << 20


class Situation(Value):
    """What is to be true of one workspace."""

    idle_days: int
    size: int = 0  # MiB that no state keeps and nobody misses: files in tmp/
    pinned: bool = False
    runs: bool = False
    held: bool = False
    work: bool = False  # a file in work/, of a workspace that has no origin to give it to
    results: bool = False  # a file in output/
    trashed: bool = False


SITUATIONS = st.lists(
    st.builds(
        Situation,
        idle_days=st.integers(1, 20),
        size=st.integers(0, 2),
        pinned=st.sampled_from([False, False, False, True]),
        runs=st.sampled_from([False, False, False, True]),
        held=st.sampled_from([False, False, False, True]),
        work=st.sampled_from([False, False, True]),
        results=st.sampled_from([False, False, True]),
        trashed=st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=5,
)


class Clock:
    def __init__(self) -> None:
        self.now = time.time() - 400 * DAY

    def time(self) -> float:
        return self.now

    def timestamp(self) -> str:
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(self.now))}.000000Z"


@contextmanager
def a_home(retention: int | None) -> Iterator[tuple[Local, Clock, str]]:
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    top = tempfile.mkdtemp(prefix="workstead-", dir=shared)
    clock = Clock()
    chosen = load_settings({"HOME": top}, top, system_directory=top)
    chosen = chosen.replace(workspaces=chosen.workspaces.replace(retention_days=retention, trash_days=7))
    try:
        with ExitStack() as patches:
            patches.enter_context(mock.patch("workstead.store.log._timestamp", clock.timestamp))
            for module in ("flows.sweep", "core.retention", "core.idle"):
                patches.enter_context(mock.patch(f"workstead.{module}.time", clock))
            with workstead.open(f"{top}/home", settings=chosen) as workspaces:
                yield workspaces, clock, f"{top}/home"
    finally:
        shutil.rmtree(top)


def make(workspaces: Local, clock: Clock, situations: list[Situation]) -> None:
    end = clock.now
    for number in sorted(range(len(situations)), key=lambda each: -situations[each].idle_days):
        situation = situations[number]
        clock.now = end - situation.idle_days * DAY
        desk = workspaces.create(id=f"t/{number}")
        if situation.size:
            Path(desk.path, "tmp", "scratch").write_bytes(os.urandom(situation.size * MIB))
        if situation.work:
            Path(desk.path, "work", "file").write_text("made by hand")
        if situation.results:
            Path(desk.path, "output", "report").write_text("made by an agent")
        if situation.pinned:
            workspaces.pin(desk.id)
        if situation.trashed:
            workspaces.destroy(desk.id, force=True)
            continue
        for name in ("work", "output"):
            os.utime(f"{desk.path}/{name}", (clock.now, clock.now))
        if situation.runs:
            start = RunStarting(
                **desk.names(), run_id=f"run-{number}", command=["x"], sandbox="none", network="none", home=desk.home
            )
            workspaces._home.record("t", start)
    clock.now = end


def may_go(situation: Situation) -> bool:
    free_of_reasons = not (situation.pinned or situation.runs or situation.held)
    return free_of_reasons and not situation.work and not situation.results and not situation.trashed


@settings(
    max_examples=int(os.environ.get("AW_EXAMPLES", "40")), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(SITUATIONS, st.sampled_from([None, 5, 10]), st.sampled_from([None, 1, 3, 100]))
def test_only_what_the_model_lets_go_goes(
    situations: list[Situation], retention: int | None, free_mib: int | None
) -> None:
    with a_home(retention) as (workspaces, clock, home_path), ExitStack() as locks:
        make(workspaces, clock, situations)
        for number, situation in enumerate(situations):
            if situation.held and not situation.trashed:
                locks.enter_context(workspaces._home.hold(f"t/{number}"))
        purged = {n for n, s in enumerate(situations) if s.trashed and s.idle_days >= 7 and not s.pinned}
        gone = {n for n, s in enumerate(situations) if may_go(s) and retention and s.idle_days >= retention}
        if free_mib:
            wanted = free_mib - sum(situations[n].size for n in (*purged, *gone))
            others = [n for n, s in enumerate(situations) if may_go(s) and n not in gone and s.size]
            # Those of one age may go in any order: only ages that are needed at all are taken.
            for number in sorted(others, key=lambda n: (-situations[n].idle_days, f"{n:03}")):
                if wanted > 0:
                    gone.add(number)
                    wanted -= situations[number].size
        planned = workspaces.sweep(dry_run=True, free_bytes=free_mib * MIB if free_mib else None)
        assert {each.workspace_id for each in planned if each.goes} == {f"t/{n}" for n in gone | purged}
        assert all(each.why for each in planned)
        assert len(planned) == len(situations)
        before = {each.id for each in workspaces.list()}
        workspaces.sweep(free_bytes=free_mib * MIB if free_mib else None)
        assert before - {each.id for each in workspaces.list()} == {f"t/{n}" for n in gone}
        left = {f"t/{n}" for n, s in enumerate(situations) if s.trashed} - {f"t/{n}" for n in purged}
        assert {each.id for each in workspaces.trash()} == left | {f"t/{n}" for n in gone}
        for number in gone:  # and nothing of it was lost
            back = workspaces.restore_trashed(f"t/{number}")
            assert os.path.exists(f"{back.path}/tmp/scratch") == bool(situations[number].size)
        locks.close()
        check_whole(workspaces, home_path)
