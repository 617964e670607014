"""Nothing is approved that was not shown whole, through any door, unless somebody says so."""

from __future__ import annotations

import json
import os
from functools import partial

import pytest

import workstead
from people import Person
from workstead.core.previews import MAX_LINES
from workstead.errors import ApprovalRequired, ApprovalUnseen
from workstead.local import Local
from workstead.model.approval import Approval
from workstead.model.policy import literal, matches
from workstead.server.serve import Background
from workstead.settings import Settings

SCRIPT = """
import json
import workstead
from workstead.errors import ApprovalRequired

owner = workstead.open({home!r})
desk = owner.create(id="t/a", config={{"policy": "careful"}}).id
agent = owner.acting_as("bot", agent_of=desk)
long = "".join(f"line {{number}}\\n" for number in range(10_500)) + "the line that nobody saw\\n"
said = {{}}
for name, content in (("long", long), ("binary", b"\\0evil"), ("short", "short\\n")):
    owner.write_file(desk, f"work/{{name}}", "old\\n")
    try:
        agent.write_file(desk, f"work/{{name}}", content)
    except ApprovalRequired as asked:
        said[name] = asked.details["approval_id"]
print(json.dumps(said))
"""


def test_the_command_line_says_what_it_does_not_show_and_approves_it_only_when_told(person: Person) -> None:
    asked = json.loads(person.python(SCRIPT.format(home=str(person.home))))
    table = person.aw_ok("approvals")
    assert table.count("not shown whole") == 2
    shown = person.aw_ok("approvals", "show", asked["long"])
    assert "cut here: 10000 of 10505 lines are shown" in shown
    assert "not everything" in shown
    assert "the line that nobody saw" not in shown
    assert "binary or too large to be shown: 4 bytes" in person.aw_ok("approvals", "show", asked["binary"])
    for name in ("long", "binary"):
        refused = person.aw("approve", asked[name])
        assert refused.returncode == 5
        assert f"aw approve {asked[name]} --unseen" in refused.stderr
    together = person.aw("approve", asked["short"], asked["long"])
    assert together.returncode == 5
    states = {each["approval_id"]: each["state"] for each in person.aw_json("approvals", "--all")}
    assert set(states.values()) == {"open"}  # all of them, or none
    batch = person.aw("approve", "--id", "t/a")
    assert asked["long"] in batch.stderr
    states = {each["approval_id"]: each["state"] for each in person.aw_json("approvals", "--all")}
    assert states == {asked["long"]: "open", asked["binary"]: "open", asked["short"]: "granted"}
    person.aw_ok("approve", asked["long"], asked["binary"], "--unseen")
    states = {each["approval_id"]: each["state"] for each in person.aw_json("approvals", "--all")}
    assert set(states.values()) == {"granted"}


@pytest.fixture
def desk(workspaces: Local) -> str:
    desk = workspaces.create(id="t/a", config={"policy": "careful"}).id
    for name in ("long", "binary", "short"):
        workspaces.write_file(desk, f"work/{name}", "old\n")
    return desk


@pytest.fixture
def agent(workspaces: Local, desk: str) -> Local:
    return workspaces.acting_as("bot", agent_of=desk)


def asked(workspaces: Local, act: object) -> Approval:
    with pytest.raises(ApprovalRequired) as required:
        act()  # type: ignore[operator]
    return workspaces.get_approval(str(required.value.details["approval_id"]))


def test_a_preview_that_is_whole_says_so_and_the_twin_shows_what_it_holds(
    workspaces: Local, agent: Local, desk: str
) -> None:
    just = "".join(f"{number}\n" for number in range(MAX_LINES - 4))
    found = asked(workspaces, lambda: agent.write_file(desk, "work/short", just))
    assert (found.whole, found.preview_lines) == (True, MAX_LINES)
    assert workspaces.preview(found.id).endswith(f"+{MAX_LINES - 5}\n")
    more = asked(workspaces, lambda: agent.write_file(desk, "work/short", just + "evil\n"))
    assert (more.whole, more.preview_lines) == (False, MAX_LINES + 1)
    assert "evil" not in workspaces.preview(more.id)


def test_one_long_line_is_cut_too(workspaces: Local, agent: Local, desk: str) -> None:
    found = asked(workspaces, lambda: agent.write_file(desk, "work/long", "x" * (2 << 20) + "evil\n"))
    assert not found.whole
    with pytest.raises(ApprovalUnseen):
        workspaces.approve(found.id)


