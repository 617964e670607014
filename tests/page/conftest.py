"""A real server and a real browser. Pictures of every story are kept in `tests/page/pictures/` (not in git)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from browsing import PICTURES, Server

PATIENCE = 60_000  # a machine that is busy with much else is slow, not wrong
expect.set_options(timeout=PATIENCE)


@pytest.fixture
def server(home_path: str) -> Iterator[Server]:
    serving = Server(home_path)
    yield serving
    serving.stop()


@pytest.fixture
def page(browser: Browser, server: Server, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A tab that has come through the link, with nothing to complain about at the end."""
    context = browser.new_context(viewport={"width": 1360, "height": 860})
    tab = context.new_page()
    tab.set_default_timeout(PATIENCE)
    wrong: list[str] = []
    elsewhere: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on(
        "request",
        lambda each: None if each.url.startswith((server.url, "data:", "blob:")) else elsewhere.append(each.url),
    )
    tab.goto(server.said["link"])
    tab.wait_for_url(re.compile(r".*/p/[0-9a-f]+/$"), wait_until="commit")
    tab.get_by_role("heading", name="Workspaces", exact=True).wait_for()
    yield tab
    PICTURES.mkdir(exist_ok=True)
    tab.screenshot(path=str(PICTURES / f"{request.node.name}.png"))
    context.close()
    assert not elsewhere, "a request left the host"
    assert not wrong, "a script of the page failed"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small folder to work on."""
    folder = tmp_path / "shop"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "login.py").write_text("def login(user):\n    return user\n")
    (folder / "README.md").write_text("# Shop\n")
    os.chmod(tmp_path, 0o755)
    return folder
