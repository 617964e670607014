"""Whatever happens in a tree, and however fast, the reports end where the disk is."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from needs import need, need_root
from watched import Model, kinds_in, settled
from workstead.system.kernel import inotify
from workstead.system.watch import watcher as watching
from workstead.system.watch.watch_tree import Seen, Tree
from workstead.system.watch.watcher import Gone, Watcher

FULL = os.environ.get("AW_LOAD") == "full"
MANY = 20_000 if FULL else 2_000
QUEUE = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


class Scene:
    """A tree that is watched, and a model of it that the reports keep up to date."""

    def __init__(self, top: Path, tree: Tree, debounce_seconds: float) -> None:
        self.top = top
        self.notes: list[str] = []
        self.model = Model(kinds_in(top))
        self.watcher = Watcher(lambda: [tree], note=self.notes.append, debounce_seconds=debounce_seconds)

    def reports(self) -> list[Seen]:
        """What was seen until all is quiet; the model has to be what is on the disk then."""
        found = settled(self.watcher)
        self.model.repeat(found)
        assert self.model.known == kinds_in(self.top)
        return found

    def brief(self) -> list[tuple[str, ...]]:
        return [(seen.kind, *filter(None, (seen.old_path, seen.path))) for seen in self.reports()]


FILES = {"a.txt": "a", "src/b.py": "b", "src/deep/c.py": "c", "old/d": "d", "old/more/e": "e"}


def fill(top: Path) -> None:
    for name, text in FILES.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)


@pytest.fixture(params=["plain", "overlay", "scanning"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    top = tmp_path / "top"
    top.mkdir()
    tree = Tree(path=str(top))
    if request.param == "overlay":
        need_root()
        for name in ("lower", "lowest", "upper", "work"):
            (tmp_path / name).mkdir()
        fill(tmp_path / "lowest")
        (tmp_path / "lower/src").mkdir()
        (tmp_path / "lower/src/above.py").write_text("above")
        os.mknod(tmp_path / "lower/a.txt", 0o20000, 0)  # removed in this layer
        lowers = [str(tmp_path / "lower"), str(tmp_path / "lowest")]
        options = f"lowerdir={':'.join(lowers)},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, top], check=True)
        (top / "a.txt").write_text("again")
        device = os.stat(top).st_dev
        tree = tree.replace(upper=f"{tmp_path}/upper", lowers=tuple(lowers), marks="trusted", device=device)
    else:
        fill(top)
    if request.param == "scanning":
        monkeypatch.setattr(watching, "_SCAN_SECONDS", 0.05)
        monkeypatch.setattr(watching, "_SCAN_SHARE", 1)
        monkeypatch.setattr(watching, "Inotify", _refuse)
    found = Scene(top, tree, debounce_seconds=0.02)
    yield found
    found.watcher.close()


def _refuse() -> None:
    raise OSError(24, "too many open files")


def test_each_kind_of_change_is_reported_as_what_it_is(scene: Scene) -> None:
    (scene.top / "new").write_text("new")
    assert scene.brief() == [("added", "new")]
    (scene.top / "src/deep/c.py").write_text("changed")
    assert scene.brief() == [("changed", "src/deep/c.py")]
    os.chmod(scene.top / "src/b.py", 0o600)
    assert scene.brief() == [("changed", "src/b.py")]
    os.rename(scene.top / "new", scene.top / "old/newer")
    assert scene.brief() == [("renamed", "new", "old/newer")]
    os.unlink(scene.top / "old/newer")
    assert scene.brief() == [("deleted", "old/newer")]
    os.symlink("nowhere", scene.top / "link")
    os.mkfifo(scene.top / "pipe")
    assert sorted((seen.path, seen.entry) for seen in scene.reports()) == [("link", "link"), ("pipe", "other")]


def test_a_file_that_is_replaced_is_changed(scene: Scene) -> None:
    (scene.top / "src/.b.tmp").write_text("better")
    os.rename(scene.top / "src/.b.tmp", scene.top / "src/b.py")
    assert scene.brief() == [("changed", "src/b.py")]


def test_a_deleted_directory_is_reported_with_all_that_was_in_it(scene: Scene) -> None:
    shutil.rmtree(scene.top / "old")
    gone = scene.brief()
    assert sorted(gone) == [("deleted", path) for path in ("old", "old/d", "old/more", "old/more/e")]
    assert gone[-1] == ("deleted", "old")


def test_a_directory_that_moves_takes_everything_along_and_is_still_watched(scene: Scene) -> None:
    os.makedirs(scene.top / "made/in/side")
    (scene.top / "made/in/side/f").write_text("f")
    scene.reports()
    os.rename(scene.top / "made/in", scene.top / "moved")
    assert scene.brief() == [("renamed", "made/in", "moved")]
    (scene.top / "moved/side/f").write_text("g")
    (scene.top / "moved/side/h").write_text("h")
    assert sorted(scene.brief()) == [("added", "moved/side/h"), ("changed", "moved/side/f")]


def test_a_file_becomes_a_directory_and_a_directory_a_file(scene: Scene) -> None:
    os.unlink(scene.top / "a.txt")
    os.makedirs(scene.top / "a.txt/b/c")
    shutil.rmtree(scene.top / "src")
    (scene.top / "src").write_text("a file now")
    reports = scene.brief()
    assert ("added", "a.txt/b/c") in reports
    assert ("deleted", "src/deep/c.py") in reports
    assert ("added", "src") in reports
    os.unlink(scene.top / "src")
    os.mkdir(scene.top / "src")
    (scene.top / "src/b.py").write_text("again")
    assert ("added", "src/b.py") in scene.brief()


def test_directories_that_change_places_and_turn_inside_out(scene: Scene) -> None:
    for name in ("one/x", "two/y", "outer/inner"):
        os.makedirs(scene.top / name)
        (scene.top / name / "file").write_text(name)
    scene.reports()
    for source, target in (("one", "tmp"), ("two", "one"), ("tmp", "two")):
        os.rename(scene.top / source, scene.top / target)
    os.rename(scene.top / "outer/inner", scene.top / "inner")
    os.rename(scene.top / "outer", scene.top / "inner/outer")
    scene.reports()
    (scene.top / "two/x/file").write_text("still seen")
    (scene.top / "inner/outer/new").write_text("still seen")
    assert sorted(scene.brief()) == [("added", "inner/outer/new"), ("changed", "two/x/file")]


def test_every_change_in_new_nested_directories_is_seen(scene: Scene) -> None:
    wanted = set()
    for number in range(MANY):
        above = f"n{number % 7}/n{number % 43}/n{number % 5}"
        os.makedirs(scene.top / above, exist_ok=True)
        (scene.top / above / f"f{number}").write_text("x")
        wanted.add(f"{above}/f{number}")
    seen = {each.path for each in scene.reports() if each.kind == "added" and each.entry == "file"}
    assert seen == wanted
    for path in wanted:
        os.unlink(scene.top / path)
    seen = {each.path for each in scene.reports() if each.kind == "deleted"}
    assert seen == wanted


def test_nothing_is_missed_while_somebody_writes_at_the_same_time(scene: Scene) -> None:
    done = threading.Event()

    def write() -> None:
        for number in range(MANY):
            folder = scene.top / f"w{number % 11}" / f"w{number}"
            folder.mkdir(parents=True)
            (folder / "file").write_text("x")
            if number % 3 == 0:
                os.rename(folder, scene.top / f"moved{number}")
            if number % 5 == 0:
                shutil.rmtree(scene.top / f"w{(number - 1) % 11}", ignore_errors=True)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        scene.model.repeat(scene.watcher.wait(0.05))
    writer.join()
    scene.reports()


def test_a_storm_of_renames_ends_where_the_disk_is(scene: Scene) -> None:
    for number in range(20):
        os.makedirs(scene.top / f"d{number}/sub")
        (scene.top / f"d{number}/sub/f").write_text(str(number))
    scene.reports()
    for number in range(MANY):
        source, target = scene.top / f"d{number % 20}", scene.top / f"d{(number * 7 + 1) % 20}"
        if source != target:
            os.rename(target, scene.top / "aside")
            os.rename(source, target)
            os.rename(scene.top / "aside", source)
    os.rename(scene.top / "d3", scene.top / "d4/sub/d3")
    scene.reports()


def test_when_the_kernel_drops_notices_everything_is_looked_at_again(scene: Scene) -> None:
    """Nobody reads while more happens than the queue takes."""
    os.makedirs(scene.top / "before/gone")
    scene.reports()
    count = QUEUE // 2 if scene.watcher.mechanism == "inotify" else 100
    for number in range(count + 100):
        (scene.top / f"src/f{number}").write_text("x")  # at least two notices each
    os.rmdir(scene.top / "before/gone")  # the queue is full by now
    os.makedirs(scene.top / "late/and/deep")
    os.unlink(scene.top / "old/more/e")
    assert {("deleted", "before/gone"), ("added", "late/and/deep"), ("deleted", "old/more/e")} <= set(scene.brief())
    (scene.top / "late/and/deep/still").write_text("watched")
    assert scene.brief() == [("added", "late/and/deep/still")]


def test_names_of_any_bytes(scene: Scene) -> None:
    top = os.fsencode(scene.top)
    for name in (b"new\nline", b"\xff\xfe", "ünïcödé".encode(), b"-rf *", b"\x1b[31m", b"x" * 255):
        os.mkdir(os.path.join(top, name))
        with open(os.path.join(top, name, name), "w"):
            pass
    assert len(scene.reports()) == 12


def test_links_that_lead_out_or_in_circles_are_only_links(scene: Scene, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    os.symlink(outside, scene.top / "out")
    os.symlink(".", scene.top / "loop")
    os.symlink("loop/loop/loop", scene.top / "src/loop")
    assert {seen.entry for seen in scene.reports()} == {"link"}
    (outside / "secret").write_text("not ours")
    assert scene.reports() == []


def test_a_directory_swapped_for_a_link_leads_nowhere(scene: Scene, tmp_path: Path) -> None:
    """Somebody flips between a directory and a link to the outside while we look."""
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner/secret").write_text("not ours")
    os.makedirs(scene.top / "flip/inner")
    os.symlink(outside, scene.top / "link")
    done = threading.Event()

    def flip() -> None:
        while not done.is_set():
            os.rename(scene.top / "flip", scene.top / "aside")
            os.rename(scene.top / "link", scene.top / "flip")
            (scene.top / f"aside/inner/{os.urandom(2).hex()}").write_text("x")
            os.rename(scene.top / "flip", scene.top / "link")
            os.rename(scene.top / "aside", scene.top / "flip")

    flipper = threading.Thread(target=flip)
    flipper.start()
    seen: list[Seen] = []
    for _ in range(30):
        batch = scene.watcher.wait(0.05)
        scene.model.repeat(batch)
        seen += batch
    done.set()
    flipper.join()
    seen += scene.reports()
    assert seen
    assert not [each for each in seen if "secret" in each.path]


def test_pipes_sockets_and_closed_directories_hold_nobody_up(scene: Scene) -> None:
    for name in ("pipe", "src/pipe"):
        os.mkfifo(scene.top / name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(scene.top / "socket"))
    assert len(scene.reports()) == 3


def test_a_tree_deeper_than_a_path_may_be_long(scene: Scene) -> None:
    depth = 400
    folder = os.open(scene.top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("d" * 20, dir_fd=folder)
        inner = os.open("d" * 20, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    seen = settled(scene.watcher)
    assert len(seen) == depth
    assert seen[-1].path.count("/") == depth - 1


def test_two_watchers_see_the_same(scene: Scene) -> None:
    with_other = Scene(scene.top, scene.watcher._tops[0].tree, 0.02)
    try:
        os.makedirs(scene.top / "x/y")
        (scene.top / "x/y/z").write_text("z")
        assert scene.brief() == with_other.brief()
    finally:
        with_other.watcher.close()


def test_what_is_named_to_be_skipped_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / ".aw").mkdir()
    (tmp_path / "sub").mkdir()
    watcher = Watcher(lambda: [Tree(path=str(tmp_path), skip=(".aw",))], note=print, debounce_seconds=0.02)
    (tmp_path / ".aw/run.json").write_text("{}")
    (tmp_path / "sub/.aw").write_text("not ours")
    assert [seen.path for seen in settled(watcher)] == ["sub/.aw"]
    watcher.close()


def test_a_burst_is_one_batch(tmp_path: Path) -> None:
    watcher = Watcher(lambda: [Tree(path=str(tmp_path))], note=print, debounce_seconds=0.5)
    for number in range(10):
        (tmp_path / "file").write_text(str(number))
    os.rename(tmp_path / "file", tmp_path / "other")
    assert [(seen.kind, seen.path) for seen in watcher.wait(2)] == [("added", "other")]
    watcher.close()


@pytest.mark.parametrize("scene", ["overlay"], indirect=True)
def test_an_overlay_is_watched_where_it_was_changed_and_nowhere_else(scene: Scene) -> None:
    assert len(scene.watcher._by_watch) == 2  # the top, in both of its layers
    (scene.top / "src/deep/c.py").write_text("changed")
    scene.reports()
    assert len(scene.watcher._by_watch) == 6


@pytest.mark.parametrize("scene", ["plain"], indirect=True)
def test_every_directory_of_plain_files_is_watched(scene: Scene) -> None:
    assert len(scene.watcher._by_watch) == 1 + list(kinds_in(scene.top).values()).count("directory")


def test_a_large_tree_is_watched_before_all_of_it_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "FIRST_SECONDS", 0.0)
    for number in range(300):
        (tmp_path / f"d{number}").mkdir()
    model = Model(kinds_in(tmp_path))
    time.sleep(0.05)
    watcher = Watcher(lambda: [Tree(path=str(tmp_path))], note=print, debounce_seconds=0.0)
    assert watcher.is_reading
    (tmp_path / "first").write_text("seen at once")
    batch = watcher.wait(5)
    assert [seen.path for seen in batch] == ["first"]
    (tmp_path / "d299").rmdir()
    (tmp_path / "d0/late").write_text("late")
    (tmp_path / "d1/new/deeper").mkdir(parents=True)
    model.repeat(batch + settled(watcher))
    assert not watcher.is_reading
    assert model.known == kinds_in(tmp_path)
    watcher.close()


def test_what_was_deleted_before_its_turn_is_a_change_of_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows its name any more; a directory in which something new explains its time is not reported."""
    for number in range(300):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}" / "file").write_text("here")
    time.sleep(0.05)
    monkeypatch.setattr(watching, "FIRST_SECONDS", 0.0)
    watcher = Watcher(lambda: [Tree(path=str(tmp_path))], note=print, debounce_seconds=0.0)
    time.sleep(0.05)
    unread = sorted(folder.name for folder in watcher._unread)
    gone, grown = unread[0], unread[1]
    (tmp_path / gone / "file").unlink()
    (tmp_path / grown / "new").write_text("new")
    seen = [(each.kind, each.path) for each in settled(watcher)]
    assert sorted(seen) == [("added", f"{grown}/new"), ("changed", gone)]
    (tmp_path / unread[2] / "file").unlink()  # all is known now
    assert [(each.kind, each.path) for each in settled(watcher)] == [("deleted", f"{unread[2]}/file")]
    watcher.close()


