"""The line diff, compiled and in Python: every result turns one text into the other, and git takes it as a patch."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from needs import need
from workstead.snapshots import text_diff
from workstead.snapshots.unchanged import find_library


@pytest.fixture(params=["compiled", "python"], autouse=True, scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(text_diff, "find_library", lambda: None)
        else:
            need(find_library() is not None, "the compiled part: sh requirements/compile")
        yield request.param


def check(a: bytes, b: bytes) -> list[text_diff.Edit]:
    """The edits, which lead from a to b, cover nothing twice and agree in lines and bytes."""
    found = text_diff.edits(a, b)
    old, new = text_diff.split_lines(a), text_diff.split_lines(b)
    result, at, at_b = [], 0, 0
    for a0, a1, b0, b1, from_a, to_a, from_b, to_b in found:
        assert a0 < a1 or b0 < b1
        assert at <= a0
        assert at_b <= b0
        assert a[from_a:to_a] == b"".join(old[a0:a1])
        assert b[from_b:to_b] == b"".join(new[b0:b1])
        result += old[at:a0] + new[b0:b1]
        at, at_b = a1, b1
    assert b"".join([*result, *old[at:]]) == b
    return found


few = st.lists(st.sampled_from([b"a", b"b", b"\n", b"\n\n", b"a\n", b"b\n", b"\r\n", b"\xff\n", b"\0"]), max_size=40)
texts = few.map(b"".join)


@settings(max_examples=400, deadline=None)
@given(texts, texts)
@example(b"", b"")
@example(b"", b"a")
@example(b"a", b"a\n")
@example(b"a\nb", b"a\nb\n")
@example(b"x\nb", b"y\nb")
@example(b"a\na\n", b"a\n")
@example(b"\n", b"\n\n")
def test_any_two_texts(a: bytes, b: bytes) -> None:
    check(a, b)


@pytest.mark.parametrize("alphabet", [2, 20, 100_000])
def test_longer_texts(alphabet: int) -> None:
    """With few and with many lines that occur once, over the bounds of both searches."""
    chance = random.Random(alphabet)
    for size in (100, 3000):
        old = [b"%d\n" % chance.randrange(alphabet) for _ in range(size)]
        other = [b"%d\n" % chance.randrange(alphabet) for _ in range(size)]
        some = [line for line in old if chance.random() < 0.9] + [b"the last one"]
        shuffled = chance.sample(old, size)
        for new in (other, some, shuffled, old[size // 2 :] + old[: size // 2], old + old, []):
            check(b"".join(old), b"".join(new))
            check(b"".join(new), b"".join(old))


def test_anchors_that_split_off_one_line_each_time_are_bounded() -> None:
    """Each anchor makes exactly one more line unique: without a bound on the levels this takes the square."""
    old, new = [b"start\n"], [b"start\n"]
    for number in range(20_000):
        old += [b"x%d\n" % (number + 1), b"old %d\n" % number, b"x%d\n" % number]
        new += [b"x%d\n" % (number + 1), b"new %d\n" % number, b"x%d\n" % number]
    check(b"".join(old), b"".join(new))


def test_one_changed_line_is_one_edit() -> None:
    old = b"same\n" * 200_000
    new = b"same\n" * 100_000 + b"other\n" + b"same\n" * 99_999
    assert check(old, new) == [(100_000, 100_001, 100_000, 100_001, 500_000, 500_005, 500_000, 500_006)]


def test_more_lines_than_the_bound_are_one_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_diff, "_MAX_LINES", 10)
    old = b"head\n" + b"".join(b"%d\n" % number for number in range(20)) + b"tail\n"
    new = b"head\n" + b"".join(b"%d\n" % (number * 2) for number in range(20)) + b"tail\n"
    assert [edit[:4] for edit in check(old, new)] == [(2, 21, 2, 21)]


def test_git_applies_the_hunks(tmp_path: Path) -> None:
    chance = random.Random(5)
    for number in range(40):
        old = b"".join(chance.choice([b"a\n", b"b\n", b"c\n", b"%d\n" % number, b"\xe9\xff\n"]) for _ in range(60))
        new = b"".join(
            chance.choice([line, line, line, b"", b"new \xff\n"]) for line in text_diff.split_lines(old)
        ) + chance.choice([b"", b"end"])
        body = b"".join(text_diff.hunks(old, new, chance.choice([0, 1, 3, 100])))
        if not body:
            continue
        (tmp_path / "f").write_bytes(old)
        words = ["git", "apply", "--unidiff-zero", "-p1", "-"]
        subprocess.run(words, input=b"--- a/f\n+++ b/f\n" + body, cwd=tmp_path, check=True)
        assert (tmp_path / "f").read_bytes() == new


def test_the_edit_is_about_as_short_as_the_one_of_git(tmp_path: Path) -> None:
    chance = random.Random(9)
    old = [b"%d\n" % chance.randrange(50) for _ in range(4000)]
    new = [line for line in old if chance.random() < 0.95]
    for name, text in (("a", old), ("b", new)):
        (tmp_path / name).write_bytes(b"".join(text))
    words = ["git", "diff", "--no-index", "--minimal", "--numstat", "a", "b"]
    theirs = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).stdout.split()
    ours = sum(a1 - a0 + b1 - b0 for a0, a1, b0, b1, *_ in check(b"".join(old), b"".join(new)))
    assert ours <= 1.2 * (int(theirs[0]) + int(theirs[1]))
