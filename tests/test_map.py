"""The map of STYLE: who may import whom. The picture in docs/design/map.md is drawn by the same table."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "workstead"

# Each part of the house, and what it may import. What is not named here may be imported by nobody but itself.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "model": {"errors"},
    "settings": {"errors", "model"},
    "system": {"errors", "model"},
    "store": {"errors", "model"},
    "sources": {"errors", "model", "system"},
    "sandboxes": {"errors", "model", "system"},
    "snapshots": {"errors", "model", "system"},
    "archives": {"errors", "model", "system", "snapshots"},
    "home": {"errors", "model", "settings", "store", "system"},
    "verbs": {"errors", "model", "home", "archives", "sources", "sandboxes", "snapshots", "store", "system"},
    "workspaces": {"errors", "model", "store", "verbs"},
    "local": {"errors", "model", "home", "settings", "store", "verbs", "workspaces"},
    "runner": {"errors", "model", "home", "settings", "store", "verbs"},
    "answers": {"archives", "model", "snapshots", "store", "system", "verbs"},
    "workstead": {"errors", "model", "home", "local", "remote", "settings", "verbs", "workspaces"},
    "remote": {"answers", "errors", "model"},
    "calls": {"errors", "model", "workstead", "settings"},
    "server": {"answers", "calls", "errors", "model", "workstead", "settings"},
    "page": {"errors", "model", "server"},
    "mcp": {"errors", "model", "workstead", "server"},
    "cli": {"errors", "model", "workstead", "settings", "server", "page", "mcp"},
}


def part_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    first = relative.parts[0].removesuffix(".py")
    return "workstead" if first == "__init__" else first


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """The parts of the house that a file imports, at any depth, but for those that only the type checker sees."""
    tree = ast.parse(path.read_text())
    hidden = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and isinstance(test.test, ast.Name) and test.test.id == "TYPE_CHECKING"
        for child in test.body
        for node in ast.walk(child)
    }
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "workstead":
            modules = (
                [node.module] if node.module != "workstead" else [f"workstead.{alias.name}" for alias in node.names]
            )
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.name.split(".")[0] == "workstead"]
        else:
            continue
        for module in modules:
            parts = module.split(".")
            name = parts[1] if len(parts) > 1 and (SOURCE / parts[1]).exists() else None
            if len(parts) > 1 and (SOURCE / f"{parts[1]}.py").exists():
                name = parts[1]
            yield name or "workstead", node.lineno


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards(path: Path) -> None:
    part = part_of(path)
    assert part in MAY_IMPORT, f"{part} has no place on the map: change the map first"
    for imported, line in imports_of(path):
        allowed = MAY_IMPORT[part] | {part}
        assert imported in allowed, f"{path.relative_to(SOURCE)}:{line} imports {imported}; {part} may not"


def test_the_map_notices_an_import_that_points_upwards(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("def f():\n    from workstead.verbs import create\n")
    assert [name for name, _ in imports_of(file)] == ["verbs"]
    assert "verbs" not in MAY_IMPORT["system"]


def test_the_model_touches_nothing() -> None:
    """No clock, no file, no environment: what a value is does not depend on when or where it is asked."""
    forbidden = {"time", "datetime", "pathlib", "subprocess", "socket", "shutil", "tempfile", "random"}
    for path in (SOURCE / "model").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert forbidden.isdisjoint(alias.name for alias in node.names), path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                assert node.attr in ("path", "fsencode", "fsdecode"), f"{path} uses os.{node.attr}"


HEAVY = (
    "asyncio",
    "ctypes",
    "dataclasses",
    "fastapi",
    "httpx",
    "inspect",
    "logging",
    "msgspec",
    "pathlib",
    "psycopg",
    "pydantic",
    "rich",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "typing",
    "urllib",
    "yaml",
)


@pytest.mark.parametrize(
    "arguments",
    [["create", "--id", "t/a"], ["list"], ["list", "--format", "json"], ["path", "t/b"], ["destroy", "t/b"]],
)
def test_hot_commands_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    """Start-up is most of what these cost."""
    script = (
        "import sys; from workstead.cli import main\n"
        "assert main(['create', '--id', 't/b', '--home', sys.argv[1]]) == 0\n"
        "assert main([*sys.argv[2:], '--home', sys.argv[1]]) == 0\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(tmp_path / "h"), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stderr.split())
    assert "workstead.cli" in loaded
    assert loaded.isdisjoint(HEAVY), sorted(loaded & set(HEAVY))
