"""Snapshot, status, diff and restore with ten changed files, against git on the same tree; and the space they take.

Ten files are changed before each timing, in our tree and in git's alike; writing them is not timed. git works with its
own directory outside the tree, as a manager of snapshots would have to: `git add -A && git commit`, `git status`,
`git diff`, `git reset --hard` and clean.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator

from harness import Row, Sizes

from workstead.model.snapshot import Overlay, Place, Stack, layer_root
from workstead.snapshots.diff import diff, write_patch
from workstead.snapshots.objects import Store
from workstead.snapshots.restore import restore
from workstead.snapshots.take import look, take
from workstead.snapshots.trees import Tree

ENVIRONMENT = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "b",
    "GIT_AUTHOR_EMAIL": "b@b",
    "GIT_COMMITTER_NAME": "b",
    "GIT_COMMITTER_EMAIL": "b@b",
}
WORDS = ["agent", "wrote", "a", "line", "of", "code", "that", "nobody", "had", "asked", "for", "and", "then", "another"]


def make_tree(root: str, files: int, size: int = 2000) -> None:
    """Files of text, fifty to a directory, three levels deep."""
    for number in range(files):
        folder = f"{root}/p{number // 2500}/d{number // 50 % 50}"
        if number % 50 == 0:
            os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/f{number % 50}.py", "w") as file:
            line, written = number, 0
            while written < size:
                line = line * 1103515245 + 12345 & 0x7FFFFFFF
                text = f"{line} {WORDS[line % len(WORDS)]} {WORDS[line // 7 % len(WORDS)]} {line % 997}\n"
                file.write(text)
                written += len(text)


class Bench:
    """The same tree three times: under an overlay, as a plain workspace of ours, and as git's work tree."""

    def __init__(self, path: str, files: int) -> None:
        self.path = path
        self.files = files
        self.turn = 0

    def set_up(self) -> None:
        lower = f"{self.path}/lower"
        make_tree(lower, self.files)
        for name in ("overlay/work", "overlay/output", "plain/output", "upper", "scratch"):
            os.makedirs(f"{self.path}/{name}")
        for name in ("plain/work", "git"):
            subprocess.run(["cp", "-a", lower, f"{self.path}/{name}"], check=True)
        options = f"lowerdir={lower},upperdir={self.path}/upper,workdir={self.path}/scratch"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, f"{self.path}/overlay/work"], check=True)
        self.store = Store(f"{self.path}/store")
        self.stack = Stack(key="lower", layers=(lower,), fixed_ns=time.time_ns())
        self.over = Place(root=f"{self.path}/overlay", overlay=Overlay(upper=f"{self.path}/upper", stack=self.stack))
        self.plain = Place(root=f"{self.path}/plain")
        self.git("init", "-q")
        self.git("config", "gc.auto", "0")
        self.git("add", "-A")
        self.git("commit", "-qm", "base")
        self.over_base = layer_root("lower")
        self.plain_base = take(self.store, self.plain, cache_path=f"{self.path}/plain.cache").root
        time.sleep(0.05)
        take(self.store, self.plain, cache_path=f"{self.path}/plain.cache")

    def tear_down(self) -> None:
        subprocess.run(["umount", "-l", f"{self.path}/overlay/work"], check=False)
        self.store.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def git(self, *args: str) -> None:
        subprocess.run(
            ["git", f"--git-dir={self.path}/git.git", f"--work-tree={self.path}/git", *args],
            env=ENVIRONMENT,
            cwd=f"{self.path}/git",
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def change(self, work: str, count: int = 10) -> None:
        """Rewrite some files, other content each time."""
        self.turn += 1
        for number in range(count):
            at = number * (self.files // count)
            name = f"{self.path}/{work}/p{at // 2500}/d{at // 50 % 50}/f{at % 50}.py"
            with open(name, "w") as file:
                file.write(f"changed {self.turn} {number}\n" * 60)

    # -- what is measured ----------------------------------------------------------------------------------------------

    def cache(self, work: str) -> str:
        return f"{self.path}/{work.split('/')[0]}.cache"

    def snapshot(self, place: Place, work: str) -> None:
        take(self.store, place, cache_path=self.cache(work))

    def git_snapshot(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", "next")

    def status(self, place: Place, base: str, work: str) -> None:
        with (
            Tree(self.store, base, lambda _: self.stack) as old,
            look(self.store, place, cache_path=self.cache(work), contents=True) as new,
        ):
            assert len(diff(old, new, text=False).changes) >= 10

    def diff(self, place: Place, base: str, work: str) -> None:
        with (
            Tree(self.store, base, lambda _: self.stack) as old,
            look(self.store, place, cache_path=self.cache(work), contents=True) as new,
        ):
            assert len(diff(old, new).patch) > 1000

    def restore(self, place: Place, root: str, work: str) -> None:
        restore(self.store, root, place, lambda _: self.stack, cache_path=self.cache(work))

    def git_restore(self) -> None:
        self.git("reset", "-q", "--hard")
        self.git("clean", "-fdxq")


def rows(scratch: str) -> Iterator[Row | Sizes]:
    """The rows at 2,000 and 50,000 files. Without root there is no overlay to measure."""
    if os.geteuid() != 0:
        return
    for files in (2_000, 50_000):
        bench = Bench(f"{scratch}/{files}", files)
        bench.set_up()
        try:
            yield from _rows(bench)
        finally:
            bench.tear_down()
    yield from _rows_of_large_texts(f"{scratch}/texts")
    yield Sizes("space after 200 snapshots of 200 MB with small edits", lambda: space(scratch), "less than git's")


def _rows(bench: Bench) -> Iterator[Row]:
    size = f"{bench.files // 1000}k files, 10 changed"
    rounds = 15 if bench.files < 10_000 else 7
    for kind, place, base, aim in (
        ("overlay", bench.over, bench.over_base, "git >= 30x slower at 50k"),
        ("plain", bench.plain, bench.plain_base, "git >= 3x slower at 50k"),
    ):
        work = f"{kind}/work"
        change, change_git = _call(bench.change, work), _call(bench.change, "git")
        before = {"ours": change, "git add+commit": change_git}
        arms = {"ours": _call(bench.snapshot, place, work), "git add+commit": bench.git_snapshot}
        yield Row(f"snapshot, {kind}, {size}", arms, aim, rounds, before=before)
        status = _call(bench.status, place, base, work)
        arms = {"ours": status, "git add+commit": bench.git_snapshot}
        yield Row(f"status, {kind}, {size}", arms, aim, rounds, before=before)
        before = {"ours": change, "git status": change_git}
        arms = {"ours": status, "git status": _call(bench.git, "status", "--porcelain")}
        yield Row(f"status, {kind}, {size}, against git's", arms, "", rounds, before=before)
        before = {"ours": change, "git diff": change_git}
        arms = {"ours": _call(bench.diff, place, base, work), "git diff": _call(bench.git, "diff")}
        yield Row(f"diff, {kind}, {size}", arms, "", rounds, before=before)
        root = take(bench.store, place, cache_path=bench.cache(work)).root
        change_git()
        bench.git_snapshot()
        time.sleep(0.05)
        take(bench.store, place, cache_path=bench.cache(work))
        before = {"ours": change, "git reset+clean": change_git}
        arms = {"ours": _call(bench.restore, place, root, work), "git reset+clean": bench.git_restore}
        yield Row(f"restore, {kind}, {size}", arms, "", rounds, before=before)
    bench.change("overlay/work", 1000)
    time.sleep(0.05)
    take(bench.store, bench.over, cache_path=bench.cache("overlay"))
    arms = {"ours": _call(bench.snapshot, bench.over, "overlay/work"), "git add+commit": bench.git_snapshot}
    before = {"ours": _call(bench.change, "overlay/work"), "git add+commit": _call(bench.change, "git")}
    name = f"snapshot, overlay, {size}, 1,000 changed before"
    yield Row(name, arms, "git >= 10x slower at 50k", rounds, before=before)


def _rows_of_large_texts(path: str) -> Iterator[Row]:
    """The patch of large files against `git diff`: both read the old state from their store, the new from the disk."""
    chance = random.Random(1)
    short = [b"%x\n" % chance.randrange(16) for _ in range(2_000_000)]
    long = [b"%d some words to make it a line of text\n" % chance.randrange(10**9) for _ in range(500_000)]
    one, hunks = short[:], long[:]
    one[1_000_000] = b"changed\n"
    for at in range(0, len(hunks), 20):
        hunks[at] = b"changed\n"
    for name, files, old, new in (
        ("17 files of 2,000,000 short lines, one line changed in each", 17, short, one),
        ("a file of 500,000 lines, 25,000 hunks", 1, long, hunks),
        ("a file of 500,000 lines, all changed", 1, long, [b"new " + line for line in long]),
        ("a file of 2,000,000 short lines, all changed", 1, short, [b"new " + line for line in short]),
    ):
        bench = Bench(path, files)
        os.makedirs(f"{path}/plain/work")
        os.makedirs(f"{path}/git")
        try:
            bench.store, bench.plain = Store(f"{path}/store"), Place(root=f"{path}/plain")
            bench.git("init", "-q")
            _write_texts(path, files, b"".join(old))
            base = take(bench.store, bench.plain, cache_path=bench.cache("plain")).root
            bench.git_snapshot()
            _write_texts(path, files, b"".join(new))
            arms = {"ours": _call(_patch, bench, base), "git diff": _call(bench.git, "diff")}
            yield Row(f"diff, {name}", arms, "<= 1.5x git", 5)
        finally:
            bench.store.close()
            shutil.rmtree(path, ignore_errors=True)


def _write_texts(path: str, files: int, text: bytes) -> None:
    for number in range(files):
        for folder in ("plain/work", "git"):
            with open(f"{path}/{folder}/f{number}.txt", "wb") as file:
                file.write(text + b"%d\n" % number)


def _patch(bench: Bench, base: str) -> None:
    with (
        Tree(bench.store, base) as old,
        look(bench.store, bench.plain, cache_path=bench.cache("plain"), contents=True) as new,
        open(os.devnull, "wb") as out,
    ):
        for piece in write_patch(old, new):
            out.write(piece)


def _call(function: Callable[..., object], *args: object) -> Callable[[], object]:
    return lambda: function(*args)


def space(scratch: str, snapshots: int = 200) -> dict[str, float]:
    """Megabytes on the disk after many snapshots of a 200 MB workspace, 10 files changed before each."""
    bench = Bench(f"{scratch}/space", 20_000)
    path = bench.path
    os.makedirs(f"{path}/plain/output")
    make_tree(f"{path}/plain/work", 20_000, 10_000)
    os.symlink(f"{path}/plain/work", f"{path}/git")
    store = Store(f"{path}/store")
    bench.git("init", "-q")
    try:
        for number in range(snapshots):
            bench.change("plain/work")
            take(store, Place(root=f"{path}/plain"), cache_path=f"{path}/cache")
            bench.git("add", "-A")
            bench.git("commit", "-qm", str(number))
        one = _disk(f"{path}/plain/work")
        return {"ours": _disk(f"{path}/store"), "git": _disk(f"{path}/git.git"), "plain copies": one * snapshots}
    finally:
        store.close()
        shutil.rmtree(path, ignore_errors=True)


def _disk(path: str) -> float:
    """In megabytes."""
    return int(subprocess.run(["du", "-sB1", path], capture_output=True, check=True).stdout.split()[0]) / 1e6
