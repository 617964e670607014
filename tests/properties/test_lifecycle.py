"""A state machine over the lifecycle: whatever order things happen in, a plain model knows what must be there."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import workstead
from situations import check_whole, killed_at_effect
from workstead.errors import OperationNotFound, WorkspaceExists, WorkspaceNotFound
from workstead.local import Local
from workstead.settings import load_settings

IDS = st.sampled_from(["t/a", "t/b", "u", "ü ~/.", "t/%61"])
EFFECTS = st.integers(1, 45)


class Desk:
    """What the model knows of one workspace."""

    def __init__(self, content: str) -> None:
        self.content = content


class Lifecycle(RuleBasedStateMachine):
    """`live` and `trash` are the whole truth; each operation is the list of desks that it threw away."""

    workspaces: Local

    @initialize()
    def begin(self) -> None:
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.top = tempfile.mkdtemp(prefix="workstead-", dir=shared)
        self.home = os.path.join(self.top, "home")
        self.settings = load_settings({"HOME": self.top}, self.top, system_directory=self.top)
        self.live: dict[str, Desk] = {}
        self.destroyed: list[dict[str, Desk]] = []  # newest last; what one undo brings back
        self.known: set[str] = set()
        self.count = 0
        self.open()

    def open(self) -> None:
        self.workspaces = workstead.open(self.home, settings=self.settings)

    def teardown(self) -> None:
        if hasattr(self, "workspaces"):
            self.workspaces.close()
            shutil.rmtree(self.top)

    # -- what one can do --

    @rule(id=IDS)
    def create(self, id: str) -> None:
        if id in self.live:
            with pytest.raises(WorkspaceExists):
                self.workspaces.create(id=id)
            return
        self.workspaces.create(id=id)
        self.live[id] = self.write(id)
        self.known.add(id)

    def write(self, id: str) -> Desk:
        self.count += 1
        desk = Desk(f"{id} {self.count}")
        Path(self.workspaces.get(id).path, "work", "file").write_text(desk.content)
        return desk

    @rule(ids=st.lists(IDS, min_size=1, max_size=3, unique=True))
    def destroy(self, ids: list[str]) -> None:
        if set(ids) - self.known:
            with pytest.raises(WorkspaceNotFound):
                self.workspaces.destroy(*ids)
            return
        self.workspaces.destroy(*ids)
        gone = {id: self.live.pop(id) for id in ids if id in self.live}
        if gone:
            self.destroyed.append(gone)

    @rule()
    def undo(self) -> None:
        if not self.destroyed:
            with pytest.raises(OperationNotFound):
                self.workspaces.undo()
            return
        back = self.destroyed[-1]
        if back.keys() & self.live.keys():
            with pytest.raises(WorkspaceExists):
                self.workspaces.undo()
            return
        self.workspaces.undo()
        self.live.update(self.destroyed.pop())

    @rule()
    def sweep_what_is_due(self) -> None:
        assert not any(candidate.goes for candidate in self.workspaces.sweep())

    @precondition(lambda self: self.destroyed)
    @rule()
    def empty_the_trash(self) -> None:
        self.workspaces.sweep(everything=True)
        self.destroyed.clear()

    @rule()
    def reopen(self) -> None:
        self.workspaces.close()
        self.open()

    # -- what may happen to anybody --

    @rule(id=IDS, effect=EFFECTS)
    def die_while_creating(self, id: str, effect: int) -> None:
        if id in self.live:
            return
        self.die(effect, lambda workspaces: workspaces.create(id=id))
        if self.workspaces.exists(id):
            self.live[id] = self.write(id)
            self.known.add(id)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), effect=EFFECTS)
    def die_while_destroying(self, data: st.DataObject, effect: int) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.live)), min_size=1, max_size=2, unique=True))
        self.die(effect, lambda workspaces: workspaces.destroy(*ids))
        gone = {id: self.live.pop(id) for id in ids if not self.workspaces.exists(id)}
        if gone:
            self.destroyed.append(gone)

    @precondition(lambda self: self.destroyed and not self.destroyed[-1].keys() & self.live.keys())
    @rule(effect=EFFECTS)
    def die_while_undoing(self, effect: int) -> None:
        self.die(effect, lambda workspaces: workspaces.undo())
        back = {id for id in self.destroyed[-1] if self.workspaces.exists(id)}
        for id in back:
            self.live[id] = self.destroyed[-1].pop(id)
        if not self.destroyed[-1]:
            self.destroyed.pop()

    @precondition(lambda self: self.destroyed)
    @rule(effect=EFFECTS)
    def die_while_emptying_the_trash(self, effect: int) -> None:
        self.die(effect, lambda workspaces: workspaces.sweep(everything=True))
        self.empty_the_trash()

    def die(self, effect: int, act: object) -> None:
        self.workspaces.close()  # a child must not share the parent's connection
        killed_at_effect(effect, lambda: act(workstead.open(self.home, settings=self.settings)))  # type: ignore[operator]
        self.open()
        self.workspaces.repair()

    # -- what must hold --

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        full = {id if "/" in id else f"{id}/main": desk for id, desk in self.live.items()}
        assert {workspace.id for workspace in self.workspaces.list()} == full.keys()
        for id, desk in full.items():
            assert Path(self.workspaces.path(id), "work", "file").read_text() == desk.content
        trashed = [Path(workspace.trash_path, "work", "file").read_text() for workspace in self.workspaces.trash()]
        expected = [desk.content for operation in self.destroyed for desk in operation.values()]
        assert sorted(trashed) == sorted(expected)
        check_whole(self.workspaces, self.home)


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(
    max_examples=int(os.environ.get("AW_EXAMPLES", "40")),
    stateful_step_count=25,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
