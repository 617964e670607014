"""Whole trees: listing, usage, search, removal; also trees that are made to hurt."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from needs import need_program, need_root
from workstead.errors import FileExists, FileNotFound, Invalid, NotADirectory, NotAFile, QuotaExceeded, TimedOut
from workstead.model.file import Match
from workstead.system.files import operations, search, walk
from workstead.system.files.root import Root
from workstead.system.files.walk import Limits

DEEP = 3000
WIDE = 1_000_000


@pytest.fixture(params=["openat2", "walk"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Root]:
    (tmp_path / "ws").mkdir()
    with Root.open(f"{tmp_path}/ws", resolver=request.param) as opened:
        yield opened


@pytest.fixture
def ws(root: Root, tmp_path: Path) -> Path:
    """A small tree with everything in it that a listing skips."""
    top = tmp_path / "ws"
    (top / "src/empty").mkdir(parents=True)
    (top / "docs").mkdir()
    for name in ("top.txt", "src/a.py", "src/b.py", "docs/\udcff"):
        (top / name).write_bytes(b"x" * 1000)
    (top / "out").symlink_to("../..")
    (top / "src/loop").symlink_to(".")
    os.mkfifo(top / "src/pipe")
    return top


NESTED = {
    "top.txt": "file",
    "src": {"a.py": "file", "b.py": "file", "empty": {}},
    "docs": {"\udcff": "file"},
}


def test_the_tree_is_nested_and_what_is_left_out_is_counted(root: Root, ws: Path) -> None:
    found = walk.tree(root)
    assert found.tree == NESTED
    assert (found.files, found.directories, found.links, found.special, found.unreadable) == (4, 3, 2, 1, 0)
    assert walk.tree(root, "src").tree == NESTED["src"]
    assert json.loads(b"".join(walk.tree_json(root))) == NESTED
    assert json.loads(b"".join(walk.tree_json(root, "src/empty"))) == {}


def test_a_tree_of_nothing_or_of_a_file_is_refused(root: Root, ws: Path) -> None:
    with pytest.raises(FileNotFound):
        walk.tree(root, "nope")
    with pytest.raises(NotADirectory):
        list(walk.tree_json(root, "top.txt"))


def test_directories_that_cannot_be_read_are_skipped_and_counted(root: Root, ws: Path) -> None:
    (ws / "src/closed").mkdir(0o000)
    child = os.fork()
    if not child:  # root may read everything, so somebody else looks
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            found = walk.tree(root)
            os._exit(0 if found.unreadable == 1 and found.tree == NESTED else 1)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_limits_on_names_levels_and_seconds_are_named(root: Root, ws: Path) -> None:
    for limits, limit, error in (
        (Limits(max_entries=8), "max_entries", QuotaExceeded),
        (Limits(max_depth=1), "max_depth", QuotaExceeded),
        (Limits(max_seconds=0), "max_seconds", TimedOut),
    ):
        with pytest.raises(error) as refusal:
            walk.tree(root, limits=limits)
        assert refusal.value.details["limit"] == limit
    assert walk.tree(root, limits=Limits(max_entries=10, max_depth=2)).files == 4


def test_usage_is_what_du_says_with_hard_links_once(root: Root, ws: Path) -> None:
    os.link(ws / "top.txt", ws / "docs/again")
    with open(ws / "sparse", "wb") as sparse:
        sparse.truncate(1 << 40)
    used = walk.usage(root)
    said = subprocess.run([need_program("du"), "-s", "-B1", ws], check=True, capture_output=True).stdout.split()[0]
    assert used.allocated_bytes == int(said)
    assert used.apparent_bytes == 4000 + (1 << 40)
    assert (used.files, used.directories) == (8, 4)  # with two links and a pipe


def test_trees_of_any_shape_are_listed_as_they_are(tmp_path_factory: pytest.TempPathFactory) -> None:
    names = st.sampled_from(["a", "b", "é", "..x", "\udcff", '"', "\n", "\\"])
    trees = st.recursive(st.just("file"), lambda inner: st.dictionaries(names, inner, max_size=4), max_leaves=12)

    @given(trees.filter(lambda tree: isinstance(tree, dict)))
    def check(tree: dict[str, object]) -> None:
        top = tmp_path_factory.mktemp("shape")
        _make(str(top), tree)
        with Root.open(str(top)) as root:
            assert walk.tree(root).tree == tree
            assert json.loads(b"".join(walk.tree_json(root))) == tree
        shutil.rmtree(top)

    check()


def _make(at: str, tree: dict[str, object]) -> None:
    for name, inner in tree.items():
        if isinstance(inner, dict):
            os.mkdir(f"{at}/{name}")
            _make(f"{at}/{name}", inner)
        else:
            os.mknod(f"{at}/{name}")


# -- made to hurt ------------------------------------------------------------------------------------------------------


def _dig(top: Path, levels: int, name: str = "d") -> None:
    fd = os.open(top, os.O_PATH)
    for _ in range(levels):
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_PATH, dir_fd=fd)
        os.mknod("f", dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def test_three_thousand_levels_are_listed_measured_searched_moved_and_deleted(root: Root, ws: Path) -> None:
    (ws / "pit").mkdir()
    _dig(ws / "pit", DEEP)
    found = walk.tree(root, "pit")
    assert (found.files, found.directories) == (DEEP, DEEP)
    text = b"".join(walk.tree_json(root, "pit"))
    assert (text.count(b"{"), text.count(b"}"), text.count(b'"file"')) == (DEEP + 1, DEEP + 1, DEEP)
    assert (walk.usage(root, "pit").files, walk.usage(root, "pit").directories) == (DEEP, DEEP + 1)
    assert len(search.find_names(root, "f", "pit", max_matches=DEEP).paths) == DEEP
    with pytest.raises(QuotaExceeded, match="more than 2999 levels"):
        walk.tree(root, "pit", limits=Limits(max_depth=DEEP - 1))
    operations.move(root, "pit", "pit2")
    assert operations.delete(root, "pit2", recursive=True).entries == 2 * DEEP + 1
    assert not (ws / "pit2").exists()


def test_the_twin_who_recurses_falls_over(tmp_path: Path) -> None:
    (tmp_path / "pit").mkdir()
    _dig(tmp_path / "pit", 1200)
    with pytest.raises((RecursionError, OSError)):
        shutil.rmtree(tmp_path / "pit")
    with Root.open(str(tmp_path)) as root:
        operations.delete(root, "pit", recursive=True)


def test_long_names_on_deep_levels_go_past_what_the_kernel_takes_in_one_path(root: Root, ws: Path) -> None:
    (ws / "pit").mkdir()
    _dig(ws / "pit", 60, "n" * 255)
    found = walk.tree(root, "pit")
    assert (found.directories, found.unreadable) == (60, 0)
    operations.delete(root, "pit", recursive=True)


def test_a_comb_of_deep_branches_is_deleted_with_few_descriptors(root: Root, ws: Path) -> None:
    for number in range(5):
        (ws / f"comb/{number}").mkdir(parents=True)
        _dig(ws / f"comb/{number}", 200)
    assert operations.delete(root, "comb", recursive=True).entries == 5 * 401 + 1


@pytest.fixture(params=["tmpfs", "overlay"])
def split(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A root in which `rename` is EXDEV: from `d` to `other` in one, of the lower layer's `d` in the other."""
    need_root()
    for name in ("lower", "upper", "work", "top"):
        (tmp_path / "ground" / name).mkdir(parents=True)
    ground = tmp_path / "ground"
    subprocess.run(["mount", "-t", "tmpfs", "aw-test", ground], check=True)
    for name in ("lower/other", "upper", "work", "top/other"):
        (ground / name).mkdir(parents=True)
    tree = ground / ("lower" if request.param == "overlay" else "top") / "d"
    (tree / "e").mkdir(parents=True)
    (tree / "e/run").write_bytes(b"#!")
    (tree / "e/run").chmod(0o755)
    os.utime(tree / "e/run", (1, 1))
    os.chown(tree / "e/run", 7, 8)
    (tree / "out").symlink_to("../../outside")
    os.mkfifo(tree / "pipe")
    what = ["-t", "tmpfs", "aw-test", ground / "top/other"]
    if request.param == "overlay":
        layers = f"lowerdir={ground}/lower,upperdir={ground}/upper,workdir={ground}/work"
        what = ["-t", "overlay", "aw-test", "-o", layers, ground / "top"]
    subprocess.run(["mount", *what], check=True)
    yield ground / "top"
    subprocess.run(["umount", what[-1]], check=True)
    subprocess.run(["umount", ground], check=True)


