"""Somebody saves files at random while changes are applied and taken back: no save is lost.

The editor writes in place, over an open file, or beside and renames, as editors do. Each save has a text of its own. In
the end the last one of each file is in the folder, or in a copy that the apply kept and named.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "snapshots"))

from desks import Desk

from people import Person
from situations import fork, wait
from waiting import wait_until
from workstead.errors import OriginMoved
from workstead.model.change import Plan
from workstead.snapshots import apply as applying
from workstead.snapshots.apply import Outcome, apply_plan, finish_apply, reverse
from workstead.snapshots.journal import drop_journal
from workstead.snapshots.merge import Folder, plan_merge

FILES = [f"d{number % 3}/f{number}" for number in range(24)]
ROUNDS = 40
SAVES = 4

EDITOR = """
import os, random, sys, time

def save(path, text, how):
    if how == "beside":
        with open(path + "~", "w") as file:
            file.write(text)
        os.rename(path + "~", path)
        return
    with open(path, "r+" if how == "held" and os.path.exists(path) else "w") as file:
        if how == "held":
            time.sleep(0)
            file.truncate()
        file.write(text)
        file.flush()

def edit(folder, files, saves, seed, out, pause):
    chance = random.Random(seed)
    for number in range(saves):
        time.sleep(chance.uniform(0, pause))
        path, text = chance.choice(files), f"saved {seed} {number}"
        try:
            save(f"{folder}/{path}", text, chance.choice(["beside", "in place", "held"]))
        except FileNotFoundError:  # its directory is gone: the person sees that
            continue
        out.write(f"{path}\\t{text}\\n")
        out.flush()
