"""An approved command runs the bytes that were approved, however they are spelled, and looks like no other command."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from people import Person
from workstead.core import lookup, run_start, runs
from workstead.errors import ApprovalRequired, FileChanged, LimitExceeded
from workstead.local import Local
from workstead.model.text import quoted

INSIDE = "/mnt/workspace/work"
PADDING = ["x"] * 69
SPELLINGS = {
    "plain": ["sh", "s.sh"],
    "up and down": ["sh", "sub/../s.sh"],
    "two slashes": ["sh", f"/{INSIDE}/s.sh"],
    "from above": ["sh", "/mnt/../mnt/workspace/./work//sub/../s.sh"],
    "through a link": ["sh", "here/s.sh"],
    "through a link out and back": ["sh", "there/s.sh"],
    "word 70": ["sh", "-c", 'shift 69; sh "$1"', *PADDING, "x", "s.sh"],
    "in a script": ["sh", "-c", "true; sh ./s.sh&&true"],
    "in an option": ["env", "ENV=s.sh", "sh", "-c", ". ./$ENV"],
    "in a directory": ["sh", "-c", 'sh "$0/t.sh"', "sub"],
}
REFUSED = {
    "by the current directory": ["sh", "/proc/self/cwd/s.sh"],
    "by the root": ["sh", f"/proc/self/root{INSIDE}/s.sh"],
    "by a task": ["sh", "/proc/thread-self/cwd/s.sh"],
    "out of a system directory": ["sh", f"/usr/bin/../..{INSIDE}/s.sh"],
}

SCRIPT = """
import json, os
import workstead
from workstead.errors import ApprovalRequired, WorksteadError

owner = workstead.open({home!r})
desk = owner.create({source!r}, id="t/a", config={{"policy": "careful"}})
owner.write_file(desk.id, "work/s.sh", "echo seen")
owner.write_file(desk.id, "work/sub/t.sh", "sh s.sh", parents=True)
owner.run_kept(desk.id, ["ln", "-s", ".", "here"])
owner.run_kept(desk.id, ["ln", "-s", "/mnt/workspace/work/sub/..", "there"])
agent = owner.acting_as("bot", agent_of=desk.id)

def attempt(name, command):
    try:
        return agent.run_kept(desk.id, command).stdout.decode()
    except WorksteadError as error:
        return error.details.get("approval_id") or error.code

said = {{}}
for name, command in {spellings}.items():
    owner.write_file(desk.id, "work/s.sh", "echo seen")
    owner.write_file(desk.id, "work/sub/t.sh", "sh s.sh")
    by_owner = owner.run_kept(desk.id, command).stdout.decode()
    first = attempt(name, command)
    if first.startswith("ask-"):
        owner.approve(first)
        owner.write_file(desk.id, "work/sub/t.sh" if command[-1] == "sub" else "work/s.sh", "echo evil")
        again = attempt(name, command)
        first = "asked again" if again.startswith("ask-") and again != first else again
    said[name] = [by_owner, first]
print(json.dumps(said))
"""


@pytest.mark.parametrize("kind", ["empty", "overlay", "folder"])
def test_the_bytes_that_were_approved_are_run_however_they_are_spelled(person: Person, kind: str) -> None:
    """The owner's own run is the twin: each of these spellings leads to the script."""
    origin = person.folder("origin", {"a": "a"})
    (origin / "here").symlink_to(".")
    (origin / "there").symlink_to(f"{INSIDE}/sub/..")
    # A folder that is used in place is at its own path inside, which is also what `..` goes up from.
    own = {"own path": ["sh", f"{origin}/s.sh"], "up and down again": ["sh", "../origin/s.sh"]}
    spellings = {**SPELLINGS, **(own if kind == "folder" else {})}
    source = kind if kind == "empty" else f"{kind}:{origin}"
    words = {"home": str(person.home), "source": source, "spellings": {**spellings, **REFUSED}}
    said = json.loads(person.python(SCRIPT.format(**words)))
    assert said == {
        **{key: ["seen\n", "asked again"] for key in spellings},
        **{key: ["seen\n", "invalid"] for key in REFUSED},
    }


