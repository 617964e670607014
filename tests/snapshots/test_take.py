"""Taking a snapshot: everything is in it, nothing of the agent's is run or followed, and it costs what changed."""

from __future__ import annotations

import mmap
import os
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest
from desks import Desk, describe

from needs import need_root
from workstead.model.snapshot import Limits, Place
from workstead.snapshots.entries import CHUNK
from workstead.snapshots.gc import verify
from workstead.snapshots.take import look, take
from workstead.snapshots.trees import compare


def test_a_snapshot_keeps_every_kind_of_thing(any_desk: Desk) -> None:
    desk = any_desk
    desk.write("plain.txt", "text\n")
    desk.write("run.sh", "#!/bin/sh\n", 0o755)
    desk.write("secret", "x", 0o600)
    desk.write("big", os.urandom(3 * CHUNK + 17))
    desk.write(".gitignore", "ignored/\n")
    desk.write("ignored/build.o", b"\0\1")
    desk.write("nothing", "")
    (desk.work / "hollow/inside").mkdir(parents=True)
    (desk.work / "to-outside").symlink_to("/etc/passwd")
    (desk.work / "dangling").symlink_to("nowhere")
    os.setxattr(desk.work / "plain.txt", "user.note", b"\0binary\xff")
    os.setxattr(desk.work / "hollow", "user.dir", b"yes")
    os.link(desk.work / "plain.txt", desk.work / "second-name")
    (desk.work / os.fsdecode(b"odd\n\xff\x01 name")).write_text("odd")
    desk.output.joinpath("report").write_text("done")
    desk.root.joinpath("CLAUDE.md").write_text("be good")
    os.utime(desk.work / "plain.txt", ns=(1, 1_234_567_890_123_456_789))
    taken = desk.take()
    before = describe(desk.root)
    assert taken.left_out == ()
    assert verify(desk.store, [taken.root]) == []
    subprocess.run(["rm", "-rf", *map(str, desk.work.iterdir()), *map(str, desk.output.iterdir())], check=True)
    desk.root.joinpath("CLAUDE.md").write_text("be evil")
    desk.restore(taken.root)
    after = describe(desk.root)
    # The workspace's own directory is not part of the state, nor is the time of what lies beside `work`.
    assert after == before


def test_what_cannot_be_kept_is_listed_with_the_reason(desk: Desk) -> None:
    os.mkfifo(desk.work / ".gitignore")
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(desk.work)
        listener.bind("sock")
        desk.write("dir/large", os.urandom(200_000))
        taken = take(desk.store, desk.place, limits=Limits(max_file_bytes=100_000))
    assert [(each.path, each.kind) for each in taken.left_out] == [
        ("work/.gitignore", "fifo"),
        ("work/dir/large", "large"),
        ("work/sock", "socket"),
    ]
    again = take(desk.store, desk.place, limits=Limits(max_file_bytes=100_000), cache_path=desk.cache)
    third = take(desk.store, desk.place, limits=Limits(max_file_bytes=100_000), cache_path=desk.cache)
    assert again.left_out == third.left_out == taken.left_out