def test_a_preview_that_is_gone_or_another_shows_nothing(
    workspaces: Local, agent: Local, desk: str, home_path: str
) -> None:
    found = asked(workspaces, lambda: agent.write_file(desk, "work/short", "new\n"))
    with open(f"{home_path}/approvals/{found.id}", "ab") as file:
        file.write(b"more\n")
    with pytest.raises(ApprovalUnseen):
        workspaces.approve(found.id)
    os.unlink(f"{home_path}/approvals/{found.id}")
    with pytest.raises(ApprovalUnseen):
        workspaces.approve(found.id)
    assert workspaces.approve(found.id, unseen=True)[0].state == "granted"


def test_over_http_it_takes_unseen_too(workspaces: Local, settings: Settings, agent: Local, desk: str) -> None:
    found = asked(workspaces, lambda: agent.write_file(desk, "work/binary", b"\0"))
    with Background(workspaces, settings) as server, workstead.connect(server.url, workspaces.owner_token()) as far:
        seen = far.get_approval(found.id)
        assert (seen.whole, seen.preview_lines, seen.preview_digest) == (False, 1, found.preview_digest)
        with pytest.raises(ApprovalUnseen):
            far.approve(found.id)
        assert far.approve_all(desk) == []
        assert far.approve(found.id, unseen=True)[0].state == "granted"


def test_a_restore_shows_everything_that_it_would_write(workspaces: Local, agent: Local, desk: str) -> None:
    """What is outside of work/, in .git, binary, or only a mode: a patch of work/ has none of these."""
    workspaces.write_file(desk, "output/report", "kept\n")
    os.chmod(f"{workspaces.get(desk).path}/work/short", 0o640)
    first = workspaces.snapshot(desk).id
    workspaces.write_file(desk, "output/report", "changed\n")
    os.chmod(f"{workspaces.get(desk).path}/work/short", 0o600)
    found = asked(workspaces, lambda: agent.restore(desk, first))
    shown = workspaces.preview(found.id)
    assert "+kept" in shown
    assert "work/short, mode 0600 -> 0640" in shown
    assert found.whole
    one = asked(workspaces, lambda: agent.restore(desk, first, ["output"]))
    assert "short" not in workspaces.preview(one.id)
    workspaces.write_file(desk, "work/.git/hooks/post-commit", "x", parents=True)
    workspaces.write_file(desk, "work/binary", b"\0")
    hidden = asked(workspaces, lambda: agent.restore(desk, first))
    assert "changes inside .git are not shown" in workspaces.preview(hidden.id)
    assert "work/binary is binary or too large to be shown: 1 bytes" in workspaces.preview(hidden.id)
    assert not hidden.whole


def test_the_owner_sees_all_that_a_destroyed_workspace_takes_along(workspaces: Local, agent: Local, desk: str) -> None:
    """Also what the agent, who asks, may not read."""
    workspaces.change_policy(desk, {"rules": [{"outcome": "deny", "operations": ["read"], "paths": ["secret/**"]}]})
    workspaces.write_file(desk, "work/secret/key", "x", parents=True)
    found = asked(workspaces, lambda: agent.destroy(desk))
    assert "secret/key" in workspaces.preview(found.id)


def test_bytes_that_are_no_text_are_not_all_shown_as_one(workspaces: Local, agent: Local, desk: str) -> None:
    for byte, shown in ((b"\xfe\n", "+\\xfe"), (b"\xff\n", "+\\xff")):
        found = asked(workspaces, partial(agent.write_file, desk, "work/short", byte))
        assert workspaces.preview(found.id).splitlines()[-1] == shown


NAMES = ("*", "?", "**", "[a]", "a", "[*]", "\\*", "\\", "a[b", "[!a]", "work")


@pytest.mark.parametrize("name", NAMES)
def test_a_literal_name_is_no_pattern(name: str) -> None:
    pattern = f"{literal(f'work/{name}')}/**"
    assert [each for each in NAMES if matches(pattern, f"work/{each}/file")] == [name]
    assert not matches(pattern, f"work/other/{name}/file")
    assert not matches(pattern, f"{name}/file")
    assert matches("*/**", f"{name}/file")  # the twin


def test_a_directory_named_like_a_pattern_is_still_meant_by_its_name() -> None:
    assert matches("app/[id]/**", "work/app/[id]/page")
