"""The commands: their spellings, what they print, and where."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from situations import names_in, tree_of
from workstead.cli import COMMANDS, main

from .aw_command import PROGRAM, Answer, Aw, program


@pytest.fixture
def aw(home_path: str, capsys: pytest.CaptureFixture[str]) -> Aw:
    return Aw(home_path, capsys)


def give(monkeypatch: pytest.MonkeyPatch, *lines: Any) -> None:
    """Put lines on stdin."""
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(texts) + b"\n")))


# -- the program itself ------------------------------------------------------------------------------------------------


def test_the_first_five_minutes(home_path: str) -> None:
    made = program("create", "--id", "t1/a1", home=home_path)
    assert made.code == 0
    assert made.err == ""
    path = made.out.removesuffix("\n")
    assert path == f"{home_path}/workspaces/t1/a1"
    Path(path, "work", "file").write_bytes(bytes(range(256)))
    before = tree_of(path)
    listed = program("list", "--task-id", "t1", "--format", "json", home=home_path).json
    assert [workspace["workspace_id"] for workspace in listed] == ["t1/a1"]
    destroyed = program("destroy", "--id", "t1/a1", home=home_path)
    assert (destroyed.code, destroyed.out, destroyed.err) == (0, "", "")
    assert not os.path.exists(path)
    assert program("undo", home=home_path).code == 0
    assert tree_of(path) == before


def test_the_program_works_from_anywhere_and_through_a_link(home_path: str, tmp_path: Path) -> None:
    os.symlink(PROGRAM, tmp_path / "link")
    done = subprocess.run([tmp_path / "link", "--version"], capture_output=True, text=True, cwd="/")
    assert re.fullmatch(r"aw \d+\.\d+\.\d+\n", done.stdout)


def test_a_reader_that_goes_away_is_no_bug(home_path: str) -> None:
    lines = "".join(f'{{"id": "t/{number}", "lazy": true}}\n' for number in range(500)).encode()
    program("create", "--batch", "-q", home=home_path, stdin=lines)
    pipe = '"$0" events --home "$1" | head -1'
    done = subprocess.run(["sh", "-c", pipe, PROGRAM, home_path], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_following_the_log_as_a_process_sees_everything_in_order(home_path: str) -> None:
    program("create", "t/0", home=home_path)
    follower = subprocess.Popen(
        [PROGRAM, "events", "--follow", "--after", "0", "--format", "json", "--home", home_path],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout
    try:
        seen = [json.loads(follower.stdout.readline()) for _ in range(2)]
        for number in (1, 2):
            program("create", f"t/{number}", home=home_path)
        program("destroy", "t/1", home=home_path)
        seen += [json.loads(follower.stdout.readline()) for _ in range(6)]
    finally:
        follower.send_signal(signal.SIGINT)
        code = follower.wait(60)
        follower.stdout.close()
    assert code == 130
    assert [event["position"] for event in seen] == list(range(1, 9))
    assert seen == program("events", "--format", "json", home=home_path).lines


def test_hints_and_colours_are_for_terminals_only(home_path: str) -> None:
    program("create", "t/a", home=home_path)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(PROGRAM, ["aw", "destroy", "t/a", "--home", home_path])
    said = b""
    try:
        while piece := os.read(terminal, 1000):
            said += piece
    except OSError:
        pass  # how a terminal says that its other side is gone
    os.close(terminal)
    os.waitpid(pid, 0)
    assert b"aw undo brings it back" in said


# -- help --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_names_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert f"  {name} " in out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: aw {name}" in text
    assert f"aw {name}" in text.split("examples:")[1]
    assert main(["help", name]) == 0
    assert capsys.readouterr().out == text


def test_asking_for_help_makes_no_home(tmp_path: Path) -> None:
    main(["create", "--help"])
    assert names_in(os.environ["HOME"]) == []


# -- create, list, show, path, destroy ---------------------------------------------------------------------------------


def test_create_prints_the_path_or_the_workspace(aw: Aw) -> None:
    text = aw("create", "t/a")
    assert (text.code, text.err) == (0, "")
    assert text.out == f"{aw.home}/workspaces/t/a\n"
    made = aw.ok("create", "--id", "t/b")
    assert made["path"] == f"{aw.home}/workspaces/t/b"
    assert made["state"] == "ready"
    fresh = aw.ok("create")
    assert fresh["agent_id"] == "main"


def test_create_takes_its_configuration_in_every_spelling(aw: Aw, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_size_mb": 7, "context": {"k": 1}}')
    (tmp_path / "CLAUDE").write_text("be kind")
    path = aw.ok(
        "create", "--id", "t/a", "--config", f"@{tmp_path}/config.json", "--claude-md", str(tmp_path / "CLAUDE"),
        "--agents-md", str(tmp_path / "CLAUDE"), "--prompt", "go", "--max-size-mb", "9",
    )["path"]  # fmt: skip
    assert json.loads(Path(path, ".aw", "workspace_config.json").read_text())["max_size_mb"] == 9
    assert json.loads(Path(path, ".aw", "context.json").read_text())["k"] == 1
    assert json.loads(Path(path, ".aw", "run.json").read_text())["prompt"] == "go"
    assert Path(path, "CLAUDE.md").read_text() == Path(path, "AGENTS.md").read_text() == "be kind"
    other = aw.ok("create", "--id", "t/b", "--config", '{"git_config": {"user_name": "Ada"}}')
    assert other["config"]["git_config"]["user_name"] == "Ada"


def test_create_can_only_take_the_id(aw: Aw) -> None:
    assert aw.ok("create", "t/a", "--lazy")["state"] == "planned"
    path = aw("path", "t/a").out.removesuffix("\n")
    assert os.path.isdir(path)
    assert aw.ok("path", "--id", "t/a") == {"path": path}


def test_list_is_what_schedulers_read(aw: Aw) -> None:
    assert aw.ok("list") == []
    assert aw("list").out == ""
    for id in ("t1/a1", "t1/a2", "t2/a1"):
        aw("create", "--id", id, "--config", "{}")
    aw("destroy", "--id", "t1/a2", "--force")
    (row,) = aw.ok("list", "--task-id", "t1")
    assert {key: row[key] for key in ("workspace_id", "task_id", "agent_id", "path", "state")} == {
        "workspace_id": "t1/a1",
        "task_id": "t1",
        "agent_id": "a1",
        "path": f"{aw.home}/workspaces/t1/a1",
        "state": "ready",
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", row["created_at"])
    assert [row["workspace_id"] for row in aw.ok("list")] == ["t1/a1", "t2/a1"]
    assert [row["state"] for row in aw.ok("list", "--all")] == ["ready", "destroyed", "ready"]
    table = aw("list").out.splitlines()
    assert table[0].split() == ["WORKSPACE", "STATE", "SOURCE", "CREATED", "(UTC)", "PATH"]
    assert len(table) == 3


def test_show_tells_everything(aw: Aw) -> None:
    aw("create", "t/a", "--prompt", "x" * 200)
    shown = aw("show", "t/a").out
    for part in ("workspace", "t/a", "ready", f"{aw.home}/workspaces/t/a", "empty", "config prompt"):
        assert part in shown
    assert "x" * 101 not in shown
    assert aw.ok("show", "--id", "t/a")["config"]["prompt"] == "x" * 200


def test_destroy_in_every_spelling(aw: Aw) -> None:
    for name in "abcdef":
        aw("create", f"t/{name}")
    assert aw("destroy", "t/a").out == ""
    assert [gone["workspace_id"] for gone in aw.ok("destroy", "--id", "t/b", "t/c", "--reason", "why")] == [
        "t/b",
        "t/c",
    ]
    assert aw.ok("list", "--all")[1]["reason"] == "why"
    assert len(aw.ok("destroy", "--task-id", "t")) == 3
    assert aw.ok("list") == []
    assert aw.json("destroy", "t/a").code == 0


def test_many_are_made_from_lines_of_json(aw: Aw, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, {"id": "t/a"}, b"", {"id": "t/b", "config": {"prompt": "x"}, "source": "empty", "lazy": True}, {})
    answer = aw.json("create", "--batch")
    assert answer.code == 0
    assert [made["state"] for made in answer.lines] == ["ready", "planned", "ready"]
    give(monkeypatch, {"id": "t/c"}, {"id": "t/d"})
    assert aw("create", "--batch").out.splitlines() == [f"{aw.home}/workspaces/t/{name}" for name in "cd"]


def test_a_bad_line_does_not_stop_the_others(aw: Aw, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [
        {"id": "t/.."},
        {"id": 5},
        {"id": "t/x", "source": 5},
        {"id": "t/x", "config": []},
        {"id": "t/x", "lazy": "yes"},
        {"id": "t/x", "bogus": 1},
        b"nonsense",
        b"[]",
        b"@/etc/passwd",
        b'{"id": "\xff"}',
        b"[" * 100_000,
    ]
    give(monkeypatch, {"id": "t/a"}, *bad, {"id": "t/a"}, {"id": "t/b"})
    answer = aw.json("create", "--batch")
    assert answer.code == 2
    codes = [line["error"]["code"] if "error" in line else line["workspace_id"] for line in answer.lines]
    assert codes[0] == "t/a"
    assert codes[1] == "invalid_id"
    assert codes[2:9] == ["invalid_config"] * 7
    assert codes[9:] == ["invalid_config", "invalid_id", "invalid_config", "workspace_exists", "t/b"]
    assert "line 2" in answer.lines[2]["error"]["message"] or "line 3" in answer.lines[2]["error"]["message"]
    assert "Traceback" not in answer.err


# -- taking back -------------------------------------------------------------------------------------------------------


def test_undo_ops_and_trash(aw: Aw) -> None:
    aw("create", "t/a")
    aw("create", "t/b")
    uid = aw.ok("destroy", "t/a")[0]["uid"]
    assert aw.ok("trash")[0]["uid"] == uid
    assert uid in aw("trash", "list").out
    undone = aw.ok("undo")
    assert undone["undone"]["kind"] == "destroy"
    assert undone["workspaces"][0]["state"] == "ready"
    newest, oldest = aw.ok("ops")
    assert (newest["kind"], oldest["undone_by"]) == ("undo", newest["operation_id"])
    assert "undone by" in aw("ops").out
    aw("undo", newest["operation_id"])
    assert aw("trash", "restore", "t/a", "--as", "t/new").out == f"{aw.home}/workspaces/t/new\n"
    aw("destroy", "t/new", "t/b")
    assert len(aw.ok("trash", "empty", uid)) == 1
    assert len(aw.ok("trash", "empty")) == 1
    assert aw.ok("trash") == []
    assert aw("trash").out == aw("undo").out == ""


def test_what_rm_mv_and_put_take_away_is_brought_back_by_undo(aw: Aw, home_path: str) -> None:
    aw("create", "t/a")
    for text in (b"one", b"two"):
        program("put", "t/a", "work/x", home=home_path, stdin=text)
    program("put", "t/a", "work/x", "--append", home=home_path, stdin=b" and more")  # takes nothing away
    aw("mv", "t/a", "work/x", "work/y")
    aw("rm", "t/a", "work/y")
    found = []
    for path in ("work/y", "work/x", "work/x"):
        aw("undo")
        found.append(aw("cat", "t/a", path).out)
    assert found == ["two and more", "two and more", "one"]
    aw("rm", "t/a", "work/x", "--no-keep")
    assert aw.json("undo").error["code"] == "operation_not_found"


def test_sweep_says_what_would_go(aw: Aw, monkeypatch: pytest.MonkeyPatch) -> None:
    aw("create", "t/a")
    aw("destroy", "t/a")
    assert [(c["workspace_id"], c["goes"]) for c in aw.ok("sweep", "--dry-run")] == [("t/a", False)]
    assert "stays" in aw("sweep", "--dry-run").out
    assert aw("sweep").out == ""
    monkeypatch.setenv("AW_WORKSPACES__TRASH_DAYS", "0")
    assert "deleted" in aw("sweep", "--dry-run").out
    assert aw.ok("sweep")[0]["goes"] is True
    assert aw.ok("trash") == []


def test_what_is_pinned_says_so_and_stays(aw: Aw, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        aw("create", f"t/{name}")
    (pinned,) = aw.ok("pin", "t/a", "--reason", "for later")
    assert pinned["pinned"] is True
    assert "pinned" in aw("show", "t/a").out
    assert "ready, pinned" in aw("list").out
    monkeypatch.setenv("AW_WORKSPACES__RETENTION_DAYS", "0")
    swept = {c["workspace_id"]: (c["goes"], c["why"]) for c in aw.ok("sweep", "--dry-run")}
    assert swept["t/a"] == (False, "pinned")
    assert swept["t/b"][0] is True
    assert "to the trash" in aw("sweep").out
    assert [each["workspace_id"] for each in aw.ok("list")] == ["t/a"]
    aw.ok("unpin", "t/a")
    aw("sweep")
    assert aw.ok("list") == []
    assert aw.ok("undo")["workspaces"][0]["workspace_id"] == "t/a"


def test_sweep_free_takes_a_size(aw: Aw) -> None:
    aw("create", "t/a")
    for text in ("5GB", "5 gib", "1.5G", "100"):
        aw.ok("sweep", "--dry-run", "--free", text)
    for text in ("much", "-3", "0", "GB"):
        assert aw("sweep", "--free", text).code == 2
    assert aw.ok("list") != []


# -- what happened -----------------------------------------------------------------------------------------------------


def test_events_are_one_per_line_and_can_be_narrowed_down(aw: Aw) -> None:
    aw("create", "t/a")
    aw("create", "u/a")
    events = aw.json("events").lines
    assert [event["position"] for event in events] == [1, 2, 3, 4]
    assert set(events[0]) == {
        "position",
        "stream",
        "version",
        "event_type",
        "event_data",
        "actor_id",
        "metadata",
        "recorded_at",
        "hash",
    }
    assert set(events[0]["metadata"]) == {"correlation_id", "causation_id"}
    assert [event["stream"] for event in aw.json("events", "--task-id", "u").lines] == ["u", "u"]
    assert len(aw.json("events", "--type", "workspace_created").lines) == 2
    assert len(aw.json("events", "--type", "workspace_created", "--type", "workspace_creating").lines) == 4
    assert [event["position"] for event in aw.json("events", "--after", "2", "--limit", "1").lines] == [3]
    assert aw("events", "--after", "99").out == ""
    assert aw("events").out.splitlines()[1].split()[2:4] == ["workspace_created", "t/a"]


def test_the_caller_is_in_every_event(aw: Aw, monkeypatch: pytest.MonkeyPatch) -> None:
    aw("create", "t/a", "--actor", "ada", "--correlation-id", "c", "--causation-id", "e")
    for variable, value in (("AW_ACTOR", "eve"), ("AW_CORRELATION_ID", "c2"), ("AW_CAUSATION_ID", "e2")):
        monkeypatch.setenv(variable, value)
    aw("create", "t/b")
    first, _, third, _ = aw.json("events").lines
    assert (first["actor_id"], first["metadata"]) == ("ada", {"correlation_id": "c", "causation_id": "e"})
    assert (third["actor_id"], third["metadata"]) == ("eve", {"correlation_id": "c2", "causation_id": "e2"})


def test_verify_and_repair(aw: Aw) -> None:
    aw("create", "t/a")
    assert aw.ok("verify") == {"events": 2, "streams": 1, "records": 1, "ok": True}
    assert aw("verify").out == "2 events in 1 streams and 1 records: all whole\n"
    assert aw.ok("repair") == []
    assert aw("repair").out == ""
    assert aw.ok("repair", "--rebuild-views")[0]["what"] == "views"


def test_usage_and_doctor(aw: Aw) -> None:
    aw("create", "t/a")
    assert aw.ok("usage")["workspaces"][0]["workspace_id"] == "t/a"
    assert aw.ok("usage", "t/a")["trash"] == 0
    assert "free of" in aw("usage").out
    probes = {probe["name"]: probe for probe in aw.ok("doctor")}
    assert {
        "kernel",
        "openat2",
        "overlay",
        "reflink",
        "user namespaces",
        "bubblewrap",
        "git",
        "qemu",
        "cgroups",
        "disk",
    } <= set(probes)
    for probe in probes.values():
        assert probe["means"]
        assert probe["ok"] or probe["remedy"]
    assert "kernel" in aw("doctor").out
    assert names_in(f"{aw.home}/workspaces") == [".carrel", "t"]


def test_templates(aw: Aw, tmp_path: Path) -> None:
    (tmp_path / "skeleton").mkdir()
    assert aw("template", "list").out == ""
    assert aw("template", "add", "py", str(tmp_path / "skeleton")).code == 0
    aw("create", "t/a")
    assert aw.ok("template", "add", "warm", "--from", "t/a")["name"] == "warm"
    assert [template["name"] for template in aw.ok("template")] == ["py", "warm"]
    assert aw.ok("template", "remove", "py") == {"removed": "py"}
    assert "warm" in aw("template", "list").out


# -- how it is said ----------------------------------------------------------------------------------------------------


def test_the_common_options_stand_before_or_after_the_command(
    home_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--format", "json", "--home", home_path, "create", "t/a"]) == 0
    assert main(["create", "t/b", "--format=json", f"--home={home_path}", "-q"]) == 0
    assert [json.loads(line)["workspace_id"] for line in capsys.readouterr().out.splitlines()] == ["t/a", "t/b"]


def test_control_characters_never_reach_a_terminal(aw: Aw) -> None:
    evil = "\x1b]0;pwned\x07\r\n\u202e\x9b31m"
    aw("create", f"t{evil}/a", "--prompt", evil)
    aw("create", "gone")
    aw("destroy", "gone", "--reason", evil)
    said: list[Answer] = [
        aw("list"),
        aw("show", f"t{evil}/a"),
        aw("events"),
        aw("trash"),
        aw("ops"),
        aw("usage"),
        aw("show", f"no{evil}"),
        aw("create", "a/b/c", "--source", evil),
        aw("create", f"{evil}/.."),
        aw("trash", "empty", evil),
        aw("undo", evil),
        aw("template", "remove", evil),
        aw(evil),
        aw("create", f"--{evil}"),
        aw("sweep"),
        aw("repair"),
    ]
    for answer in said:
        text = (answer.out + answer.err).replace("\n", "")
        assert text.isprintable(), ascii(text)
        assert "Traceback" not in text
    assert aw.ok("show", f"t{evil}/a")["task_id"] == f"t{evil}"  # JSON escapes by itself


def test_arguments_that_are_no_text_are_refused_and_no_bug(home_path: str) -> None:
    for arguments in (
        ["create", b"\xff"],
        ["create", "t/a", "--prompt", b"\xff"],
        ["create", "t/a", "--source", b"folder:\xff"],
        ["create", "t/a", "--config", b'{"prompt": "\xff"}'],
        ["list", "--task-id", b"\xff"],
        ["events", "--task-id", b"\xff"],
        ["events", "--type", b"\xff"],
        ["undo", b"\xff"],
        ["trash", "restore", b"\xff"],
        ["trash", "empty", b"\xff"],
        ["template", "remove", b"\xff"],
        [b"\xff"],
        ["list", "--home", b"/tmp/\xff"],
    ):
        answer = program(*arguments, home=home_path)
        assert answer.code in (2, 3), (arguments, answer.err)
        assert answer.err.startswith("aw: "), arguments
    answer = program("create", "t/a", "--actor", b"\xff", home=home_path)
    assert answer.code == 2
    assert program("list", "--format", "json", home=home_path).json == []


def test_a_reason_that_is_no_text_is_kept_all_the_same(home_path: str) -> None:
    program("create", "t/a", home=home_path)
    assert program("destroy", "t/a", "--reason", b"\xff", home=home_path).code == 0
    assert program("trash", "list", "--format", "json", home=home_path).json[0]["reason"] == "\udcff"
    assert "\\xff" in program("trash", "list", home=home_path).out


def test_nothing_is_left_open(aw: Aw) -> None:
    aw("create", "t/a")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        aw("list")
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_program_does_not_clean_up_what_it_made(aw: Aw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_WORKSPACES__CLEANUP_ON_SHUTDOWN", "true")
    aw("create", "t/a")
    assert len(aw.ok("list")) == 1
