"""The changelog is built from `changes/`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_spec = importlib.util.spec_from_file_location("build_changelog", ROOT / "changes" / "build.py")
assert _spec
assert _spec.loader
changes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(changes)


def test_the_changelog_is_current() -> None:
    message = "CHANGELOG.md is old: run .venv/bin/python changes/build.py"
    assert (ROOT / "CHANGELOG.md").read_text() == changes.build(), message


def test_every_change_is_in_the_changelog() -> None:
    built = changes.build()
    for path in (ROOT / "changes").glob("*.md"):
        if path.name != "README.md":
            assert f"- {changes.read_change(path)[1].removeprefix('- ').splitlines()[0]}\n" in built, path.name


def test_a_change_without_a_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "faster.md"
    path.write_text("`aw diff` is faster.\n")
    with pytest.raises(SystemExit, match=r"faster\.md must begin with one of: Added:"):
        changes.read_change(path)
    path.write_text("Changed: `aw diff` is faster.\n")
    assert changes.read_change(path) == ("Changed", "`aw diff` is faster.")
