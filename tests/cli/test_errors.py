"""Every error that the lifecycle can reach, reached through the command line, with nothing left behind."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import workstead
from needs import need_root
from situations import NOBODY, directories_of, fork, names_in, remount, tiny_disk, wait
from waiting import wait_until
from workstead.cli import main
from workstead.core.home import Home
from workstead.errors import BY_CODE
from workstead.settings import Settings

from .aw_command import Answer, Aw, program


@pytest.fixture
def aw(home_path: str, capsys: pytest.CaptureFixture[str]) -> Aw:
    return Aw(home_path, capsys)


@pytest.fixture
def a_workspace(aw: Aw) -> str:
    aw.ok("create", "t/a")
    return "t/a"


def refuse(aw: Aw, code: str, *arguments: str) -> Answer:
    """The command is refused with this code in both formats, and the log is as it was."""
    events = aw("events").out if os.path.exists(f"{aw.home}/log.db") else None
    answer = aw.json(*arguments)
    assert answer.error["code"] == code, answer.err
    assert answer.code == BY_CODE[code].exit_code
    text = aw(*arguments)
    assert (text.code, text.out) == (answer.code, "")
    assert text.err.splitlines()[1:] == answer.err.splitlines()[1:]  # a message may tell how much is free just now
    assert answer.error["hint"] == "" or f"hint: {answer.error['hint']}" in text.err
    if events is not None:
        assert aw("events").out == events
        assert names_in(f"{aw.home}/workspaces/.carrel/staging") == []
    return answer


# -- invalid: 2 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["", "/", "..", "a/..", "../a", "a/b/c", "a/", "x" * 201, "a\0b"])
@pytest.mark.parametrize("command", ["create", "show", "path", "destroy", "usage"])
def test_invalid_id(aw: Aw, command: str, id: str) -> None:
    answer = refuse(aw, "invalid_id", command, "--id", id)
    assert answer.code == 2
    assert directories_of(aw.home) == set()


def test_invalid_id_in_a_task(aw: Aw) -> None:
    for command in ("list", "destroy", "events"):
        refuse(aw, "invalid_id", command, "--task-id", "a/b")
    aw.ok("create", "t/a")
    aw.ok("destroy", "t/a")
    refuse(aw, "invalid_id", "trash", "restore", "t/a", "--as", "")


@pytest.mark.parametrize("source", ["nonsense:x", "empty:x", "template:", "template:../../etc", "fork:", " "])
def test_invalid_source(aw: Aw, source: str) -> None:
    refuse(aw, "invalid_source", "create", "t/a", "--source", source)
    assert directories_of(aw.home) == set()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("nonsense", "JSON"),
        ("{", "JSON"),
        ("", "JSON"),
        ("[]", "object"),
        ("[" * 100_000, "JSON"),
        ('{"bogus": 1}', "bogus"),
        ('{"max_size_mb": "5"}', "max_size_mb"),
        ('{"max_size_mb": NaN}', "max_size_mb"),
        ('{"task_spec": {"a": NaN}}', "task_spec"),
        ('{"prompt": "\\ud800"}', "prompt"),
        ('{"git_config": {"nick": "x"}}', "git_config.nick"),
        ("@/does/not/exist", "/does/not/exist"),
    ],
)
def test_invalid_config(aw: Aw, config: str, named: str) -> None:
    answer = refuse(aw, "invalid_config", "create", "t/a", "--config", config)
    assert named in answer.error["message"]
    assert directories_of(aw.home) == set()


def test_invalid_config_in_files_beside_it(aw: Aw, tmp_path: Path) -> None:
    refuse(aw, "invalid_config", "create", "t/a", "--claude-md", "/does/not/exist")
    (tmp_path / "latin").write_bytes(b"\xff")
    refuse(aw, "invalid_config", "create", "t/a", "--agents-md", str(tmp_path / "latin"))
    refuse(aw, "filesystem_error", "create", "t/a", "--claude-md", str(tmp_path))
    refuse(aw, "invalid_config", "create", "t/a", "--max-size-mb", "0")


def test_invalid_usage(aw: Aw, a_workspace: str) -> None:
    for arguments in (
        ["bogus"],
        ["creat"],
        ["create", "--bogus"],
        ["create", "t/x", "t/y"],
        ["create", "--max-size-mb", "many"],
        ["create", "--source", "empty", "--template", "x"],
        ["show"],
        ["destroy"],
        ["destroy", "t/a", "--task-id", "t"],
        ["list", "t"],
        ["trash", "restore"],
        ["trash", "empty", "nobody"],
        ["trash", "burn"],
        ["template", "add"],
        ["template", "add", "x"],
        ["template", "remove"],
        ["events", "--after", "x"],
    ):
        answer = refuse(aw, "invalid_usage", *arguments)
        assert answer.error["hint"], arguments
    assert aw.json("creat").error["hint"] == "aw create?"


def test_not_a_directory_and_no_utf8_as_a_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    assert Aw(str(tmp_path / "file"), capsys).json("list").error["code"] == "not_a_directory"
    assert Aw(str(tmp_path / "\udcff"), capsys).json("list").error["code"] == "invalid_path"
    assert names_in(tmp_path) == ["file", "user"]


# -- not found: 3 ------------------------------------------------------------------------------------------------------


def test_workspace_not_found(aw: Aw, a_workspace: str) -> None:
    for command in ("show", "path", "destroy", "usage"):
        answer = refuse(aw, "workspace_not_found", command, "t/none")
        assert "t/none" in answer.error["message"]
    refuse(aw, "workspace_not_found", "destroy", "t/a", "t/none")
    refuse(aw, "workspace_not_found", "destroy", "--task-id", "nobody")
    refuse(aw, "workspace_not_found", "template", "add", "x", "--from", "t/none")
    assert len(aw.ok("list")) == 1


def test_operation_not_found(aw: Aw) -> None:
    refuse(aw, "operation_not_found", "undo")
    refuse(aw, "operation_not_found", "undo", "06exh2v0m4g3s9dk")
    refuse(aw, "operation_not_found", "trash", "restore", "t/a")


def test_template_and_folder_not_found(aw: Aw) -> None:
    refuse(aw, "template_not_found", "template", "remove", "none")
    refuse(aw, "folder_not_found", "template", "add", "x", "/does/not/exist")
    assert aw.json("create", "t/a", "--template", "none").error["code"] == "template_not_found"
    assert aw.ok("list", "--all") == []
    assert directories_of(aw.home) == set()


# -- conflict: 4 -------------------------------------------------------------------------------------------------------


def test_workspace_exists(aw: Aw, a_workspace: str) -> None:
    refuse(aw, "workspace_exists", "create", "t/a")
    refuse(aw, "workspace_exists", "create", "t/a", "--lazy")
    aw("destroy", "t/a")
    aw("create", "t/a")
    refuse(aw, "workspace_exists", "undo")
    refuse(aw, "workspace_exists", "trash", "restore", aw.ok("trash")[0]["uid"])


def test_template_exists(aw: Aw, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    aw.ok("template", "add", "x", str(tmp_path / "folder"))
    refuse(aw, "template_exists", "template", "add", "x", str(tmp_path / "folder"))


def test_conflict_when_it_was_undone_already(aw: Aw, a_workspace: str) -> None:
    aw("destroy", "t/a")
    operation = aw.ok("ops")[0]["operation_id"]
    aw("undo")
    refuse(aw, "conflict", "undo", operation)


def test_workspace_busy(
    aw: Aw, a_workspace: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Home.hold.__wrapped__.__kwdefaults__, "wait_seconds", 0.05)  # type: ignore[attr-defined]

    def hold() -> None:
        with workstead.open(aw.home, settings=settings)._home.hold("t/a"):
            (tmp_path / "held").touch()
            time.sleep(60)

    holder = fork(hold)
    try:
        wait_until((tmp_path / "held").exists)
        refuse(aw, "workspace_busy", "destroy", "t/a")
        assert len(aw.ok("list")) == 1
    finally:
        os.kill(holder, 9)
        wait(holder)
    aw.ok("destroy", "t/a")  # a lock ends with its holder


# -- refused: 5 --------------------------------------------------------------------------------------------------------


@pytest.fixture
def a_public_place() -> Iterator[Path]:
    """A directory that every user can reach."""
    need_root()
    place = Path(tempfile.mkdtemp(prefix="workstead-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def as_nobody(place: Path, *arguments: str) -> Answer:
    """Run a command as an ordinary user, in a child: that user may not be able to start our Python."""
    main(["create", "--home", str(place / "warm-up"), "x"])  # what is imported now need not be read by the user
    main(["destroy", "--home", str(place / "warm-up"), "x"])

    def child() -> int:
        os.chdir(place)
        os.environ["HOME"] = str(place)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(opened[name], number)
        return main([*arguments, "--format", "json"])

    opened = {name: os.open(place / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for name in ("out", "err")}
    code = wait(fork(child, user=NOBODY))
    for descriptor in opened.values():
        os.close(descriptor)
    return Answer(code, (place / "out").read_text(), (place / "err").read_text())


def test_permission_denied_in_a_home_of_somebody_else(a_public_place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home = a_public_place / "home"
    with capfd.disabled():
        assert program("create", "t/a", home=str(home)).code == 0
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        for arguments in (["create", "t/b"], ["list"], ["destroy", "t/a"], ["undo"]):
            answer = as_nobody(a_public_place, *arguments, "--home", str(home))
            assert (answer.code, answer.error["code"]) == (5, "permission_denied")
    assert directories_of(home) == {f"{home}/workspaces/t/a"}


def test_permission_denied_where_no_home_can_be_made(a_public_place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled():
        answer = as_nobody(a_public_place, "create", "t/a", "--home", str(a_public_place / "new"))
    assert (answer.code, answer.error["code"]) == (5, "permission_denied")
    assert not (a_public_place / "new").exists()


def test_an_ordinary_user_has_a_home_of_his_own(a_public_place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (a_public_place / "his").mkdir()
    os.chown(a_public_place / "his", NOBODY, NOBODY)
    with capfd.disabled():
        answer = as_nobody(a_public_place, "create", "t/a", "--home", str(a_public_place / "his" / "home"))
    assert answer.code == 0, answer.err
    assert os.stat(answer.json["path"]).st_uid == NOBODY


def test_permission_denied_when_the_log_cannot_be_written(
    a_public_place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home = a_public_place / "home"
    with capfd.disabled():
        program("create", "t/a", home=str(home))
        for path in (home, *home.iterdir()):
            path.chmod(path.stat().st_mode | 0o055)
        answer = as_nobody(a_public_place, "create", "t/b", "--home", str(home))
    assert (answer.code, answer.error["code"]) == (5, "permission_denied")


# -- limits: 6 ---------------------------------------------------------------------------------------------------------


def test_disk_full_on_a_small_disk(aw: Aw, tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "home", "4m"):
        answer = refuse(aw, "disk_full", "create", "t/a")
        assert answer.code == 6
        assert answer.error["details"]["needed_bytes"] > answer.error["details"]["free_bytes"]
        refuse(aw, "disk_full", "create", "t/a", "--lazy")
        assert aw.ok("list", "--all") == []
        assert directories_of(aw.home) == set()


def test_disk_full_before_there_is_a_home(aw: Aw, tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "home", "64k"):
        (tmp_path / "home" / "ballast").write_bytes(b"x" * 64 * 1024)
        for _ in range(2):
            answer = aw.json("create", "t/a")
            assert (answer.code, answer.error["code"]) == (6, "disk_full")
        assert [name for name in names_in(aw.home) if name.startswith("id.")] == []
        (tmp_path / "home" / "ballast").unlink()
        aw.json("list")


def test_disk_full_while_destroying_leaves_the_workspace_as_it_was(
    aw: Aw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AW_STORAGE__MIN_FREE_MB", "0")
    with tiny_disk(tmp_path / "home", "4m"):
        aw.ok("create", "t/a")
        ballast = tmp_path / "home" / "ballast"
        for size in range(0, 64 * 1024, 4096):  # less and less is left, down to nothing
            fill_up(ballast, size)
            answer = aw.json("destroy", "t/a")
            ballast.unlink()
            if answer.code == 0:
                aw.ok("undo")
                continue
            assert (answer.code, answer.error["code"]) == (6, "disk_full")
            if not aw.ok("list"):  # it got as far as the trash, and the next command wrote that down
                aw.ok("undo")
            assert aw.ok("show", "t/a")["state"] == "ready"
            aw.ok("verify")
        aw.ok("repair")


def fill_up(path: Path, spare: int) -> None:
    """Leave no more than `spare` bytes on the file system."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    size = 0
    try:
        while True:
            size += os.write(file, b"x" * 4096)
    except OSError:
        os.ftruncate(file, max(0, size - spare))
    finally:
        os.close(file)


