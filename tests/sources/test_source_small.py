"""Empty workspaces, folders in place, templates."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from needs import need_root
from sources.yard import AGENT, Yard, as_agent, listing, random_tree, yard_fixture
from workstead import sources
from workstead.errors import FolderNotFound, InvalidSource, NotADirectory, TemplateNotFound
from workstead.sources.template import mark_made
from workstead.system.git.repository import alternates_of
from workstead.system.overlay.copying import copy_tree

yard = yard_fixture


def test_an_empty_workspace_is_a_plain_directory_of_the_agents(yard: Yard) -> None:
    made = yard.create("empty")
    assert (made.filled.mechanism, made.filled.layers, made.filled.notes) == ("plain", [], [])
    as_agent(made, "touch x")
    assert os.listdir(made.path) == ["x"]
    sources.attach(made.filled, made.place)
    assert sources.detach(made.filled, made.place) is True
    assert os.listdir(made.path) == ["x"]


def test_a_folder_is_used_in_place_and_survives_its_workspace(yard: Yard) -> None:
    folder = yard.folder()
    made = yard.create(f"folder:{folder}")
    assert (made.filled.mechanism, made.path) == ("none", folder)
    with open(f"{made.path}/x", "w"):
        pass
    assert os.listdir(folder) == ["x"]
    yard.release(made)
    from workstead.system.overlay.copying import remove_tree

    remove_tree(made.place.root)
    assert os.listdir(folder) == ["x"]


@pytest.mark.parametrize(
    ("mode", "may"),
    [(0o755, "not write"), (0o700, "neither read nor write"), (0o775, "not write"), (0o777, "")],
)
def test_what_the_agents_user_may_not_do_in_a_folder_is_said(yard: Yard, mode: int, may: str) -> None:
    need_root()
    folder = yard.folder()
    os.chmod(folder, mode)
    made = yard.create(f"folder:{folder}")
    assert [f"who may {may} {folder}: " in note for note in made.filled.notes] == ([True] if may else [])
    as_agent(made, "echo x > file", check=False)
    assert os.path.exists(f"{folder}/file") is not bool(may)
    os.chown(folder, AGENT, AGENT)
    assert yard.create(f"folder:{folder}").filled.notes == []


def test_a_fork_of_a_folder_in_place_is_a_copy(yard: Yard) -> None:
    folder = yard.folder()
    random_tree(folder, 4)
    before = listing(folder)
    made = yard.create(f"folder:{folder}")
    fork = yard.fork(made)
    assert fork.filled.mechanism in ("copy", "reflink", "btrfs")
    assert listing(fork.path) == before
    as_agent(fork, "touch new")
    assert listing(folder) == before


def test_folders_that_are_not_there_or_not_folders(yard: Yard) -> None:
    with pytest.raises(FolderNotFound):
        yard.create(f"folder:{yard.directory}/nothing")
    with pytest.raises(NotADirectory):
        yard.create("folder:/dev/null")


def test_workspaces_of_a_template_share_it_and_cannot_change_it(yard: Yard) -> None:
    need_root()
    folder = yard.folder()
    random_tree(folder, 7)
    copy_tree(folder, f"{yard.templates}/web")
    mark_made(yard.cache, "web", f"{yard.templates}/web", [])
    before = listing(f"{yard.templates}/web")
    assert before == listing(folder)
    first, second = yard.create("template:web"), yard.create("template:web")
    assert first.filled.mechanism == "overlay"
    assert listing(first.path) == before
    as_agent(first, "touch mine")
    assert listing(second.path) == before
    assert listing(f"{yard.templates}/web") == before
    fork = yard.fork(first)
    assert listing(fork.path) == listing(first.path)
    with pytest.raises(TemplateNotFound):
        yard.create("template:nothing")
    with pytest.raises(InvalidSource):
        yard.create("template:../web")


def test_a_template_that_was_put_there_by_hand_or_changed_since_is_copied(yard: Yard) -> None:
    need_root()
    folder = f"{yard.templates}/web"
    os.mkdir(folder)
    with open(f"{folder}/file", "w") as file:
        file.write("one")
    os.chmod(f"{folder}/file", 0o600)
    by_hand = yard.create("template:web")
    assert by_hand.filled.mechanism in ("copy", "reflink", "btrfs")
    assert "put there by hand" in by_hand.filled.notes[0]
    mark_made(yard.cache, "web", folder, [])
    shared = yard.create("template:web")
    assert shared.filled.mechanism == "overlay"
    assert as_agent(shared, "echo more >> file; cat file") == "onemore\n"
    os.rename(f"{folder}/file", f"{folder}/other")  # an edit that we can see
    assert yard.create("template:web").filled.mechanism in ("copy", "reflink", "btrfs")
    with open(f"{folder}/other", "w") as file:
        file.write("two")
    assert as_agent(by_hand, "cat file; echo mine > file") == "one"


def test_what_an_agent_wrote_in_a_template_s_repository_names_no_directory_of_the_host(
    yard: Yard, tmp_path: Path
) -> None:
    """A workspace becomes a template with the `.git` that its agent left; only the record says what it may borrow."""
    need_root()
    keys = tmp_path / "keys"
    keys.mkdir()
    tree = f"{yard.templates}/trap"
    os.makedirs(f"{tree}/.git/objects/info")
    with open(f"{tree}/.git/objects/info/alternates", "w") as file:
        file.write(f"{keys}\n")
    mark_made(yard.cache, "trap", tree, ["/srv/mirror/objects"])
    assert yard.create("template:trap").filled.origin["borrows"] == ["/srv/mirror/objects"]
    assert alternates_of(f"{tree}/.git/objects") == [str(keys)]  # what reading the tree would have said
