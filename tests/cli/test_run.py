"""aw run and its companions, as a person types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from needs import need_program
from waiting import wait_until

PROGRAM = str(Path(__file__).resolve().parents[2] / "aw")


class Program:
    """`aw` on one home, as a process."""

    def __init__(self, home: str, directory: Path) -> None:
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "AW_HOME": home}
        self.directory = directory

    def __call__(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [PROGRAM, *arguments],
            env=self.environment,
            cwd=self.directory,
            input=stdin,
            capture_output=True,
            check=False,
        )

    def json(self, *arguments: str) -> object:
        return json.loads(self(*arguments, "--format", "json").stdout)


@pytest.fixture
def aw(home_path: str, tmp_path: Path) -> Program:
    need_program("bwrap")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("a\n")
    return Program(home_path, folder)


def test_the_main_job_makes_a_workspace_runs_and_says_what_changed(aw: Program) -> None:
    done = aw("run", "--source", ".", "--", "sh", "-c", "date > built.txt; echo hello; echo oh >&2")
    assert done.returncode == 0
    assert done.stdout == b"hello\n"
    said = done.stderr.decode()
    assert said.startswith("oh\n")
    for word in ("completed: exit code 0", "built.txt", "1 file changed", "aw diff", "aw apply", "aw destroy"):
        assert word in said
    assert sorted(os.listdir(aw.directory)) == ["a.txt"]  # the origin is as it was


@pytest.mark.parametrize("code", [0, 1, 7, 200])
def test_the_exit_code_is_that_of_the_command(aw: Program, code: int) -> None:
    aw("create", "--id", "t/a")
    assert aw("run", "t/a", "--", "sh", "-c", f"exit {code}").returncode == code


def test_a_time_out_ends_with_124_and_an_unknown_program_with_125(aw: Program) -> None:
    aw("create", "--id", "t/a")
    assert aw("run", "t/a", "--timeout", "0.3", "--", "sleep", "60").returncode == 124
    done = aw("run", "t/a", "--", "no-such-program")
    assert done.returncode == 125
    assert b"no such file" in done.stderr


def test_input_and_output_are_passed_on_byte_for_byte(aw: Program) -> None:
    data = bytes(range(256)) * 5000
    aw("create", "--id", "t/a")
    done = aw("run", "t/a", "-q", "--", "cat", stdin=data)
    assert done.stdout == data
    assert done.stderr == b""


def test_json_is_one_document_with_the_run_and_what_it_printed(aw: Program) -> None:
    aw("create", "--id", "t/a")
    found = aw.json("run", "t/a", "--env", "NAME=Ada", "--prompt", "say hi")
    assert found["error"]["code"] == "invalid_usage"  # type: ignore[index]
    options = ["--env", "NAME=Ada", "--prompt", "say hi", "--format", "json"]
    done = aw("run", "t/a", *options, "--", "sh", "-c", "echo $NAME")
    document = json.loads(done.stdout)
    assert document["stdout"] == "Ada\n"
    assert document["run"]["state"] == "completed"
    assert document["run"]["prompt"] == "say hi"
    assert document["workspace"]["workspace_id"] == "t/a"


def test_a_detached_run_can_be_watched_and_stopped(aw: Program) -> None:
    aw("create", "--id", "t/a")
    run = aw("run", "t/a", "--detach", "--", "sh", "-c", "echo up; sleep 60").stdout.decode().strip()
    follower = subprocess.Popen(
        [PROGRAM, "logs", "-f", run], env=aw.environment, cwd=aw.directory, stdout=subprocess.PIPE
    )
    assert follower.stdout
    assert follower.stdout.readline() == b"up\n"
    assert aw("stop", run).returncode == 0
    assert follower.wait(timeout=20) == 0
    follower.stdout.close()
    (only,) = aw.json("runs", "t/a")  # type: ignore[misc]
    assert only["state"] == "cancelled"
    assert aw("logs", run).stdout == b"up\n"


def test_rm_moves_the_workspace_to_the_trash_afterwards(aw: Program) -> None:
    assert aw("run", "--source", ".", "--rm", "--id", "t/a", "--", "touch", "x").returncode == 0
    assert aw.json("list") == []
    assert aw("undo").returncode == 0
    assert aw("cat", "t/a", "work/x").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_with_its_whole_tree(aw: Program, number: signal.Signals) -> None:
    aw("create", "--id", "t/a")
    mark = f"3{os.getpid()}.25"
    script = f"trap 'echo bye' TERM; (trap '' TERM; exec sleep {mark}) & echo up; wait; wait"
    process = subprocess.Popen(
        [PROGRAM, "run", "t/a", "--", "bash", "-c", script],
        env=aw.environment,
        cwd=aw.directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    process.communicate(timeout=30)
    (only,) = aw.json("runs", "t/a")  # type: ignore[misc]
    assert only["state"] == "cancelled"
    assert aw("logs", only["run_id"]).stdout == b"up\nbye\n"
    assert mark not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_keep_runs_short_commands_in_one_box(aw: Program) -> None:
    aw("create", "--id", "t/a")
    data = bytes(range(256)) * 4000
    done = aw("run", "t/a", "--keep", "--", "sh", "-c", "cat; echo e >&2; exit 7", stdin=data)
    assert (done.returncode, done.stdout, done.stderr) == (7, data, b"e\n")
    assert aw("run", "t/a", "--keep", "--timeout", "0.3", "--", "sleep", "60").returncode == 124
    missing = aw("run", "t/a", "--keep", "--", "no-such-program")
    assert (missing.returncode, missing.stdout) == (125, b"")
    assert b"no such file" in missing.stderr
    document = json.loads(aw("run", "t/a", "--keep", "--format", "json", "--", "echo", "hi").stdout)
    assert (document["stdout"], document["command"]["exit_code"]) == ("hi\n", 0)
    (box,) = aw.json("runs", "t/a")  # type: ignore[misc]
    assert (box["state"], box["commands"], box["run_id"]) == ("running", 4, document["command"]["run_id"])
    assert aw("run", "t/a", "--keep", "--tty", "--", "true").returncode == 2
    assert aw("stop", box["run_id"]).returncode == 0
    assert aw.json("runs", "t/a")[0]["state"] == "cancelled"  # type: ignore[index]


def test_a_signal_ends_a_kept_command_and_not_the_box(aw: Program) -> None:
    aw("create", "--id", "t/a")
    aw("run", "t/a", "--keep", "--", "true")
    process = subprocess.Popen(
        [PROGRAM, "run", "t/a", "--keep", "--", "sh", "-c", "echo up; sleep 60"],
        env=aw.environment,
        cwd=aw.directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"up\n"
    process.terminate()
    assert process.wait(timeout=60) == 130
    process.stdout.close()
    assert aw("run", "t/a", "--keep", "--", "sh", "-c", "ps -e | grep -c sleep").stdout == b"0\n"
    (box,) = aw.json("runs", "t/a")  # type: ignore[misc]
    assert (box["state"], box["commands"]) == ("running", 3)
    aw("stop", "--now", box["run_id"])


def test_why_and_show_name_the_walls_and_the_denials(aw: Program) -> None:
    aw("create", "--id", "t/a")
    aw("run", "t/a", "--timeout", "0.3", "--", "sleep", "60")
    (run,) = aw.json("runs", "t/a")  # type: ignore[misc]
    said = aw("why", run["run_id"]).stdout.decode()
    for word in ("timed_out", "mount namespace", "network namespace", "seccomp", "longer than 0.3", "--timeout"):
        assert word in said
    found = aw.json("why", run["run_id"])
    assert found["denials"][0]["kind"] == "time"  # type: ignore[index]
    shown = aw("show", "t/a").stdout.decode()
    assert f"{run['run_id']}: timed_out" in shown
    assert "mount namespace" in shown
    assert aw.json("show", "t/a")["last_run"]["run_id"] == run["run_id"]  # type: ignore[index]
    assert aw("why", "run-none").returncode == 3


def test_a_clone_that_fails_is_a_failed_run(aw: Program) -> None:
    done = aw("run", "--source", "clone:./missing.git", "--id", "t/a", "--", "true")
    assert done.returncode == 125
    assert b"missing.git" in done.stderr
    assert b"Traceback" not in done.stderr
    (run,) = aw.json("runs", "t/a")  # type: ignore[misc]
    assert run["state"] == "failed"
    assert aw.json("show", "t/a")["state"] == "failed"  # type: ignore[index]


def test_a_killed_command_line_leaves_the_run_running(aw: Program) -> None:
    aw("create", "--id", "t/a")
    process = subprocess.Popen(
        [PROGRAM, "run", "t/a", "--", "sh", "-c", "echo up; sleep 1; echo down"],
        env=aw.environment,
        cwd=aw.directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"up\n"
    process.kill()
    process.communicate()
    run = aw.json("runs", "t/a")[0]["run_id"]  # type: ignore[index]
    wait_until(lambda: aw.json("runs", "t/a")[0]["state"] != "running", pause=0.1)  # type: ignore[index]
    assert aw("logs", run).stdout == b"up\ndown\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "--", "true"], 2, "neither a workspace nor a source"),
        (["run", "t/none", "--", "true"], 3, "no workspace t/none"),
        (["run", "--source", "./missing", "--", "true"], 3, "missing"),
        (["run", "t/a", "--env", "1X", "--", "true"], 2, "NAME=VALUE"),
        (["run", "t/a", "--sandbox", "moat", "--", "true"], 2, "no sandbox 'moat'"),
        (["run", "t/a", "--network", "a b", "--", "true"], 2, "a b"),
        (["logs", "run-none"], 3, "no run run-none"),
        (["stop", "run-none"], 3, "no run run-none"),
    ],
)
def test_bad_input_is_named(aw: Program, arguments: list[str], code: int, words: str) -> None:
    aw("create", "--id", "t/a")
    done = aw(*arguments)
    assert done.returncode == code
    assert words in done.stderr.decode()
    assert b"Traceback" not in done.stderr
