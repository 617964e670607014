"""Situations for snapshots: workspaces of both kinds, and a description of a tree made without any of our code."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import time
from pathlib import Path

from workstead.model.change import Change
from workstead.model.snapshot import Overlay, Place, Restored, Stack, Taken, layer_root
from workstead.snapshots.diff import diff
from workstead.snapshots.objects import Store
from workstead.snapshots.restore import restore
from workstead.snapshots.take import look, take
from workstead.snapshots.trees import Tree

Description = dict[str, tuple[object, ...]]


def describe(root: str | Path, *, times: bool = True) -> Description:
    """Every path below a directory with kind, mode, time, content or target, and xattrs."""
    found: Description = {}
    top = os.fsencode(root)
    todo = [top]
    while todo:
        folder = todo.pop()
        for raw in os.listdir(folder):
            path = os.path.join(folder, raw)
            status = os.lstat(path)
            name = os.fsdecode(os.path.relpath(path, top))
            when = status.st_mtime_ns if times else 0
            mode = status.st_mode & 0o1777
            if stat.S_ISDIR(status.st_mode):
                found[name] = ("dir", mode, when, _xattrs(path))
                todo.append(path)
            elif stat.S_ISLNK(status.st_mode):
                found[name] = ("link", when, os.readlink(path))
            elif stat.S_ISREG(status.st_mode):
                found[name] = ("file", mode, when, status.st_size, _digest(path), _xattrs(path))
            else:
                found[name] = ("other", stat.S_IFMT(status.st_mode))
    return found


def _digest(path: bytes) -> str:
    if os.lstat(path).st_size > 1 << 30:
        return "too large to read"
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _xattrs(path: bytes) -> tuple[tuple[str, bytes], ...]:
    names = [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith("user.")]
    return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in sorted(names))


class Desk:
    """A workspace on the disk and a store for it. With `lower`, its `work` is a real overlay mount."""

    def __init__(
        self, scratch: Path, name: str = "desk", *, lower: Path | None = None, store: Store | None = None
    ) -> None:
        self.path = scratch / name
        self.root = self.path / "workspace"
        self.work = self.root / "work"
        self.output = self.root / "output"
        self.cache = str(self.path / "cache")
        for folder in (self.work, self.output):
            folder.mkdir(parents=True)
        self.store = store or Store(str(scratch / "home" / "snapshots"))
        self.stacks: dict[str, Stack] = {}
        self.place = Place(root=str(self.root))
        self.base = "empty"
        self._uppers = 0
        if lower is not None:
            self.mount(Stack(key=f"{name}-0", layers=(str(lower),), fixed_ns=time.time_ns()))

    def mount(self, stack: Stack) -> None:
        """Put a fresh upper layer over the stack."""
        upper, scratch = self.path / f"upper-{self._uppers}", self.path / f"overlay-{self._uppers}"
        self._uppers += 1
        upper.mkdir()
        scratch.mkdir()
        options = f"lowerdir={':'.join(stack.layers)},upperdir={upper},workdir={scratch}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(self.work)], check=True)
        self.stacks[stack.key] = stack
        self.place = Place(root=str(self.root), overlay=Overlay(upper=str(upper), stack=stack))
        self.base = layer_root(stack.key)

    def freeze(self) -> None:
        """Make the upper layer one of the immutable ones, as a fork does."""
        overlay = self.place.overlay
        assert overlay is not None
        subprocess.run(["umount", str(self.work)], check=True)
        layers = (overlay.upper, *overlay.stack.layers)
        self.mount(Stack(key=f"{overlay.stack.key}+", layers=layers, fixed_ns=overlay.stack.fixed_ns))

    def close(self) -> None:
        if self.place.overlay is not None:
            subprocess.run(["umount", "-l", str(self.work)], check=False)
        self.store.close()

    def find_stack(self, key: str) -> Stack | None:
        return self.stacks.get(key)

    def take(self, *, live: bool = False, cached: bool = True) -> Taken:
        return take(self.store, self.place, cache_path=self.cache if cached else "", live=live)

    def restore(self, root: str, paths: list[str] | None = None, **options: object) -> Restored:
        return restore(self.store, root, self.place, self.find_stack, paths=paths, cache_path=self.cache, **options)

    def tree(self, root: str) -> Tree:
        return Tree(self.store, root, self.find_stack)

    def status(self, *, cached: bool = True) -> tuple[Change, ...]:
        """What differs from the base now."""
        cache = self.cache if cached else ""
        with self.tree(self.base) as old, look(self.store, self.place, self.find_stack, cache_path=cache) as new:
            return diff(old, new, text=False).changes

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> Path:
        file = self.work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        file.chmod(mode)
        return file