def test_what_cannot_be_renamed_is_carried_over_with_all_that_belongs_to_it(split: Path) -> None:
    with Root.open(str(split)) as root:
        operations.move(root, "d", "other/d2")
        found = (split / "other/d2/e/run").stat()
        assert (found.st_mode & 0o7777, found.st_mtime, found.st_uid, found.st_gid) == (0o755, 1, 7, 8)
        assert sorted(os.listdir(split / "other/d2")) == ["e", "out", "pipe"]
        assert os.readlink(split / "other/d2/out") == "../../outside"
        assert (os.listdir(split), os.listdir(split / "other")) == (["other"], ["d2"])
        operations.move(root, "other/d2/e/run", "run")
        assert ((split / "run").read_bytes(), os.listdir(split / "other/d2/e")) == (b"#!", [])


def test_what_cannot_be_carried_over_stays_where_it_is(split: Path) -> None:
    os.mknod(split / "d/node", 0o020666, os.makedev(1, 3))
    (split / "other/taken").mkdir()
    with Root.open(str(split)) as root:
        with pytest.raises(FileExists):
            operations.move(root, "d", "other/taken")
        with pytest.raises(NotAFile):
            operations.move(root, "d", "other/d2")
        assert sorted(os.listdir(split / "d")) == ["e", "node", "out", "pipe"]
        assert os.listdir(split / "other") == ["taken"]