def test_a_device_is_listed_and_not_opened(desk: Desk) -> None:
    need_root()
    os.mknod(desk.work / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(desk.work / "zero-zero", stat.S_IFCHR | 0o666, os.makedev(0, 0))
    assert [each.kind for each in desk.take().left_out] == ["device", "device"]


def test_a_sparse_file_costs_what_it_holds_and_comes_back_sparse(desk: Desk) -> None:
    with open(desk.work / "sparse", "wb") as file:
        file.truncate(8 << 40)
        file.seek(5 << 40)
        file.write(b"island")
    with open(desk.work / "small", "wb") as file:
        file.truncate(500_000)
        file.seek(300_000)
        file.write(b"island")
    start = time.monotonic()
    taken = desk.take()
    assert time.monotonic() - start < 30  # reading 8 TiB of nothing would take an hour
    assert taken.stored_bytes < 20_000
    (desk.work / "sparse").unlink()
    (desk.work / "small").unlink()
    desk.restore(taken.root)
    with open(desk.work / "sparse", "rb") as file:
        assert os.fstat(file.fileno()).st_size == 8 << 40
        assert os.fstat(file.fileno()).st_blocks * 512 < 4 << 20
        file.seek(5 << 40)
        assert file.read(6) == b"island"
    assert (desk.work / "small").read_bytes() == bytes(300_000) + b"island" + bytes(199_994)
    assert (desk.work / "small").stat().st_blocks * 512 < 100_000


def test_a_set_id_bit_is_never_kept(desk: Desk) -> None:
    file = desk.write("tool", "x")
    file.chmod(0o6755)
    taken = desk.take()
    file.unlink()
    desk.restore(taken.root)
    assert stat.S_IMODE(file.stat().st_mode) == 0o755


def test_thousands_of_levels_are_kept_and_brought_back(in_memory: Path) -> None:
    desk = Desk(in_memory)  # on a disk, removing a directory alone takes up to 2 ms
    fd = os.open(desk.work, os.O_RDONLY)
    for level in range(2500):
        os.mkdir("d", dir_fd=fd)
        if level % 10 == 0:
            os.mkdir("side", dir_fd=fd)  # keeps the walk from giving the directory back
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    file = os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    os.write(file, b"deep")
    os.close(file)
    os.close(fd)
    descriptors = len(os.listdir("/proc/self/fd"))
    taken = desk.take()
    assert taken.left_out == ()
    assert taken.files == 1
    desk.restore("empty")
    assert os.listdir(desk.work) == []
    desk.restore(taken.root)
    assert desk.take(cached=False).root == taken.root
    desk.restore("empty")
    desk.store.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_too_deep_and_too_many_are_left_out_and_the_rest_is_kept(desk: Desk) -> None:
    desk.write("a/b/c/d/file", "x")
    desk.write("kept", "x")
    taken = take(desk.store, desk.place, limits=Limits(max_depth=2))
    assert [(each.path, each.kind) for each in taken.left_out] == [("work/a/b/c", "deep")]
    for number in range(50):
        desk.write(f"many/{number}", "x")
    taken = take(desk.store, desk.place, limits=Limits(max_entries=30))
    assert taken.left_out
    assert {each.kind for each in taken.left_out} == {"many"}


# -- hostile repositories ----------------------------------------------------------------------------------------------


def make_hostile(work: Path, canary: Path) -> None:
    """A repository that runs a program whenever a careless git looks at it, in a workspace and nested in it."""
    evil = f"touch {canary}"
    for folder in (work, work / "nested", work / "vendor/sub"):
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
        with open(folder / ".git/config", "a") as config:
            config.write(f'[core]\n\tfsmonitor = "{evil}"\n\thooksPath = hooks\n\tpager = "{evil}"\n')
            config.write(f'[filter "evil"]\n\tclean = "{evil}"\n\tsmudge = "{evil}"\n\trequired = true\n')
            config.write(f'[diff "evil"]\n\ttextconv = "{evil}"\n\tcommand = "{evil}"\n')
        (folder / ".gitattributes").write_text("* filter=evil diff=evil export-subst\n")
        for hook in ("pre-commit", "post-checkout", "post-index-change"):
            (folder / ".git/hooks" / hook).write_text(f"#!/bin/sh\n{evil}\n")
            (folder / ".git/hooks" / hook).chmod(0o755)
        (folder / "hidden.txt").write_text("work that git would not see\n")
    (work / ".gitmodules").write_text('[submodule "nested"]\n\tpath = nested\n\tignore = none\n\turl = ./nested\n')
    (work / "nested/.git/config").write_text("[broken\n")
    (work / ".git/index").write_bytes(b"DIRC\0\0\0\2\0\0\0\1" + bytes(60) + b"\0\x0d../../outside\0")
    (work / ".git/info/exclude").write_text("*\n")
    os.mkfifo(work / "nested/.gitignore")


def test_a_hostile_repository_runs_nothing_hides_nothing_and_comes_back(any_desk: Desk, tmp_path: Path) -> None:
    desk = any_desk
    canary = tmp_path / "canary"
    make_hostile(desk.work, canary)
    taken = desk.take()
    before = describe(desk.work)
    assert [each.path for each in taken.left_out] == ["work/nested/.gitignore"]
    with desk.tree(desk.base) as base, desk.tree(taken.root) as now:
        paths = {delta.path for delta in compare(base, now)}
    assert {"work/hidden.txt", "work/nested/hidden.txt", "work/.git/hooks/pre-commit", "work/.git/index"} <= paths
    subprocess.run(
        ["rm", "-rf", str(desk.work / "nested"), str(desk.work / ".git"), str(desk.work / "hidden.txt")], check=True
    )
    result = desk.restore(taken.root)
    assert result.missing == ("work/nested/.gitignore",)
    del before["nested/.gitignore"]
    assert describe(desk.work) == before
    assert not canary.exists()


@pytest.mark.parametrize("seconds", [13_569_465_600, 99_999_999_999, -99_999_999_999])
def test_a_time_that_64_bits_of_nanoseconds_do_not_hold_is_kept(in_memory: Path, seconds: int) -> None:
    """`touch -d 2400-01-01` must not be a way to have no snapshots."""
    desk = Desk(in_memory)
    when = seconds * 1_000_000_000 + 7
    desk.write("d/f", "text")
    (desk.work / "link").symlink_to("d")
    for name in ("d/f", "d", "link"):
        os.utime(desk.work / name, ns=(when, when), follow_symlinks=False)
    before = describe(desk.work)
    assert before["d"][2] == when
    root = desk.take().root
    time.sleep(0.03)
    assert desk.take().root == root
    subprocess.run(["rm", "-rf", str(desk.work / "d"), str(desk.work / "link")], check=True)
    desk.restore(root)
    assert describe(desk.work) == before
    desk.close()


# -- cost and truth of the stat cache ----------------------------------------------------------------------------------


def test_nothing_changed_gives_the_same_root_and_does_not_open_the_store(desk: Desk) -> None:
    for number in range(30):
        desk.write(f"d{number % 4}/f{number}", str(number))
    first = desk.take()
    time.sleep(0.03)
    assert desk.take().root == first.root
    desk.store.close()
    assert desk.take().root == first.root
    assert desk.store._connection is None


def test_a_change_within_the_same_clock_tick_is_seen(desk: Desk) -> None:
    for number in range(60):
        desk.write("f", f"a{number:04}")
        first = desk.take()
        desk.write("f", f"b{number:04}")  # same size, often the same tick
        assert desk.take().root != first.root


def test_an_agent_that_sets_the_time_back_is_seen(desk: Desk) -> None:
    file = desk.write("f", "aaaa")
    os.utime(file, ns=(5, 5))
    first = desk.take()
    time.sleep(0.03)
    desk.take()
    file.write_text("bbbb")
    os.utime(file, ns=(5, 5))
    assert desk.take().root != first.root


def test_a_mapping_that_a_live_agent_keeps_cannot_hide_a_change(desk: Desk) -> None:
    file = desk.write("f", "a" * 4096)
    desk.take()
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 4096) as mapped:
        mapped[0:1] = b"b"
        time.sleep(0.05)
        first = desk.take(live=True)
        assert first.live
        mapped[1:2] = b"c"  # if the page is still dirty, ctime does not move
        second = desk.take()
    assert second.root != first.root


