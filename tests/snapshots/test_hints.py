"""Every error that this area raises says what to do about it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import workstead
from workstead import errors

SOURCE = Path(workstead.__file__).parent
AREA = {
    "core": ("applying", "changes", "latest_snapshot", "restoring", "retention", "snapshots", "states", "trash"),
    "verbs": ("apply", "diff", "restore", "snapshot"),
    "flows": ("session", "undo"),
}
FILES = [
    *sorted((SOURCE / "snapshots").glob("*.py")),
    *(SOURCE / folder / f"{name}.py" for folder, names in AREA.items() for name in names),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_error_has_a_hint(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        kind = getattr(errors, node.func.id, None)
        if isinstance(kind, type) and issubclass(kind, errors.WorksteadError):
            assert "hint" in {keyword.arg for keyword in node.keywords}, f"line {node.lineno}"