@pytest.fixture
def desk(workspaces: Local) -> str:
    desk = workspaces.create(id="t/a", config={"policy": "careful"}).id
    workspaces.write_file(desk, "work/s.sh", "echo seen\n")
    return desk


@pytest.fixture
def agent(workspaces: Local, desk: str) -> Local:
    return workspaces.acting_as("bot", agent_of=desk)


def asked_for(agent: Local, desk: str, command: list[str], **options: object) -> str:
    with pytest.raises(ApprovalRequired) as asked:
        agent.run(desk, command, **options)  # type: ignore[arg-type]
    return str(asked.value.details["approval_id"])


def test_a_file_that_changes_after_the_grant_was_used_is_not_run(workspaces: Local, desk: str) -> None:
    """The look at the moment of execution: what was approved is not there any more, or is there for the first time."""
    home = workspaces._home
    workspace = lookup.get(home, desk)
    from workstead.core.command_files import named_files

    spec = run_start.checked(home, runs.RunSpec(command=["sh", "s.sh", "later.sh"]))
    bound = named_files(home, workspace, spec)
    assert list(bound) == [f"{INSIDE}/s.sh"]

    def ends(**approved: str) -> tuple[int | None, str]:
        run = run_start.start(home, workspace, spec.replace(bound=approved))
        ended = workspaces.wait(run.id, timeout_seconds=60)
        return ended.exit_code, str((ended.error or {}).get("code", ""))

    assert ends(**bound) == (0, "")
    assert ends(**{f"{INSIDE}/s.sh": "other"}) == (125, "file_changed")
    workspaces.write_file(desk, "work/later.sh", "x")
    assert ends(**bound) == (125, "file_changed")


def test_a_kept_box_looks_again_too(workspaces: Local, agent: Local, desk: str) -> None:
    from workstead.core.command_files import check_unchanged, named_files

    home = workspaces._home
    workspace = lookup.get(home, desk)
    spec = runs.RunSpec(command=["sh", "s.sh"])
    spec = spec.replace(bound=named_files(home, workspace, spec))
    check_unchanged(home, workspace, spec)
    workspaces.write_file(desk, "work/s.sh", "echo evil\n")
    with pytest.raises(FileChanged):
        check_unchanged(home, workspace, spec)


def test_too_many_names_are_refused_and_not_left_unbound(agent: Local, desk: str) -> None:
    with pytest.raises(LimitExceeded):
        agent.run(desk, ["true", *(f"w{number}" for number in range(10_001))])
    asked_for(agent, desk, ["true", *(f"w{number}" for number in range(5_000))])


def test_a_variable_that_names_a_file_is_bound(workspaces: Local, agent: Local, desk: str) -> None:
    variables = {"BASH_ENV": f"{INSIDE}/s.sh"}
    first = asked_for(agent, desk, ["bash", "-c", "true"], environment=variables)
    workspaces.approve(first)
    workspaces.write_file(desk, "work/s.sh", "echo evil\n")
    assert asked_for(agent, desk, ["bash", "-c", "true"], environment=variables) != first


def test_links_in_a_circle_and_names_that_lead_nowhere_bind_nothing(workspaces: Local, agent: Local, desk: str) -> None:
    os.symlink("round", f"{workspaces.get(desk).path}/work/round")
    command = ["sh", "round", "s.sh/x", "missing/../s.sh", "y" * 5000, "../../../../etc/passwd", ".", "/"]
    shown = workspaces.preview(asked_for(agent, desk, command))
    assert "file:" not in shown


