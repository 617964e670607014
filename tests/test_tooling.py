"""The tools around the code: pre-commit needs no network, and CONTRIBUTING names what exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

from marks import PLACES, QUICK, TESTS

ROOT = Path(__file__).resolve().parents[1]


def test_every_hook_is_local_and_uses_our_tools() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    for repository in config["repos"]:
        assert repository["repo"] == "local", "another repository is fetched over the network"
        for hook in repository["hooks"]:
            assert hook["language"] == "system"
            program, *words = shlex.split(hook["entry"])
            assert program.startswith(".venv/bin/")
            assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
            re.compile(hook.get("files", ""))


def test_contributing_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    later = {"core/", "integrations/", "cluster/", "images/"}  # of the floor plan; not all of it is built
    for name in re.findall(r"`\.?/?((?:tests|requirements|docs|changes|verbs|cli|server|mcp)/[\w./]*)`", text):
        where = ROOT if (ROOT / name).exists() else ROOT / "src" / "workstead"
        assert name in later or (where / name).exists() or "NAME" in name, name


def test_templates_for_issues_have_a_name() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"):
        _, heading, _ = path.read_text().split("---", 2)
        assert set(yaml.safe_load(heading)) == {"name", "about"}


def test_every_place_that_a_marker_names_exists() -> None:
    for place in (*QUICK, *(each for places in PLACES.values() for each in places)):
        assert (TESTS / place).exists(), place
