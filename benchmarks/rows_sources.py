"""Making and forking workspaces: ours, the bare system calls, and git's own ways, at 2,000 and 50,000 files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count

from harness import Row

from workstead import sources
from workstead.model.source import Filled, FillOptions, Place, parse
from workstead.sources.fork import fork
from workstead.system.kernel import mounts
from workstead.system.overlay import layers

GIT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def _run(*command: str, directory: str = "/") -> None:
    subprocess.run(command, cwd=directory, env=GIT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Shop:
    """A home without verbs: what a verb does around a source, and nothing else."""

    def __init__(self, scratch: str) -> None:
        self.scratch = scratch
        self.workspaces = f"{scratch}/workspaces"
        self.number = count()
        self.made: list[tuple[Filled, Place]] = []
        os.makedirs(f"{self.workspaces}/.carrel/staging", exist_ok=True)
        self.options = FillOptions(allow_local=True, templates=f"{scratch}/templates")
        self.owner = (64042, 64042) if os.geteuid() == 0 else None

    def place(self) -> Place:
        uid = f"u{next(self.number)}"
        private = f"{self.workspaces}/.carrel"
        os.makedirs(f"{private}/staging/{uid}/work")
        root = f"{self.workspaces}/{uid}"
        return Place(
            uid=uid, root=root, layers=f"{private}/layers/{uid}", cache=f"{self.scratch}/cache", owner=self.owner
        )

    def create(self, spec: str) -> tuple[Filled, Place]:
        place = self.place()
        staged = place.replace(root=f"{self.workspaces}/.carrel/staging/{place.uid}")
        source = parse(spec)
        filled = sources.SOURCES[source.kind].fill(source, staged, self.options, lambda _: None)
        return self._settle(filled, place, staged)

    def fork(self, parent: tuple[Filled, Place]) -> tuple[tuple[Filled, Place], tuple[Filled, Place]]:
        """The child, and the parent as it is from now on."""
        place = self.place()
        staged = place.replace(root=f"{self.workspaces}/.carrel/staging/{place.uid}")
        filled, changed = fork(*parent, staged, self.options, lambda _: None)
        return self._settle(filled, place, staged), (changed, parent[1])

    def _settle(self, filled: Filled, place: Place, staged: Place) -> tuple[Filled, Place]:
        os.rename(staged.root, place.root)
        sources.attach(filled, place)
        self.made.append((filled, place))
        return filled, place

    @contextmanager
    def open(self) -> Iterator[None]:
        """Whatever is made inside is taken away at the end, unmeasured."""
        try:
            yield
        finally:
            for filled, place in self.made:
                sources.release(filled, place)
                shutil.rmtree(place.root)
            self.made.clear()


def _repository(path: str, files: int) -> str:
    if not os.path.isdir(path):
        for number in range(files):
            directory = f"{path}/d{number // 100}"
            if number % 100 == 0:
                os.makedirs(directory)
            with open(f"{directory}/f{number}.py", "w") as file:
                file.write(f"value = {number}\n" * 40)
        _run("git", "init", "-q", "-b", "main", ".", directory=path)
        _run("git", "add", "-A", directory=path)
        _run("git", "commit", "-qm", "all", directory=path)
    return path


def _gigabyte(path: str, files: int) -> str:
    if not os.path.isdir(path):
        block = os.urandom(20_000)
        for number in range(files):
            if number % 500 == 0:
                os.makedirs(f"{path}/d{number // 500}")
            with open(f"{path}/d{number // 500}/f{number}", "wb") as file:
                file.write(block)
    return path


def rows(scratch: str) -> Iterator[Row]:
    os.makedirs(scratch, exist_ok=True)
    if os.geteuid() != 0:
        print("  needs root: the bare mounts beside ours are root's", file=sys.stderr)
        return
    for files in (2_000, 50_000):
        shop = Shop(f"{scratch}/{files}")
        origin = _repository(f"{scratch}/{files}/origin", files)
        filled, _ = shop.create(f"clone:{origin}")
        yield from _creating(shop, files, origin, filled.layers[-1])
        yield from _status(shop, files, origin)
    yield _crowded(Shop(f"{scratch}/crowded"), f"{scratch}/2000/origin")
    yield from _forking(Shop(f"{scratch}/gigabyte"), scratch)
    yield _building(Shop(f"{scratch}/2000"), f"{scratch}/2000/origin")


def _creating(shop: Shop, files: int, origin: str, tree: str) -> Iterator[Row]:
    bare, mapped = _bare_mounts(shop, tree), _bare_mounts(shop, tree, mapped=True)
    yield Row(
        f"second workspace of a commit, {files:,} files",
        {"ours": lambda: shop.create(f"clone:{origin}"), "bare overlay mount": bare, "the same, owner mapped": mapped},
        aim="bare mount <= 4",
        rounds=30,
        hold=_both(shop, "bare"),
    )
    yield Row(
        f"overlay of a folder, {files:,} files",
        {"ours": lambda: shop.create(f"overlay:{origin}"), "bare overlay mount": bare},
        rounds=30,
        hold=_both(shop, "bare"),
    )
    number = count()
    yield Row(
        f"second workspace of a commit against git, {files:,} files",
        {
            "ours": lambda: shop.create(f"clone:{origin}"),
            "git worktree add": lambda: _run(
                "git", "worktree", "add", "-q", "--detach", f"{shop.scratch}/peers/w{next(number)}", directory=origin
            ),
            "git clone --depth 1": lambda: _run(
                "git", "clone", "-q", "--depth", "1", f"file://{origin}", f"{shop.scratch}/peers/c{next(number)}"
            ),
        },
        aim="worktree >= 100x, clone >= 500x faster at 50,000",
        rounds=5 if files < 10_000 else 1,
        hold=_both(shop, "peers"),
    )


def _both(shop: Shop, name: str) -> Callable[[], AbstractContextManager[None]]:
    """Clean up after us and after the others."""

    @contextmanager
    def hold() -> Iterator[None]:
        os.makedirs(f"{shop.scratch}/{name}", exist_ok=True)
        try:
            with shop.open():
                yield
        finally:
            for directory in os.scandir(f"{shop.scratch}/{name}"):
                if os.path.ismount(f"{directory.path}/merged"):
                    mounts.unmount(f"{directory.path}/merged")
            shutil.rmtree(f"{shop.scratch}/{name}")

    return hold


def _bare_mounts(shop: Shop, tree: str, *, mapped: bool = False) -> Callable[[], None]:
    number = count(1_000_000 if mapped else 0)
    namespace = mounts.user_namespace(mounts.map_one(0, 64042), mounts.map_one(0, 64042)) if mapped else None

    def bare() -> None:
        top = f"{shop.scratch}/bare/{next(number)}"
        for name in ("", "/upper", "/work", "/merged"):
            os.mkdir(top + name)
        mount = mounts.overlay(
            [mounts.Lower(tree, namespace)],
            upper=f"{top}/upper",
            work=f"{top}/work",
            options={},
            scratch=f"{top}/scratch",
        )
        mounts.attach(mount, f"{top}/merged")
        os.close(mount)

    return bare


def _status(shop: Shop, files: int, origin: str) -> Iterator[Row]:
    ready: list[str] = []
    warm = f"{shop.scratch}/warm"

    @contextmanager
    def hold() -> Iterator[None]:
        _run("git", "clone", "-q", origin, warm)
        with shop.open():
            for _ in range(12):
                filled, place = shop.create(f"clone:{origin}")
                ready.append(layers.path_of(filled, place))
            _run("git", "status", directory=warm)
            yield
        shutil.rmtree(warm)

    git = ("git", "-c", "safe.directory=*", "status", "--porcelain")
    yield Row(
        f"first git status, {files:,} files",
        {
            "ours": lambda: _run(*git, directory=ready.pop()),
            "git status in a warm checkout": lambda: _run(*git, directory=warm),
        },
        aim="warm checkout <= 2.2",
        rounds=10,
        hold=hold,
    )


def _crowded(shop: Shop, origin: str, others: int = 500) -> Row:
    """What is there already must not show: the ratio is that of the same row without the others."""

    @contextmanager
    def hold() -> Iterator[None]:
        with _both(shop, "bare")():
            for _ in range(others):
                shop.create(f"overlay:{origin}")
            yield

    return Row(
        f"overlay of a folder beside {others} workspaces, 2,000 files",
        {"ours": lambda: shop.create(f"overlay:{origin}"), "bare overlay mount": _bare_mounts(shop, origin)},
        rounds=30,
        hold=hold,
    )


def _forking(shop: Shop, scratch: str) -> Iterator[Row]:
    folder = _gigabyte(f"{scratch}/gigabyte/folder", 50_000)
    parent = [shop.create(f"overlay:{folder}")]
    shop.made.clear()
    number = count()

    def changed_fork() -> None:
        with open(f"{parent[0][1].root}/work/new{next(number)}", "w") as file:
            file.write("x")
        _, parent[0] = shop.fork(parent[0])

    @contextmanager
    def hold() -> Iterator[None]:
        with shop.open():
            yield

    bare = _bare_mounts(shop, folder)
    yield Row(
        "fork of a workspace with 50,000 files, 1 GB, one changed",
        {"ours": changed_fork, "bare overlay mount": bare},
        aim="under 10 ms",
        rounds=20,
        hold=_both(shop, "bare"),
    )
    yield Row(
        "fork of the same, nothing changed since the last",
        {"ours": lambda: shop.fork(parent[0]), "bare overlay mount": bare},
        rounds=20,
        hold=_both(shop, "bare"),
    )
    sources.release(*parent[0])


def _building(shop: Shop, origin: str) -> Row:
    """Write-heavy: compile every file, write as many small ones, change some, remove some."""
    work: dict[str, str] = {}
    number = count()

    def build(directory: str) -> None:
        top = f"{directory}/build{next(number)}"
        for index in range(20):
            os.makedirs(f"{top}/{index}")
            for name in os.listdir(f"{directory}/d{index}"):
                with open(f"{directory}/d{index}/{name}", "rb") as file:
                    text = file.read()
                compile(text, name, "exec")
                with open(f"{top}/{index}/{name}.o", "wb") as file:
                    file.write(text * 4)
        shutil.rmtree(top)

    @contextmanager
    def hold() -> Iterator[None]:
        with shop.open():
            filled, place = shop.create(f"clone:{origin}")
            work["ours"] = layers.path_of(filled, place)
            work["plain"] = f"{shop.scratch}/plain"
            shutil.copytree(origin, work["plain"])
            yield
        shutil.rmtree(work["plain"])

    return Row(
        "a write-heavy build of 2,000 files",
        {"ours": lambda: build(work["ours"]), "plain directory": lambda: build(work["plain"])},
        aim="plain <= 1.3",
        rounds=7,
        hold=hold,
    )
