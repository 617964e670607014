"""Kill at every effect of asking, deciding and using: what is approved is done once, or not at all."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import workstead
from situations import check_after_crash, killed_at_effect
from workstead.errors import ApprovalRequired
from workstead.local import Local
from workstead.settings import Settings

DESK = "fix/a"
STEP = int(os.environ.get("AW_CRASH_STEP", "2"))  # 1 is every effect


class Scene:
    """A home of its own with one file that an agent wants to overwrite."""

    def __init__(self, top: Path, settings: Settings) -> None:
        self.home = str(top / "home")
        self.settings = settings
        with self.open() as workspaces:
            self.file = Path(workspaces.create(id=DESK).path, "work/a.py")
            workspaces.write_file(DESK, "work/a.py", "one\n")

    def open(self, **who: object) -> Local:
        return workstead.open(self.home, settings=self.settings, **who)  # type: ignore[arg-type]

    def wish(self) -> str:
        """Try it, and give the question that has to be answered first; "" if it was done."""
        with self.open(actor_id="bot", agent_of=DESK) as agent:
            try:
                agent.write_file(DESK, "work/a.py", "two\n")
                return ""
            except ApprovalRequired as asked:
                return str(asked.details["approval_id"])

    def grant(self) -> None:
        with self.open() as workspaces:
            for each in workspaces.approvals():
                workspaces.approve(each.id)

    def states(self) -> list[str]:
        with self.open() as workspaces:
            return [each.state for each in workspaces.approvals(all=True)]


def ask(scene: Scene) -> None:
    scene.wish()


def granted(scene: Scene) -> None:
    scene.wish()
    scene.grant()


def nothing(_: Scene) -> None:
    """As it is."""


# what is done before, and what is killed
ACTS: dict[str, tuple[Callable[[Scene], None], Callable[[Scene], None]]] = {
    "asking": (nothing, ask),
    "deciding": (ask, Scene.grant),
    "using": (granted, ask),
}


@pytest.fixture
def scenes(tmp_path: Path, settings: Settings) -> Callable[[], Scene]:
    numbers = itertools.count()

    def make() -> Scene:
        top = tmp_path / str(next(numbers))
        top.mkdir()
        return Scene(top, settings)

    return make


@pytest.mark.parametrize("act", ACTS)
def test_killed_while(act: str, scenes: Callable[[], Scene]) -> None:
    before, killed = ACTS[act]
    for number in itertools.count(1, STEP):
        scene = scenes()
        before(scene)
        with suppress(ApprovalRequired):
            was_killed = killed_at_effect(number, lambda scene=scene: killed(scene))
        check(scene)
        finish(scene)
        if not was_killed:
            break
    assert number > STEP  # there was something to kill


def check(scene: Scene) -> None:
    """Log and disk say the same, whenever it died."""
    check_after_crash(scene.home, scene.settings)
    states = scene.states()
    assert len([state for state in states if state in ("open", "granted")]) <= 1
    with scene.open() as workspaces:
        used = list(workspaces.events(types=["approval_used"]))
        written = [event for event in workspaces.events(types=["file_written"]) if event.actor_id == "bot"]
        workspaces.verify().check()
    assert len(used) == len(written) <= 1  # written down together, before it happens
    content = scene.file.read_text()
    assert content in ("one\n", "two\n")
    assert content == "one\n" or used


def finish(scene: Scene) -> None:
    """What was interrupted is simply tried again, and asked again if its grant was used up."""
    for _ in range(3):
        if not scene.wish():
            break
        scene.grant()
    assert scene.file.read_text() == "two\n"
    assert [name for name in os.listdir(scene.file.parent) if not name.startswith(".aw-")] == ["a.py"]
    with scene.open() as workspaces:
        while workspaces.read_file(DESK, "work/a.py") == b"two\n":
            workspaces.undo()
        assert workspaces.read_file(DESK, "work/a.py") == b"one\n"
