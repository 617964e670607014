"""Templates by name. How their files reach a workspace is tested with the sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.errors import (
    FolderNotFound,
    InvalidSource,
    NotADirectory,
    TemplateExists,
    TemplateNotFound,
    WorkspaceNotFound,
)
from carrel.local import Local
from situations import names_in


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
