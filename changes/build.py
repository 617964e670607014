"""Build CHANGELOG.md from the files of this directory: `.venv/bin/python changes/build.py`.

Each file begins with its kind and a colon, as in `Fixed: aw diff …`; the kinds are those of keepachangelog.com.
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHANGELOG = HERE.parent / "CHANGELOG.md"
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
HEADING = """# Changelog

Notable changes for users, in the form of [Keep a Changelog](https://keepachangelog.com/en/1.1.0/). Versions follow
[Semantic Versioning](https://semver.org). This file is built from `changes/`: do not edit it.

## [Unreleased]
"""


def read_change(path: Path) -> tuple[str, str]:
    """Return the kind of one change and its text."""
    kind, colon, text = path.read_text().partition(":")
    if not colon or kind not in KINDS:
        raise SystemExit(f"changes/{path.name} must begin with one of: {', '.join(f'{each}:' for each in KINDS)}")
    return kind, text.strip()


def bullet(text: str) -> str:
    """Return the text as one entry of a list, or as the entries that it has already."""
    if text.startswith("- "):
        return f"{text}\n"
    return "- " + re.sub(r"\n(?=.)", "\n  ", text) + "\n"


def build() -> str:
    """Return the changelog."""
    changes = [read_change(path) for path in sorted(HERE.glob("*.md")) if path.name != "README.md"]
    parts = [HEADING]
    for kind in KINDS:
        entries = [bullet(text) for found, text in changes if found == kind]
        if entries:
            parts.append(f"\n### {kind}\n\n{''.join(entries)}")
    return "".join(parts)


if __name__ == "__main__":
    CHANGELOG.write_text(build())
