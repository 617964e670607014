"""The programs that our server is compared with and asked by: from npm, installed once for all tests."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from needs import need_program

TOP = Path(__file__).parent.parent
FILESYSTEM = "@modelcontextprotocol/server-filesystem"
INSPECTOR = "@modelcontextprotocol/inspector"
VERSIONS = {FILESYSTEM: "2026.8.31", INSPECTOR: "2.12.0"}


def npm_package(name: str) -> Path:
    """Where the package is; it is fetched the first time."""
    need_program("npm")
    place = TOP / ".venv" / "npm" / name.replace("/", "-")
    place.mkdir(parents=True, exist_ok=True)
    with open(place / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = place / "node_modules" / name
        if not found.exists():
            wanted = f"{name}@{VERSIONS[name]}"
            done = subprocess.run(
                ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(place), wanted],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
            )
            assert found.exists(), done.stderr
    return found


def aw(*arguments: str) -> list[str]:
    """Our command, as its program would be."""
    return [sys.executable, "-I", "-c", "from workstead.cli import command; command()", *arguments]
