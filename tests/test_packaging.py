"""The wheel as people install it: each extra from the built wheel in an empty environment, used for real.

Every extra on Python 3.11, and all of them together on 3.12 and 3.13. Packages come from the index that this machine
is configured for; uv installs them if it is on the path, pip otherwise.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import workstead
from needs import need, need_program

ROOT = Path(__file__).resolve().parents[1]


class Installed:
    """An environment that has the wheel with one extra, and nothing else."""

    def __init__(self, directory: Path, extra: str, wheel: Path) -> None:
        self.directory = directory
        self.extra = extra
        self.wheel = wheel
        self.python = str(directory / "bin" / "python")
        self.aw_program = str(directory / "bin" / "aw")
        self.home = directory / "home"

    def environment(self, **more: str) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "HOME": str(self.directory), "AW_HOME": str(self.home), **more}

    def do(self, *words: str, feed: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            input=feed,
            env=self.environment(**more),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def aw(self, *words: str, **more: str) -> str:
        """`aw WORDS`, which has to succeed; its output."""
        done = self.do(self.aw_program, *words, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run_python(self, script: str, *words: str) -> str:
        done = self.do(self.python, "-I", "-c", script, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def error(self, *words: str, **more: str) -> dict[str, Any]:
        done = self.do(self.aw_program, "--format", "json", *words, **more)
        assert done.returncode != 0, done.stdout
        found: dict[str, Any] = json.loads(done.stdout)["error"]
        return found


@pytest.fixture(scope="module")
def machine() -> dict[str, str]:
    """The environment of this machine with its settings for pip and uv, before a test gets a home of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("AW_", "PYTHON"))}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built offline by the packages that the tests have."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("workstead-*.whl")
    return built


def find_python(version: str) -> str:
    """A Python of this version: the one that runs the tests, one of pyenv's, or one on the path."""
    roots = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")]
    pyenv = shutil.which("pyenv")
    if pyenv:
        roots.append(Path(pyenv).resolve().parents[1])
    candidates = [getattr(sys, "_base_executable", sys.executable)]
    for root in roots:
        candidates += sorted(map(str, root.glob(f"versions/{version}.*/bin/python{version}")))
    candidates.append(f"python{version}")
    for each in candidates:
        if shutil.which(each):
            script = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([each, "-c", script], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                return each
    need(False, f"Python {version} (from pyenv or on the path)")
    raise AssertionError


def install(directory: Path, python: str, wanted: str, machine: dict[str, str]) -> None:
    subprocess.run([python, "-m", "venv", "--without-pip", str(directory)], check=True)
    target = str(directory / "bin" / "python")
    if shutil.which("uv"):
        words = ["uv", "pip", "install", "--quiet", "--python", target, wanted]
    else:
        words = [sys.executable, "-m", "pip", "--python", target, "install", "--quiet", "--no-compile", wanted]
    done = subprocess.run(words, env=machine, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def installed(extra: str, version: str, wheel: Path, machine: dict[str, str], directory: Path) -> Installed:
    suffix = f"[{extra}]" if extra else ""
    install(directory, find_python(version), f"workstead{suffix} @ {wheel.as_uri()}", machine)
    return Installed(directory, extra, wheel)


def use_plain(place: Installed) -> None:
    assert place.aw("--version") == f"aw {workstead.__version__}\n"
    place.aw("create", "t/a")
    assert "hello\n" in place.aw("run", "t/a", "--", "echo", "hello")


def use_sandbox(place: Installed) -> None:
    found = place.run_python("from workstead.system.process import find_bwrap; print(find_bwrap.find_bundled())")
    assert Path(found).is_relative_to(place.directory)
    assert "bubblewrap" in place.do(found, "--version").stdout


def use_s3(place: Installed) -> None:
    script = "from workstead.archives import buckets; print(type(buckets._store('backups')).__name__)"
    assert place.run_python(script) == "S3Store"


def use_postgres(place: Installed) -> None:
    assert place.error("list", AW_STORE__URL="postgresql://127.0.0.1:1/none")["code"] == "store_unavailable"


@contextmanager
def serving(*words: str, environment: dict[str, str]) -> Iterator[tuple[dict[str, Any], Path]]:
    """`aw serve`, what it said when it was ready, and the file of its messages."""
    log = Path(environment["AW_HOME"]).with_name("messages")
    with open(log, "wb") as messages:
        server = subprocess.Popen(
            [*words, "serve", "--port", "0", "--format", "json"],
            env=environment,
            cwd=environment["HOME"],
            stdout=subprocess.PIPE,
            stderr=messages,
        )
    try:
        assert server.stdout
        line = server.stdout.readline()
        assert line, log.read_text()
        yield json.loads(line), log
    finally:
        server.terminate()
        server.wait()
        assert server.stdout
        server.stdout.close()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.status == 200
        text: str = answer.read().decode()
    return text


def use_server(place: Installed) -> None:
    """Programs are served; that the page needs another extra is said in one line, with the command to install it."""
    with serving(place.aw_program, environment=place.environment()) as (said, log):
        assert get(f"{said['url']}/healthz")
        assert "link" not in said
        (line,) = [each for each in log.read_text().splitlines() if "page" in each]
    assert "nicegui is not installed; the extra web has it" in line
    assert command_in(line, place, "web")


def use_web(place: Installed) -> None:
    with serving(place.aw_program, environment=place.environment()) as (said, log):
        assert get(f"{said['url']}/healthz")
        assert "Workstead" in get(said["link"])
        assert "page" not in log.read_text()


def use_mcp(place: Installed) -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
    }
    place.aw("create", "t/a")
    done = place.do(place.aw_program, "mcp", "--id", "t/a", feed=json.dumps(hello) + "\n")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[0])
    assert answer["result"]["serverInfo"]["name"] == "workstead"


