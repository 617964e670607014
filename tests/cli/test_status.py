"""`aw status` and `aw list`: what every workspace does, how its last run ended, and what to do next."""

from __future__ import annotations

from people import Person
from waiting import wait_until


def test_status_says_what_each_workspace_does_and_what_to_do_next(person: Person) -> None:
    project = person.folder("project", {"a.txt": "one\n"})
    elsewhere = person.folder("elsewhere")
    person.aw_ok("create", "--id", "fix/new", "--source", "overlay:.", cwd=project)
    person.aw_ok("run", "--source", ".", "--id", "fix/done", "--", "true", cwd=project)
    person.aw_ok("run", "--source", ".", "--id", "fix/changed", "--", "sh", "-c", "echo two > a.txt", cwd=project)
    assert person.aw("run", "--source", "empty", "--id", "other/bad", "--", "sh", "-c", "exit 3").returncode == 3
    long = person.aw_ok("run", "fix/new", "--detach", "--", "sleep", "300", cwd=project).strip()
    wait_until(lambda: person.aw_json("status")[0]["run_state"] == "running")

    found = person.aw_json("status")
    assert [(each["workspace_id"], each["status"], each["changed"]) for each in found] == [
        ("fix/new", "running", False),
        ("other/bad", "failed", False),
        ("fix/changed", "changed", True),
        ("fix/done", "done", False),
    ]
    assert (found[1]["exit_code"], found[1]["command"]) == (3, ["sh", "-c", "exit 3"])
    assert [each["next"] for each in found] == [
        "aw logs -f fix/new",
        "aw logs other/bad",
        "aw diff fix/changed",
        "aw run fix/done -- COMMAND",
    ]
    person.aw_ok("stop", long)
    person.aw_ok("apply", "fix/changed", cwd=project)
    here = person.aw_json("status", "--here", cwd=project)
    assert {each["workspace_id"]: each["status"] for each in here} == {
        "fix/new": "stopped",
        "fix/changed": "done",
        "fix/done": "done",
    }
    assert person.aw_json("status", "--here", cwd=elsewhere) == []
    assert [each["workspace_id"] for each in person.aw_json("status", "--task-id", "other")] == ["other/bad"]

    shown = person.aw_ok("status")
    assert shown.startswith("1 failed, 1 stopped, 2 done\n")
    assert "exit 3: sh -c 'exit 3'" in shown
    listed = person.aw_ok("list")
    assert "failed, exit 3" in listed
    assert "no workspaces of this folder yet" in person.aw_ok("status", "--here", cwd=elsewhere)


def test_on_a_narrow_terminal_a_bare_aw_is_the_home_screen_and_fits(person: Person) -> None:
    project = person.folder("project", {"a.txt": "one\n"})
    person.sh("git init -q .", cwd=project)
    name = "a-task-with-a-rather-long-name/and-an-agent"
    person.aw_ok("run", "--source", ".", "--id", name, "--", "sh", "-c", f"echo {'x' * 90}", cwd=project)
    aw = " ".join(f"'{word}'" for word in person.aw_words())
    shown = person.sh(f'script -qec "stty cols 70; {aw}" /dev/null', cwd=project, NO_COLOR="1")
    assert "1 done" in shown
    assert all(len(line) <= 72 or "aw run" in line for line in shown.splitlines()), shown
    listed = person.sh(f'script -qec "stty cols 60; {aw} list" /dev/null', cwd=project, NO_COLOR="1")
    assert str(person.home) not in listed
    assert all(len(line.rstrip()) <= 60 for line in listed.splitlines()), listed
    assert str(person.home) in person.aw_ok("list", "--wide")
    assert "usage: aw COMMAND" in person.aw_ok(cwd=project)  # to a pipe: the help, as before
