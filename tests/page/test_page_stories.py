"""What a person does on the page, in a real browser."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browsing import Server
from workstead.errors import ApprovalRequired
from workstead.local import Local


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def test_make_run_look_apply_destroy_undo(page: Page, project: Path, workspaces: Local) -> None:
    """The main road, by what the page says and nothing else."""
    page.get_by_role("button", name="New workspace").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Folder", exact=True).fill(str(project))
    dialog.get_by_label("Folder", exact=True).press("Enter")
    dialog.get_by_text("src").wait_for()
    dialog.get_by_label("Name (optional)").fill("shop/a1")
    dialog.get_by_role("button", name="Make workspace").click()
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
    for _ in range(300):  # the apply that was taken back before may still be said
        if workspaces.exists("shop/a1"):
            break
        page.wait_for_timeout(100)
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


def test_desks_that_come_one_after_another_all_stay(page: Page, workspaces: Local) -> None:
    """The grid grows with each from the fifth on; what it had is still there."""
    for number in range(8):
        workspaces.create(id=f"live/{number}")
        page.get_by_role("link", name=f"live/{number}").wait_for()
        expect(page.get_by_role("link", name="live/")).to_have_count(number + 1)


def test_a_terminal_in_the_sandbox(page: Page, workspaces: Local, server: object) -> None:
    workspaces.create(id="term/a")
    page.get_by_role("link", name="term/a").click()
    open_tab(page, "Runs")
    page.get_by_role("button", name="Terminal").click()
    expect(page.locator(".xterm-rows")).to_contain_text(re.compile(r"[$#]"))
    page.locator(".xterm textarea").type("echo $((6*7)) > answer; cat answer\n")
    expect(page.locator(".xterm-rows")).to_contain_text("42")
    assert workspaces.read_text("term/a", "work/answer") == "42\n"
    quickly = "the quick brown fox jumps over the lazy dog " * 4
    page.locator(".xterm textarea").type(f"echo '{quickly}' > order\n")  # no key overtakes another
    page.locator(".xterm textarea").type("echo wri''tten\n")
    expect(page.locator(".xterm-rows")).to_contain_text("written")
    assert workspaces.read_text("term/a", "work/order") == f"{quickly}\n"
    page.locator(".xterm textarea").type("exit\n")


def agent_wants(workspaces: Local, *attempts: str) -> None:
    """An agent tries what its policy leaves to the owner."""
    agent = workspaces.acting_as("agent", agent_of="ask/a")
    for path in attempts:
        with pytest.raises(ApprovalRequired):
            agent.delete_file("ask/a", path)


@pytest.fixture
def asking(workspaces: Local) -> Local:
    workspaces.create(id="ask/a", config={"policy": "careful"})
    for name in ("one", "two", "three"):
        workspaces.write_file("ask/a", f"work/{name}", f"{name} <b>bold</b>\n")
    return workspaces


def test_a_delete_is_shown_exactly_and_allowed_once(page: Page, asking: Local) -> None:
    page.get_by_role("link", name="Approvals").click()
    page.get_by_text("Nobody asks for anything.").wait_for()
    agent_wants(asking, "work/one")
    card = page.get_by_role("article")
    expect(card).to_contain_text("-one <b>bold</b>")
    expect(page.get_by_role("navigation").get_by_role("status")).to_have_text("1")
    card.get_by_label("Comment").fill("go ahead")
    card.get_by_role("button", name="Allow", exact=True).click()
    expect(page.locator(".toasts")).to_contain_text("Allowed: 1 request")
    asking.acting_as("agent", agent_of="ask/a").delete_file("ask/a", "work/one")
    (decided,) = asking.approvals(all=True)
    assert (decided.state, decided.comment) == ("used", "go ahead")


def test_the_keyboard_decides_and_a_batch_is_decided_at_once(page: Page, asking: Local) -> None:
    agent_wants(asking, "work/one", "work/two", "work/three")
    page.get_by_role("link", name="Approvals").click()
    expect(page.get_by_role("article")).to_have_count(3)
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(".q-card.at")).to_contain_text("work/two")
    page.keyboard.press("d")
    expect(page.get_by_role("article")).to_have_count(2)
    states = {each.place: each.state for each in asking.approvals(all=True)}
    assert states["work/two"] == "denied"
    for box in page.get_by_role("checkbox").all():
        box.click()
    page.get_by_role("button", name="Allow chosen").click()
    page.get_by_text("Nobody asks for anything.").wait_for()
    states = {each.place: each.state for each in asking.approvals(all=True)}
    assert (states["work/one"], states["work/three"]) == ("granted", "granted")


def test_what_others_ask_and_decide_disturbs_nobody(page: Page, asking: Local) -> None:
    """A comment that is being written stays, and the keyboard stays on the request that it was on."""
    agent_wants(asking, "work/one", "work/two")
    page.get_by_role("link", name="Approvals").click()
    cards = page.get_by_role("article")
    expect(cards).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(".q-card.at")).to_contain_text("work/two")
    cards.nth(1).get_by_label("Comment").fill("not this one")
    agent_wants(asking, "work/three")
    expect(cards).to_have_count(3)
    expect(cards.nth(1).get_by_label("Comment")).to_have_value("not this one")
    asking.deny(next(each.id for each in asking.approvals() if each.place == "work/one"))
    expect(cards).to_have_count(2)
    page.get_by_role("heading", name="Approvals").click()  # out of the field, so that keys are keys again
    page.keyboard.press("d")
    expect(cards).to_have_count(1)
    states = {each.place: each.state for each in asking.approvals(all=True)}
    assert (states["work/two"], states["work/three"]) == ("denied", "open")


def test_restore_and_fork_from_the_timeline(page: Page, workspaces: Local) -> None:
    workspaces.create(id="time/a")
    workspaces.write_file("time/a", "work/a", "first\n")
    workspaces.snapshot("time/a", label="first state")
    workspaces.write_file("time/a", "work/a", "second\n")
    page.get_by_role("link", name="time/a").click()
    open_tab(page, "Timeline")
    row = page.locator("div.q-tab-panel div.row", has_text="first state").last
    row.get_by_role("button", name="Restore").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.locator(".toasts")).to_contain_text("Restored: 1 written")
    assert workspaces.read_text("time/a", "work/a") == "first\n"
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".toasts")).to_contain_text("Taken back")
    assert workspaces.read_text("time/a", "work/a") == "second\n"
    row.get_by_role("button", name="Fork").click()
    page.get_by_role("dialog").get_by_role("button", name="Fork").click()
    page.get_by_role("button", name="Open").click()
    page.get_by_role("heading", name="time/a-1").wait_for()
    assert workspaces.read_text("time/a-1", "work/a") == "first\n"


def test_two_tabs_agree(page: Page, workspaces: Local) -> None:
    other = page.context.new_page()
    other.goto(page.url)
    workspaces.create(id="both/a")
    for tab in (page, other):
        tab.get_by_role("link", name="both/a").click()
    page.get_by_role("button", name="Snapshot").click()
    page.get_by_role("dialog").get_by_label("Label (optional)").fill("from the first tab")
    page.get_by_role("dialog").get_by_role("button", name="Keep").click()
    open_tab(other, "Timeline")
    expect(other.get_by_text("manual: from the first tab")).to_be_visible()


def test_a_restart_of_the_server_heals_the_page(page: Page, server: Server, workspaces: Local) -> None:
    workspaces.create(id="before/a")
    page.get_by_role("link", name="before/a").wait_for()
    port = int(server.url.rpartition(":")[2])
    server.stop(signal.SIGKILL)
    again = Server(server.home, port)
    try:
        workspaces.create(id="after/a")
        expect(page.get_by_role("link", name="after/a")).to_be_visible()
    finally:
        again.stop()


def test_fork_compare_apply_the_best(page: Page, project: Path, workspaces: Local) -> None:
    workspaces.create(f"overlay:{project}", id="race/a")
    page.get_by_role("link", name="race/a").click()
    page.get_by_role("button", name="Fork").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("How many").fill("2")
    dialog.get_by_role("button", name="Fork").click()
    expect(page.locator(".toasts")).to_contain_text("Made race/a-1, race/a-2")
    good = "sed -i s/user$/user.strip/ src/login.py"
    tries = {"race/a": "echo no > README.md; exit 1", "race/a-1": f"{good}; seq 9 > notes", "race/a-2": good}
    for desk, command in tries.items():
        workspaces.wait(workspaces.run(desk, ["sh", "-c", command]).id)

    page.get_by_role("link", name="Compare").click()
    page.get_by_role("heading", name="Compare race").wait_for()
    lanes = page.get_by_role("article")
    expect(lanes).to_have_count(3)
    expect(lanes.nth(0)).to_contain_text("race/a-2")
    expect(lanes.nth(0)).to_contain_text("best")
    expect(lanes.nth(1)).to_contain_text("2 files, +10 −1")
    expect(lanes.nth(2)).to_contain_text("failed, exit 1")
    row = page.get_by_role("row").filter(has_text="src/login.py")
    expect(row.get_by_text("changed", exact=True)).to_have_count(2)

    lanes.nth(0).get_by_role("button", name="Apply").click()
    page.get_by_role("dialog").get_by_role("button", name="Apply").click()
    expect(page.locator(".toasts")).to_contain_text("Applied: 1 written")
    assert "strip" in (project / "src" / "login.py").read_text()

    page.get_by_role("article").filter(has_text="race/a-2").get_by_role("button", name="Destroy the others").click()
    page.get_by_role("dialog").get_by_role("button", name="Destroy 2").click()
    expect(page.get_by_role("article")).to_have_count(1)
    assert [desk.id for desk in workspaces.list()] == ["race/a-2"]
    page.get_by_role("button", name="Undo").last.click()
    expect(page.get_by_role("article")).to_have_count(3)


def test_a_slow_press_counts_while_what_is_compared_changes(page: Page, project: Path, workspaces: Local) -> None:
    """A button that is drawn anew between the press and the release was never clicked."""
    for id in ("slow/a", "slow/b"):
        workspaces.create(f"overlay:{project}", id=id)
        workspaces.write_file(id, "work/one", "1\n")
    page.get_by_role("link", name="slow/a").click()
    page.get_by_role("link", name="Compare").click()
    first, second = (page.get_by_role("article").filter(has_text=id) for id in ("slow/a", "slow/b"))
    expect(second).to_contain_text("1 file, +1 −0")
    first.get_by_role("button", name="Destroy the others").hover()
    page.mouse.down()
    workspaces.write_file("slow/b", "work/two", "2\n")
    expect(second).to_contain_text("2 files, +2 −0")
    page.mouse.up()
    expect(page.get_by_role("dialog")).to_contain_text("Keep slow/a, destroy the others")


def test_a_race_is_shown_with_its_checks(page: Page, server: Server, project: Path, workspaces: Local) -> None:
    workspaces.race(
        f"overlay:{project}", ["sh", "-c", "echo {n} > n; test {n} != 3"], count=3, check="grep -q 2 n", task="three"
    )
    page.get_by_role("link", name="Compare three").first.click()
    lanes = page.get_by_role("article")
    expect(lanes.nth(0)).to_contain_text("three/2")
    expect(lanes.nth(0)).to_contain_text("✓ passed")
    expect(lanes.nth(1)).to_contain_text("✗ exit 1")
    expect(page.get_by_text("check: grep -q 2 n")).to_be_visible()


def test_a_race_is_started_and_watched(page: Page, project: Path, workspaces: Local) -> None:
    workspaces.create(f"overlay:{project}", id="first/a")
    page.get_by_role("link", name="first/a").click()
    page.get_by_role("button", name="Race").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("How many").fill("2")
    dialog.get_by_label("Command").fill("echo {n} > n")
    dialog.get_by_label("Check").fill("grep -q 2 n")
    dialog.get_by_role("button", name="Start").click()
    lanes = page.get_by_role("article")
    expect(lanes).to_have_count(2)
    expect(lanes.nth(0)).to_contain_text("✓ passed")
    expect(lanes.nth(0)).to_contain_text("/2")
    expect(page.get_by_text("race ended: echo {n} > n")).to_be_visible()


def test_what_both_sides_changed_is_shown_before_it_is_written(page: Page, project: Path, workspaces: Local) -> None:
    workspaces.create(f"overlay:{project}", id="both/a")
    workspaces.write_file("both/a", "work/README.md", "# Our shop\n")
    (project / "README.md").write_text("# Their shop\n")
    page.get_by_role("link", name="both/a").click()
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("dialog").get_by_role("button", name="Apply").click()
    dialog = page.get_by_role("dialog").filter(has_text="Both sides changed")
    expect(dialog).to_contain_text("README.md")
    assert (project / "README.md").read_text() == "# Their shop\n"
    dialog.get_by_role("button", name="Write with markers").click()
    expect(page.locator(".toasts")).to_contain_text("1 with conflict markers")
    written = (project / "README.md").read_text()
    assert "# Our shop" in written
    assert "# Their shop" in written
    page.get_by_role("button", name="Undo").last.click()
    expect(page.locator(".toasts")).to_contain_text("Taken back")
    assert (project / "README.md").read_text() == "# Their shop\n"


def test_much_output_is_shown_from_near_its_end(page: Page, workspaces: Local) -> None:
    workspaces.create(id="loud/a")
    run = workspaces.run("loud/a", ["sh", "-c", "seq 1000000; echo the end"])
    workspaces.wait(run.id)
    page.get_by_role("link", name="loud/a").click()
    open_tab(page, "Runs")
    expect(page.locator(".xterm-rows")).to_contain_text("the end")
    open_tab(page, "Changes")
    open_tab(page, "Runs")
    expect(page.locator(".xterm-rows")).to_contain_text("the end")
    start = workspaces.find_tail(run.id)
    pieces, _ = workspaces.read_output(run.id, start, max_bytes=1 << 30)
    assert start > 5_000_000
    assert 500_000 < sum(len(data) for _, _, data in pieces) <= 1 << 20


def test_one_place_of_a_file_is_given_back(page: Page, project: Path, workspaces: Local) -> None:
    (project / "long").write_text("".join(f"{n}\n" for n in range(1, 41)))
    workspaces.create(f"overlay:{project}", id="some/a")
    workspaces.wait(workspaces.run("some/a", ["sed", "-i", "s/^5$/five/; s/^35$/thirty-five/", "long"]).id)
    page.get_by_role("link", name="some/a").click()
    expect(page.get_by_role("checkbox", name="Choose lines")).to_have_count(2)
    page.get_by_role("checkbox", name="Choose lines 32 to 38").click()
    page.get_by_role("button", name="Apply 1 chosen").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("long: 1 place")
    dialog.get_by_role("button", name="Apply").click()
    expect(page.locator(".toasts")).to_contain_text("Applied: 1 written")
    lines = (project / "long").read_text().split()
    assert (lines[4], lines[34]) == ("5", "thirty-five")
    expect(page.get_by_role("checkbox", name="Choose lines")).to_have_count(1)
    expect(page.locator("table.diff td.add")).to_have_text("+five")


def test_what_somebody_reads_stays_while_an_agent_goes_on(page: Page, workspaces: Local) -> None:
    workspaces.create(id="read/a")
    for name in "bcdef":
        workspaces.write_file("read/a", f"work/{name}", f"this is {name}\n")
    page.get_by_role("link", name="read/a").click()
    page.get_by_text("A f +1 −0").click()
    expect(page.locator("table.diff")).to_have_count(4)
    workspaces.write_file("read/a", "work/a", "this is a\n")
    workspaces.write_file("read/a", "work/c", "c is another\nthan before\n")
    page.get_by_text("A c +2 −0").wait_for()
    expect(page.locator(".file").first).to_contain_text("A a +1 −0")
    expect(page.locator("table.diff").filter(has_text="this is f")).to_be_visible()
    expect(page.locator("table.diff").filter(has_text="than before")).to_be_visible()