def test_a_damaged_or_foreign_cache_costs_time_and_nothing_else(desk: Desk) -> None:
    desk.write("f", "text")
    first = desk.take()
    for data in (b"", b"junk", Path(desk.cache).read_bytes()[:-5], os.urandom(500)):
        Path(desk.cache).write_bytes(data)
        assert desk.take().root == first.root


def test_a_file_that_never_stands_still_is_kept_as_torn(desk: Desk) -> None:
    file = desk.write("f", "x" * 100)
    writer = subprocess.Popen(["sh", "-c", f"while :; do echo y >> {file}; done"])
    try:
        torn = []
        end = time.monotonic() + 5
        while not torn and time.monotonic() < end:
            torn += desk.take(live=True).torn
    finally:
        writer.kill()
        writer.wait()
    assert torn in ([], ["work/f"])  # a quiet moment is possible; a failure or a hang is not
    assert desk.take().torn == ()


def test_looking_adds_nothing_to_the_store(any_desk: Desk) -> None:
    desk = any_desk
    desk.write("a", "one")
    taken = desk.take()
    size = desk.store.stored_bytes()
    desk.write("a", "two")
    desk.write("new/large", os.urandom(2 << 20))
    with desk.tree(taken.root) as old, look(desk.store, desk.place, contents=True, cache_path=desk.cache) as new:
        assert {delta.path for delta in compare(old, new)} == {"work/a", "work/new", "work/new/large"}
        entry = new.find("work/new/large")
        assert entry is not None
        assert new.read(entry) == (desk.work / "new/large").read_bytes()
    assert desk.store.stored_bytes() == size


# -- overlays ----------------------------------------------------------------------------------------------------------


def test_the_base_of_an_overlay_needs_no_object_at_all(overlay_desk: Desk, origin: Path) -> None:
    assert overlay_desk.base == "layer:desk-0"
    with overlay_desk.tree(overlay_desk.base) as tree:
        entry = tree.find("work/src/app.py")
        assert entry is not None
        assert tree.read(entry) == (origin / "src/app.py").read_bytes()
    assert not os.path.exists(overlay_desk.store.path)


