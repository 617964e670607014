"""The commands about states, as people type them and as programs read them."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

import workstead
from origins import make_desk, make_origin, read, write
from workstead.settings import Settings

from .aw_command import PROGRAM, Aw


@pytest.fixture
def aw(home_path: str, capsys: pytest.CaptureFixture[str]) -> Aw:
    return Aw(home_path, capsys)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return make_origin(tmp_path / "origin")


@pytest.fixture
def work(home_path: str, settings: Settings, origin: Path) -> Path:
    with workstead.open(home_path, settings=settings) as workspaces:
        return Path(make_desk(workspaces, origin).path, "work")


def on_a_terminal(home_path: str, *arguments: str) -> str:
    """What `aw` shows to a person."""
    main, side = pty.openpty()
    done = subprocess.Popen([PROGRAM, "--home", home_path, *arguments], stdout=side, stderr=side, stdin=side)
    os.close(side)
    shown = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(main)
    done.wait()
    return shown.decode().replace("\r\n", "\n")


def test_the_story_of_a_state(aw: Aw, work: Path, origin: Path) -> None:
    assert aw("snapshot", "fix/a", "-m", "good").out.startswith("snap-")
    good = read(work)
    write(work, {"README.md": "spoiled", "more": "x"})
    assert aw("restore", "fix/a", "good").code == 0
    assert read(work) == good
    assert aw("undo").code == 0
    assert (work / "more").exists()
    assert aw("restore", "fix/a", "good", "work/README.md").code == 0
    assert aw("diff", "fix/a", "--name-only", "README.md", "more").out == "README.md\nmore\n"
    assert aw("diff", "fix/a", "README.md").out.startswith("diff --git a/README.md b/README.md")
    assert " 1 file changed, 1 line added, 0 removed" in aw("diff", "fix/a", "--stat", "more").out
    before = read(origin)
    assert aw("apply", "fix/a", "README.md", "more").out == "wrote README.md\nwrote more\n"
    assert "commit " in aw("apply", "fix/a", "--to", "branch:agent", "-m", "The rest").out
    assert aw("apply", "fix/a").out == ""
    assert aw("destroy", "fix/a").code == 0
    for _ in range(3):
        assert aw("undo").code == 0
    assert read(origin) == before
    kinds = [(each["kind"], bool(each["undone_by"])) for each in aw.ok("ops")]
    assert kinds.count(("undo", False)) == 4
    assert ("apply", True) in kinds


def test_snapshots_are_readable(aw: Aw, work: Path) -> None:
    os.mkfifo(work / "pipe")
    aw("snapshot", "fix/a", "-m", "with \x1b[31mcolour")
    lines = aw("snapshots", "fix/a").out.splitlines()
    assert lines[0].split() == ["SNAPSHOT", "TAKEN", "(UTC)", "CAUSE", "FILES", "SIZE", "REMARKS", "LABEL"]
    assert lines[1].split()[0] == "base"
    assert "1 left out" in lines[2]
    assert "with \\x1b[31mcolour" in lines[2]
    first, second = aw.ok("snapshots", "fix/a")
    assert (first["cause"], second["cause"]) == ("base", "manual")
    assert second["left_out"] == [{"path": "work/pipe", "kind": "fifo", "size": 0}]


def test_a_label_that_several_have_is_said_so(aw: Aw, work: Path, home_path: str) -> None:
    aw("snapshot", "fix/a", "-m", "good")
    newest = on_a_terminal(home_path, "snapshot", "fix/a", "-m", "good")
    assert "other snapshots are called 'good' too" in newest
    shown = on_a_terminal(home_path, "restore", "fix/a", "good")
    assert f"2 snapshots are called 'good': the newest was taken, {newest.split()[0]}" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["restore", "fix/a", "nothing"], "snapshot_not_found", "nothing"),
        (["restore", "fix/a"], "invalid_usage", "snapshot"),
        (["restore", "fix/a", "base", "work/typo"], "file_not_found", "work/typo"),
        (["restore", "no/body", "base"], "workspace_not_found", "no/body"),
        (["diff", "fix/a", "--from", "nothing"], "snapshot_not_found", "nothing"),
        (["diff", "fix/a", "../x"], "path_traversal_attempt", "../x"),
        (["apply", "fix/a", "typo"], "file_not_found", "typo"),
        (["apply", "fix/a", "--to", "moon"], "invalid", "moon"),
        (["apply", "fix/a", "--to", "branch:bad..name"], "invalid", "bad..name"),
        (["apply", "fix/a", "--to", "branch:main"], "refused", "main"),
        (["undo", "nothing"], "operation_not_found", "nothing"),
        (["undo", "–"], "operation_not_found", "–"),
        (["destroy", "fix/a"], "unapplied_changes", "fix/a"),
        (["snapshot", "no/body"], "workspace_not_found", "no/body"),
    ],
)
def test_errors_name_the_thing(arguments: list[str], code: str, named: str, aw: Aw, work: Path) -> None:
    error = aw.json(*arguments).error
    assert error["code"] == code
    assert named in error["message"]
    assert error["hint"] or code in ("invalid", "path_traversal_attempt")


def test_unapplied_changes_are_listed_when_asked_or_for_a_person(aw: Aw, work: Path, home_path: str) -> None:
    aw("create", "--id", "empty/a", "--lazy")
    assert "changed" not in aw.ok("list")[0]
    assert "CHANGES" not in aw("list").out
    assert [each["changed"] for each in aw.ok("list", "--changes")] == [6, 0]
    lines = aw("list", "--changes").out.splitlines()
    assert lines[0].split()[:3] == ["WORKSPACE", "STATE", "CHANGES"]
    assert lines[1].split()[:3] == ["fix/a", "ready", "6"]
    assert "CHANGES" in on_a_terminal(home_path, "list")
    assert aw.ok("show", "fix/a")["changed"] == 6
    assert "6 not applied: aw diff fix/a" in aw("show", "fix/a").out
    aw("apply", "fix/a")
    assert aw.ok("show", "fix/a")["changed"] == 0
    assert "none that are not applied" in aw("show", "fix/a").out


def test_a_sweep_says_beforehand_what_it_frees(aw: Aw, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (work / "large.bin").write_bytes(os.urandom(100_000 + number))
        aw("snapshot", "fix/a")
    aw("create", "--id", "gone/a")
    aw("destroy", "gone/a")
    for key in ("KEEP_ALL_DAYS", "KEEP_HOURLY_DAYS", "KEEP_DAILY_DAYS"):
        monkeypatch.setenv(f"AW_SNAPSHOTS__{key}", "0")
    planned = aw("sweep", "--dry-run").out.splitlines()
    assert planned[0].split() == ["WHAT", "KIND", "SIZE", "WHY"]
    assert "gone/a" in planned[1]
    assert "stays" in planned[1]
    assert any("2, thinned out with age" in line for line in planned)
    assert any("contents that no state needs" in line and "KiB" in line for line in planned)
    assert len(aw.ok("snapshots", "fix/a")) == 4
    kinds = [each["kind"] for each in aw.ok("sweep") if each["goes"]]
    assert kinds == ["snapshot", "snapshot", "objects"]
    assert len(aw.ok("snapshots", "fix/a")) == 2


def test_some_places_of_a_file_are_chosen_by_their_ids(aw: Aw, work: Path, origin: Path) -> None:
    lines = [f"{number}\n" for number in range(40)]
    (work / "long.txt").write_text("".join(lines))
    aw("apply", "fix/a")
    lines[3], lines[30] = "three\n", "thirty\n"
    (work / "long.txt").write_text("".join(lines))
    listed = aw("diff", "fix/a", "--hunks").out.splitlines()
    assert [line.split(":")[0] for line in listed] == ["long.txt", "long.txt"]
    (change,) = aw.ok("diff", "fix/a")["changes"]
    ids = [hunk["id"] for hunk in change["hunks"]]
    assert ids == [line.split()[0].split(":")[1] for line in listed]
    aw("apply", "fix/a", "--hunk", f"long.txt:{ids[1]}")
    assert (origin / "long.txt").read_text() == "".join(lines).replace("three\n", "3\n")
    failed = aw("apply", "fix/a", "--hunk", f"long.txt:{ids[1]}")
    assert failed.code == 3
    assert "no hunk" in failed.err
    assert aw("apply", "fix/a", "--hunk", "long.txt").code == 2
