"""For everybody: by keyboard, on a phone, in the dark, and as an automated check of accessibility sees it."""

from __future__ import annotations

from typing import Any

import pytest
from axe_core_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from browsing import PICTURES, Server
from workstead.local import Local

# Of parts of the framework that we cannot reach: none so far.
EXCEPTIONS: set[str] = set()


@pytest.fixture
def furnished(workspaces: Local) -> Local:
    workspaces.create(id="axe/a", config={"policy": "careful"})
    workspaces.write_file("axe/a", "work/a.py", "print(1)\n")
    workspaces.wait(workspaces.run("axe/a", ["sh", "-c", "echo hi; echo 'print(2)' > a.py"]).id)
    workspaces.fork("axe/a")
    return workspaces


PLACES = ["/", "/desk/axe/a", "/desk/axe/a?tab=Files", "/desk/axe/a?tab=Runs", "/desk/axe/a?tab=Timeline",
          "/desk/axe/a?tab=Walls", "/compare/axe", "/approvals", "/machine"]  # fmt: skip


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_an_automated_check_finds_nothing_serious(page: Page, server: Server, furnished: Local, dark: bool) -> None:
    page.emulate_media(color_scheme="dark" if dark else "light")
    found: list[str] = []
    for place in PLACES:
        page.goto(server.url + place)
        page.wait_for_timeout(1500)
        assert page.locator("body.body--dark").count() == dark
        answer: dict[str, Any] = Axe().run(page)
        found += [
            f"{place}: {each['id']} {[node['html'][:160] for node in each['nodes'][:3]]}"
            for each in answer["violations"]
            if each["impact"] in ("serious", "critical") and each["id"] not in EXCEPTIONS
        ]
    assert not found, "\n".join(found)


def test_dark_is_chosen_and_remembered(page: Page, server: Server) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(server.url)
    page.get_by_role("button", name="Dark or light").click()
    expect(page.locator("body.body--dark")).to_have_count(1)
    page.goto(f"{server.url}/machine")
    expect(page.locator("body.body--dark")).to_have_count(1)


def test_a_desk_is_made_without_a_mouse(page: Page) -> None:
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText || ''").strip().endswith("New workspace"):
            break
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    page.get_by_role("tab", name="Folder").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_label("Name (optional)").focus()
    page.keyboard.type("keys/a")
    page.get_by_role("button", name="Make workspace").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="keys/a").wait_for()


def test_it_fits_a_phone(browser: Browser, server: Server, furnished: Local) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, is_mobile=True)
    tab = context.new_page()
    tab.goto(server.said["link"])
    tab.get_by_role("link", name="axe/a", exact=True).wait_for()
    PICTURES.mkdir(exist_ok=True)
    tab.screenshot(path=str(PICTURES / "phone-overview.png"))
    tab.get_by_role("link", name="axe/a", exact=True).click()
    expect(tab.locator("table.diff").first).to_contain_text("print(2)")
    tab.screenshot(path=str(PICTURES / "phone-desk.png"))
    wider = tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wider <= 0, "nothing stands out to the side"
    context.close()
