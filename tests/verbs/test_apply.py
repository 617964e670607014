"""Giving changes back: in part, to a branch, as a patch, one after the other, and back again."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

import workstead
from needs import need_root
from origins import FILES, git, make_desk, make_origin, read, unapplied, write
from situations import check_whole, fork, tiny_disk, wait_all
from workstead.errors import (
    Conflict,
    DiskFull,
    FileNotFound,
    HunkNotFound,
    Invalid,
    OriginMoved,
    Refused,
    UnappliedChanges,
)
from workstead.local import Local
from workstead.model.workspace import Workspace
from workstead.settings import Settings
from workstead.system.kernel import locks

ALL = ["README.md", "data/big.bin", "new/deep/file.txt", "new/other.txt", "src/app.py", "src/old.py"]


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return make_origin(tmp_path / "origin")


@pytest.fixture
def desk(workspaces: Local, origin: Path) -> Workspace:
    return make_desk(workspaces, origin)


@pytest.fixture
def work(desk: Workspace) -> Path:
    return Path(desk.path, "work")


# -- some paths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["overlay", "worktree"])
def test_what_was_given_back_in_part_counts_as_applied(mechanism: str, workspaces: Local, origin: Path) -> None:
    if mechanism == "overlay":
        work = Path(make_desk(workspaces, origin).path, "work")
    else:
        work = Path(workspaces.create(f"worktree:{origin}", id="fix/a").path, "work")
        write(work, {"README.md": "one\nTWO\nthree\n", "new/deep/file.txt": "new\n", "new/other.txt": "other\n"})
        write(work, {"src/app.py": "print('hello, world')\n", "data/big.bin": "y" * 100_000})
        os.unlink(work / "src/old.py")
    assert unapplied(workspaces) == ALL
    done = workspaces.apply("fix/a", ["new/deep", "README.md", "src/old.py"], to=f"folder:{origin}")
    assert sorted([*done.written, *done.deleted]) == ["README.md", "new/deep/file.txt", "src/old.py"]
    rest = ["data/big.bin", "new/other.txt", "src/app.py"]
    assert unapplied(workspaces) == rest
    assert [change.path for change in workspaces.diff("fix/a").changes] == rest
    with pytest.raises(UnappliedChanges):
        workspaces.destroy("fix/a")
    done = workspaces.apply("fix/a", to=f"folder:{origin}")
    assert sorted(done.written) == rest
    assert done.same == 0
    assert unapplied(workspaces) == []
    assert {**read(origin), ".git": ""} == {**read(work), ".git": ""}
    workspaces.destroy("fix/a")


def test_a_path_that_was_applied_and_changed_again_is_new(
    workspaces: Local, desk: Workspace, work: Path, origin: Path
) -> None:
    workspaces.apply(desk.id, ["README.md"])
    write(work, {"README.md": "one\nTWO\nthree\nfour\n"})
    assert "README.md" in unapplied(workspaces)
    workspaces.apply(desk.id, ["README.md"])
    assert (origin / "README.md").read_text() == "one\nTWO\nthree\nfour\n"
    os.unlink(work / "README.md")
    workspaces.apply(desk.id, ["README.md"])
    assert not (origin / "README.md").exists()
    assert "README.md" not in unapplied(workspaces)


def test_directories_files_and_links_take_each_others_place_in_part(
    workspaces: Local, desk: Workspace, work: Path, origin: Path
) -> None:
    workspaces.apply(desk.id)
    os.rename(work / "new", work / "aside")
    (work / "new").write_text("a file now")
    os.unlink(work / "README.md")
    (work / "README.md" / "inside").mkdir(parents=True)
    (work / "README.md" / "inside" / "x").write_text("x")
    (work / "link").symlink_to("src/app.py")
    for paths in (["new"], ["README.md"], ["link"], ["aside/deep"]):
        workspaces.apply(desk.id, paths)
    assert unapplied(workspaces) == ["aside/other.txt"]
    workspaces.apply(desk.id)
    assert read(origin) == read(work)
    assert os.readlink(origin / "link") == "src/app.py"
    for _ in range(5):
        workspaces.undo()
    assert (origin / "new" / "deep" / "file.txt").read_text() == "new\n"
    assert (origin / "README.md").is_file()
    assert not (origin / "aside").exists()


def test_what_the_agent_removes_after_it_was_applied_is_removed_from_the_origin_too(
    workspaces: Local, desk: Workspace, work: Path, origin: Path
) -> None:
    workspaces.apply(desk.id)
    os.unlink(work / "new" / "deep" / "file.txt")
    os.unlink(work / "new" / "other.txt")
    write(work, {"README.md": "gone soon"})
    os.unlink(work / "README.md")
    assert unapplied(workspaces) == ["README.md", "new/deep/file.txt", "new/other.txt"]
    workspaces.destroy(desk.id, force=True)
    workspaces.undo()  # mounted anew
    assert unapplied(workspaces) == ["README.md", "new/deep/file.txt", "new/other.txt"]
    workspaces.apply(desk.id)
    assert read(origin) == read(work)
    assert not (origin / "new" / "other.txt").exists()


def test_a_path_that_never_was_is_an_error_that_names_it(workspaces: Local, desk: Workspace, origin: Path) -> None:
    with pytest.raises(FileNotFound, match=r"typo\.txt"):
        workspaces.apply(desk.id, ["README.md", "typo.txt"])
    assert read(origin) == {**FILES, "src/": "", "data/": ""}


def test_nothing_to_give_is_no_operation(workspaces: Local, desk: Workspace) -> None:
    workspaces.apply(desk.id)
    count = len(workspaces.operations())
    assert workspaces.apply(desk.id).operation_id == ""
    assert len(workspaces.operations()) == count


# -- branches and patches ----------------------------------------------------------------------------------------------


def commits(origin: Path, branch: str = "agent") -> list[str]:
    return git(origin, "log", "--format=%s", branch).split() if git(origin, "branch", "--list", branch) else []


def test_a_branch_grows_and_each_commit_can_be_taken_back(
    workspaces: Local, desk: Workspace, work: Path, origin: Path
) -> None:
    workspaces.apply(desk.id, ["README.md"], to="branch:agent", message="one")
    assert "README.md" not in unapplied(workspaces)
    assert "src/app.py" in unapplied(workspaces)
    workspaces.apply(desk.id, to="branch:agent", message="two")
    assert unapplied(workspaces) == []
    assert commits(origin) == ["two", "one", "first"]
    assert git(origin, "ls-tree", "-r", "--name-only", "agent").split() == [
        "README.md", "data/big.bin", "new/deep/file.txt", "new/other.txt", "src/app.py",
    ]  # fmt: skip
    workspaces.undo()
    assert commits(origin) == ["one", "first"]
    assert "src/app.py" in unapplied(workspaces)
    redo = workspaces.operations()[0].operation_id
    workspaces.undo(redo)
    assert commits(origin) == ["two", "one", "first"]
    assert unapplied(workspaces) == []
    workspaces.undo(workspaces.operations()[0].operation_id)
    workspaces.undo()
    assert commits(origin) == []
    assert unapplied(workspaces) == ALL
    assert git(origin, "status", "--short") == ""


def test_a_branch_that_somebody_went_on_with_is_left_alone(workspaces: Local, desk: Workspace, origin: Path) -> None:
    workspaces.apply(desk.id, to="branch:agent", message="one")
    git(origin, "update-ref", "refs/heads/agent", "main")
    with pytest.raises(OriginMoved, match="agent"):
        workspaces.undo()
    assert commits(origin) == ["first"]
    assert workspaces.get(desk.id).state == "ready"


def test_a_branch_that_is_checked_out_is_not_moved(workspaces: Local, desk: Workspace, origin: Path) -> None:
    with pytest.raises(Refused, match="checked out"):
        workspaces.apply(desk.id, to="branch:main")
    workspaces.apply(desk.id, to="branch:agent", message="one")
    git(origin, "checkout", "-q", "agent")
    with pytest.raises(Refused, match="checked out"):
        workspaces.undo()
    assert git(origin, "status", "--short") == ""
    assert workspaces.get(desk.id).state == "ready"


def test_a_message_is_made_from_the_prompt(workspaces: Local, origin: Path) -> None:
    desk = workspaces.create(f"overlay:{origin}", id="fix/b", config={"prompt": "Fix the login\nand more"})
    write(Path(desk.path, "work"), {"x": "x"})
    workspaces.apply(desk.id, to="branch:agent")
    assert git(origin, "log", "-1", "--format=%B", "agent").strip() == "Fix the login\n\nWorkspace: fix/b"


def test_a_patch_replaces_a_file_and_undo_brings_it_back(workspaces: Local, desk: Workspace, tmp_path: Path) -> None:
    patch = tmp_path / "out" / "changes.patch"
    with pytest.raises(Invalid, match="no directory"):
        workspaces.apply(desk.id, to=f"patch:{patch}")
    patch.parent.mkdir()
    patch.write_text("somebody's own notes")
    workspaces.apply(desk.id, to=f"patch:{patch}")
    made = patch.read_text()
    assert made.startswith("diff --git")
    assert unapplied(workspaces) == ALL  # a patch is no origin: the work is not given back by it
    workspaces.undo()
    assert patch.read_text() == "somebody's own notes"
    workspaces.undo(workspaces.operations()[0].operation_id)
    assert patch.read_text() == made
    assert os.listdir(patch.parent) == ["changes.patch"]
    with pytest.raises(Invalid, match="no file"):
        workspaces.apply(desk.id, to=f"patch:{tmp_path}")


# -- one after the other -----------------------------------------------------------------------------------------------


def test_applies_are_taken_back_individually(workspaces: Local, desk: Workspace, work: Path, origin: Path) -> None:
    first = workspaces.apply(desk.id, ["README.md"]).operation_id
    second = workspaces.apply(desk.id, ["src"]).operation_id
    third = workspaces.apply(desk.id).operation_id
    assert unapplied(workspaces) == []
    workspaces.undo(second)
    assert unapplied(workspaces) == ["src/app.py", "src/old.py"]
    assert (origin / "src" / "old.py").read_text() == "old\n"
    assert (origin / "README.md").read_text() == "one\nTWO\nthree\n"
    workspaces.undo(first)
    assert unapplied(workspaces) == ["README.md", "src/app.py", "src/old.py"]
    with pytest.raises(Conflict, match="undone already"):
        workspaces.undo(first)
    workspaces.undo(third)
    assert unapplied(workspaces) == ALL
    assert read(origin) == {**FILES, "src/": "", "data/": ""}
    os.unlink(work / "src" / "app.py")
    workspaces.apply(desk.id, ["README.md", "data", "new", "src/app.py"])
    assert read(origin) == {**read(work), "src/old.py": "old\n"}
    workspaces.verify()


def test_an_apply_is_not_taken_back_over_what_the_user_did_since(
    workspaces: Local, desk: Workspace, origin: Path
) -> None:
    workspaces.apply(desk.id)
    write(origin, {"README.md": "by the user\n"})
    before = read(origin)
    with pytest.raises(OriginMoved, match=r"README\.md"):
        workspaces.undo()
    assert read(origin) == before
    assert unapplied(workspaces) == []


def test_an_apply_can_be_taken_back_after_the_workspace_came_back_elsewhere(
    workspaces: Local, desk: Workspace, origin: Path
) -> None:
    before = read(origin)
    operation = workspaces.apply(desk.id).operation_id
    workspaces.destroy(desk.id)
    with pytest.raises(Conflict, match="fix/a is destroyed"):
        workspaces.undo(operation)
    workspaces.restore_trashed(desk.id, new_id="other/place")
    assert unapplied(workspaces, "other/place") == []
    assert [each.cause for each in workspaces.snapshots("other/place")] == ["base", "before_apply"]
    workspaces.undo(operation)
    assert read(origin) == before
    assert unapplied(workspaces, "other/place") == ALL
    workspaces.verify()


LINES = "".join(f"{number}\n" for number in range(100))


def _say(place: Path, line: str, word: str) -> None:
    text = place.read_text()
    assert f"\n{line}\n" in text
    place.write_text(text.replace(f"\n{line}\n", f"\n{word}\n"))


@pytest.fixture
def family(workspaces: Local, origin: Path) -> dict[str, Path]:
    """A workspace, a fork and a fork of it, each with a word of its own in one file, and kept in between as runs do."""
    (origin / "lines").write_text(LINES)
    first = workspaces.create(f"overlay:{origin}", id="fix/a")
    place = {"fix/a": Path(first.path, "work/lines")}
    _say(place["fix/a"], "50", "fifty")
    workspaces.snapshot("fix/a")
    for parent, child, line, word in (("fix/a", "fix/b", "60", "sixty"), ("fix/b", "fix/c", "70", "seventy")):
        (made,) = workspaces.fork(parent, new_id=child)
        place[child] = Path(made.path, "work/lines")
        for each in (parent, child):
            workspaces.snapshot(each)
        _say(place[child], line, word)
        workspaces.snapshot(child)
    _say(place["fix/a"], "40", "forty")
    return place


def test_forks_and_their_user_change_one_file_in_different_places(
    workspaces: Local, family: dict[str, Path], origin: Path
) -> None:
    _say(origin / "lines", "10", "ten")
    for id in family:
        workspaces.apply(id)
    words = {"10": "ten", "40": "forty", "50": "fifty", "60": "sixty", "70": "seventy"}
    assert (origin / "lines").read_text().split() == [words.get(line, line) for line in LINES.split()]
    for id in ("fix/c", "fix/b"):  # and each is taken back alone
        (operation,) = (each for each in workspaces.operations() if each.kind == "apply" and each.workspaces == [id])
        workspaces.undo(operation.operation_id)
    assert (origin / "lines").read_text().split() == [
        words.get(line, line) if line < "60" else line for line in LINES.split()
    ]


def test_many_states_are_asked_without_a_descriptor_for_each(
    workspaces: Local, family: dict[str, Path], origin: Path
) -> None:
    for _ in range(60):
        workspaces.snapshot("fix/b")
    _say(origin / "lines", "10", "ten")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/proc/self/fd")))
    free = [number for number in range(before[0]) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[50], before[1]))
    try:
        workspaces.apply("fix/b")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert {"ten", "fifty", "sixty"} <= set((origin / "lines").read_text().split())


def test_what_a_fork_and_its_user_change_in_one_place_is_refused(
    workspaces: Local, family: dict[str, Path], origin: Path
) -> None:
    _say(origin / "lines", "70", "mine")
    before = (origin / "lines").read_bytes()
    with pytest.raises(OriginMoved):
        workspaces.apply("fix/c")
    assert (origin / "lines").read_bytes() == before
    workspaces.apply("fix/b")
    assert {"fifty", "sixty", "mine"} <= set((origin / "lines").read_text().split())


def test_two_workspaces_give_back_to_one_folder_at_once(
    workspaces: Local, origin: Path, home_path: str, settings: Settings
) -> None:
    for number in range(4):
        desk = workspaces.create(f"overlay:{origin}", id=f"t/{number}")
        write(Path(desk.path, "work"), {f"{number}/{name}": str(number) for name in range(20)})
    workspaces.let_go()
    children = [fork(lambda n=n: workstead.open(home_path, settings=settings).apply(f"t/{n}")) for n in range(4)]
    wait_all(children)
    with workstead.open(home_path, settings=settings) as again:
        for number in range(4):
            assert len(os.listdir(origin / str(number))) == 20
            assert unapplied(again, f"t/{number}") == []
        check_whole(again, home_path)
    assert not [name for name in os.listdir(origin) if name.startswith(".aw")]


# -- a full disk -------------------------------------------------------------------------------------------------------


def test_an_origin_without_room_is_left_as_it_was(workspaces: Local, tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "small", "512k") as small:
        origin = make_origin(small / "origin")
        desk = make_desk(workspaces, origin)
        write(Path(desk.path, "work"), {"large.bin": "z" * 400_000})
        before = read(origin)
        with pytest.raises(DiskFull) as caught:
            workspaces.apply(desk.id)
        assert caught.value.hint
        assert read(origin) == before
        assert unapplied(workspaces) == sorted([*ALL, "large.bin"])
        assert workspaces.get(desk.id).state == "ready"
        os.unlink(Path(desk.path, "work", "large.bin"))
        workspaces.apply(desk.id)
        workspaces.undo()
        assert read(origin) == before
        workspaces.destroy(desk.id, force=True)
        workspaces.verify()


def test_an_undo_without_room_leaves_what_was_applied(workspaces: Local, tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "small", "3m") as small:
        origin = make_origin(small / "origin")
        write(origin, {"large.bin": "z" * 300_000})
        desk = make_desk(workspaces, origin)
        before = read(origin)
        write(Path(desk.path, "work"), {"large.bin": "small now\n"})
        workspaces.apply(desk.id)
        applied = read(origin)
        with open(small / "filler", "wb", buffering=0) as filler, suppress(OSError):
            while filler.write(bytes(4096)):
                pass
        with pytest.raises(DiskFull) as caught:
            workspaces.undo()
        assert caught.value.hint
        assert read(origin) == applied
        assert workspaces.get(desk.id).state == "ready"
        assert unapplied(workspaces) == []
        os.unlink(small / "filler")
        operation, _ = workspaces.undo()
        assert read(origin) == before
        workspaces.undo(workspaces.operations()[0].operation_id)
        assert read(origin) == applied
        assert operation.kind == "apply"
        workspaces.destroy(desk.id, force=True)


# -- some places of a file ---------------------------------------------------------------------------------------------

LONG = [f"line {number}" for number in range(60)]


@pytest.fixture
def edited(workspaces: Local, origin: Path) -> Path:
    """A file with three places that were changed, and another file."""
    need_root()
    write(origin, {"long.txt": "\n".join(LONG) + "\n"})
    work = Path(workspaces.create(f"overlay:{origin}", id="fix/a").path, "work")
    text = [{5: "FIVE", 30: "THIRTY", 55: "LAST"}.get(number, line) for number, line in enumerate(LONG)]
    write(work, {"long.txt": "\n".join(text) + "\n", "README.md": "other\n"})
    return work


def _hunks(workspaces: Local, path: str = "long.txt") -> list[str]:
    (change,) = [each for each in workspaces.diff("fix/a").changes if each.path == path]
    return [hunk.id for hunk in change.hunks]


@pytest.mark.parametrize("to", ["folder", "branch:some"])
def test_chosen_hunks_are_given_back_and_the_others_are_left(
    to: str, workspaces: Local, edited: Path, origin: Path
) -> None:
    before = (origin / "long.txt").read_text()
    if to != "folder":
        git(origin, "add", ".")
        git(origin, "commit", "-qm", "second")
    first, second, third = _hunks(workspaces)
    done = workspaces.apply("fix/a", hunks={"long.txt": [first, third]}, to=to)
    assert done.written == ["long.txt"]
    given = git(origin, "show", "some:long.txt") if to != "folder" else (origin / "long.txt").read_text()
    assert given == before.replace("line 5\n", "FIVE\n").replace("line 55\n", "LAST\n")
    assert "THIRTY" in (edited / "long.txt").read_text()
    assert unapplied(workspaces) == ["README.md", "long.txt"]
    assert len(_hunks(workspaces)) == 1
    workspaces.undo()
    assert _hunks(workspaces) == [first, second, third]
    workspaces.apply("fix/a", ["README.md"], hunks={"long.txt": [second]}, to=to)
    assert unapplied(workspaces) == ["long.txt"]
    workspaces.apply("fix/a", to=to)
    assert unapplied(workspaces) == []


def test_hunks_merge_with_what_the_user_did_elsewhere(workspaces: Local, edited: Path, origin: Path) -> None:
    workspaces.snapshot("fix/a")  # keeps the version that both sides began with
    write(origin, {"long.txt": (origin / "long.txt").read_text().replace("line 15\n", "mine\n")})
    found = _hunks(workspaces)
    workspaces.apply("fix/a", hunks={"long.txt": [found[0]]})
    assert "mine\n" in (origin / "long.txt").read_text()
    assert "FIVE\n" in (origin / "long.txt").read_text()
    assert "LAST\n" not in (origin / "long.txt").read_text()


def test_a_hunk_of_a_file_that_was_edited_since_is_refused(workspaces: Local, edited: Path, origin: Path) -> None:
    first, *_ = _hunks(workspaces)
    write(edited, {"long.txt": "above\n" + (edited / "long.txt").read_text()})
    before = read(origin)
    for path, ids in (("long.txt", [first]), ("README.md", ["000000000000"])):
        with pytest.raises(HunkNotFound) as caught:
            workspaces.apply("fix/a", hunks={path: ids})
        assert caught.value.hint
    with pytest.raises(FileNotFound):
        workspaces.apply("fix/a", hunks={"typo": [first]})
    assert read(origin) == before
    assert workspaces.operations() == []


# -- workspaces of two homes over one folder ---------------------------------------------------------------------------


def _apply_and_pause(home_path: str, settings: Settings) -> None:
    """Apply, and stop at the first rename in the folder itself, with a journal that says what is left."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.rename" and str(arguments[0]).isdigit():
            os.kill(os.getpid(), signal.SIGSTOP)

    with workstead.open(home_path, settings=settings) as workspaces:
        sys.addaudithook(hook)
        workspaces.apply("one/a")