def test_over_an_overlay_deletions_and_replaced_directories_are_seen(overlay_desk: Desk) -> None:
    desk = overlay_desk
    (desk.work / "README.md").unlink()
    subprocess.run(["rm", "-rf", str(desk.work / "src")], check=True)
    desk.write("src/new.py", "new")
    (desk.work / "empty").rmdir()
    desk.write("empty", "now a file")
    taken = desk.take()
    assert taken.files == 2
    with desk.tree(desk.base) as base, desk.tree(taken.root) as now:
        found = {delta.path: (delta.old is not None, delta.new is not None) for delta in compare(base, now)}
    assert found == {
        "work/README.md": (True, False),
        "work/empty": (True, True),
        "work/src/app.py": (True, False),
        "work/src/lib": (True, False),
        "work/src/lib/deep.py": (True, False),
        "work/src/new.py": (False, True),
    }


def test_touching_a_file_without_changing_it_is_no_change(overlay_desk: Desk) -> None:
    desk = overlay_desk
    (desk.work / "README.md").write_text((desk.work / "README.md").read_text())
    taken = desk.take()
    with desk.tree(desk.base) as base, desk.tree(taken.root) as now:
        assert [delta.path for delta in compare(base, now)] == []
        assert [delta.path for delta in compare(base, now, times=True)] == ["work/README.md"]


def test_an_agent_cannot_fake_the_marks_of_the_overlay(overlay_desk: Desk) -> None:
    desk = overlay_desk
    os.setxattr(desk.work / "src", "user.overlay.opaque", b"y")
    desk.write("src/new.py", "x")
    taken = desk.take()
    with desk.tree(taken.root) as now:
        assert now.find("work/src/app.py") is not None


def test_an_upper_layer_with_redirects_is_read_through_the_mount(overlay_desk: Desk) -> None:
    desk = overlay_desk
    desk.write("src/new.py", "x")
    overlay = desk.place.overlay
    assert overlay is not None
    os.setxattr(os.path.join(overlay.upper, "src"), "trusted.overlay.redirect", b"elsewhere")
    taken = desk.take()
    with desk.tree(taken.root) as now:
        assert now.stack_key == ""
        assert now.find("work/README.md") is not None


def test_the_version_below_a_change_is_preserved_for_merging(overlay_desk: Desk, origin: Path) -> None:
    desk = overlay_desk
    old = (origin / "README.md").read_bytes()
    desk.write("README.md", "changed by the agent")
    (desk.work / "docs/guide.md").unlink()
    desk.take()
    time.sleep(0.03)
    (origin / "README.md").write_text("changed by the user")
    desk.write("README.md", "changed again")
    taken = desk.take()
    with desk.tree(taken.root) as tree:
        readme = tree.folder("work").raw("README.md")
        guide = tree.folder("work/docs").raw("guide.md")
        assert readme is not None
        assert guide is not None
        assert desk.store.get(readme.was) == old
        assert desk.store.get(guide.was) == b"guide\n"


def test_an_output_that_the_agent_replaced_by_a_link_is_not_followed(desk: Desk, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    desk.output.rmdir()
    desk.output.symlink_to(outside)
    taken = desk.take()
    assert [(each.path, each.kind) for each in taken.left_out] == [("output", "foreign")]
    desk.restore("empty")
    assert (outside / "secret").exists()
    assert desk.output.is_dir()
    assert not desk.output.is_symlink()


def test_unreadable_files_are_listed_for_an_ordinary_user(desk: Desk) -> None:
    need_root()
    desk.write("open", "x")
    desk.write("closed", "x", 0o000)
    (desk.work / "shut").mkdir(0o000)
    subprocess.run(["chown", "-R", "65534:65534", str(desk.path)], check=True)
    os.makedirs(desk.store.path, exist_ok=True)
    subprocess.run(["chown", "-R", "65534:65534", desk.store.path], check=True)
    for above in Path(desk.store.path).parents:
        if str(above).startswith("/tmp/"):
            above.chmod(0o755)
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            taken = take(desk.store, Place(root=str(desk.root)))
            found = [(each.path, each.kind) for each in taken.left_out]
            os._exit(0 if found == [("work/closed", "unreadable"), ("work/shut", "unreadable")] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("root", ["", "zz", "ab" * 16, "../etc"])
def test_a_root_that_was_never_kept_is_not_found(desk: Desk, root: str) -> None:
    from workstead.errors import SnapshotNotFound

    with pytest.raises(SnapshotNotFound):
        desk.restore(root)
