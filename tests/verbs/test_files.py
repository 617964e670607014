"""The file verbs: what is written down, what is refused, and where paths lead."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from workstead.errors import (
    AbsolutePath,
    DiskFull,
    FileExists,
    FileNotFound,
    FilesystemError,
    InvalidPath,
    NotADirectory,
    NotAFile,
    NullByteInPath,
    PathOutsideWorkspace,
    PathTooLong,
    PathTraversal,
    PermissionDenied,
    QuotaExceeded,
    SymlinkOutsideWorkspace,
    WorkspaceNotFound,
    WorksteadError,
)
from workstead.local import Local
from workstead.model.workspace import Workspace


@pytest.fixture
def desk(workspaces: Local) -> Workspace:
    return workspaces.create(id="t/a")


def facts(workspaces: Local, *types: str) -> list[dict[str, object]]:
    return [event.event_data for event in workspaces.events(task="t", types=types)]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_what_is_written_is_read_back_and_both_are_events(workspaces: Local, desk: Workspace) -> None:
    written = workspaces.write_file(desk.id, "work/a.txt", "one\n")
    assert (written.size, written.digest, written.digest_before) == (4, sha(b"one\n"), None)
    workspaces.write_file(desk.id, "work/a.txt", b"two\n")
    assert workspaces.read_file(desk.id, "work/a.txt") == b"two\n"
    assert workspaces.read_file(desk.id, "work/a.txt", start=1, length=2) == b"wo"
    assert workspaces.read_text(desk.id, "work/a.txt") == "two\n"
    first, second = facts(workspaces, "file_written")
    assert first["path"] == second["path"] == "/mnt/workspace/work/a.txt"
    assert second["digest_before"] == sha(b"one\n")
    assert second["digest"] == sha(b"two\n")
    assert [fact["size"] for fact in facts(workspaces, "file_read")] == [4, 2, 4]


def test_append_delete_move_and_mkdir_are_events_too(workspaces: Local, desk: Workspace) -> None:
    workspaces.make_directory(desk.id, "work/d/e", parents=True)
    workspaces.write_file(desk.id, "work/d/e/f", "a")
    workspaces.write_file(desk.id, "work/d/e/f", "b", append=True)
    assert workspaces.read_file(desk.id, "work/d/e/f") == b"ab"
    workspaces.move_file(desk.id, "work/d/e/f", "work/d/g")
    workspaces.delete_file(desk.id, "work/d", recursive=True)
    (moved,) = facts(workspaces, "file_moved")
    assert (moved["path"], moved["to"]) == ("/mnt/workspace/work/d/e/f", "/mnt/workspace/work/d/g")
    assert moved["digest"] == sha(b"ab")
    (deleted,) = facts(workspaces, "file_deleted")
    assert (deleted["path"], deleted["kind"]) == ("/mnt/workspace/work/d", "directory")
    (made,) = facts(workspaces, "directory_made")
    assert made["path"] == "/mnt/workspace/work/d/e"
    workspaces.verify()


def test_the_tree_has_the_shape_of_the_seed(workspaces: Local, desk: Workspace) -> None:
    workspaces.write_file(desk.id, "work/lib/auth/tokens.ex", "x", parents=True)
    os.symlink("/etc", f"{desk.path}/work/link")
    assert workspaces.list_files(desk.id) == {
        ".aw": dict.fromkeys(("context.json", "run.json", "task_spec.json", "workspace_config.json"), "file"),
        "work": {"lib": {"auth": {"tokens.ex": "file"}}},
        "output": {},
        "tmp": {},
    }
    assert workspaces.tree(desk.id).links == 1


REFUSED: list[tuple[str, type[WorksteadError]]] = [
    ("/etc/passwd", AbsolutePath),
    ("work/../../x", PathTraversal),
    ("..", PathTraversal),
    ("", InvalidPath),
    ("work/a\0b", NullByteInPath),
    ("work/" + "x/" * 2100, PathTooLong),
    ("work/out/passwd", SymlinkOutsideWorkspace),
    ("work/out/never-there", SymlinkOutsideWorkspace),
    ("work", NotAFile),
]


@pytest.mark.parametrize(("path", "error"), REFUSED)
def test_paths_that_lead_out_are_refused_and_leave_no_event(
    workspaces: Local, desk: Workspace, path: str, error: type[WorksteadError]
) -> None:
    os.symlink("/etc", f"{desk.path}/work/out")
    before = workspaces._home.log.last_position()
    with pytest.raises(error) as refused:
        workspaces.read_file(desk.id, path)
    assert desk.path not in refused.value.message
    with pytest.raises(error):
        workspaces.write_file(desk.id, path, "x", parents=True)
    assert workspaces._home.log.last_position() == before


def test_names_that_only_look_dangerous_are_names(workspaces: Local, desk: Workspace) -> None:
    for name in ("a..b", "..x", "...", "-rf", "a b", "\udcff", "new\nline", "~", "$HOME"):
        workspaces.write_file(desk.id, f"work/{name}", name.encode(errors="surrogateescape"))
        assert workspaces.read_file(desk.id, f"work/{name}") == name.encode(errors="surrogateescape")
    assert len(workspaces.list_directory(desk.id, "work")) == 9
    workspaces.verify()


@pytest.mark.parametrize("path", [".aw/run.json", ".aw/new", ".aw/deep/er", "work/link/run.json", "work/link/x/y"])
def test_the_metadata_can_be_read_but_not_changed_by_any_way(workspaces: Local, desk: Workspace, path: str) -> None:
    os.symlink("../.aw", f"{desk.path}/work/link")
    before = {name: Path(desk.path, ".aw", name).read_bytes() for name in os.listdir(f"{desk.path}/.aw")}
    for attempt in (
        lambda: workspaces.write_file(desk.id, path, "x", parents=True),
        lambda: workspaces.write_file(desk.id, path, "x", append=True, parents=True),
        lambda: workspaces.make_directory(desk.id, path, parents=True),
        lambda: workspaces.move_file(desk.id, "work/link", path),
    ):
        with pytest.raises((PermissionDenied, FileNotFound, FileExists, NotADirectory, NotAFile)):
            attempt()
    for attempt in (
        lambda: workspaces.delete_file(desk.id, ".aw", recursive=True),
        lambda: workspaces.delete_file(desk.id, ".aw/run.json"),
        lambda: workspaces.move_file(desk.id, ".aw", "work/mine"),
        lambda: workspaces.move_file(desk.id, "work/link", ".aw", replace=True),
    ):
        with pytest.raises(PermissionDenied):
            attempt()
    assert {name: Path(desk.path, ".aw", name).read_bytes() for name in os.listdir(f"{desk.path}/.aw")} == before
    assert b"t/a" in workspaces.read_file(desk.id, ".aw/run.json")


def test_limits_come_from_the_settings(workspaces: Local, desk: Workspace, home_path: str) -> None:
    import workstead

    small = workspaces._home.settings.replace(
        files=workspaces._home.settings.files.replace(max_read_mb=1, max_write_mb=1, max_entries=3)
    )
    with workstead.open(home_path, settings=small) as limited:
        with pytest.raises(QuotaExceeded):
            limited.write_file(desk.id, "work/big", b"x" * ((1 << 20) + 1))
        assert not os.path.exists(f"{desk.path}/work/big")
        with open(f"{desk.path}/work/sparse", "wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(QuotaExceeded):
            limited.read_file(desk.id, "work/sparse")
        assert limited.read_file(desk.id, "work/sparse", start=1 << 39, length=4) == b"\0" * 4
        with pytest.raises(QuotaExceeded):
            limited.tree(desk.id)


def test_a_folder_used_in_place_is_reached_under_work(workspaces: Local, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a").write_text("a")
    desk = workspaces.create(f"folder:{folder}", id="t/f")
    assert workspaces.read_text(desk.id, "work/a") == "a"
    workspaces.write_file(desk.id, "work/b", "b")
    assert (folder / "b").read_text() == "b"
    workspaces.move_file(desk.id, "work/b", "work/c")
    assert sorted(os.listdir(folder)) == ["a", "c"]
    with pytest.raises(PathTraversal):
        workspaces.read_file(desk.id, "work/../x")
    with pytest.raises(FilesystemError):
        workspaces.move_file(desk.id, "work/c", "output/c")
    (moved,) = facts(workspaces, "file_moved")
    assert (moved["path"], moved["to"]) == ("/mnt/workspace/work/b", "/mnt/workspace/work/c")


def test_resolve_rewrites_what_people_write_and_refuses_what_leads_out(workspaces: Local, desk: Workspace) -> None:
    assert workspaces.resolve(desk.id, "/mnt/workspace/work/a.py") == "work/a.py"
    assert workspaces.resolve(desk.id, "work\\sub\\.\\a.py") == "work/sub/a.py"
    assert workspaces.resolve(desk.id, "/etc/passwd") == "etc/passwd"
    with pytest.raises(PathOutsideWorkspace):
        workspaces.resolve(desk.id, "../x")


def test_prompts_speak_of_the_workspace_where_it_is(workspaces: Local, desk: Workspace) -> None:
    text = "Look at /mnt/okcomputer/upload/a.csv, not at /mnt/okcomputers."
    assert workspaces.adapt_prompt(text, desk.id) == "Look at /mnt/workspace/upload/a.csv, not at /mnt/okcomputers."
    with pytest.raises(WorkspaceNotFound):
        workspaces.adapt_prompt(text, "t/none")


def test_a_planned_workspace_gets_its_files_at_the_first_write(workspaces: Local) -> None:
    desk = workspaces.create(id="t/lazy", lazy=True)
    assert not os.path.exists(desk.path)
    workspaces.write_file(desk.id, "work/x", "x")
    assert workspaces.get(desk.id).state == "ready"


def test_a_change_that_fails_after_it_was_announced_is_taken_back_in_the_log(
    workspaces: Local, desk: Workspace
) -> None:
    def chunks() -> object:
        yield b"half"
        raise DiskFull("no room")

    with pytest.raises(DiskFull):
        workspaces.write_file(desk.id, "work/x", chunks())  # type: ignore[arg-type]
    assert facts(workspaces, "file_written") == []  # it failed before it was ready
    assert os.listdir(f"{desk.path}/work") == []
