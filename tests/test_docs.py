"""The docs say what the code does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
_spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
assert _spec
assert _spec.loader
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


@pytest.mark.parametrize("name", generate.PAGES)
def test_reference_pages_are_current(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    message = f"docs/reference/{name} is old: run .venv/bin/python docs/generate.py"
    assert (DOCS / "reference" / name).read_text() == generate.PAGES[name](), message


def _pages() -> list[Path]:
    return [DOCS.parent / "README.md", DOCS.parent / "SECURITY.md", *DOCS.rglob("*.md")]


def test_every_link_in_the_docs_leads_somewhere() -> None:
    for page in _pages():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_in_the_docs_exists() -> None:
    from workstead.cli import COMMANDS

    for page in _pages():
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(), re.S):
            for name in re.findall(r"^\$? ?(?:\./)?aw (\w+)", block, re.M):
                assert name in COMMANDS, f"{page.name} shows aw {name}"


def test_every_finding_in_the_security_page_names_tests_that_exist() -> None:
    page = (DOCS.parent / "SECURITY.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and line.split("|")[1].strip().isdigit()]
    assert [int(line.split("|")[1]) for line in rows] == list(range(1, 15))
    for line in rows:
        named = re.findall(r"`(test_\w+\.py)`", line.split("|")[4])
        assert named, line
        for name in named:
            assert (DOCS.parent / "tests" / "holes" / name).is_file(), name
