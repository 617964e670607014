"""Bringing a state back: exactly, by path or as a whole, and without touching anything else."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from desks import Desk, describe

from mcp_peers import FILESYSTEM, npm_package
from needs import need_root
from workstead.errors import PathOutsideWorkspace, PathTraversal, WorksteadError
from workstead.model.snapshot import Limits


def test_only_what_differs_is_touched(any_desk: Desk) -> None:
    desk = any_desk
    for number in range(20):
        desk.write(f"d{number % 4}/f{number}", str(number))
    taken = desk.take()
    inodes = {path: path.stat().st_ino for path in desk.work.rglob("f*")}
    desk.write("d1/f1", "changed")
    (desk.work / "d2/f2").unlink()
    desk.write("d3/extra", "x")
    result = desk.restore(taken.root)
    assert (result.written, result.removed) == (2, 1)
    moved = {path.name for path, inode in inodes.items() if path.stat().st_ino != inode}
    assert moved <= {"f1", "f2"}  # an inode that was given back may be given out again
    assert desk.restore(taken.root).written == 0


def test_kinds_that_changed_places_change_back(any_desk: Desk) -> None:
    desk = any_desk
    desk.write("a", "file")
    desk.write("b/inside", "x")
    (desk.work / "c").symlink_to("a")
    desk.write("d", "file")
    taken = desk.take()
    before = describe(desk.root)
    for name in ("a", "c", "d"):
        (desk.work / name).unlink()
    shutil.rmtree(desk.work / "b")
    desk.write("a/now/a/directory", "x")
    (desk.work / "b").symlink_to("/etc")
    desk.write("c", "no link any more")
    os.mkfifo(desk.work / "d")
    desk.restore(taken.root)
    assert describe(desk.root) == before


def test_a_link_to_the_outside_is_replaced_and_not_followed(any_desk: Desk, tmp_path: Path) -> None:
    desk = any_desk
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("mine")
    desk.write("dir/victim", "kept")
    desk.write("file", "kept")
    taken = desk.take()
    shutil.rmtree(desk.work / "dir")
    (desk.work / "dir").symlink_to(outside)
    (desk.work / "file").unlink()
    (desk.work / "file").symlink_to(outside / "victim")
    desk.restore(taken.root)
    assert (outside / "victim").read_text() == "mine"
    assert (desk.work / "dir/victim").read_text() == "kept"
    assert not (desk.work / "file").is_symlink()


def test_another_name_of_the_same_file_is_not_written_through(desk: Desk, tmp_path: Path) -> None:
    taken_file = desk.write("file", "kept", 0o644)
    taken = desk.take()
    outside = tmp_path / "outside"
    outside.write_text("mine!")
    taken_file.unlink()
    os.link(outside, taken_file)
    desk.restore(taken.root)
    assert outside.read_text() == "mine!"
    outside.write_text("kept")
    outside.chmod(0o600)
    taken_file.unlink()
    os.link(outside, taken_file)  # same content now, other mode: adjusting it in place would reach the outside file
    desk.restore(taken.root)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o600
    assert stat.S_IMODE(taken_file.stat().st_mode) == 0o644


def test_chosen_paths_come_back_and_others_stay(any_desk: Desk) -> None:
    desk = any_desk
    desk.write("one/deep/file", "1")
    desk.write("two", "2")
    taken = desk.take()
    shutil.rmtree(desk.work / "one")
    desk.write("one", "in the way")
    desk.write("two", "changed")
    desk.restore(taken.root, ["work/one/deep/file"])
    assert (desk.work / "one/deep/file").read_text() == "1"
    assert (desk.work / "two").read_text() == "changed"
    desk.restore(taken.root, ["work/two", "work/never-was"])
    assert (desk.work / "two").read_text() == "2"
    desk.write("one/new", "x")
    desk.restore(taken.root, ["work/one"])
    assert not (desk.work / "one/new").exists()


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("work/../../x", PathTraversal),
        ("etc/passwd", PathOutsideWorkspace),
        (".aw/task_spec.json", PathOutsideWorkspace),
    ],
)
def test_a_path_that_leads_out_is_refused(desk: Desk, path: str, error: type[WorksteadError]) -> None:
    taken = desk.take()
    with pytest.raises(error):
        desk.restore(taken.root, [path])


def test_what_no_snapshot_holds_is_not_removed(desk: Desk) -> None:
    taken = desk.take()
    desk.write("dir/large", os.urandom(300_000))
    desk.write("dir/small", "x")
    os.mkfifo(desk.work / "pipe")
    result = desk.restore(taken.root, limits=Limits(max_file_bytes=100_000))
    assert result.kept == ("work/dir/large",)
    assert sorted(path.name for path in desk.work.rglob("*")) == ["dir", "large"]


def test_modes_xattrs_and_times_alone_are_adjusted_in_place(any_desk: Desk) -> None:
    desk = any_desk
    file = desk.write("dir/file", "x", 0o640)
    os.setxattr(file, "user.a", b"1")
    taken = desk.take()
    before, inode = describe(desk.root), file.stat().st_ino
    file.chmod(0o755)
    os.removexattr(file, "user.a")
    os.setxattr(file, "user.b", b"2")
    os.utime(file, ns=(9, 9))
    (desk.work / "dir").chmod(0o700)
    result = desk.restore(taken.root)
    assert describe(desk.root) == before
    assert file.stat().st_ino == inode
    assert result.written == 0


def test_an_overlay_goes_back_to_its_base_and_forward_again(overlay_desk: Desk, origin: Path) -> None:
    desk = overlay_desk
    base = describe(desk.work)
    assert base == describe(origin)
    desk.write("src/app.py", "rewritten")
    shutil.rmtree(desk.work / "docs")
    (desk.work / "link").unlink()
    desk.write("link/now/dir", "x")
    taken = desk.take()
    changed = describe(desk.work)
    desk.restore(desk.base)
    assert describe(desk.work) == base
    assert subprocess.run(["diff", "-r", "--no-dereference", str(origin), str(desk.work)], check=False).returncode == 0
    desk.restore(taken.root)
    assert describe(desk.work) == changed
    assert describe(origin) == base


def test_a_snapshot_from_before_a_freeze_can_be_restored_after_it(overlay_desk: Desk) -> None:
    desk = overlay_desk
    desk.write("src/app.py", "first")
    (desk.work / "README.md").unlink()
    first, before = desk.take(), describe(desk.work)
    desk.write("src/app.py", "second")
    shutil.rmtree(desk.work / "docs")
    desk.write("docs/other", "x")
    second, then = desk.take(), describe(desk.work)
    desk.freeze()
    desk.write("src/lib/deep.py", "third")
    desk.write("README.md", "back")
    shutil.rmtree(desk.work / "docs")
    third, now = desk.take(), describe(desk.work)
    for taken, expected in ((first, before), (third, now), (second, then), (first, before)):
        desk.restore(taken.root)
        assert describe(desk.work) == expected
    desk.restore("layer:desk-0")
    assert (desk.work / "docs/guide.md").read_text() == "guide\n"


def test_what_root_makes_belongs_to_the_owner_of_the_work_directory(any_desk: Desk) -> None:
    need_root()
    desk = any_desk
    desk.write("dir/file", "x")
    (desk.work / "ln").symlink_to("dir")
    taken = desk.take()
    shutil.rmtree(desk.work / "dir")
    (desk.work / "ln").unlink()
    os.chown(desk.work, 64042, 64042)
    desk.restore(taken.root)
    for name in ("dir", "dir/file", "ln"):
        assert os.lstat(desk.work / name).st_uid == 64042
    (desk.work / "dir/file").unlink()
    desk.restore(taken.root, owner=(65534, 65534))
    assert os.lstat(desk.work / "dir/file").st_uid == 65534


def test_an_ordinary_user_restores_into_directories_that_are_read_only(tmp_path: Path) -> None:
    need_root()
    for above in (tmp_path, *tmp_path.parents):
        if str(above).startswith("/tmp/"):
            above.chmod(0o755)
    home = tmp_path / "user-home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            desk = Desk(home)
            desk.write("locked/file", "x")
            desk.write("locked/sub/file", "y")
            (desk.work / "locked/sub").chmod(0o555)
            (desk.work / "locked").chmod(0o555)
            taken, before = desk.take(), describe(desk.root)
            (desk.work / "locked").chmod(0o755)
            (desk.work / "locked/sub").chmod(0o755)
            desk.write("locked/file", "changed")
            (desk.work / "locked/sub/file").unlink()
            desk.write("other/file", "x")
            (desk.work / "other").chmod(0o000)
            (desk.work / "locked/sub").chmod(0o555)
            (desk.work / "locked").chmod(0o555)
            (desk.work / "other").chmod(0o500)
            desk.restore(taken.root)
            os._exit(0 if describe(desk.root) == before else 1)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_real_project_after_a_real_build_comes_back(desk: Desk) -> None:
    """A virtual environment and what npm installs have links, caches and thousands of ignored files."""
    import sys

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(desk.work / ".venv")], check=True)
    source = Path(os.__file__).parent
    packages = npm_package(FILESYSTEM).parent.parent  # what npm installed: a hundred packages, links in .bin
    shutil.copytree(packages, desk.work / "node_modules", symlinks=True)
    shutil.copytree(source / "email", desk.work / "build/email", symlinks=True)
    desk.write(".gitignore", ".venv/\nnode_modules/\nbuild/\n")
    subprocess.run(["git", "init", "-q", str(desk.work)], check=True)
    taken, before = desk.take(), describe(desk.root)
    time.sleep(0.03)
    for name in (".venv", "node_modules", ".git"):
        shutil.rmtree(desk.work / name)
    for path in (desk.work / "build").rglob("*.py"):
        path.write_text("overwritten")
    desk.restore(taken.root)
    assert describe(desk.root) == before


# -- names of one file ---------------------------------------------------------------------------------------------


def _names(desk: Desk) -> dict[str, list[str]]:
    """The names of each file, by its first one."""
    by_inode: dict[int, list[str]] = {}
    for path in sorted(desk.work.rglob("*")):
        if path.is_file() and not path.is_symlink():
            by_inode.setdefault(path.stat().st_ino, []).append(str(path.relative_to(desk.work)))
    return {names[0]: names for names in by_inode.values() if names[0].startswith("twins")}


def _link_up(desk: Desk) -> None:
    desk.write("twins/a", "shared\n")
    (desk.work / "twins/sub").mkdir()
    os.link(desk.work / "twins/a", desk.work / "twins/sub/b")
    os.link(desk.work / "twins/a", desk.work / "twins/z")
    desk.write("twins/alone", "shared\n")


def _drop_all(desk: Desk) -> None:
    shutil.rmtree(desk.work / "twins")


def _drop_first(desk: Desk) -> None:
    (desk.work / "twins/a").unlink()


def _write_through(desk: Desk) -> None:
    with open(desk.work / "twins/z", "a") as file:
        file.write("more\n")


def _separate(desk: Desk) -> None:
    status = (desk.work / "twins/z").stat()
    (desk.work / "twins/z").unlink()
    desk.write("twins/z", "shared\n")
    os.utime(desk.work / "twins/z", ns=(status.st_atime_ns, status.st_mtime_ns))


def _join_another(desk: Desk) -> None:
    (desk.work / "twins/alone").unlink()
    os.link(desk.work / "twins/a", desk.work / "twins/alone")


@pytest.mark.parametrize("spoil", [_drop_all, _drop_first, _write_through, _separate, _join_another])
def test_names_of_one_file_are_that_again(any_desk: Desk, spoil: Callable[[Desk], None]) -> None:
    desk = any_desk
    _link_up(desk)
    taken = desk.take()
    before, names = describe(desk.work), _names(desk)
    assert names["twins/a"] == ["twins/a", "twins/sub/b", "twins/z"]
    spoil(desk)
    desk.restore(taken.root)
    assert describe(desk.work) == before
    assert _names(desk) == names
    assert desk.restore(taken.root).written == 0
    assert desk.take().root == desk.take(cached=False).root


def test_a_name_outside_the_workspace_is_not_joined(desk: Desk, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine\n")
    os.link(outside, desk.work / "inside")
    taken = desk.take()
    (desk.work / "inside").unlink()
    desk.restore(taken.root)
    assert (desk.work / "inside").read_text() == "mine\n"
    assert outside.stat().st_nlink == 1
