"""The markers of tests, set by where a test stands and which fixtures it uses: `./test -m "not slow"`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

TESTS = Path(__file__).parent
# A folder or file of tests, and the marker of every test in it.
PLACES: dict[str, tuple[str, ...]] = {
    "slow": (
        "archives", "contracts", "crash", "faults", "fuzz", "holes", "mcp", "powercut", "properties", "races", "rot",
        "sandboxes", "server", "sources", "stories", "system", "test_docs.py", "test_examples.py", "test_packaging.py",
        "verbs",
    ),
    "browser": ("page",),
    "vm": ("sandboxes/test_vm.py", "sandboxes/test_vm_ends.py", "sandboxes/test_vm_work.py", "system/test_pokes.py"),
}  # fmt: skip
# Quick tests in a slow folder: the inner loop of development, without root, programs of the system, or a network.
QUICK = (
    "system/test_files.py", "system/test_files_trees.py", "system/test_paths.py", "system/test_paths_cases.py",
    "verbs/test_apply.py", "verbs/test_create.py", "verbs/test_destroy.py", "verbs/test_diff.py", "verbs/test_files.py",
    "verbs/test_permit.py", "verbs/test_snapshot.py", "verbs/test_undo.py",
)  # fmt: skip
FIXTURES = {"person": "root", "browser": "browser", "postgres_url": "postgres", "postgres_server": "postgres"}


def mark(items: list[pytest.Item]) -> None:
    """Set the markers of collected tests."""
    for item in items:
        place = item.path.relative_to(TESTS).as_posix()
        for marker, places in PLACES.items():
            if place.startswith(tuple(places)) and not (marker == "slow" and place in QUICK):
                item.add_marker(marker)
        for name in getattr(item, "fixturenames", ()):
            if name in FIXTURES:
                item.add_marker(FIXTURES[name])
        if "postgres" in item.name:
            item.add_marker("postgres")
