"""What a person does on the page, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from carrel.local import Local

expect.set_options(timeout=20_000)


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def test_make_run_look_apply_destroy_undo(page: Page, project: Path, workspaces: Local) -> None:
    """The main road, by what the page says and nothing else."""
    page.get_by_role("button", name="New desk").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Folder", exact=True).fill(str(project))
    dialog.get_by_label("Folder", exact=True).press("Enter")
    dialog.get_by_text("src").wait_for()
    dialog.get_by_label("Name (optional)").fill("shop/a1")
    dialog.get_by_role("button", name="Make desk").click()
    page.get_by_role("heading", name="shop/a1").wait_for()

    open_tab(page, "Runs")
    page.get_by_label("Command").fill(
        "echo working; sed -i 's/user$/user.strip()/' src/login.py; sleep 0.5; echo ready"
    )
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".xterm-rows")).to_contain_text("ready")

    open_tab(page, "Changes")
    expect(page.locator("table.diff td.add")).to_contain_text("user.strip()")
    assert (project / "src" / "login.py").read_text() == "def login(user):\n    return user\n"

    page.get_by_role("button", name="Apply").click()
    page.get_by_role("dialog").get_by_role("button", name="Apply").click()
    expect(page.locator(".toasts")).to_contain_text("Applied: 1 written")
    assert "strip" in (project / "src" / "login.py").read_text()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".toasts")).to_contain_text("Taken back")
    assert "strip" not in (project / "src" / "login.py").read_text()

    page.get_by_role("button", name="Destroy").click()
    page.get_by_role("dialog").get_by_role("button", name="Destroy").click()
    page.get_by_role("button", name="Destroy all the same").click()
    expect(page.locator(".toasts")).to_contain_text("is in the trash")
    assert not workspaces.exists("shop/a1")
    page.get_by_role("button", name="Undo").last.click()
    expect(page.get_by_text(re.compile("Taken back: .*shop/a1")).last).to_be_visible()
    assert workspaces.exists("shop/a1")


def test_what_an_agent_does_is_seen_within_a_moment(page: Page, workspaces: Local) -> None:
    workspaces.create(id="live/a")
    page.get_by_role("link", name="live/a").wait_for()
    run = workspaces.run("live/a", ["sh", "-c", "echo thinking hard; touch new; sleep 30"])
    expect(page.get_by_role("gridcell", name="thinking hard")).to_be_visible()
    workspaces.stop(run.id)
    expect(page.get_by_role("gridcell", name="running")).to_have_count(0)
    workspaces.destroy("live/a", force=True)
    expect(page.get_by_role("link", name="live/a")).to_have_count(0)


def test_a_terminal_in_the_sandbox(page: Page, workspaces: Local, server: object) -> None:
    workspaces.create(id="term/a")
    page.get_by_role("link", name="term/a").click()
    open_tab(page, "Runs")
    page.get_by_role("button", name="Terminal").click()
    expect(page.locator(".xterm-rows")).to_contain_text(re.compile(r"[$#]"))
    page.locator(".xterm textarea").type("echo $((6*7)) > answer; cat answer\n")
    expect(page.locator(".xterm-rows")).to_contain_text("42")
    assert workspaces.read_text("term/a", "work/answer") == "42\n"
    page.locator(".xterm textarea").type("exit\n")