def use_client(place: Installed) -> None:
    """The server is the one of the tests."""
    own = [sys.executable, "-c", "from workstead.cli import command; command()"]
    environment = place.environment(AW_HOME=str(place.directory / "served"))
    script = (
        "import sys, workstead; workspaces = workstead.connect(sys.argv[1], open(sys.argv[2]).read().strip())\n"
        "workspaces.create(id='t/a'); print(*(each.id for each in workspaces.list()))"
    )
    with serving(*own, environment=environment) as (said, _):
        assert place.run_python(script, said["url"], said["token_path"]) == "t/a"


USES = {
    "": use_plain,
    "sandbox": use_sandbox,
    "s3": use_s3,
    "postgres": use_postgres,
    "server": use_server,
    "web": use_web,
    "mcp": use_mcp,
    "client": use_client,
}
# What an environment without the extra answers, and the words that need it.
LACKS: dict[str, tuple[list[str], dict[str, str]]] = {
    "mcp": (["mcp"], {}),
    "server": (["serve", "--port", "0"], {}),
    "postgres": (["list"], {"AW_STORE__URL": "postgresql://127.0.0.1:1/none"}),
}


def command_in(text: str, place: Installed, extra: str) -> bool:
    """Whether a message names the command that adds an extra to this environment from the wheel that it came from."""
    pip = (
        ["uv", "pip", "install", "--python", place.python]
        if shutil.which("uv")
        else [place.python, "-m", "pip", "install"]
    )
    return shlex.join([*pip, f"workstead[{extra}] @ {place.wheel.as_uri()}"]) in text


@pytest.mark.parametrize("extra", list(USES), ids=lambda extra: extra or "none")
def test_an_extra_installed_from_the_wheel_works(
    extra: str, wheel: Path, machine: dict[str, str], tmp_path: Path
) -> None:
    need_program("bwrap")
    place = installed(extra, "3.11", wheel, machine, tmp_path / "environment")
    USES[extra](place)
    if not extra:
        place.aw("create", "t/b")
        for other, (words, more) in LACKS.items():
            error = place.error(*words, **more)
            assert error["code"] == "tool_missing", (other, error)
            assert command_in(error["hint"], place, other), (other, error)


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_everything_works_on_later_pythons(version: str, wheel: Path, machine: dict[str, str], tmp_path: Path) -> None:
    need_program("bwrap")
    place = installed("all", version, wheel, machine, tmp_path / "environment")
    for extra in ("", "sandbox", "s3", "postgres", "web"):
        USES[extra](place)
    place.run_python("import workstead.mcp.stdio, workstead.remote")


def test_every_extra_is_tested(wheel: Path) -> None:
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(declared) == {*USES, "all"} - {""}
    assert sysconfig.get_platform().replace("-", "_") in wheel.name or "any" in wheel.name