def test_a_million_names_in_one_directory(tmp_path: Path) -> None:
    """On a tmpfs, and all names of one inode: to make them is most of the time."""
    need_root()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g,nr_inodes=0", "aw-test", tmp_path], check=True)
    try:
        (tmp_path / "wide").mkdir()
        os.mknod(tmp_path / "one")
        folder = os.open(tmp_path / "wide", os.O_PATH)
        for number in range(WIDE):
            os.link(tmp_path / "one", f"{number:07}", dst_dir_fd=folder)
        os.close(folder)
        with Root.open(str(tmp_path)) as root:
            start = time.monotonic()
            assert sum(1 for _ in operations.scan(root, "wide")) == WIDE
            assert walk.tree(root, "wide").files == WIDE
            assert search.find_names(root, "0777777", "wide").paths == ["0777777"]
            with pytest.raises(QuotaExceeded, match="more than 1000 names"):
                operations.list_directory(root, "wide", max_entries=1000)
            assert operations.delete(root, "wide", recursive=True).entries == WIDE + 1
            assert time.monotonic() - start < 60
    finally:
        subprocess.run(["umount", tmp_path], check=True)


# -- search ------------------------------------------------------------------------------------------------------------

GLOBS = {
    "*.py": ["src/a.py", "src/b.py"],
    "a.*": ["src/a.py"],
    "src/*.py": ["src/a.py", "src/b.py"],
    "**/*.py": ["src/a.py", "src/b.py"],
    "src/**": ["src", "src/a.py", "src/b.py", "src/empty", "src/loop", "src/pipe"],
    "*/[ab].py": ["src/a.py", "src/b.py"],
    "[!a].py": ["src/b.py"],
    "?.py": ["src/a.py", "src/b.py"],
    "*.txt": ["top.txt"],
    "**/top.txt": ["top.txt"],
    "*/top.txt": [],
    "nothing": [],
    "out": ["out"],
}


@pytest.mark.parametrize(("glob", "paths"), GLOBS.items())
def test_names_are_found_by_glob(root: Root, ws: Path, glob: str, paths: list[str]) -> None:
    assert search.find_names(root, glob).paths == paths


def test_a_glob_full_of_stars_is_not_slow() -> None:
    start = time.monotonic()
    assert not search.glob_matcher("*a" * 50 + "b")("a" * 255)
    assert not search.glob_matcher("**/" * 30 + "x/*a*a*a*b")("a/" * 200 + "a" * 255)
    assert time.monotonic() - start < 30  # one that tries all ways would not end today


def test_the_number_of_matches_is_capped(root: Root, ws: Path) -> None:
    found = search.find_names(root, "*", max_matches=3)
    assert (len(found.paths), found.truncated) == (3, True)
    lines = b"needle\n" * 10
    (ws / "src/a.py").write_bytes(lines)
    (ws / "src/b.py").write_bytes(lines)
    for regex in (False, True):
        matched = search.find_text(root, "needle", max_matches=15, regex=regex)
        assert (len(matched.matches), matched.truncated) == (15, True)
        matched = search.find_text(root, "needle", max_matches=20, regex=regex)
        assert (len(matched.matches), matched.truncated) == (20, False)


@pytest.mark.parametrize(("needle", "regex"), [("two", False), ("t.o$", True), (b"two", False), ("(?i)TWO", True)])
def test_text_is_found_with_its_line(root: Root, ws: Path, needle: str, regex: bool) -> None:
    (ws / "src/a.py").write_bytes(b"one\ntwo\r\nthree\n\ntwo")
    (ws / "docs/binary").write_bytes(b"two\0two")
    (ws / "docs/large").write_bytes(b"two" * 1000)
    (ws / "docs/note").write_bytes(b"two \xff")
    found = search.find_text(root, needle, regex=regex, max_file_bytes=2000, names="[!n]*")
    expected = [Match(path="src/a.py", line=2, text="two"), Match(path="src/a.py", line=5, text="two")]
    if regex and needle == "t.o$":
        expected = expected[1:]  # the first line ends in a carriage return
    assert found.matches == expected
    assert (found.binary, found.too_large, found.searched) == (1, 1, 4)
    assert search.find_text(root, "two", "docs", names="note").matches[0].text == "two \udcff"


def test_an_expression_that_never_ends_is_ended(root: Root, ws: Path) -> None:
    (ws / "src/a.py").write_bytes(b"a" * 60 + b"!")
    start = time.monotonic()
    with pytest.raises(TimedOut):
        search.find_text(root, "(a+)+$", regex=True, limits=Limits(max_seconds=0.5))
    assert time.monotonic() - start < 30


def test_a_search_that_makes_no_sense_is_refused(root: Root, ws: Path) -> None:
    with pytest.raises(Invalid, match="nothing to search"):
        search.find_text(root, "")
    with pytest.raises(Invalid, match="not a regular expression"):
        search.find_text(root, "(", regex=True)
