"""The glossary has one meaning for each word, and names what is in the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def rows() -> list[list[str]]:
    """The cells of each word's row."""
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| **")]


def test_each_word_is_there_once() -> None:
    words = [row[0] for row in rows()]
    assert len(words) >= 40
    assert len(set(words)) == len(words)
    assert all(len(row) == 4 and all(row) for row in rows())


def test_what_the_glossary_names_is_in_the_code() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "workstead").rglob("*.py"))
    packages = {path.name for path in (ROOT / "src" / "workstead").iterdir()}
    for word, _, where, _ in rows():
        for name in re.findall(r"`(\w+(?:\.\w+)?)`", where):
            last = name.rpartition(".")[2]
            assert last in packages or re.search(rf"\b{last}\b", source), f"{word}: there is no {name}"


def test_every_class_that_the_glossary_names_is_one() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "workstead").rglob("*.py"))
    for word, _, where, _ in rows():
        for names in re.findall(r"(?:class|value|protocol) ((?:`[A-Z]\w+`(?:, )?)+)", where):
            for name in re.findall(r"`(\w+)`", names):
                assert re.search(rf"^ *class {name}\b", source, re.M), f"{word}: there is no class {name}"
