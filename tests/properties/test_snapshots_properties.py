"""Random edits, snapshots and restores against a model that only knows how to describe a directory."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from needs import need_root

sys.path.insert(0, str(Path(__file__).parent.parent / "snapshots"))

from desks import Description, Desk, describe

from workstead.snapshots.diff import diff
from workstead.snapshots.entries import CHUNK, Entry, decode_tree, encode_entry, encode_tree, split_tree
from workstead.snapshots.gc import collect, verify
from workstead.snapshots.text_diff import edits, groups, merge, with_groups
from workstead.snapshots.trees import compare

NAMES = [b"a", b"b", b"c.txt", b".git", b"with space", b"new\nline", b"\xff\xfe", "ünï".encode(), b"-rf"]
names = st.sampled_from([os.fsdecode(name) for name in NAMES])
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
contents = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"text\n" * 100, bytes(5000), os.urandom(300), b"x" * (CHUNK + 5)]),
)
modes = st.sampled_from([0o644, 0o600, 0o755, 0o400, 0o000])


def _clear(path: Path) -> None:
    """Make room for something at a path: no parent is a file, nothing is there."""
    for above in reversed(path.parents):
        if above.is_symlink() or (above.exists() and not above.is_dir()):
            above.unlink()
        if not above.exists():
            above.mkdir()
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def write(work: Path, path: str, content: bytes, mode: int) -> None:
    _clear(work / path)
    (work / path).write_bytes(content)
    (work / path).chmod(mode)


def link(work: Path, path: str, target: str) -> None:
    _clear(work / path)
    (work / path).symlink_to(target)


def make_folder(work: Path, path: str, mode: int) -> None:
    _clear(work / path)
    (work / path).mkdir()
    (work / path).chmod(mode | 0o700)


def remove(work: Path, path: str) -> None:
    target = work / path
    if os.path.lexists(target) and not any(above.is_symlink() for above in target.parents):
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()


def touch(work: Path, path: str, when: int) -> None:
    if os.path.lexists(work / path) and not any(above.is_symlink() for above in (work / path).parents):
        os.utime(work / path, ns=(when, when), follow_symlinks=False)


def rewrite_in_place(work: Path, path: str) -> None:
    """Same size, same inode, and the time set back: what a stat cache must not miss."""
    file = work / path
    if file.is_file() and not file.is_symlink() and not any(above.is_symlink() for above in file.parents):
        status = file.stat()
        with open(file, "r+b") as opened:
            first = opened.read(1)
            if first:
                opened.seek(0)
                opened.write(bytes([first[0] ^ 1]))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def join(work: Path, path: str, other: str) -> None:
    """Another name for a file, if there is one."""
    file = work / path
    if file.is_symlink() or not file.is_file() or any(above.is_symlink() for above in file.parents):
        return
    if not (path + "/").startswith(other + "/") and not (other + "/").startswith(path + "/"):
        _clear(work / other)
        if file.is_file():  # it was not below what had to go
            os.link(file, work / other)


def names_of_files(work: Path) -> set[tuple[str, ...]]:
    """The names of every file that has several."""
    found: dict[int, list[str]] = {}
    for folder, _, files in os.walk(work):
        for name in files:
            status = os.lstat(os.path.join(folder, name))
            if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
                found.setdefault(status.st_ino, []).append(os.path.relpath(os.path.join(folder, name), work))
    return {tuple(sorted(names)) for names in found.values() if len(names) > 1}


edit = st.one_of(
    st.builds(lambda p, c, m: lambda work: write(work, p, c, m), paths, contents, modes),
    st.builds(lambda p, t: lambda work: link(work, p, t), paths, names),
    st.builds(lambda p, m: lambda work: make_folder(work, p, m), paths, modes),
    st.builds(lambda p: lambda work: remove(work, p), paths),
    st.builds(lambda p, w: lambda work: touch(work, p, w), paths, st.integers(-(2**66), 2**66)),
    st.builds(lambda p: lambda work: rewrite_in_place(work, p), paths),
)
# Which names of a layer below lead to one file is not in a snapshot of what lies on it.
own_edit = edit | st.builds(lambda p, o: lambda work: join(work, p, o), paths, paths)
step = st.one_of(
    st.tuples(st.just("edit"), st.lists(own_edit, min_size=1, max_size=6)),
    st.tuples(st.just("take"), st.none()),
    st.tuples(st.just("restore"), st.integers(0, 5)),
    st.tuples(st.just("path"), paths),
)
Step = tuple[str, object]
Names = set[tuple[str, ...]]


def play(desk: Desk, steps: list[Step]) -> int:
    """Do the steps; after each restore the directory has to be what it was, and at the end every snapshot too."""
    kept: list[tuple[str, Description, Names]] = [(desk.base, describe(desk.work), names_of_files(desk.work))]
    count = 0
    for what, detail in steps:
        count += 1
        if what == "edit":
            assert isinstance(detail, list)
            for change in detail:
                call: Callable[[Path], None] = change
                call(desk.work)
        elif what == "take":
            kept.append((desk.take().root, describe(desk.work), names_of_files(desk.work)))
        elif what == "restore":
            assert isinstance(detail, int)
            root, state, twins = kept[detail % len(kept)]
            desk.restore(root)
            assert describe(desk.work) == state
            assert names_of_files(desk.work) == twins
        else:
            assert isinstance(detail, str)
            root, state, _ = kept[-1]
            desk.restore(root, [f"work/{detail}"])
            now = describe(desk.work)
            inside = {name for name in now.keys() | state.keys() if (name + "/").startswith(detail + "/")}
            assert {name: now.get(name) for name in inside} == {name: state.get(name) for name in inside}
    roots = [root for root, _, _ in kept]
    collect(desk.store, lambda: roots)
    assert verify(desk.store, [root for root in roots if len(root) == 64]) == []
    for root, state, twins in kept:
        desk.restore(root)
        assert describe(desk.work) == state
        assert names_of_files(desk.work) == twins
    return count


quick = settings(
    max_examples=1000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)


@quick
@given(st.lists(step, min_size=8, max_size=14))
def test_any_sequence_of_edits_snapshots_and_restores_agrees_with_the_model(steps: list[Step]) -> None:
    with TemporaryDirectory(dir="/dev/shm") as scratch:
        desk = Desk(Path(scratch))
        try:
            play(desk, steps)
        finally:
            desk.close()


@settings(quick, max_examples=200)
@given(st.lists(edit, max_size=8), st.lists(step, min_size=8, max_size=14))
def test_the_same_holds_over_an_overlay(before: list[Callable[[Path], None]], steps: list[Step]) -> None:
    need_root()
    with TemporaryDirectory(dir="/dev/shm") as scratch:
        lower = Path(scratch, "lower")
        lower.mkdir()
        for change in before:
            change(lower)
        desk = Desk(Path(scratch), lower=lower)
        try:
            play(desk, steps)
        finally:
            desk.close()


@settings(quick, max_examples=150)
@given(st.lists(edit, max_size=10), st.lists(edit, max_size=10))
def test_comparing_finds_exactly_what_differs(
    first: list[Callable[[Path], None]], second: list[Callable[[Path], None]]
) -> None:
    with TemporaryDirectory(dir="/dev/shm") as scratch:
        desk = Desk(Path(scratch))
        for change in first:
            change(desk.work)
        old, before = desk.take().root, describe(desk.work)
        for change in second:
            change(desk.work)
        new, after = desk.take().root, describe(desk.work)
        with desk.tree(old) as one, desk.tree(new) as other:
            found = {delta.path for delta in compare(one, other, ["work"], times=True)} - {"work"}
            diff(one, other, git_files=True)
        names = before.keys() | after.keys()
        assert found == {f"work/{name}" for name in names if before.get(name) != after.get(name)}
        desk.close()


@settings(quick, max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "d/c", "e f"]), st.lists(st.integers(0, 6), max_size=12)), max_size=8)
)
def test_a_patch_of_any_two_states_is_taken_by_git(files: list[tuple[str, list[int]]]) -> None:
    with TemporaryDirectory(dir="/dev/shm") as scratch:
        desk = Desk(Path(scratch))
        half = len(files) // 2
        for name, lines in files[:half]:
            desk.write(name, "\n".join(map(str, lines)))
        old = desk.take().root
        target = Path(scratch, "target")
        shutil.copytree(desk.work, target)
        for name, lines in files[half:]:
            if lines:
                desk.write(name, "\n".join(map(str, lines)))
            else:
                remove(desk.work, name)
        with desk.tree(old) as one, desk.tree(desk.take().root) as other:
            patch = diff(one, other).patch
        if patch:
            subprocess.run(["git", "apply", "-"], cwd=target, input=patch.encode(), check=True)
        got, wanted = describe(target, times=False), describe(desk.work, times=False)
        assert {name: e for name, e in got.items() if e[0] == "file"} == {
            name: e for name, e in wanted.items() if e[0] == "file"
        }
        desk.close()


@given(
    st.dictionaries(
        names,
        st.builds(
            Entry,
            st.sampled_from("fdlwx"),
            st.integers(0, 0o1777),
            st.integers(-(2**68), 2**68),
            st.integers(0, 2**62),
            st.binary(min_size=32, max_size=32),
            st.just(""),
            st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.binary(max_size=9)), max_size=2).map(tuple),
            st.integers(0, 15),
            st.sampled_from(["", "key"]),
            st.sampled_from([b"", b"w" * 32]),
        ),
    )
)
def test_a_tree_survives_being_written_and_read(entries: dict[str, Entry]) -> None:
    encoded = {name: encode_entry(name, entry) for name, entry in entries.items()}
    data = encode_tree(encoded)
    assert split_tree(data) == encoded
    again = decode_tree(data)
    assert list(again) == sorted(entries, key=os.fsencode)
    for name, entry in entries.items():
        for field in ("kind", "mode", "mtime_ns", "size", "digest", "target", "xattrs", "over", "was"):
            assert getattr(again[name], field) == getattr(entry, field)
        assert again[name].flags & 15 == entry.flags


lines = st.lists(st.integers(0, 8).map(lambda number: f"{number}\n".encode()), max_size=25)


@given(lines, lines)
def test_edits_turn_one_text_into_the_other(old: list[bytes], new: list[bytes]) -> None:
    result, at = [], 0
    a, b = b"".join(old), b"".join(new)
    for a0, a1, b0, b1, from_a, to_a, from_b, to_b in edits(a, b):
        assert (a[from_a:to_a], b[from_b:to_b]) == (b"".join(old[a0:a1]), b"".join(new[b0:b1]))
        result += old[at:a0] + new[b0:b1]
        at = a1
    assert result + old[at:] == new


@given(lines, lines, st.sets(st.integers(0, 5)))
def test_some_hunks_are_between_the_two_texts(old: list[bytes], new: list[bytes], numbers: set[int]) -> None:
    a, b = b"".join(old), b"".join(new)
    found = list(groups(a, edits(a, b)))
    assert with_groups(a, b, []) == a
    assert with_groups(a, b, found) == b
    some = with_groups(a, b, [each for at, each in enumerate(found) if at in numbers])
    # What is left is the rest, and with it the text is the new one.
    assert with_groups(some, b, groups(some, edits(some, b))) == b


@given(lines, lines, lines)
def test_merging_is_fair(base: list[bytes], ours: list[bytes], theirs: list[bytes]) -> None:
    z, a, b = b"".join(base), b"".join(ours), b"".join(theirs)
    assert merge(z, a, z, our_name="o", their_name="t") == (a, 0)
    assert merge(z, z, b, our_name="o", their_name="t") == (b, 0)
    assert merge(z, a, a, our_name="o", their_name="t") == (a, 0)
    assert merge(z, a, b, our_name="o", their_name="t")[1] == merge(z, b, a, our_name="o", their_name="t")[1]


@pytest.mark.parametrize("seed", range(3))
def test_long_sequences(seed: int) -> None:
    """Hundreds of steps in one workspace: caches and packs grow old together."""
    import random

    chance = random.Random(seed)
    with TemporaryDirectory(dir="/dev/shm") as scratch:
        desk = Desk(Path(scratch))
        kept: list[tuple[str, Description]] = []
        for number in range(120):
            path = "/".join(os.fsdecode(chance.choice(NAMES)) for _ in range(chance.randrange(1, 4)))
            pick = chance.random()
            if pick < 0.4:
                write(desk.work, path, os.urandom(chance.randrange(200)), 0o644)
            elif pick < 0.5:
                remove(desk.work, path)
            elif pick < 0.6:
                rewrite_in_place(desk.work, path)
            elif pick < 0.85 or not kept:
                kept.append((desk.take().root, describe(desk.work)))
            elif pick < 0.97:
                root, state = chance.choice(kept)
                desk.restore(root)
                assert describe(desk.work) == state
            else:
                kept = chance.sample(kept, max(1, len(kept) // 2))
                collect(desk.store, lambda: [root for root, _ in kept])  # noqa: B023
            if number % 40 == 0:
                assert verify(desk.store, [root for root, _ in kept]) == []
        desk.close()
