"""aw watch and aw overlaps, as people and programs call them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from cli.aw_command import PROGRAM, Aw, program
from needs import need_root
from origins import make_origin


@pytest.fixture
def aw(home_path: str, capsys: pytest.CaptureFixture[str]) -> Aw:
    return Aw(home_path, capsys)


def test_a_change_is_a_line_and_ctrl_c_ends_it(home_path: str, aw: Aw) -> None:
    path = aw.ok("create", "--id", "t/a")["path"]
    words = [PROGRAM, "watch", "t/a", "--format", "json"]
    with subprocess.Popen(words, env={**os.environ, "AW_HOME": home_path}, stdout=subprocess.PIPE, bufsize=0) as watch:
        assert watch.stdout is not None
        for number in range(200):  # until it is up
            Path(path, "work", f"new\nline{number}").write_text("x")
            if select.select([watch.stdout], [], [], 0.1)[0]:
                break
        found = json.loads(watch.stdout.readline())
        watch.send_signal(signal.SIGINT)
        assert watch.wait() == 0
    assert found["kind"] == "added"
    assert str(found["path"]).startswith("/mnt/workspace/work/new\nline")
    assert (found["by"], found["certain"]) == ("outside", True)


def test_names_are_printed_so_that_they_cannot_act(home_path: str, aw: Aw) -> None:
    path = aw.ok("create", "--id", "t/a")["path"]
    script = f"sleep 0.8; cd {path}/work; printf x > \"$(printf 'a\\033[2Jb')\""
    with subprocess.Popen(["sh", "-c", script]):
        answer = program("watch", "t/a", "--timeout", "2", home=home_path)
    assert answer.code == 0
    assert "added    /mnt/workspace/work/a\\x1b[2Jb  outside" in answer.out
    assert "\033" not in answer.out


def test_the_background_watcher_is_started_listed_and_stopped(aw: Aw) -> None:
    aw.ok("create", "--id", "t/a")
    started = aw.ok("watch", "--start", "t/a")
    try:
        assert started["state"] == "watching"
        assert [each["workspace_id"] for each in aw.ok("watch", "--list")] == ["t/a"]
        assert "t/a        watching  inotify" in aw("watch", "--list").out
    finally:
        assert aw.ok("watch", "--stop", "t/a")["uid"] == started["uid"]
    assert aw.ok("watch", "--list") == []
    assert aw.ok("watch", "--stop", "t/a") is None


def test_bad_words_are_refused(aw: Aw) -> None:
    assert aw.json("watch").error["code"] == "invalid_usage"
    assert aw.json("watch", "no/such").error["code"] == "workspace_not_found"
    assert aw.json("watch", "--start", "no/such").error["code"] == "workspace_not_found"
    assert aw.json("watch", "--start", "--stop", "t/a").error["code"] == "invalid_usage"
    assert aw.json("overlaps", "no/such").error["code"] == "workspace_not_found"


def test_overlaps_are_a_table_and_a_note_after_a_run(home_path: str, aw: Aw, tmp_path: Path) -> None:
    need_root()
    origin = make_origin(tmp_path / "origin")
    assert aw.ok("overlaps") == []
    for id in ("t/a", "t/b"):
        aw.ok("create", "--id", id, "--source", f"overlay:{origin}")
    command = ("--sandbox", "none", "--", "sh", "-c", "echo $AW_RUN_ID > README.md")
    program("run", "t/a", *command, home=home_path)
    answer = program("run", "t/b", *command, home=home_path)
    assert "note: t/a changed README.md too; aw overlaps shows all" in answer.err
    assert [each["paths"] for each in aw.ok("overlaps")] == [["README.md"]]
    assert aw("overlaps", "t/b").out.splitlines()[1].split() == ["t/b", "t/a", "README.md"]
