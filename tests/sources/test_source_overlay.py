"""Copy-on-write views of folders."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from needs import need_root
from sources.yard import Yard, as_agent, listing, random_tree, repository, sh, upset, yard_fixture
from workstead.errors import FolderNotFound, FolderNotReadable, InvalidConfig, NotADirectory
from workstead.sources import overlay

yard = yard_fixture

ONLY_HERE = (".git/config",)  # differs on purpose


@pytest.mark.parametrize("seed", range(30))
def test_every_way_shows_exactly_the_origin_and_keeps_everybody_apart(yard: Yard, seed: int) -> None:
    origin = yard.folder()
    random_tree(origin, seed)
    before = listing(origin)
    shown = listing(origin, skip=ONLY_HERE)
    first = yard.create(f"overlay:{origin}")
    copied = yard.create(f"overlay:{origin}", mechanism="copy")
    fork = yard.fork(first)
    for desk in (first, copied, fork):
        assert listing(desk.path, skip=ONLY_HERE) == shown, desk.filled
        status, real = os.stat(desk.path), os.stat(origin)
        assert (status.st_mode, status.st_mtime_ns) == (real.st_mode, real.st_mtime_ns)
    upset(first.path, seed)
    assert listing(fork.path, skip=ONLY_HERE) == shown
    second = yard.fork(first)
    changed = listing(first.path)
    assert listing(second.path) == changed
    upset(second.path, seed + 1)
    upset(fork.path, seed + 2)
    upset(copied.path, seed + 3)
    assert listing(first.path) == changed
    assert listing(origin) == before


def test_sparse_files_stay_sparse_in_a_copy(yard: Yard) -> None:
    origin = yard.folder()
    with open(f"{origin}/sparse", "wb") as file:
        file.seek(50_000_000)
        file.write(b"end")
        file.truncate(90_000_000)
    made = yard.create(f"overlay:{origin}", mechanism="copy")
    status = os.stat(f"{made.path}/sparse")
    assert status.st_size == 90_000_000
    assert status.st_blocks * 512 < 1_000_000


def test_three_errors_for_three_things_that_can_be_wrong(yard: Yard) -> None:
    with pytest.raises(FolderNotFound):
        yard.create(f"overlay:{yard.directory}/nothing")
    with open(f"{yard.directory}/file", "w"):
        pass
    with pytest.raises(NotADirectory):
        yard.create(f"overlay:{yard.directory}/file")
    if os.geteuid() != 0:
        os.chmod(yard.folder("closed"), 0)
        with pytest.raises(FolderNotReadable):
            yard.create(f"overlay:{yard.directory}/closed")


# -- what stays behind -------------------------------------------------------------------------------------------------


def test_what_awignore_names_stays_behind_and_is_not_a_change(yard: Yard) -> None:
    need_root()
    origin = yard.folder()
    for name in ("node_modules/a", "pkg/one/build", "pkg/two/build", "pkg/two/src", "keep"):
        os.makedirs(f"{origin}/{name}")
    with open(f"{origin}/secret.key", "w"):
        pass
    with open(f"{origin}/.awignore", "w") as file:
        file.write("# big things\nnode_modules/\npkg/*/build\n/*.key\nnot/there\n\n")
    before = listing(origin)
    made = yard.create(f"overlay:{origin}", leave_out=("keep",))
    assert sorted(os.listdir(made.path)) == [".awignore", "pkg"]
    assert sorted(os.listdir(f"{made.path}/pkg")) == ["one", "two"]
    assert os.listdir(f"{made.path}/pkg/two") == ["src"]
    assert made.filled.origin["left_out"] == ["keep", "node_modules", "pkg/one/build", "pkg/two/build", "secret.key"]
    assert os.listdir(made.upper) == []  # the agent changed nothing, so there is nothing to apply
    as_agent(made, "mkdir keep && touch keep/mine")  # the name is free
    assert listing(origin) == before
    copied = yard.create(f"overlay:{origin}", mechanism="copy", leave_out=("keep",))
    assert listing(copied.path) == {name: entry for name, entry in listing(made.path).items() if b"keep" not in name}


@pytest.mark.parametrize("pattern", ["../x", "a/../b", "**/x", "!x", "/"])
def test_patterns_that_would_mean_something_else_are_refused(yard: Yard, pattern: str) -> None:
    with pytest.raises(InvalidConfig):
        yard.create(f"overlay:{yard.folder()}", leave_out=(pattern,))


@pytest.mark.parametrize("mechanism", [None, "copy"])
def test_our_own_home_is_not_visible_in_a_workspace_of_the_folder_around_it(yard: Yard, mechanism: str | None) -> None:
    need_root()
    with open(f"{yard.directory}/file", "w") as file:
        file.write("x")
    os.makedirs(yard.cache)
    made = yard.create(f"overlay:{yard.directory}", mechanism=mechanism)
    assert os.listdir(made.path) == ["file"]


def test_another_file_system_inside_the_folder_is_said(yard: Yard) -> None:
    need_root()
    origin = yard.folder()
    os.mkdir(f"{origin}/volume")
    subprocess.run(["mount", "-t", "tmpfs", "none", f"{origin}/volume"], check=True)
    try:
        made = yard.create(f"overlay:{origin}")
        assert any(f"{origin}/volume" in note for note in made.filled.notes)
    finally:
        subprocess.run(["umount", f"{origin}/volume"], check=True)


# -- git ---------------------------------------------------------------------------------------------------------------


def test_uncommitted_untracked_and_ignored_files_come_along_and_status_reads_no_file(yard: Yard) -> None:
    need_root()
    origin = yard.folder()
    repository(origin, files=50)
    sh(
        "echo '*.log' > .gitignore; git add -A; git commit -qm i; echo x > a.log; echo y > new; echo z >> README",
        origin,
    )
    time.sleep(1.1)
    sh("git status", origin)  # the user's index knows its files
    made = yard.create(f"overlay:{origin}", identity=("Agent", "agent@example.org"))
    opened = as_agent(made, "strace -f -e trace=openat git status --porcelain 2>&1", check=False)
    if "strace: " not in opened:
        assert "src/f" not in opened  # no tracked file was read again
    assert as_agent(made, "git status --porcelain") == " M README\n?? new\n"
    assert as_agent(made, "cat a.log") == "x\n"
    as_agent(made, "git commit -qam mine && git checkout -q dev && git stash list && git gc -q")
    assert as_agent(made, "git log -1 --format='%an %s' main") == "Agent mine\n"
    assert sh("git log -1 --format=%s && git status --porcelain && git branch --show-current", origin) == (
        "i\n M README\n?? new\nmain\n"
    )


def test_a_linked_work_tree_gets_a_repository_of_its_own(yard: Yard) -> None:
    need_root()
    main = yard.folder("main")
    repository(main)
    sh("git worktree add -q ../origin dev", main)
    origin = f"{yard.directory}/origin"
    sh("echo changed >> src/f1.py", origin)
    before = listing(main)
    made = yard.create(f"overlay:{origin}", identity=("Agent", "agent@example.org"))
    assert os.path.isdir(f"{made.path}/.git")
    assert made.filled.origin["borrows"] == [f"{main}/.git/objects"]
    assert as_agent(made, "git status --porcelain --branch") == "## dev\n M src/f1.py\n"
    as_agent(made, "git commit -qam mine && git branch more && git tag t && git worktree prune && git gc -q")
    assert as_agent(made, "git log --format=%s") == "mine\none\n"
    assert listing(main) == before
    assert sh("git worktree list | wc -l", main).strip() == "2"


def test_work_trees_inside_the_folder_cannot_be_used_to_reach_out(yard: Yard) -> None:
    need_root()
    origin = yard.folder()
    repository(origin)
    sh("git worktree add -q inner dev && git worktree add -q ../outer -b other", origin)
    before, outer = listing(origin), listing(f"{yard.directory}/outer")
    made = yard.create(f"overlay:{origin}", identity=("Agent", "agent@example.org"))
    assert as_agent(made, "git worktree list | wc -l").strip() == "1"
    as_agent(made, f"git worktree remove --force {yard.directory}/outer", check=False)
    as_agent(
        made, "cd inner && echo x >> README 2>/dev/null; git add -A && git commit -qm inner && git status --porcelain"
    )
    assert listing(origin) == before
    assert listing(f"{yard.directory}/outer") == outer


def test_a_config_that_names_the_users_work_tree_does_not_lead_there(yard: Yard) -> None:
    need_root()
    origin = yard.folder()
    repository(origin)
    sh(f"git config core.worktree {origin}", origin)
    before = listing(origin)
    made = yard.create(f"overlay:{origin}")
    as_agent(made, "rm README && git checkout -q README && git rm -q README")
    assert as_agent(made, "git rev-parse --show-toplevel").strip() == made.path
    assert listing(origin) == before


# -- has it moved? -----------------------------------------------------------------------------------------------------


def test_a_change_in_the_origin_is_seen(yard: Yard) -> None:
    origin = yard.folder()
    repository(origin)
    made = yard.create(f"overlay:{origin}")
    assert overlay.changed_since(made.filled) == []
    time.sleep(0.02)
    sh("git status", origin)
    assert overlay.changed_since(made.filled) == []
    sh("echo more >> src/f1.py", origin)
    assert overlay.changed_since(made.filled) == ["src/f1.py"]
    sh("rm src/f2.py", origin)
    assert overlay.changed_since(made.filled) == ["src", "src/f1.py"]
    again = yard.create(f"overlay:{origin}")
    time.sleep(0.02)
    sh("touch new", origin)
    assert overlay.changed_since(again.filled) == [".", "new"]
    assert overlay.changed_since(made.filled, limit=2) == [".", "new"]
    os.rename(origin, f"{origin}.gone")
    with pytest.raises(FolderNotFound):
        overlay.changed_since(again.filled)
    os.rename(f"{origin}.gone", origin)


def test_a_change_below_a_path_that_is_longer_than_the_kernel_takes_is_found(yard: Yard) -> None:
    folder = yard.folder()
    here = os.open(folder, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    made = yard.create(f"overlay:{folder}")
    time.sleep(0.02)  # time stamps of a file system are a few milliseconds coarse
    os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    deep = "/".join(["d" * 200] * 30)
    assert overlay.changed_since(made.filled) == [deep, f"{deep}/new"]
