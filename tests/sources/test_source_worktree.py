"""Real work trees of a repository of the user's."""

from __future__ import annotations

import os

import pytest

from needs import need_program, need_root
from sources.yard import Yard, as_agent, listing, repository, sh, yard_fixture
from workstead import sources
from workstead.errors import FolderNotFound, InvalidSource, NotARepository, ToolMissing
from workstead.sources import worktree
from workstead.system.git import runner as git_code
from workstead.system.overlay.copying import remove_tree

yard = yard_fixture


@pytest.fixture
def origin(yard: Yard) -> str:
    need_root()
    need_program("git")
    path = yard.folder()
    repository(path)
    return path


def test_the_parent_lists_it_detached_at_head(yard: Yard, origin: str) -> None:
    commit = sh("git rev-parse HEAD", origin).strip()
    made = yard.create(f"worktree:{origin}")
    listed = sh("git worktree list --porcelain", origin)
    assert f"worktree {made.place.root}/work\nHEAD {commit}\ndetached\nlocked" in listed
    assert as_agent(made, "git status --porcelain --branch") == "## HEAD (no branch)\n"
    assert listing(made.path, skip=(".git",), times=False) == listing(origin, skip=(".git",), times=False)
    assert sh(
        "git worktree prune -v && git worktree list | wc -l && git status --porcelain && git fsck", origin
    ).split() == ["2"]


def test_status_reads_no_file_again_although_the_config_is_not_ours(yard: Yard, origin: str) -> None:
    need_program("strace")
    made = yard.create(f"worktree:{origin}")
    assert "src/f" not in as_agent(made, "strace -f -e trace=openat git status --porcelain 2>&1")


def test_commits_go_to_a_corner_of_its_own(yard: Yard, origin: str) -> None:
    made = yard.create(f"worktree:{origin}")
    environment = made.filled.origin["environment"]
    variables = " ".join(f"{name}={value}" for name, value in environment.items())
    objects = listing(f"{origin}/.git/objects")
    identity = "-c user.name=A -c user.email=a@example.org"
    as_agent(made, f"export {variables}; echo x >> README && git {identity} commit -qam mine && git log --format=%s")
    assert listing(f"{origin}/.git/objects") == objects
    assert os.listdir(f"{made.filled.origin['admin']}/objects") != ["info", "pack"]
    assert sh("git log -1 --format=%s", origin) == "two\n"
    fork = yard.fork(made)
    assert as_agent(fork, "git log -1 --format=%s && git status --porcelain") == "mine\n"
    as_agent(fork, f"git {identity} commit -q --allow-empty -m fork")
    assert as_agent(made, f"export {variables}; git log -1 --format=%s") == "mine\n"
    assert sh("git worktree list | wc -l", origin).strip() == "2"


def test_it_goes_with_its_workspace_and_comes_back_with_it(yard: Yard, origin: str) -> None:
    made = yard.create(f"worktree:{origin}")
    sources.detach(made.filled, made.place)
    os.rename(made.place.root, f"{made.place.root}.moved")
    moved = made.place.replace(root=f"{made.place.root}.moved")
    sources.attach(made.filled, moved)
    assert f"worktree {moved.root}/work" in sh("git worktree list --porcelain", origin)
    sources.detach(made.filled, moved)
    os.rename(moved.root, made.place.root)
    yard.release(made)
    assert sh("git worktree list | wc -l && ls .git/worktrees | wc -l", origin).split() == ["1", "0"]


def test_stale_entries_are_healed_and_living_ones_and_strangers_left_alone(yard: Yard, origin: str) -> None:
    living = yard.create(f"worktree:{origin}")
    stale = yard.create(f"worktree:{origin}")
    asleep = yard.create(f"worktree:{origin}")
    sh("git worktree add -q ../theirs dev", origin)
    remove_tree(f"{yard.directory}/theirs")  # not ours to judge: git itself keeps it until it is pruned
    sources.detach(asleep.filled, asleep.place)
    remove_tree(asleep.place.root)  # in the trash: its layers are still there
    sources.detach(stale.filled, stale.place)
    yard.desks.remove(stale)
    for path in (stale.place.root, stale.place.layers):
        remove_tree(path)
    assert worktree.heal(f"{origin}/.git") == [os.path.basename(stale.filled.origin["admin"])]
    names = sorted(os.listdir(f"{origin}/.git/worktrees"))
    assert names == sorted([*(os.path.basename(desk.filled.origin["admin"]) for desk in (living, asleep)), "theirs"])
    os.makedirs(f"{asleep.place.root}/work")


def test_ignored_files_that_are_wanted_come_along(yard: Yard, origin: str) -> None:
    sh("printf '.env\\nconfig/local*\\n' > .worktreeinclude; echo '.env' > .gitignore; echo k=v > .env", origin)
    sh("mkdir -p config/localdir; echo 1 > config/local.yml; echo 2 > config/localdir/x; echo 3 > config/other", origin)
    made = yard.create(f"worktree:{origin}")
    assert (
        as_agent(made, "cat .env config/local.yml config/localdir/x; ls config") == "k=v\n1\n2\nlocal.yml\nlocaldir\n"
    )


def test_what_can_be_wrong(yard: Yard, origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FolderNotFound):
        yard.create(f"worktree:{yard.directory}/nothing")
    with pytest.raises(NotARepository):
        yard.create(f"worktree:{yard.folder('plain')}")
    sh("git init -q .", yard.folder("unborn"))
    with pytest.raises(InvalidSource, match="no commit yet"):
        yard.create(f"worktree:{yard.directory}/unborn")
    inside = yard.create(f"worktree:{origin}/src")  # as git does, the repository around it is found
    assert inside.filled.origin["path"] == origin
    monkeypatch.setattr(git_code, "_PATH", "/nonexistent")
    with pytest.raises(ToolMissing):
        yard.create(f"worktree:{origin}")
