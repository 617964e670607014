"""Templates: made, listed, forgotten, and what workspaces of them are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from needs import need_root
from situations import names_in, tree_of
from sources.yard import repository, sh
from waiting import wait_until
from workstead.errors import (
    Conflict,
    FolderNotFound,
    Invalid,
    InvalidSource,
    NotADirectory,
    TemplateExists,
    TemplateNotFound,
    WorkspaceNotFound,
)
from workstead.local import Local


@pytest.fixture
def a_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "skeleton"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("print()\n")
    return folder


def names(workspaces: Local) -> list[str]:
    return [template.name for template in workspaces.templates()]


def test_a_folder_becomes_a_template_and_the_folder_stays(workspaces: Local, a_folder: Path) -> None:
    assert workspaces.templates() == []
    assert workspaces.add_template("python", folder=str(a_folder)).name == "python"
    workspaces.add_template("a.b-c_1", folder=str(a_folder))
    assert names(workspaces) == ["a.b-c_1", "python"]
    assert (a_folder / "src" / "main.py").read_text() == "print()\n"


def test_the_files_of_a_workspace_become_a_template(workspaces: Local) -> None:
    desk = workspaces.create(id="t/a")
    Path(desk.path, "work", "file").write_text("x")
    workspaces.add_template("warm", workspace="t/a")
    assert names(workspaces) == ["warm"]
    with pytest.raises(WorkspaceNotFound):
        workspaces.add_template("cold", workspace="t/none")


def test_a_name_is_taken_once(workspaces: Local, a_folder: Path) -> None:
    workspaces.add_template("python", folder=str(a_folder))
    with pytest.raises(TemplateExists):
        workspaces.add_template("python", folder=str(a_folder))


def test_what_is_no_folder_is_refused_and_nothing_is_left(workspaces: Local, a_folder: Path, home_path: str) -> None:
    with pytest.raises(FolderNotFound):
        workspaces.add_template("x", folder=str(a_folder / "none"))
    with pytest.raises(NotADirectory):
        workspaces.add_template("x", folder=str(a_folder / "src" / "main.py"))
    assert names_in(f"{home_path}/templates") == []


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", "-x", "ü", "a b", "x" * 101, "\udcff"])
def test_a_name_that_is_no_name_is_refused(workspaces: Local, a_folder: Path, name: str) -> None:
    with pytest.raises(InvalidSource):
        workspaces.add_template(name, folder=str(a_folder))
    with pytest.raises(InvalidSource):
        workspaces.remove_template(name)


def test_a_template_can_be_forgotten(workspaces: Local, a_folder: Path, home_path: str) -> None:
    workspaces.add_template("python", folder=str(a_folder))
    workspaces.remove_template("python")
    assert names_in(f"{home_path}/templates") == []
    with pytest.raises(TemplateNotFound):
        workspaces.remove_template("python")


# -- from template to workspace ----------------------------------------------------------------------------------------


def test_a_run_may_write_where_the_template_belongs_to_root(workspaces: Local, a_folder: Path, home_path: str) -> None:
    need_root()
    (a_folder / "secret").write_text("s")
    (a_folder / "secret").chmod(0o600)
    (a_folder / "src").chmod(0o700)
    workspaces.add_template("python", folder=str(a_folder))
    before = tree_of(f"{home_path}/templates/python")
    desk = workspaces.create("template:python", id="t/a")
    assert (desk.filled["mechanism"], desk.filled["notes"]) == ("overlay", [])
    command = "cat secret && echo more >> secret && echo x > src/new.py && rm src/main.py"
    run = workspaces.wait(workspaces.run(desk.id, ["sh", "-c", command]).id)
    assert (run.state, run.exit_code) == ("completed", 0)
    assert [(each.status, each.path) for each in workspaces.diff(desk.id).changes] == [
        ("M", "secret"),
        ("D", "src/main.py"),
        ("A", "src/new.py"),
    ]
    assert tree_of(f"{home_path}/templates/python") == before
    other = workspaces.create("template:python", id="t/b")
    assert Path(other.path, "work", "secret").read_text() == "s"
    with pytest.raises(Invalid, match="no folder to give changes back to"):
        workspaces.apply(desk.id)


def test_a_mounted_workspace_at_work_becomes_a_template(workspaces: Local, a_folder: Path) -> None:
    need_root()
    desk = workspaces.create(f"overlay:{a_folder}", id="t/a")
    run = workspaces.run(desk.id, ["sh", "-c", "echo built > built.txt; rm src/main.py; sleep 60"])
    wait_until(lambda: not Path(desk.path, "work", "src", "main.py").exists())
    template = workspaces.add_template("warm", workspace=desk.id)
    workspaces.stop(run.id, at_once=True)
    workspaces.write_file(desk.id, "work/built.txt", "later")
    made = workspaces.create("template:warm", id="t/b")
    assert made.filled["layers"] == [template.path]
    assert Path(made.path, "work", "built.txt").read_text() == "built\n"
    assert os.listdir(Path(made.path, "work", "src")) == []


def test_a_repository_in_a_template_stays_one(workspaces: Local, tmp_path: Path) -> None:
    """A clone borrows its objects; a linked work tree leads to the user's own repository, which stays out of it."""
    need_root()
    origin = str(tmp_path / "origin")
    repository(origin)
    workspaces.create(f"clone:{origin}", id="t/clone", config={"git_config": True})
    workspaces.add_template("cloned", workspace="t/clone")
    workspaces.add_template("copied", folder=origin)
    sh("git worktree add -q ../linked dev", origin)
    workspaces.add_template("linked", folder=f"{tmp_path}/linked")
    for name, branch in (("cloned", "main"), ("copied", "main"), ("linked", "dev")):
        desk = workspaces.create(f"template:{name}", id=f"of/{name}")
        identity = "git config user.name A && git config user.email a@example.org"
        script = f"git status --porcelain --branch && {identity} && git commit -q --allow-empty -m x && git log"
        run = workspaces.wait(workspaces.run(desk.id, ["sh", "-c", script]).id)
        said = b"".join(chunk for _, _, chunk in workspaces.output(run.id)).decode()
        assert run.exit_code == 0, said
        assert said.startswith(f"## {branch}")
        assert " M " not in said
    assert sorted(sh("git log --format=%s --all", origin).split()) == ["one", "two"]
    workspaces.create(f"worktree:{origin}", id="t/tree")
    workspaces.add_template("tree", workspace="t/tree")
    assert ".git" not in os.listdir(Path(workspaces.create("template:tree").path, "work"))


