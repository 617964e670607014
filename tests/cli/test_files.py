"""aw ls, tree, cat, put, mv, rm, mkdir, stat, find, grep."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from workstead.cli import main


class Desk:
    """`aw` on the workspace t/a of one home, in this process."""

    def __init__(self, home: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        self.home = home
        self.capture = capfdbinary
        self("create", "--id", "t/a")
        self.work = Path(home, "workspaces", "t", "a", "work")

    def __call__(self, *arguments: str) -> tuple[int, bytes, str]:
        code = main([*arguments, "--home", self.home])
        out, err = self.capture.readouterr()
        return code, out, err.decode()

    def json(self, *arguments: str) -> object:
        code, out, err = self(*arguments, "--format", "json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def desk(home_path: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Desk:
    return Desk(home_path, capfdbinary)


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_bytes_go_in_and_come_out_as_they_are(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 100
    feed(monkeypatch, data)
    assert desk("put", "t/a", "work/deep/b", "-p")[0] == 0
    assert desk("cat", "t/a", "work/deep/b") == (0, data, "")
    assert desk("cat", "t/a", "work/deep/b", "--start", "250", "--length", "10")[1] == data[250:260]
    found = desk.json("cat", "--id", "t/a", "work/deep/b")
    assert found["encoding"] == "base64"  # type: ignore[index]


def test_put_appends_and_refuses_to_replace_when_asked(desk: Desk, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("one\n")
    desk("put", "t/a", "work/f", str(source))
    assert desk("put", "t/a", "work/f", str(source), "--append")[0] == 0
    assert (desk.work / "f").read_text() == "one\none\n"
    code, _, err = desk("put", "t/a", "work/f", str(source), "--new")
    assert (code, "exists already" in err) == (4, True)
    code, _, err = desk("put", "t/a", "work/f", str(tmp_path / "missing"))
    assert code != 0
    assert "missing" in err
    assert (desk.work / "f").read_text() == "one\none\n"


def test_ls_tree_stat_find_and_grep_tell_the_same_story(desk: Desk) -> None:
    (desk.work / "src").mkdir()
    (desk.work / "src" / "a.py").write_text("x = 1\n# TODO\n")
    os.symlink("/etc", desk.work / "out")
    assert {entry["name"]: entry["kind"] for entry in desk.json("ls", "t/a", "work")} == {  # type: ignore[union-attr]
        "out": "link",
        "src": "directory",
    }
    assert desk.json("tree", "t/a", "work") == {"src": {"a.py": "file"}}
    assert b"1 links left out" in desk("tree", "t/a", "work")[1]
    assert desk.json("stat", "t/a", "work/out")["target"] == "/etc"  # type: ignore[index]
    assert desk.json("find", "t/a", "*.py")["paths"] == ["work/src/a.py"]  # type: ignore[index]
    (match,) = desk.json("grep", "t/a", "TODO", "work")["matches"]  # type: ignore[index]
    assert (match["path"], match["line"]) == ("src/a.py", 2)


def test_mv_rm_and_mkdir_change_what_they_say(desk: Desk) -> None:
    assert desk("mkdir", "t/a", "work/d/e", "-p")[0] == 0
    (desk.work / "d" / "f").write_text("f")
    assert desk("mv", "t/a", "work/d/f", "work/g")[0] == 0
    (desk.work / "h").write_text("h")
    assert desk("mv", "t/a", "work/h", "work/g")[0] == 4
    assert desk("mv", "t/a", "work/h", "work/g", "--replace")[0] == 0
    assert desk("rm", "t/a", "work/d")[0] == 4
    assert desk("rm", "t/a", "work/d", "work/g", "-r")[0] == 0
    assert os.listdir(desk.work) == []


@pytest.mark.parametrize(
    ("path", "code", "exit_code"),
    [
        ("/etc/passwd", "absolute_path_not_allowed", 5),
        ("work/../../x", "path_traversal_attempt", 5),
        ("work/out/passwd", "symlink_outside_workspace", 5),
        ("work/a\0b", "invalid_path_null_byte", 2),
        ("x" * 5000, "path_too_long", 2),
        ("", "invalid_path", 2),
        ("work/nope", "file_not_found", 3),
        ("work", "not_a_file", 2),
        ("work/pipe", "not_a_file", 2),
    ],
)
def test_every_refusal_has_its_own_code(desk: Desk, path: str, code: str, exit_code: int) -> None:
    os.symlink("/etc", desk.work / "out")
    os.mkfifo(desk.work / "pipe")
    found, out, err = desk("cat", "t/a", path, "--format", "json")
    assert (found, json.loads(out)["error"]["code"]) == (exit_code, code)
    assert desk.home not in err


def test_control_characters_in_names_are_escaped(desk: Desk) -> None:
    (desk.work / "evil\033[31m\n").touch()
    for command in (["ls", "t/a", "work"], ["tree", "t/a"], ["find", "t/a", "evil*"]):
        out = desk(*command)[1]
        assert b"\033" not in out
        assert b"\\x1b[31m\\n" in out


def test_a_name_that_is_not_utf8_survives_the_round_trip(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    name = os.fsdecode(b"work/\xff\xfe")
    feed(monkeypatch, b"odd")
    assert desk("put", "t/a", name)[0] == 0
    assert os.listdir(os.fsencode(desk.work)) == [b"\xff\xfe"]
    (entry,) = desk.json("ls", "t/a", "work")  # type: ignore[misc]
    assert desk("cat", "t/a", f"work/{entry['name']}")[1] == b"odd"


@pytest.mark.parametrize("arguments", [["cat"], ["cat", "t/a"], ["mv", "t/a", "x"], ["ls", "t/a", "a", "b"]])
def test_missing_and_extra_words_are_named(desk: Desk, arguments: list[str]) -> None:
    code, _, err = desk(*arguments)
    assert code == 2
    assert err.startswith("aw: ")
