"""Nothing is allowed on the approvals page that is not drawn there, and no key or click meets another request."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from browsing import PICTURES
from workstead.errors import ApprovalRequired
from workstead.local import Local

DESK = "ask/a"


@pytest.fixture
def asking(workspaces: Local) -> Local:
    workspaces.create(id=DESK, config={"policy": "careful"})
    for name in ("one", "two", "three"):
        workspaces.write_file(DESK, f"work/{name}", f"{name}\n")
    return workspaces


def asked(workspaces: Local, act: object) -> str:
    with pytest.raises(ApprovalRequired) as required:
        act()  # type: ignore[operator]
    return str(required.value.details["approval_id"])


def delete(workspaces: Local, path: str, **options: bool) -> str:
    return asked(workspaces, lambda: workspaces.acting_as("bot", agent_of=DESK).delete_file(DESK, path, **options))


def overwrite(workspaces: Local, path: str, content: str | bytes) -> str:
    return asked(workspaces, lambda: workspaces.acting_as("bot", agent_of=DESK).write_file(DESK, path, content))


def card_of(page: Page, approval: str) -> Locator:
    return page.locator(f"[data-approval={approval}]")


def to_the_inbox(page: Page) -> None:
    page.get_by_role("link", name="Approvals").click()
    page.get_by_role("heading", name="Approvals").wait_for()


def state(workspaces: Local, approval: str) -> str:
    return workspaces.get_approval(approval).state


def test_a_long_change_is_allowed_when_its_last_line_is_drawn(page: Page, asking: Local) -> None:
    lines = [f"line {number}" for number in range(1, 1200)] + ["the line that nobody saw"]
    approval = overwrite(asking, "work/one", "\n".join(lines) + "\n")
    to_the_inbox(page)
    card = card_of(page, approval)
    expect(card).to_contain_text("400 of 1204 lines shown")
    expect(card).not_to_contain_text("the line that nobody saw")
    expect(card.get_by_role("button", name="Allow", exact=True)).to_be_disabled()
    PICTURES.mkdir(exist_ok=True)
    page.screenshot(path=str(PICTURES / "approval_partly_shown.png"))
    page.keyboard.press("j")
    expect(page.locator(".q-card.at")).to_have_count(1)
    page.keyboard.press("a")
    expect(page.locator(".toasts")).to_contain_text("1 request not shown whole")
    card.get_by_role("checkbox").click()
    page.get_by_role("button", name="Allow chosen").click()
    expect(page.locator(".toast")).to_have_count(2)
    assert state(asking, approval) == "open"
    card.get_by_role("button", name="Show all lines").click()
    expect(card).to_contain_text("1204 of 1204 lines shown")
    expect(card).to_contain_text("+the line that nobody saw")
    card.get_by_role("button", name="Allow", exact=True).click()
    expect(page.locator(".toasts")).to_contain_text("Allowed: 1 request")
    assert state(asking, approval) == "granted"


def test_binary_content_takes_an_act_of_its_own(page: Page, asking: Local) -> None:
    approval = overwrite(asking, "work/one", b"\0binary")
    to_the_inbox(page)
    card = card_of(page, approval)
    digest = asking.get_approval(approval).digest_after
    expect(card).to_contain_text(
        f"binary or too large to be shown: 4 bytes, {asking.get_approval(approval).digest_before}"
    )
    expect(card).to_contain_text(f"-> 7 bytes, {digest}")
    expect(card).to_contain_text("This is not everything")
    expect(card.get_by_role("button", name="Allow", exact=True)).to_have_count(0)
    page.keyboard.press("j")
    expect(page.locator(".q-card.at")).to_have_count(1)
    page.keyboard.press("a")
    expect(page.locator(".toasts")).to_contain_text("1 request not shown whole")
    assert state(asking, approval) == "open"
    card.get_by_role("button", name="Allow unseen …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"after: {digest}")
    page.screenshot(path=str(PICTURES / "approval_unseen.png"))
    dialog.get_by_role("button", name="Allow it unseen").click()
    expect(page.locator(".toasts")).to_contain_text("Allowed: 1 request")
    assert state(asking, approval) == "granted"


def test_every_line_of_a_preview_is_drawn(page: Page, asking: Local) -> None:
    """Also those before the first hunk, between files, and after the last."""
    first = asking.snapshot(DESK).id
    asking.write_file(DESK, "work/one", "changed\n")
    asking.write_file(DESK, "work/two", "changed\n")
    asking.write_file(DESK, "output/new", "x\n")
    agent = asking.acting_as("bot", agent_of=DESK)
    restore = asked(asking, lambda: agent.restore(DESK, first))
    to_the_inbox(page)
    for line in asking.preview(restore).splitlines():
        expect(card_of(page, restore)).to_contain_text(line)
    expect(card_of(page, restore)).to_contain_text("diff --git a/work/two b/work/two")
    expect(card_of(page, restore)).to_contain_text("a/output/new")


def test_a_key_never_meets_a_request_that_came_under_the_mark(page: Page, asking: Local) -> None:
    one, two, three = (delete(asking, f"work/{name}") for name in ("one", "two", "three"))
    to_the_inbox(page)
    expect(page.get_by_role("article")).to_have_count(3)
    page.keyboard.press("a")  # nothing is marked before somebody marks it
    expect(page.locator(".toasts")).to_contain_text("Mark a request with j or k first")
    page.keyboard.press("j")
    expect(page.locator(".q-card.at")).to_contain_text("work/one")
    asking.deny(one)  # somebody else decides what is marked
    expect(page.get_by_role("article")).to_have_count(2)
    expect(page.locator(".q-card.at")).to_have_count(0)
    page.keyboard.press("a")
    expect(page.locator(".toast")).to_have_count(2)
    assert [state(asking, each) for each in (two, three)] == ["open", "open"]
    page.keyboard.press("j")  # the one that took its place
    expect(page.locator(".q-card.at")).to_contain_text("work/two")
    page.keyboard.press("a")
    expect(page.get_by_role("article")).to_have_count(1)
    page.keyboard.press("a")  # pressed twice: the next one was not looked at
    expect(page.locator(".toasts")).to_contain_text("Allowed: 1 request")
    expect(page.get_by_text("Mark a request with j or k first")).to_have_count(3)
    assert [state(asking, each) for each in (two, three)] == ["granted", "open"]


def test_a_key_does_nothing_while_the_marked_request_is_out_of_view(page: Page, asking: Local) -> None:
    for number in range(12):
        asking.write_file(DESK, f"work/f{number}", "x\n" * 30)
    ids = [delete(asking, f"work/f{number}") for number in range(12)]
    to_the_inbox(page)
    expect(page.get_by_role("article")).to_have_count(12)
    page.keyboard.press("j")
    expect(page.locator(".q-card.at")).to_have_count(1)
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.wait_for_function("document.querySelector('.q-card.at').getBoundingClientRect().bottom < 0")
    page.keyboard.press("a")
    expect(page.locator(".toasts")).to_contain_text("Mark a request with j or k first")
    assert state(asking, ids[0]) == "open"
    page.keyboard.press("j")  # the mark comes into view
    page.wait_for_function("document.querySelector('.q-card.at').getBoundingClientRect().bottom > 0")
    page.keyboard.press("d")
    expect(page.get_by_role("article")).to_have_count(11)
    assert [state(asking, each) for each in ids[:3]] == ["open", "denied", "open"]


def test_allowing_all_alike_below_a_directory_with_a_star_is_for_that_directory(page: Page, asking: Local) -> None:
    for path in ("work/*/a", "work/*/b", "work/src/a"):
        asking.write_file(DESK, path, "x\n", parents=True)
    first = delete(asking, "work/*/a")
    to_the_inbox(page)
    card_of(page, first).get_by_role("button", name="Allow all like this …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Allow every delete below work/*/")
    dialog.get_by_role("button", name="Allow all of them").click()
    expect(page.locator(".toasts")).to_contain_text("Allowed: 1 request, and what follows")
    asking.acting_as("bot", agent_of=DESK).delete_file(DESK, "work/*/b")
    delete(asking, "work/src/a")  # asks


def test_commands_can_be_allowed_all_alike(page: Page, asking: Local) -> None:
    agent = asking.acting_as("bot", agent_of=DESK)
    first = asked(asking, lambda: agent.run(DESK, ["true"]))
    to_the_inbox(page)
    card_of(page, first).get_by_role("button", name="Allow all like this …").click()
    page.get_by_role("dialog").get_by_role("button", name="Allow all of them").click()
    expect(page.locator(".toasts")).to_contain_text("Allowed: 1 request, and what follows")
    assert asking.wait(agent.run(DESK, ["sh", "-c", "exit 3"]).id, timeout_seconds=60).exit_code == 3