def test_a_directory_among_the_templates_is_one_and_is_copied(workspaces: Local, home_path: str) -> None:
    by_hand = Path(home_path, "templates", "hand")
    by_hand.mkdir(parents=True)
    (by_hand / "file").write_text("one")
    assert [(each.name, each.shared) for each in workspaces.templates()] == [("hand", False)]
    desk = workspaces.create("template:hand")
    assert desk.filled["mechanism"] in ("copy", "reflink", "btrfs")
    assert "put there by hand" in str(desk.filled["notes"])
    (by_hand / "file").write_text("two")
    assert Path(desk.path, "work", "file").read_text() == "one"
    workspaces.remove_template("hand")
    assert Path(desk.path, "work", "file").read_text() == "one"


def test_a_template_under_a_workspace_is_not_removed(workspaces: Local, a_folder: Path) -> None:
    need_root()
    workspaces.add_template("python", folder=str(a_folder))
    desk = workspaces.create("template:python", id="t/a")
    (fork,) = workspaces.fork(desk.id)
    workspaces.destroy(desk.id)
    with pytest.raises(Conflict, match="in use by t/a"):
        workspaces.remove_template("python")
    workspaces.destroy(fork.id)
    workspaces.sweep(everything=True)
    workspaces.remove_template("python")
    assert workspaces.templates() == []


def test_what_lies_in_the_way_of_a_template(workspaces: Local, tmp_path: Path) -> None:
    """The home inside the folder is left out, as it is from a workspace of that folder."""
    workspaces.create(id="t/a")
    workspaces.add_template("all", folder=str(tmp_path))
    desk = workspaces.create("template:all", id="t/b")
    assert "home" not in os.listdir(Path(desk.path, "work"))
