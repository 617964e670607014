"""Files beneath a root: what the guard costs, and trees against the programs that do nothing else."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness import Row
from mcp_client import ToolServer, reference_server

from workstead.system.files import operations, walk
from workstead.system.files.root import Root

PATH = "a/b/c/d/e/f.txt"
FILES_PER_DIRECTORY = 50


def rows(scratch: str) -> Iterator[Row]:
    os.makedirs(scratch)
    if os.geteuid() == 0:
        yield _read(f"{scratch}/nodev", "on a nodev mount", "os.open <= 1.6x", nodev=True)
    yield _read(f"{scratch}/any", "on any mount", "os.open <= 1.6x as root")
    yield _write(f"{scratch}/write")
    yield _write_verb(f"{scratch}/verb")
    for count, rounds in ((50_000, 9), (500_000, 3)):
        yield from _trees(f"{scratch}/tree-{count}", count, rounds)
    yield _remove(f"{scratch}/remove")


def _write_verb(top: str) -> Row:
    """The whole verb: located, resolved beneath, digests, the durable event, the rename."""
    import workstead

    text = "x" * 2000
    home = workstead.open(f"{top}/home")
    desk = home.create(id="bench/a")
    raw = f"{top}/raw"
    os.makedirs(raw)
    log = sqlite3.connect(f"{top}/raw.db", isolation_level=None)
    log.execute("PRAGMA journal_mode = WAL")
    log.execute("PRAGMA synchronous = FULL")
    log.execute("CREATE TABLE log (position INTEGER PRIMARY KEY, data)")

    def replaced() -> None:
        with open(f"{raw}/f.new", "w") as file:
            file.write(text)
        os.replace(f"{raw}/f.new", f"{raw}/f")

    def replaced_and_logged() -> None:
        with open(f"{raw}/f.new", "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        log.execute("INSERT INTO log (data) VALUES (?)", ("x" * 300,))
        os.replace(f"{raw}/f.new", f"{raw}/f")
        _sync(raw)

    arms: dict[str, Callable[[], object]] = {
        "workstead": lambda: home.write_file(desk.id, "work/f", text),
        "temporary file + os.replace": replaced,
        "the same with syncs + a durable sqlite3 insert": replaced_and_logged,
    }
    server: ToolServer | None = None

    @contextmanager
    def hold() -> Iterator[None]:
        yield
        if server:
            server.close()

    if shutil.which("npm"):
        server = reference_server(raw, f"{top}/npm")
        path = os.path.realpath(f"{raw}/g")
        arms["npm filesystem server, write_file"] = lambda: server.call("write_file", path=path, content=text)
    return Row("write_file of 2 kB with its event", arms, rounds=30, inner=5, hold=hold)


def _read(top: str, where: str, aim: str, *, nodev: bool = False) -> Row:
    full = f"{top}/{PATH}"
    root: Root
    walking: Root

    @contextmanager
    def hold() -> Iterator[None]:
        nonlocal root, walking
        os.makedirs(os.path.dirname(full))
        with open(full, "wb") as new:
            new.write(b"x" * 2000)
        if nodev:
            subprocess.run(["mount", "--bind", top, top], check=True)
            subprocess.run(["mount", "-o", "remount,bind,nodev", top], check=True)
        try:
            with Root.open(top) as root, Root.open(top, resolver="walk") as walking:
                yield
        finally:
            if nodev:
                subprocess.run(["umount", top], check=True)

    def plain() -> bytes:
        fd = os.open(full, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 65536)
        finally:
            os.close(fd)

    def builtin() -> bytes:
        with open(full, "rb") as opened:
            return opened.read()

    def resolve_first() -> bytes:
        """The usual check, which is wrong as well."""
        real = os.path.realpath(full)
        assert real.startswith(top)
        with open(real, "rb") as opened:
            return opened.read()

    arms: dict[str, Callable[[], object]] = {
        "workstead": lambda: operations.read(root, PATH),
        "os.open+read+close": plain,
        "open().read()": builtin,
        "realpath, then open": resolve_first,
        "workstead without openat2": lambda: operations.read(walking, PATH),
    }
    return Row(f"read 2 kB at depth 5, {where}", arms, aim=aim, rounds=25, inner=1000, hold=hold)


def _write(top: str) -> Row:
    data = b"x" * 2000
    number = 0
    root: Root

    def raw() -> None:
        nonlocal number
        number += 1
        temporary = f"{top}/a/b/.tmp{number}"
        with open(temporary, "wb") as new:
            new.write(data)
            new.flush()
            os.fsync(new.fileno())
        os.replace(temporary, f"{top}/a/b/raw.txt")
        _sync(f"{top}/a/b")

    @contextmanager
    def hold() -> Iterator[None]:
        nonlocal root
        os.makedirs(f"{top}/a/b")
        with Root.open(top) as root:
            yield

    arms: dict[str, Callable[[], object]] = {
        "workstead, with digests before and after": lambda: operations.write(root, "a/b/ours.txt", data),
        "temporary file + os.replace, both synced": raw,
    }
    return Row("write 2 kB over a file", arms, rounds=25, inner=10, hold=hold)


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _trees(top: str, count: int, rounds: int) -> Iterator[Row]:
    """`count` entries, one in fifty of them a directory, as source trees have it."""
    root: Root

    @contextmanager
    def hold() -> Iterator[None]:
        nonlocal root
        if not os.path.exists(top):
            _plant(top, count)
        with Root.open(top) as root:
            yield

    listing: dict[str, Callable[[], object]] = {
        "workstead": lambda: walk.tree(root),
        "workstead, as JSON text": lambda: sum(map(len, walk.tree_json(root))),
        "find": lambda: subprocess.run(["find", top], check=True, stdout=subprocess.DEVNULL),
        "recursion of the seed": lambda: _seed_tree(top),
    }
    yield Row(f"tree of {count:,} entries", listing, rounds=rounds, hold=hold)
    measuring: dict[str, Callable[[], object]] = {
        "workstead": lambda: walk.usage(root),
        "du -s": lambda: subprocess.run(["du", "-s", top], check=True, stdout=subprocess.DEVNULL),
    }
    yield Row(f"usage of {count:,} entries", measuring, rounds=rounds, hold=hold)


def _plant(top: str, count: int) -> None:
    for folder in range(count // (FILES_PER_DIRECTORY + 1)):
        at = f"{top}/{folder % 20}/{folder % 400}/{folder}"
        os.makedirs(at)
        for name in range(FILES_PER_DIRECTORY):
            os.mknod(f"{at}/file-{name}.py")


def _seed_tree(path: str) -> dict[str, object]:
    """List, stat each, recurse."""
    tree: dict[str, object] = {}
    for name in os.listdir(path):
        inner = os.path.join(path, name)
        if os.path.isdir(inner):
            tree[name] = _seed_tree(inner)
        elif os.path.isfile(inner):
            tree[name] = "file"
    return tree


def _remove(top: str) -> Row:
    root: Root

    @contextmanager
    def hold() -> Iterator[None]:
        nonlocal root
        os.makedirs(top)
        with Root.open(top) as root:
            yield

    def ours() -> None:
        _plant(f"{top}/ours", 5_000)
        operations.delete(root, "ours", recursive=True)

    def rmtree() -> None:
        _plant(f"{top}/rmtree", 5_000)
        shutil.rmtree(f"{top}/rmtree")

    def neither() -> None:
        """What making the tree costs, which is in the others too."""
        _plant(f"{top}/planted", 5_000)
        os.rename(f"{top}/planted", f"{top}/planted-{len(os.listdir(top))}")

    arms: dict[str, Callable[[], object]] = {"workstead": ours, "shutil.rmtree": rmtree, "make the tree only": neither}
    return Row("make and delete a tree of 5,000 entries", arms, rounds=5, hold=hold)
