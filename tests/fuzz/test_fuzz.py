"""Random agents against every host verb. Longer by hand: `./test fuzz --hours 2`, or one game again: `--seed N`."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest

from fuzz.game import Escape, Game
from fuzz.oracle import Outside
from people import Person

SECONDS = float(os.environ.get("AW_FUZZ_SECONDS", "40"))
SEED = os.environ.get("AW_FUZZ_SEED")
STEPS = 40


@pytest.mark.timeout(SECONDS + 600)
def test_no_agent_and_no_folder_leads_a_host_verb_outside(person: Person) -> None:
    seeds = [int(SEED)] if SEED else _new_seeds()
    end = time.monotonic() + SECONDS
    for seed in seeds:
        game = Game(person, seed)
        try:
            game.play(STEPS)
        finally:
            game.close()
        if time.monotonic() > end:
            return


def _new_seeds() -> Iterator[int]:
    while True:
        yield random.SystemRandom().randrange(1 << 30)


def test_the_oracle_sees_a_file_that_is_read_changed_or_shown(person: Person) -> None:
    outside = Outside(person)
    try:
        assert not outside.faults("nothing")
        assert outside.faults(f"it is {outside.token}") == ["printed the content of a file outside"]
        (outside.path / "secret").read_text()
        assert outside.faults("") == ["opened secret"]
        person.do("ls", str(outside.path / "dir"))
        assert outside.faults("") == ["opened dir"]
        (outside.path / "dir" / "secret").chmod(0o644)
        assert outside.faults("") == ["changed something outside"]
    finally:
        outside.close()


def test_the_game_finds_a_verb_that_follows_a_link(person: Person) -> None:
    """The twin: a "verb" that opens a part of the workspace by its name is caught."""
    game = Game(person, 7)
    try:
        link = game.base / "cwd" / "output"
        link.symlink_to(game.outside.path / "secret")
        text = link.read_text()
        with pytest.raises(Escape, match="seed 7"):
            game.judge(text)
    finally:
        game.close()


def test_the_attacker_acts_in_a_sandbox_and_without_one(person: Person) -> None:
    game = Game(person, 11)
    try:
        game.aw("create", "--id", "w/1", "--source", "empty")
        for walls in ((), ("--sandbox", "none")):
            before = str(game.aw("tree", "w/1", ".")["out"])
            words = game.attacker(hunt=bool(not walls))
            words[4] = "60"  # moves, most of which change something
            assert game.aw("run", "w/1", *walls, "--", *words, is_run=True)["code"] == 0
            game.aw("repair")  # it may have replaced parts of the workspace
            assert str(game.aw("tree", "w/1", ".")["out"]) != before
    finally:
        game.close()