def test_a_grant_is_bound_to_everything_of_the_run(workspaces: Local, agent: Local, desk: str) -> None:
    command = ["sh", "s.sh"]
    first = asked_for(agent, desk, command)
    workspaces.approve(first)
    others: list[dict[str, object]] = [
        {"tty": True},
        {"timeout_seconds": 7.0},
        {"memory_mb": 64},
        {"processes": 5},
        {"cpus": 0.5},
        {"file_mb": 1},
        {"output_mb": 1},
        {"stdin": True},
        {"concurrent": True},
        {"prompt": "do it"},
        {"network": "example.org"},
        {"environment": {"A": "b"}},
    ]
    for other in others:
        asked = asked_for(agent, desk, command, **other)
        assert asked != first
        (name,) = other
        assert f"{name.replace('_', ' ')}: " in workspaces.preview(asked)
    with pytest.raises(ApprovalRequired) as kept:
        agent.run_kept(desk, command)
    assert kept.value.details["approval_id"] != first
    assert workspaces.wait(agent.run(desk, command).id, timeout_seconds=60).exit_code == 0


def test_what_others_may_change_is_said_to_be_unbound(workspaces: Local) -> None:
    shares = {"shares": [{"name": "board"}], "policy": "careful"}
    for name in ("a", "b"):
        workspaces.create(id=f"s/{name}", config=shares)
    agent = workspaces.acting_as("bot", agent_of="s/a")
    os.symlink("/mnt/shares/board", f"{workspaces.get('s/a').path}/work/board")
    for name in ("/mnt/shares/board/s.sh", "board/s.sh"):
        found = workspaces.get_approval(asked_for(agent, "s/a", ["sh", name]))
        assert "file: /mnt/shares/board/s.sh not bound" in workspaces.preview(found.id)
        assert not found.whole
    assert workspaces.get_approval(asked_for(agent, "s/a", ["sh", "/usr/bin/true", "."])).whole


def test_a_directory_that_is_too_large_is_said_to_be_unbound(workspaces: Local, agent: Local, desk: str) -> None:
    large = f"{workspaces.get(desk).path}/work/large"
    os.mkdir(large)
    for number in range(10_001):
        os.close(os.open(f"{large}/{number}", os.O_CREAT | os.O_CLOEXEC))
    found = workspaces.get_approval(asked_for(agent, desk, ["ls", "large"]))
    assert f"file: {INSIDE}/large not bound" in workspaces.preview(found.id)
    assert not found.whole


def test_what_is_fed_to_a_command_is_said_to_be_unseen(workspaces: Local, agent: Local, desk: str) -> None:
    told, tell = os.pipe()
    try:
        with pytest.raises(ApprovalRequired) as asked:
            agent.run_kept(desk, ["sh"], stdin=told)
    finally:
        os.close(told)
        os.close(tell)
    found = workspaces.get_approval(str(asked.value.details["approval_id"]))
    assert "stdin: true" in workspaces.preview(found.id)
    assert not found.whole
    with pytest.raises(ApprovalRequired) as without:
        agent.run_kept(desk, ["sh"])
    assert without.value.details["approval_id"] != found.id


LOOK_ALIKE = (
    (["sh", "-c", "a b"], ["sh", "-c", "a", "b"]),
    (["echo", "a\nb"], ["echo", "a\\nb"]),
    (["echo", "a", ""], ["echo", "a"]),
    (["echo", "\x85"], ["echo", "\udc85"]),
    (["echo", "it's"], ["echo", 'it"\'"s']),
    (["echo", "\u202etxt"], ["echo", "\\u202etxt"]),
    (["echo", "$'a'"], ["echo", "a"]),
)


@pytest.mark.parametrize(("one", "other"), LOOK_ALIKE)
def test_two_commands_never_look_alike(
    workspaces: Local, agent: Local, desk: str, one: list[str], other: list[str]
) -> None:
    asked = [workspaces.get_approval(asked_for(agent, desk, command)) for command in (one, other)]
    shown = [(each.path, workspaces.preview(each.id)) for each in asked]
    assert shown[0][0] != shown[1][0]
    assert shown[0][1] != shown[1][1]
    assert all(path.isprintable() for path, _ in shown)


def test_a_shell_takes_the_shown_command_for_the_same_words(tmp_path: Path) -> None:
    words = [
        "a b",
        "it's",
        "line\nline",
        "tab\t",
        "back\\slash",
        "",
        "$HOME",
        "\x1b[31m",
        "\u00e9\u202e",
        "\udcff",
        "\x85",
    ]
    script = f"printf '%s\\0' {quoted(words)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in words]