# -- unavailable: 7 ----------------------------------------------------------------------------------------------------


def test_filesystem_error_in_a_read_only_home(aw: Aw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_STORAGE__MIN_FREE_MB", "0")
    with tiny_disk(tmp_path / "home", "4m"):
        aw.ok("create", "t/a")
        remount(tmp_path / "home", "ro")
        for arguments in (["create", "t/b"], ["destroy", "t/a"], ["pin", "t/a"]):
            answer = aw.json(*arguments)
            assert (answer.code, answer.error["code"]) == (7, "filesystem_error"), arguments
            assert "read-only" in answer.error["message"]
        assert [workspace["workspace_id"] for workspace in aw.ok("list")] == ["t/a"]
        remount(tmp_path / "home", "rw")
        assert [workspace["workspace_id"] for workspace in aw.ok("list", "--all")] == ["t/a"]


def test_filesystem_error_where_no_home_can_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tiny_disk(tmp_path / "disk"):
        remount(tmp_path / "disk", "ro")
        answer = Aw(str(tmp_path / "disk" / "home"), capsys).json("create", "t/a")
        assert (answer.code, answer.error["code"]) == (7, "filesystem_error")


def test_filesystem_error_when_something_is_in_the_way(aw: Aw, a_workspace: str) -> None:
    stranger = Path(aw.home, "workspaces", "t", "b")
    stranger.mkdir()
    answer = aw.json("create", "t/b")
    assert (answer.code, answer.error["code"]) == (7, "filesystem_error")
    assert stranger.is_dir()
    assert len(aw.ok("list", "--all")) == 1


def test_cleanup_failed(aw: Aw, a_workspace: str) -> None:
    path = Path(aw.ok("path", "t/a")["path"])
    with tiny_disk(path):
        answer = aw.json("destroy", "t/a")
        assert (answer.code, answer.error["code"]) == (7, "cleanup_failed")
    assert aw.ok("show", "t/a")["state"] == "ready"
    gone = aw.ok("destroy", "t/a")[0]
    with tiny_disk(Path(gone["trash_path"], "work")):
        assert aw.json("trash", "empty").error["code"] == "cleanup_failed"
    aw.ok("sweep")
    aw.ok("create", "t/b")
    gone = aw.ok("destroy", "t/b")[0]
    shutil.rmtree(gone["trash_path"])
    refuse(aw, "cleanup_failed", "undo")


def test_log_broken(aw: Aw, a_workspace: str) -> None:
    with sqlite3.connect(f"{aw.home}/log.db") as log:
        log.execute("UPDATE events SET actor_id = 'eve' WHERE position = 2")
    log.close()
    answer = refuse(aw, "log_broken", "verify")
    assert answer.error["details"]["position"] == 2
    assert "position 2" in answer.error["message"]


def test_store_unavailable(aw: Aw, a_workspace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with sqlite3.connect(f"{aw.home}/log.db") as log:
        log.execute("PRAGMA user_version = 99")
    log.close()
    assert aw.json("list").error["code"] == "store_unavailable"
    monkeypatch.setenv("AW_STORE__URL", "postgresql://ada:secret@127.0.0.1:1/db")
    answer = aw.json("list")
    assert (answer.code, answer.error["code"]) == (7, "store_unavailable")
    assert "secret" not in answer.err
    monkeypatch.setenv("AW_STORE__URL", "mysql://ada:secret@host/db")
    answer = aw.json("list")
    assert answer.error["code"] == "invalid_config"
    assert "secret" not in answer.err


def test_a_bug_looks_like_one(aw: Aw, monkeypatch: pytest.MonkeyPatch) -> None:
    from workstead.local import Local

    monkeypatch.setattr(Local, "list", lambda *_, **__: 1 / 0)
    answer = aw("list")
    assert answer.code == 1
    assert "ZeroDivisionError" in answer.err
    assert "this is a bug in Workstead" in answer.err


def test_an_interrupted_command_leaves_nothing(home_path: str) -> None:
    """Ctrl-C at a bad moment: the next command finds a whole home."""
    for delay in (0.02, 0.04, 0.06, 0.08):
        started = subprocess.Popen(
            [program.__globals__["PROGRAM"], "create", "t/a", "--home", home_path],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        time.sleep(delay)
        started.send_signal(2)
        started.communicate(timeout=30)
        assert program("verify", home=home_path).code == 0
        if program("list", "--format", "json", home=home_path).json:
            assert program("destroy", "t/a", home=home_path).code == 0
        assert directories_of(home_path) == set()