"""
exec(EDITOR)  # the same in this process and in one of another user


def last_saves(path: Path) -> dict[str, str]:
    return dict(line.split("\t") for line in path.read_text().splitlines())


def lost_of(folder: Path, saved: dict[str, str], kept: list[str]) -> list[str]:
    copies = [(folder / each).read_text() for each in kept]
    return [
        path
        for path, text in saved.items()
        if not ((folder / path).exists() and text in (folder / path).read_text())
        and not any(text in copy for copy in copies)
    ]


class Table:
    """A folder, a plan that changes, deletes and adds files in it, and a person who edits meanwhile."""

    def __init__(self, scratch: Path) -> None:
        self.desk = Desk(scratch)
        self.folder = scratch / "origin"
        self.journal = str(scratch / "journal")
        self.log = scratch / "saves"
        for path in FILES:
            self.desk.write(path, f"base of {path}\n")
        self.base = self.desk.take().root
        self.pristine = scratch / "pristine"
        shutil.copytree(self.desk.work, self.pristine)
        for number, path in enumerate(FILES):
            if number % 8 == 7:
                (self.desk.work / path).unlink()
            else:
                self.desk.write(path, f"agent's {path}\n")
        self.desk.write("d0/new", "agent's\n")
        self.theirs = self.desk.take().root

    def lay_out(self) -> Plan:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.pristine, self.folder)
        self.log.write_text("")
        with (
            self.desk.tree(self.base) as base,
            self.desk.tree(self.theirs) as theirs,
            Folder(str(self.folder)) as ours,
            self.desk.store.writer() as writer,
        ):
            made = plan_merge(base, ours, theirs, writer)
            writer.commit()
            return made

    def edit_during(
        self, seed: int, act: Callable[[], list[str]], *, pause: float, saves: int = SAVES
    ) -> tuple[list[str], int]:
        """Do it while somebody saves; what is lost, and how many were saved."""

        def editing() -> None:
            with open(self.log, "w") as out:
                edit(str(self.folder), [*FILES, "d0/new"], saves, seed, out, pause)  # type: ignore[name-defined]  # noqa: F821

        editor = fork(editing)
        kept = act()
        assert wait(editor) == 0
        saved = last_saves(self.log)
        return lost_of(self.folder, saved, kept), len(saved)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def kept_in(folder: Path) -> list[str]:
    return [str(each.relative_to(folder)) for each in folder.glob("aw-kept-*/**/*") if each.is_file()]


def cannot(*_: object) -> None:
    raise OSError(errno.EINVAL, "Invalid argument")


@pytest.mark.parametrize("can_exchange", [True, False], ids=["", "no exchange"])
@pytest.mark.parametrize("also_back", [False, True], ids=["apply", "apply and undo"])
def test_no_save_is_lost_during_an_apply_or_its_undo(
    table: Table, also_back: bool, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:  # as some network file systems
        monkeypatch.setattr(applying, "rename_exchange", cannot)
    ends = {"done": 0, "moved": 0}
    pause = 0.0
    for seed in range(ROUNDS):
        made = table.lay_out()

        def act(made: Plan = made) -> list[str]:
            kept: list[str] = []
            try:
                done = apply_plan(table.desk.store, made, str(table.folder), table.journal)
                kept += done.kept
                if also_back:
                    kept += apply_plan(table.desk.store, reverse(done.plan), str(table.folder), table.journal).kept
                ends["done"] += 1
            except OriginMoved as moved:
                kept += moved.details.get("kept", [])
                ends["moved"] += 1
            return kept

        began = time.monotonic()
        lost, _ = table.edit_during(seed, act, pause=pause, saves=min(seed, 1 + seed % 3))
        # The first time nobody saves anything. That long the others may wait, so that some saves come too late to meet.
        pause = pause or 2 * (time.monotonic() - began)
        assert lost == []
        assert not list(table.folder.glob(".aw-apply-*"))
    assert all(ends.values()), ends


def test_twin_looking_first_and_renaming_then_loses_saves(table: Table) -> None:
    lost: list[str] = []
    for seed in range(400):
        made = table.lay_out()

        def act(made: Plan = made) -> list[str]:
            for step in made.steps:
                path = table.folder / step.path
                if step.action == "write" and path.exists() and path.read_text().startswith("base"):
                    new = table.folder / "new~"
                    new.write_text("agent's")
                    os.replace(new, path)
            return []

        lost, _ = table.edit_during(seed, act, pause=0.001)
        if lost:
            break
    assert lost


def test_a_killed_apply_is_never_finished_over_what_was_saved_since(table: Table) -> None:
    """The person goes on working; days later some command finds the journal."""
    ends = set()
    for seed in range(ROUNDS):
        made = table.lay_out()
        chance = random.Random(seed)
        renames = chance.randrange(len(made.steps))

        def die(made: Plan = made, renames: int = renames) -> None:
            left = [renames]

            def hook(event: str, arguments: tuple[object, ...]) -> None:
                if event == "os.rename" and str(arguments[0]).isdigit() | str(arguments[1]).isdigit():
                    left[0] -= 1
                    if left[0] < 0:
                        os._exit(9)

            sys.addaudithook(hook)
            apply_plan(table.desk.store, made, str(table.folder), table.journal)

        assert wait(fork(die)) == 9
        lost, saved = table.edit_during(seed, list, pause=0)
        assert lost == []
        assert saved
        outcome = finish_apply(made, table.journal)
        assert outcome is not None
        drop_journal(table.journal)
        assert lost_of(table.folder, last_saves(table.log), list(outcome.kept)) == []
        assert not list(table.folder.glob(".aw-apply-*"))
        ends.add(outcome.done)
    assert ends == {True, False}


def test_a_program_that_holds_the_old_file_open_writes_to_a_copy_that_is_named(table: Table) -> None:
    made = table.lay_out()
    with open(table.folder / FILES[0], "a") as held:
        done: Outcome = apply_plan(table.desk.store, made, str(table.folder), table.journal)
        held.write("later")
    assert [each.partition("/")[2] for each in done.kept] == [FILES[0]]
    assert (table.folder / done.kept[0]).read_text() == f"base of {FILES[0]}\nlater"


def test_no_save_is_lost_through_the_program(person: Person) -> None:
    folder = person.folder("p", {path: f"base of {path}\n" for path in FILES})
    script = "for f in d*/f*; do echo agent > $f; done; rm d1/f7; echo x > d0/new"
    person.aw_ok("run", "--id", "c1/a", "--source", str(folder), "--", "sh", "-c", script)
    log = person.directory / "saves"
    tail = f"with open({str(log)!r}, 'a') as out: edit({str(folder)!r}, {FILES!r}, 12, int(sys.argv[1]), out, 0.1)"
    kept: list[str] = []
    for seed in range(6):
        editor = person.start(["/usr/bin/python3", "-c", EDITOR + tail, str(seed)])
        try:
            wait_until(log.exists)
            words = ("apply", "c1/a") if seed % 2 == 0 else ("undo",)
            done = person.aw("--format", "json", *words)
            assert done.returncode in (0, 3, 4), done.stdout + done.stderr
            answer = json.loads(done.stdout)
            kept += answer.get("kept") or answer.get("details", {}).get("kept", [])
        finally:
            assert editor.wait() == 0
        # A later save of the same file is the person's own; only apply and undo are on trial.
        named = {*kept, *kept_in(folder)}
        assert lost_of(folder, last_saves(log), sorted(named)) == []
