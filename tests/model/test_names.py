"""Ids and the directories that they map to."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workstead.errors import InvalidId
from workstead.model.names import check_part, directory_name, format_id, parse_id

PARTS = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=200).filter(
    lambda text: len(text.encode()) <= 200 and text != ".."
)


def arbitrary_parts(count: int) -> list[str]:
    """Different legal texts from all over Unicode, many of them nearly the same."""
    choose = random.Random(20)
    near = ["a", "A", ".", "~", "%", "%2E", "~~", " ", "é", "é", "\n", "\x7f", "\U0001f600", "-", "..."]
    found: set[str] = set()
    while len(found) < count:
        length = choose.choice((1, 2, 3, 8, 40, 200))
        wide = choose.random() < 0.3
        text = "".join(
            chr(choose.choice((choose.randrange(1, 0xD800), choose.randrange(0xE000, 0x110000))))
            if wide
            else choose.choice(near)
            for _ in range(length)
        )
        text = text.replace("/", "_").encode()[:200].decode(errors="ignore")
        if text and text != "..":
            found.add(text)
    return sorted(found)


def test_ten_thousand_ids_of_arbitrary_text_have_ten_thousand_directories(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    for part in arbitrary_parts(10_000):
        os.mkdir(top / directory_name(part))  # the file system itself says whether two are the same
    assert len(os.listdir(top)) == 10_000


@given(PARTS, PARTS)
def test_two_parts_never_share_a_directory(one: str, other: str) -> None:
    assert (directory_name(one) == directory_name(other)) == (one == other)


@given(PARTS)
def test_a_directory_name_is_one_safe_component(part: str) -> None:
    name = directory_name(part)
    assert name.isascii()
    assert 1 <= len(name) <= 255
    assert "/" not in name
    assert not name.startswith(".")


@pytest.mark.parametrize("part", ["a", "t1", "fix-login", "_", "-", "A.b", "v1.2.3", "a" * 200, "0"])
def test_a_simple_part_is_its_own_directory(part: str) -> None:
    assert directory_name(part) == part


@pytest.mark.parametrize("part", [".", "...", ".carrel", "~x", "a b", "ü", "a%20", "\n", "-\x1b", "é" * 100])
def test_any_other_part_is_marked(part: str) -> None:
    assert directory_name(part).startswith("~")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("/", "empty"),
        ("/a", "empty"),
        ("a/", "empty"),
        ("..", "'..'"),
        ("../a", "'..'"),
        ("a/..", "'..'"),
        ("a/b/c", "'/'"),
        ("a\0b", "NUL"),
        ("a/\0", "NUL"),
        ("x" * 201, "201 bytes"),
        ("a/" + "ü" * 101, "202 bytes"),
        ("\udcff", "UTF-8"),
    ],
)
def test_a_bad_id_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(InvalidId, match=problem) as caught:
        parse_id(text)
    caught.value.message.encode()  # can be shown anywhere
    assert "TASK/AGENT" in caught.value.hint


def test_a_bare_task_means_its_main_agent() -> None:
    assert parse_id("t1") == ("t1", "main")
    assert format_id(*parse_id("t1")) == "t1/main"


@given(PARTS, PARTS)
def test_an_id_reads_as_it_is_written(task: str, agent: str) -> None:
    assert parse_id(format_id(task, agent)) == (task, agent)
    assert check_part(task) == task
