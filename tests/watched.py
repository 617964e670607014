"""What a watcher reports, repeated on a model: the model has to become what is on the disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from workstead.system.watch.watch_tree import Seen
from workstead.system.watch.watcher import Watcher


def kinds_in(top: str | Path, skip: Iterable[str] = ()) -> dict[str, str]:
    """Every path below a directory and what is there."""
    found = {}
    pending = [""]
    while pending:
        above = pending.pop()
        for entry in os.scandir(os.path.join(top, above) if above else top):
            path = f"{above}/{entry.name}" if above else entry.name
            if path in skip:
                continue
            mode = entry.stat(follow_symlinks=False).st_mode
            kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
            found[path] = kinds.get(stat.S_IFMT(mode), "other")
            if found[path] == "directory":
                pending.append(path)
    return found


class Model:
    """A tree as the reports describe it. A report that does not fit what was reported before is an error."""

    def __init__(self, known: dict[str, str]) -> None:
        self.known = dict(known)

    def repeat(self, reports: Iterable[Seen]) -> None:
        for seen in reports:
            getattr(self, f"_{seen.kind}")(seen)

    def _added(self, seen: Seen) -> None:
        assert seen.path not in self.known, seen
        assert self._has_parent(seen.path), seen
        self.known[seen.path] = seen.entry

    def _changed(self, seen: Seen) -> None:
        assert seen.path in self.known, seen
        assert (self.known[seen.path] == "directory") == (seen.entry == "directory"), seen
        self.known[seen.path] = seen.entry

    def _deleted(self, seen: Seen) -> None:
        assert self.known.pop(seen.path) == seen.entry, seen
        assert seen.entry != "directory" or not self._below(seen.path), seen

    def _renamed(self, seen: Seen) -> None:
        assert self.known[seen.old_path] == seen.entry, seen
        assert self._has_parent(seen.path), seen
        assert not seen.path.startswith(f"{seen.old_path}/"), seen
        assert self.known.get(seen.path) != "directory", seen
        moved = {seen.path: self.known.pop(seen.old_path)}
        for path in self._below(seen.old_path):
            moved[seen.path + path[len(seen.old_path) :]] = self.known.pop(path)
        self.known.update(moved)

    def _below(self, path: str) -> list[str]:
        return [each for each in self.known if each.startswith(f"{path}/")]

    def _has_parent(self, path: str) -> bool:
        above, slash, _ = path.rpartition("/")
        return not slash or self.known.get(above) == "directory"


def settled(watcher: Watcher, quiet_seconds: float = 0.3) -> list[Seen]:
    """All reports until none comes for a while; one that scans is asked to do so now."""
    found: list[Seen] = []
    while True:
        watcher._next_scan = 0.0
        batch = watcher.wait(quiet_seconds)
        if not batch:
            return found
        found += batch
