"""Random edits, snapshots, applies, restores and undos over a folder that is used in place, against a model.

The folder is the lowest layer of the workspace and an apply writes into it: a state that was kept before has to be the
same afterwards. The model knows only how to describe a directory.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import workstead
from needs import need_root
from workstead.core.snapshots import of_workspace
from workstead.core.states import open_store
from workstead.errors import FileNotFound, OriginMoved
from workstead.local import Local
from workstead.settings import load_settings
from workstead.snapshots.gc import verify

sys.path.insert(0, str(Path(__file__).parent.parent / "snapshots"))

from desks import Description, describe

from properties.test_snapshots_properties import link, make_folder, remove, rewrite_in_place, touch, write

NAMES = ["a", "b", "c.txt", "with space", "new\nline"]
names = st.sampled_from(NAMES)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
contents = st.sampled_from([b"", b"one\n", b"two\n", b"text\n" * 50, b"\0binary"])
modes = st.sampled_from([0o644, 0o600, 0o755])
Edit = tuple[Callable[..., None], *tuple[object, ...]]  # what is done, and with what
edit: st.SearchStrategy[Edit] = st.one_of(
    st.tuples(st.just(write), paths, contents, modes),
    st.tuples(st.just(link), paths, names),
    st.tuples(st.just(make_folder), paths, modes),
    st.tuples(st.just(remove), paths),
    st.tuples(st.just(touch), paths, st.integers(-(2**66), 2**66)),
    st.tuples(st.just(rewrite_in_place), paths),
)
step = st.one_of(
    st.tuples(st.just("edit"), st.lists(edit, min_size=1, max_size=5)),
    st.tuples(st.just("edit"), st.lists(edit, min_size=1, max_size=5)),
    st.tuples(st.just("take"), st.none()),
    st.tuples(st.just("apply"), st.none()),
    st.tuples(st.just("apply"), paths),
    st.tuples(st.just("restore"), st.integers(0, 5)),
    st.tuples(st.just("undo"), st.none()),
    st.tuples(st.just("remount"), st.none()),
    st.tuples(st.just("mine"), contents),
    st.tuples(st.just("fork"), st.integers(0, 5)),
)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def home() -> Iterator[Local]:
    need_root()
    with TemporaryDirectory(dir="/dev/shm") as scratch:
        chosen = load_settings({"HOME": scratch}, scratch, system_directory=f"{scratch}/no-etc")
        with workstead.open(f"{scratch}/home", settings=chosen) as opened:
            yield opened
            opened.sweep(everything=True)


class Game:
    """A folder, a workspace over it, and what was seen in it."""

    def __init__(self, workspaces: Local, folder: Path) -> None:
        self.workspaces = workspaces
        self.folder = folder
        self.id = f"game-{next(_numbers)}/a"
        self.work = Path(workspaces.create(f"overlay:{folder}", id=self.id).path, "work")
        self.kept: list[tuple[str, Description]] = [("base", self.seen())]
        self.undone: list[tuple[Description, Description]] = []  # work and folder before each operation
        self.child: tuple[Path, Description, set[str]] | None = None  # a fork, what is its own, what it has not

    def seen(self) -> Description:
        """What is in the workspace; what the user has in `mine` is the user's."""
        found = describe(self.work)
        return {name: each for name, each in found.items() if name.split("/")[0] != "mine"}

    def there(self) -> Description:
        return describe(self.folder, times=False)

    def play(self, what: str, detail: object) -> None:
        getattr(self, f"do_{what}")(detail)
        self.look_at_child()

    def look_at_child(self) -> None:
        """What is a fork's own stays, whatever happens to its parent and the folder."""
        if self.child is not None:
            work, own, without = self.child
            found = describe(work)
            assert {name: found.get(name) for name in own} == own
            assert without.isdisjoint(found)

    def do_edit(self, edits: list[Edit]) -> None:
        for act, *arguments in edits:
            act(self.work, *arguments)

    def do_take(self, _: None) -> None:
        self.kept.append((self.workspaces.snapshot(self.id).id, self.seen()))

    def do_apply(self, path: str | None) -> None:
        before = (self.seen(), self.there())
        try:
            done = self.workspaces.apply(self.id, [path] if path else [])
        except FileNotFound:  # in neither state
            assert (self.seen(), self.there()) == before
            return
        assert self.seen() == before[0]
        if done.operation_id:
            self.undone.append(before)
            self.kept[0] = ("base", self.kept[0][1] if path else self.seen())
        if not path:
            assert self.workspaces.status(self.id) == ()

    def do_restore(self, number: int) -> None:
        name, state = self.kept[number % len(self.kept)]
        if name == "base":
            return  # it moves with every apply
        before = (self.seen(), self.there())
        self.workspaces.restore(self.id, name)
        assert self.seen() == state
        self.undone.append(before)

    def do_undo(self, _: None) -> None:
        newest = [each for each in self.workspaces.operations() if each.workspaces == [self.id]]
        open_ones = [each for each in newest if each.kind in ("restore", "apply") and not each.undone_by]
        if not open_ones:
            return
        work, there = self.undone.pop()
        now = (self.seen(), self.there())
        self.workspaces.undo(open_ones[0].operation_id)
        if open_ones[0].kind == "restore":
            assert self.seen() == work
            assert self.there() == now[1]
        else:
            assert self.seen() == now[0]
            mine = {name: each for name, each in now[1].items() if name.split("/")[0] == "mine"}
            ours = {name: each for name, each in there.items() if name.split("/")[0] != "mine"}
            assert self.there() == {**ours, **mine}

    def do_remount(self, _: None) -> None:
        before = self.seen()
        subprocess.run(["umount", self.work], check=True)
        self.workspaces.path(self.id)
        assert self.seen() == before
        if self.child is not None:
            subprocess.run(["umount", self.child[0]], check=True)
            self.workspaces.path(f"{self.child[0].parent.parent.name}/{self.child[0].parent.name}")

    def do_mine(self, content: bytes) -> None:
        (self.folder / "mine/note").write_bytes(content)

    def do_fork(self, number: int) -> None:
        name, state = self.kept[number % len(self.kept)]
        if name == "base":
            return
        (child,) = self.workspaces.fork(self.id, new_id=f"{self.id}-fork-{next(_numbers)}", snapshot=name)
        work = Path(child.path, "work")
        found = describe(work)
        assert {name: each for name, each in found.items() if name.split("/")[0] != "mine"} == state
        if self.child is not None:
            self.workspaces.destroy(child.id, force=True)
            return
        there = describe(self.folder)
        own = {name: each for name, each in state.items() if each[0] != "dir" and there.get(name) != each}
        self.child = (work, own, there.keys() - state.keys() - {"mine", "mine/note"})

    def end(self) -> None:
        home = self.workspaces._home
        with open_store(home) as store:
            roots = [each.root for each in of_workspace(home, self.workspaces.get(self.id))]
            assert verify(store, [root for root in roots if len(root) == 64]) == []
        for name, state in self.kept[1:]:
            self.workspaces.restore(self.id, name)
            assert self.seen() == state

    def leave(self) -> None:
        """Whatever was found, nothing is mounted over the folder when it goes."""
        for workspace in self.workspaces.list():
            self.workspaces.destroy(workspace.id, force=True)