def test_who_only_looks_in_helps_to_read_a_large_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "FIRST_SECONDS", 0.0)
    for number in range(300):
        (tmp_path / f"d{number}").mkdir()
    watcher = Watcher(lambda: [Tree(path=str(tmp_path))], note=print)
    for _ in range(1000):
        watcher.wait(0.0)
    assert not watcher.is_reading
    watcher.close()


def test_what_changed_before_its_turn_is_reported_as_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a large tree is read for the first time, the times of its files say what is new."""
    monkeypatch.setattr(watching, "FIRST_SECONDS", 0.0)
    for number in range(50):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}/f").write_text("before")
    time.sleep(0.05)
    watcher = Watcher(lambda: [Tree(path=str(tmp_path))], note=print, debounce_seconds=0.0)
    time.sleep(0.02)
    for number in range(50):
        (tmp_path / f"d{number}/f").write_text("after")
    seen = settled(watcher)
    assert {each.path for each in seen if each.kind == "changed"} == {f"d{number}/f" for number in range(50)}
    watcher.close()


LIMITED = """
import sys
from workstead.system.watch.watch_tree import Tree
from workstead.system.watch.watcher import Watcher
from pathlib import Path
Path("/proc/sys/user/max_inotify_watches").write_text("5")
top = Path(sys.argv[1])
watcher = Watcher(lambda: [Tree(path=str(top))], note=lambda text: print("note", text), debounce_seconds=0.0)
print(watcher.mechanism)
(top / "d9/new").write_text("x")
(top / "d8").rename(top / "e8")
print(*sorted((seen.kind, seen.path) for seen in watcher.wait(20)))
"""


def test_without_watches_everything_is_looked_at_and_it_is_said(tmp_path: Path) -> None:
    """In a user namespace of its own, which has few."""
    unshare = shutil.which("unshare")
    need(unshare is not None and subprocess.run([unshare, "-Ur", "true"]).returncode == 0, "user namespaces")
    for number in range(10):
        (tmp_path / "top" / f"d{number}").mkdir(parents=True)
    python = [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{LIMITED}", str(tmp_path / "top")]
    done = subprocess.run([unshare or "", "-Ur", *python], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    note, mechanism, found = done.stdout.splitlines()
    assert note.startswith("note no more watches are to be had (fs.inotify.max_user_watches): looking at everything")
    assert mechanism == "scanning"
    assert found == "('added', 'd9/new') ('renamed', 'e8')"


def test_one_tree_does_not_use_up_all_watches_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify, "most_watches", lambda: 20)
    monkeypatch.setattr(watching, "_SCAN_SECONDS", 0.05)
    notes: list[str] = []
    watcher = Watcher(lambda: [Tree(path=str(tmp_path))], note=notes.append, debounce_seconds=0.0)
    model = Model(kinds_in(tmp_path))
    for number in range(12):
        (tmp_path / f"d{number}").mkdir()
        model.repeat(settled(watcher))
    (tmp_path / "d3/still").write_text("seen")
    model.repeat(settled(watcher))
    assert model.known == kinds_in(tmp_path)
    assert len(notes) == 1
    assert watcher.mechanism == "scanning"
    watcher.close()


def test_a_tree_that_is_gone_ends_the_watch(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    watcher = Watcher(lambda: [Tree(path=str(top))] if top.exists() else None, note=print, debounce_seconds=0.0)
    os.rename(top, tmp_path / "elsewhere")
    with pytest.raises(Gone):
        watcher.wait(5)
    watcher.close()


@pytest.mark.parametrize("scene", ["overlay"], indirect=True)
def test_being_watched_keeps_nobody_from_unmounting(scene: Scene) -> None:
    (scene.top / "src/deep/c.py").write_text("changed")
    scene.reports()
    subprocess.run(["umount", scene.top], check=True)
