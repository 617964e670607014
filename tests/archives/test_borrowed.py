"""A repository that came with an archive is told where its objects are, and nothing outside of it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workstead.archives.borrowed import point_to

OLD, NEW = b"/old/objects\n", b"/new/objects\n"


def repository(git: Path) -> Path:
    """As much of one as is looked at; gives the file that names what it borrows from."""
    (git / "objects/info").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    alternates = git / "objects/info/alternates"
    alternates.write_bytes(OLD)
    return alternates


def test_the_repository_and_all_its_submodules_borrow_from_the_new_place(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    names = ["", "modules/one", "modules/with/slash", "modules/one/modules/inner"]
    told = [repository(git / name) for name in names]
    point_to(str(tmp_path), "/new/objects", None)
    assert [each.read_bytes() for each in told] == [NEW] * len(names)
    assert sorted(os.listdir(git / "objects/info")) == ["alternates"]


@pytest.mark.parametrize("through", [".git", ".git/objects", ".git/objects/info", ".git/objects/info/alternates"])
def test_no_link_of_an_agents_is_followed(tmp_path: Path, through: str) -> None:
    outside = repository(tmp_path / "outside")
    inside = repository(tmp_path / "work/.git")
    there = {".git": outside.parents[2], ".git/objects": outside.parents[1], ".git/objects/info": outside.parent}
    place = tmp_path / "work" / through
    place.rename(tmp_path / "moved")
    place.symlink_to(there.get(through, outside))
    point_to(str(tmp_path / "work"), "/new/objects", None)
    assert outside.read_bytes() == OLD
    inside.write_bytes(NEW)  # by its name it is reached
    assert outside.read_bytes() == NEW


def test_where_there_is_no_repository_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    point_to(str(tmp_path / "work"), "/new/objects", None)
    point_to(str(tmp_path / "gone"), "/new/objects", None)
    assert os.listdir(tmp_path / "work") == []
    assert not (tmp_path / "gone").exists()