@settings(
    max_examples=int(os.environ.get("AW_EXAMPLES", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    print_blob=True,
)
@given(before=st.lists(edit, max_size=6), steps=st.lists(step, min_size=6, max_size=14))
def test_a_kept_state_outlives_what_is_applied_after_it(
    home: Local, before: list[Edit], steps: list[tuple[str, object]]
) -> None:
    note(f"{before}, {steps}")
    play(home, before, steps)


def play(home: Local, before: list[Edit], steps: list[tuple[str, object]]) -> None:
    """One game over a folder that begins with some edits."""
    with TemporaryDirectory(dir="/dev/shm") as scratch:
        folder = Path(scratch, "folder")
        (folder / "mine").mkdir(parents=True)
        for act, *arguments in before:
            act(folder, *arguments)
        game = Game(home, folder)
        try:
            for what, detail in steps:
                game.play(what, detail)
            game.end()
        finally:
            game.leave()


@pytest.mark.parametrize("is_remembered", [True, False], ids=["with a stat cache", "without"])
@pytest.mark.parametrize(
    "edits",
    [
        pytest.param([(link, "a", "b")], id="a link for a file"),
        pytest.param([(write, "a/b", b"one\n", 0o644)], id="a folder for a file"),
        pytest.param([(write, "b", b"two\n", 0o644)], id="a file for a folder"),
        pytest.param([(remove, "b")], id="no folder any more"),
        pytest.param([(remove, "a")], id="no file any more"),
        pytest.param([(write, "a", b"two\n", 0o644)], id="another text"),
    ],
)
def test_what_was_taken_back_can_be_given_back_again(
    home: Local, edits: list[Edit], is_remembered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the random games found: an undo gives files a new ctime, and nothing knew that they are what they were."""
    if not is_remembered:
        monkeypatch.setattr("workstead.snapshots.cache.save", lambda *_: None)
    before: list[Edit] = [(write, "a", b"one\n", 0o644), (write, "b/c.txt", b"one\n", 0o644)]
    again: list[tuple[str, object]] = [("apply", None), ("undo", None)]
    play(home, before, [("edit", edits), *again, *again, ("apply", None)])


@pytest.mark.parametrize("was", [(link, "b", "a"), (write, "b", b"one\n", 0o644)], ids=["a link", "a file"])
def test_a_file_in_a_directory_that_took_the_place_of_something_is_given_back_alone(home: Local, was: Edit) -> None:
    edits = [(write, "b/a", b"", 0o644), (write, "b/c.txt", b"", 0o644)]
    again: list[tuple[str, object]] = [("apply", "b/a"), ("undo", None)]
    play(home, [was], [("edit", edits), ("take", None), *again, *again, ("apply", "b/a"), ("apply", None)])


_FORKED: list[tuple[str, object]] = [("take", None), ("fork", 1)]  # what was changed so far is a layer below from here


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            [("edit", [(write, "a/a", b"", 0o644)]), *_FORKED, ("apply", None), ("remount", None), ("undo", None)],
            id="a directory of the layer below",
        ),
        pytest.param(
            [
                *(("edit", [(write, "a/a", b"", 0o644)]), *_FORKED, ("edit", [(write, "a/b", b"", 0o644)])),
                *(("apply", None), ("remount", None), ("undo", None), ("remount", None), ("apply", None)),
            ],
            id="a directory of both layers",
        ),
        pytest.param(
            [
                *(("edit", [(write, "a/a/a", b"", 0o644)]), *_FORKED),
                *(("edit", [(write, "a", b"two\n", 0o644), (make_folder, "a/b/c.txt", 0o700)]), *_FORKED),
                *(("edit", [(make_folder, "a/a/c.txt", 0o755)]), ("apply", None), ("remount", None), ("undo", None)),
            ],
            id="a directory of three layers",
        ),
        pytest.param(
            [
                *(("edit", [(write, "a", b"", 0o644)]), *_FORKED, ("apply", None)),
                *(("edit", [(write, "a/a", b"", 0o644)]), ("apply", None)),
            ],
            id="a directory for a file of the layer below",
        ),
    ],
)
def test_a_workspace_that_was_forked_keeps_its_files_when_it_applies(
    home: Local, steps: list[tuple[str, object]]
) -> None:
    play(home, [], steps)


def test_what_the_user_edits_after_an_undo_is_not_overwritten(home: Local) -> None:
    with TemporaryDirectory(dir="/dev/shm") as scratch:
        folder = Path(scratch, "folder")
        (folder / "b").mkdir(parents=True)
        (folder / "b/c.txt").write_bytes(b"one\n")
        game = Game(home, folder)
        try:
            game.do_edit([(remove, "b")])
            game.do_apply(None)
            game.do_undo(None)
            (folder / "b/c.txt").write_bytes(b"mine\n")
            with pytest.raises(OriginMoved):
                home.apply(game.id)
            assert (folder / "b/c.txt").read_bytes() == b"mine\n"
        finally:
            game.leave()
