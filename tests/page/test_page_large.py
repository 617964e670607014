"""Much of everything: the page shows it right, and stays at hand."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

from playwright.sync_api import Page, expect

from workstead.local import Local
from workstead.model.workspace import Workspace

MANY = int(os.environ.get("AW_PAGE_FILES", "5000"))  # 50,000 by hand


def fill(desk: Workspace, folders: int, files: int, name: str) -> None:
    """So many files in so many folders, named like this."""
    for folder, number in itertools.product(range(folders), range(files)):
        path = Path(desk.path, "work", name.format(folder=folder, number=number))
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")


def test_a_long_file_is_shown_to_its_end(page: Page, workspaces: Local) -> None:
    workspaces.create(id="long/a")
    workspaces.write_file("long/a", "work/long.txt", "".join(f"line {n}\n" for n in range(1, 100_001)))
    page.get_by_role("link", name="long/a").click()
    page.get_by_role("tab", name="Files").click()
    page.get_by_role("gridcell").get_by_text("long.txt").click()
    page.locator(".cm-content").get_by_text("line 1", exact=True).wait_for()
    page.locator(".cm-scroller").evaluate("box => box.scrollTop = box.scrollHeight")
    page.locator(".cm-content").get_by_text("line 100000", exact=True).wait_for()


def test_a_large_tree_opens_as_one_looks(page: Page, workspaces: Local) -> None:
    desk = workspaces.create(id="tree/a")
    fill(desk, MANY // 50, 50, "d{folder:04}/f{number:02}")
    page.get_by_role("link", name="tree/a").click()
    page.get_by_role("tab", name="Files").click()
    page.get_by_role("gridcell").get_by_text("d0001").click()
    page.get_by_role("gridcell").get_by_text("f00").hover()
    page.mouse.wheel(0, 1100)
    expect(page.get_by_role("gridcell").get_by_text("f49")).to_be_visible()
    page.get_by_label("Find by name").fill("f07")
    page.get_by_label("Find by name").press("Enter")
    expect(page.get_by_role("gridcell").get_by_text("work/d0000/f07")).to_be_visible()


def test_what_somebody_opens_stays_open_while_files_change(page: Page, workspaces: Local) -> None:
    """The tree is looked at again with every change, and that takes a moment in which somebody clicks."""
    desk = workspaces.create(id="tree/b")
    fill(desk, 6, 300, "d{folder}/of{folder}-{number}")
    page.get_by_role("link", name="tree/b").click()
    page.get_by_role("tab", name="Files").click()
    tree = page.get_by_role("gridcell")
    tree.get_by_text("d5").wait_for()
    over = threading.Event()

    def change() -> None:
        while not over.wait(0.02):
            workspaces.write_file("tree/b", "work/top.txt", str(time.monotonic()))

    busy = threading.Thread(target=change)
    busy.start()
    try:
        for folder in range(5, -1, -1):  # from below, so that those above stay in sight
            tree.get_by_text(f"d{folder}").click()
            tree.get_by_text(f"of{folder}-0").wait_for()
            page.wait_for_timeout(700)
            expect(tree.get_by_text(f"of{folder}-0")).to_be_visible()
    finally:
        over.set()
        busy.join()


def test_thousands_of_desks_are_listed_and_found(page: Page, workspaces: Local) -> None:
    for number in range(1000):
        workspaces.create(id=f"many/a{number:04}", lazy=True)
    page.get_by_label("Search workspaces").fill("a0999")
    expect(page.get_by_role("link", name="many/a0999")).to_be_visible()
    expect(page.get_by_role("link", name="many/a0001")).to_have_count(0)
