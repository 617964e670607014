"""Say what a test needs of the machine: missing it is a skip with the reason, and a failure where all is required."""

from __future__ import annotations

import os
import shutil

import pytest


def need(there: bool, what: str) -> None:
    """Go on if it is there; else skip aloud, or fail if AW_REQUIRE_ALL=1."""
    if there:
        return
    if os.environ.get("AW_REQUIRE_ALL") == "1":
        pytest.fail(f"this machine lacks {what}, and AW_REQUIRE_ALL=1 wants every test to run")
    pytest.skip(f"needs {what}")


def need_root() -> None:
    need(os.geteuid() == 0, "root")


def need_program(name: str) -> str:
    found = shutil.which(name)
    need(found is not None, f"the program {name}")
    return found or ""
