"""The map of STYLE: who may import whom. docs/design/map.md is drawn from the imports by `python tests/test_map.py`.

Every import counts: at the top of a file, inside a function, and those that only the type checker sees.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "workstead"
MAP = Path(__file__).parent.parent / "docs" / "design" / "map.md"
MARK = "<!-- drawn from the imports by tests/test_map.py -->\n"

DRIVERS = {"archives", "sources", "sandboxes", "snapshots"}
# Each part of the package and the parts that it may import. A part that is not named here cannot be imported.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "installation": set(),
    "model": {"errors"},
    "settings": {"errors", "model"},
    "system": {"errors", "model"},
    "store": {"errors", "model", "installation"},
    "sources": {"errors", "model", "system"},
    "sandboxes": {"errors", "model", "system", "installation"},
    "snapshots": {"errors", "model", "system"},
    "archives": {"errors", "model", "system", "snapshots", "installation"},
    "backups": {"errors", "model", "system", "snapshots", "archives"},
    "core": {"errors", "model", "settings", *DRIVERS, "store", "system"},
    "verbs": {"errors", "model", "core", "installation", *DRIVERS, "store", "system"},
    "flows": {"errors", "model", "settings", "core", "verbs", "backups", *DRIVERS, "store", "system"},
    "workspaces": {"errors", "model"},
    "local": {"errors", "model", "settings", "core", "verbs", "flows", "workspaces"},
    "runner": {"errors", "model", "settings", "core"},
    "remote": {"errors", "model", "workspaces", "installation"},
    "workstead": {"errors", "model", "settings", "core", "flows", "local", "remote", "workspaces"},
    "calls": {"errors", "model", "settings", "local", "workstead"},
    "server": {"errors", "model", "settings", "calls", "local", "workspaces", "workstead"},
    "page": {"errors", "model", "settings", "local", "server", "workspaces"},
    "mcp": {"errors", "model", "local", "server", "workspaces", "workstead"},
    "cli": {"errors", "model", "settings", "installation", "local", "server", "page", "mcp", "workstead"},
}
APART = {"verbs"}  # the modules of these folders do not import each other


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """The modules of ours that a file imports, wherever the import stands, and the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "workstead":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield (full if full in MODULES else node.module), node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "workstead":
                    yield alias.name, node.lineno


GRAPH = {module: {name for name, _ in imports_of(path)} - {module} for module, path in MODULES.items()}


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downwards(module: str) -> None:
    part = part_of(module)
    assert part in MAY_IMPORT, f"{part} has no place on the map: change the map first"
    for imported, line in imports_of(MODULES[module]):
        to = part_of(imported)
        assert to in MAY_IMPORT[part] | {part}, f"{module}:{line} imports {imported}; {part} may not"
        if to == part and part in APART:
            assert imported in (module, f"workstead.{part}"), f"{module}:{line} imports {imported}; {part} stand apart"


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, empty if none do."""
    done: set[str] = set()
    for start in graph:
        stack: list[tuple[str, Iterator[str]]] = [(start, iter(sorted(graph[start])))]
        path = [start]
        while stack:
            module, rest = stack[-1]
            following = next((name for name in rest if name in graph and name not in done), None)
            if following is None:
                done.add(module)
                stack.pop()
                path.pop()
            elif following in path:
                return path[path.index(following) :]
            else:
                stack.append((following, iter(sorted(graph[following]))))
                path.append(following)
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert find_cycle(GRAPH) == []


def test_a_circle_is_found() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_every_import_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(
        "if TYPE_CHECKING:\n    from workstead.core.home import Home\n"
        "def f():\n    from workstead.verbs import create\n"
    )
    assert [name for name, _ in imports_of(file)] == ["workstead.core.home", "workstead.verbs.create"]
    assert "verbs" not in MAY_IMPORT["system"]


def draw() -> str:
    """The parts and what each really imports, as a table."""
    rows = ["| part | modules | imports |", "|---|--:|---|"]
    for part in MAY_IMPORT:
        modules = [module for module in MODULES if part_of(module) == part]
        imported = {part_of(name) for module in modules for name in GRAPH[module]} - {part}
        found = " ".join(f"`{name}`" for name in MAY_IMPORT if name in imported)
        rows.append(f"| `{part}` | {len(modules)} | {found} |")
    return "\n".join(rows) + "\n"


def test_the_map_in_the_docs_is_the_one_that_the_imports_draw() -> None:
    assert MAP.read_text().split(MARK)[1] == draw(), "run: .venv/bin/python tests/test_map.py"


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


if __name__ == "__main__":
    MAP.write_text(MAP.read_text().split(MARK)[0] + MARK + draw())
