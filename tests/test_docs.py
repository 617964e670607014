"""The docs say what the code does."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

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
    return [*DOCS.parent.glob("*.md"), DOCS.parent / "examples" / "README.md", *DOCS.rglob("*.md")]


def test_every_link_in_the_docs_leads_somewhere() -> None:
    for page in _pages():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    site = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text())
    assert DOCS.parent / site["docs_dir"] == DOCS
    listed = list(_leaves(site["nav"]))
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def _leaves(node: object) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    for child in node if isinstance(node, list) else node.values() if isinstance(node, dict) else ():
        yield from _leaves(child)


def test_no_page_of_the_site_links_out_of_it() -> None:
    """A relative link to a file outside of docs/ works in the repository and is broken on the site."""
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).resolve().is_relative_to(DOCS), f"{page.name} links to {target}"


def test_every_anchor_in_the_docs_leads_to_a_heading() -> None:
    for page in _pages():
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            text = (page.parent / target if target else page).read_text()
            headings = re.findall(r"^#+ (.+)$", text, re.M)
            assert anchor in map(_slug, headings), f"{page.name} links to {target}#{anchor}"


def _slug(heading: str) -> str:
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-")


def test_the_lock_of_the_site_has_hashes_and_names_no_registry() -> None:
    text = (DOCS.parent / "requirements" / "docs.txt").read_text()
    packages = re.findall(r"^[\w.-]+==\S+.*?(?=^[\w.-]+==|\Z)", text, re.M | re.S)
    assert packages
    assert all("--hash=sha256:" in package for package in packages)
    assert "://" not in text


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
