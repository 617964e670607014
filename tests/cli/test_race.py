"""aw race, as people type it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cli.aw_command import PROGRAM, program
from needs import need_root

FIX = "[ {n} = 2 ] && sed -i 's/-/+/' calc.py; echo tried > tried.txt"
CHECK = "python3 check.py"


@pytest.fixture
def origin(tmp_path: Path) -> str:
    need_root()
    folder = tmp_path / "origin"
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "check.py").write_text("from calc import add\nassert add(2, 3) == 5\n")
    return str(folder)


def test_a_race_says_who_won_and_what_to_do_next(home_path: str, origin: str) -> None:
    words = ("race", "--source", origin, "-n", "2", "--task", "t", "--check", CHECK, "--", "sh", "-c", FIX)
    done = program(*words, home=home_path)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].split() == ["RANK", "WORKSPACE", "RESULT", "SECONDS", "CHECK", "CHANGED", "IN", "COMMON"]
    assert lines[1].split()[:3] == ["1", "t/2", "ok"]
    assert "passed" in lines[1]
    assert lines[2].split()[:3] == ["2", "t/1", "ok"]
    assert "exit 1" in lines[2]
    assert "changed by several: tried.txt" in done.out
    for hint in ("aw diff t/2", "aw apply t/2", "aw destroy --task-id t --force", "aw logs run-"):
        assert hint in done.err
    shown = program("race", "show", "t", home=home_path)
    assert shown.out == done.out
    assert "t     ended  2" in program("race", "show", home=home_path).out
    assert program("apply", "t/2", home=home_path).code == 0
    assert "a + b" in Path(origin, "calc.py").read_text()


def test_as_json_and_without_a_winner(home_path: str, origin: str) -> None:
    words = ("race", "--source", origin, "--format", "json", "--task", "t", "--check", "exit 7")
    done = program(*words, "--", "true", home=home_path)
    assert (done.code, done.err) == (7, "")
    assert done.json["best"] is None
    assert [lane["check_code"] for lane in done.json["lanes"]] == [7, 7]
    shown = program("race", "show", "t", "--format", "json", home=home_path).json
    assert shown == done.json
    best = program(
        *words[:-1], "true", "--apply-best", "--keep", "best", "--task", "u", "--", "touch", "x{n}", home=home_path
    )
    assert best.code == 0
    assert len(best.json["destroyed"]) == 1
    assert Path(origin, f"x{best.json['best'][-1]}").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--", "true"], 2, "a workspace or --source"),
        (["--source", "."], 2, "no command"),
        (["a/b", "--source", ".", "--", "true"], 2, "a workspace or --source"),
        (["no/body", "--", "true"], 3, "no/body"),
        (["--source", ".", "-n", "0", "--", "true"], 2, "race of 0"),
        (["show", "nothing"], 3, "there is no race nothing"),
    ],
)
def test_what_makes_no_sense(home_path: str, words: list[str], code: int, said: str) -> None:
    need_root()
    done = program("race", *words, home=home_path)
    assert done.code == code
    assert said in done.err
    assert program("list", home=home_path, stdin=b"").out == ""


def test_ctrl_c_stops_them_and_says_what_is_kept(home_path: str, origin: str) -> None:
    command = [PROGRAM, "race", "--home", home_path, "--source", origin, "-n", "2", "--at-once", "2", "--task", "t"]
    racing = subprocess.Popen(
        [*command, "--", "sh", "-c", "echo x > begun; sleep 60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    begun = [Path(home_path, "workspaces", "t", name, "work", "begun") for name in ("1", "2")]
    while not all(path.exists() for path in begun):
        assert racing.poll() is None
        time.sleep(0.02)
    racing.send_signal(signal.SIGINT)
    out, err = (text.decode() for text in racing.communicate())
    assert racing.returncode == 130
    assert out.count("stopped") == 2
    assert "2 workspaces are kept" in err
    assert all(path.exists() for path in begun)
    states = program("runs", home=home_path, stdin=b"").out
    assert "running" not in states


def test_on_a_terminal_the_table_is_shown_while_it_changes(home_path: str, origin: str) -> None:
    main_end, terminal = pty.openpty()
    words = [PROGRAM, "race", "--home", home_path, "--source", origin, "-n", "2", "--task", "t", "--check", "true"]
    racing = subprocess.Popen([*words, "--", "sleep", "0.3"], stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    said = b""
    with suppress(OSError):  # EIO: the other end is closed
        while True:
            said += os.read(main_end, 65536)
    os.close(main_end)
    assert racing.wait() == 0
    assert racing.stdout
    with racing.stdout:
        table = racing.stdout.read().decode()
    text = said.decode()
    assert "running" in text
    assert "\x1b[3A\x1b[J" in text  # three lines are taken away and written anew
    assert "\x1b" not in table
    assert table.splitlines()[1].startswith("1")