def _apply_from_another_home(home_path: str, settings: Settings, *, locked: bool) -> None:
    if not locked:
        locks.hold_folder = lambda *_, **__: nullcontext()
    with workstead.open(home_path, settings=settings) as workspaces:
        workspaces.apply("two/a")


@pytest.mark.parametrize("locked", [True, False], ids=["guarded", "twin"])
def test_two_homes_take_turns_at_one_folder(locked: bool, tmp_path: Path, settings: Settings) -> None:
    """The second home waits for the first. The twin: without the lock it does not, and leaves what it finds alone."""
    origin = make_origin(tmp_path / "origin")
    homes = [str(tmp_path / "first"), str(tmp_path / "second")]
    for home_path, id in zip(homes, ("one/a", "two/a"), strict=True):
        with workstead.open(home_path, settings=settings) as workspaces:
            desk = workspaces.create(f"overlay:{origin}", id=id)
            write(Path(desk.path, "work"), {f"{id[:3]}.txt": id, f"{id[:3]}/x.txt": id})
    first = fork(lambda: _apply_and_pause(homes[0], settings))
    os.waitpid(first, os.WUNTRACED)
    half_done = [name for name in os.listdir(origin) if name.startswith(".aw-apply-")]
    assert len(half_done) == 1
    second = fork(lambda: _apply_from_another_home(homes[1], settings, locked=locked))
    if locked:
        time.sleep(0.3)
        assert os.waitpid(second, os.WNOHANG) == (0, 0)
        assert half_done[0] in os.listdir(origin)
    else:
        wait_all([second])
        assert half_done[0] in os.listdir(origin)
    for _ in range(10):  # it stops at each rename
        os.kill(first, signal.SIGCONT)
        _, status = os.waitpid(first, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            break
    assert status == 0
    if locked:
        wait_all([second])
    assert {"one.txt", "one/x.txt", "two.txt", "two/x.txt"} <= read(origin).keys()
