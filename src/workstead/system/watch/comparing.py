"""Compare the known state of a tree with the disk; update the known state and report each difference as a change."""

from __future__ import annotations

import os
import stat

from workstead.system.watch.watch_tree import File, Folder, Opened, known_below, list_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from workstead.system.watch.watch_tree import Roots, Seen

    class Watches(Protocol):
        """The watches of a watcher, which a comparison adds to and removes from."""

        def hint(self, folder: Folder, name: str | None) -> None:
            """Compare a name in a directory soon, or the whole directory if the name is None."""

        def lose(self, top: Folder) -> None:
            """Mark a tree as lost: its path is resolved again before the next comparison."""

        def read_first(self, folder: Folder, roots: Roots, reports: list[Seen]) -> None:
            """Read a new directory for the first time; entries younger than the watch are reported as changes."""

        def start_watching(self, folder: Folder, opened: Opened) -> bool:
            """Watch an open directory; return False if it is a known one that was moved here."""

        def find_watched(self, fd: int) -> tuple[Folder | None, bool]:
            """Return the known directory that is open here, and whether that could be determined."""

        def give_up(self, folder: Folder) -> None:
            """Stop watching a directory that left the tree."""


_INTO = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Look:
    """One comparison of hinted paths with the disk."""

    def __init__(self, watcher: Watches, roots: Roots, *, is_sure: bool) -> None:
        self._watcher = watcher
        self._is_sure = is_sure  # the paths of the trees were just resolved
        self._roots = roots
        self._todo: list[tuple[Folder, set[str] | None]] = []
        self._fresh: dict[tuple[Folder, str], File] = {}
        self._written: set[tuple[Folder, str]] = set()
        self.missing: dict[tuple[Folder, str], Folder | File] = {}
        self.reports: list[Seen] = []

    def go(self, dirty: dict[Folder, set[str] | None], written: set[tuple[Folder, str]]) -> None:
        """Compare the hinted directories, and every directory that the comparison discovers."""
        self._written = written
        todo = list(dirty.items())
        while True:
            # A directory missing from its path may have been moved, and may be found while comparing the others.
            later = [(folder, names) for folder, names in todo if not self._visit(folder, names)]
            if len(later) == len(todo) and not self._todo:
                break
            todo, self._todo = [*self._todo, *later], []
        gone = set(self.missing.values())
        for folder, names in later:
            if folder.is_known() and folder not in gone:
                self._left_over(folder, names)

    def _left_over(self, folder: Folder, names: set[str] | None) -> None:
        if folder.parent is None:
            self._watcher.lose(folder)
            return
        folder.inode = None  # a directory found at this path later is compared as a whole
        self._watcher.hint(folder.parent, folder.name)
        if names is not None:
            self._watcher.hint(folder, None)

    def _visit(self, folder: Folder, names: set[str] | None) -> bool:
        """Compare a directory with its known state; return False if it is not at its path."""
        if not folder.is_known() or (folder.entries is None and folder.parent is not None):
            return True  # no longer watched, or never read: no known state to compare with
        try:
            with Opened(self._roots, folder) as opened:
                is_whole = names is None or folder.watch is None
                if is_whole and not self._watcher.start_watching(folder, opened):
                    return False
                if names is None or is_whole or folder.entries is None:
                    listing = list_folder(opened.fd)
                    folder.entries = {} if folder.entries is None else folder.entries
                    for name in listing.keys() | folder.entries.keys():
                        self._compare(folder, opened, name, listing.get(name))
                    return True
                for name in names:
                    self._compare(folder, opened, name, _stat(name, opened.fd))
                return True
        except OSError:
            return False

    def _compare(self, folder: Folder, opened: Opened, name: str, found: os.stat_result | None) -> None:
        if folder.parent is None and name in folder.tree.skip:
            return
        assert folder.entries is not None
        old = folder.entries.get(name)
        # The name may be compared a second time; the last comparison counts.
        self.missing.pop((folder, name), None)
        self._fresh.pop((folder, name), None)
        if isinstance(old, Folder) and self._may_be_remade(folder, opened, found):
            self._watcher.lose(folder)
            return
        if found is None:
            if old is not None:
                self.missing[folder, name] = old
            return
        if stat.S_ISDIR(found.st_mode):
            self._compare_folder(folder, opened, name, found, old)
            return
        if isinstance(old, Folder):
            self._remove(folder, name)
            old = None
        new = File(found)
        if old is None or (old.inode != new.inode and not old.is_same(new)):
            self._fresh[folder, name] = new
        elif not old.is_same(new) or (folder, name) in self._written:
            folder.entries[name] = new
            self.reports.append(new.report("changed", folder.shown(name)))

    def _may_be_remade(self, folder: Folder, opened: Opened, found: os.stat_result | None) -> bool:
        """Return whether a directory is missing because it is being turned into a layer and replaced by a mount."""
        is_away = found is None or (stat.S_ISDIR(found.st_mode) and found.st_dev != opened.device)
        return is_away and not self._is_sure and folder.parent is None and not folder.tree.prefix

    def _compare_folder(
        self, folder: Folder, opened: Opened, name: str, found: os.stat_result, old: Folder | File | None
    ) -> None:
        assert folder.entries is not None
        if isinstance(old, File):
            self._remove(folder, name)
            old = None
        if old is not None and old.mode != found.st_mode:
            old.mode, old.uid = found.st_mode, found.st_uid
            self.reports.append(old.report("changed"))
        if found.st_dev != opened.device or not opened.is_changed(name):
            if old is None:  # on another file system, or visible from the lower layers only
                folder.entries[name] = old = Folder(folder.tree, folder, name, found)
                self.reports.append(old.report("added"))
            return
        if old is not None and old.is_unread:
            self._watcher.read_first(old, self._roots, self.reports)
            return
        if old is not None and old.entries is None:
            old.entries = known_below(old, self._roots)
            old.inode = None
            self._todo.append((old, None))
            return
        self._identify(folder, opened, name, found, old)

    def _identify(self, folder: Folder, opened: Opened, name: str, found: os.stat_result, old: Folder | None) -> None:
        """Determine which directory this is: the same one, one moved from elsewhere, or a new one."""
        assert folder.entries is not None
        try:
            inner = os.open(name, _INTO, dir_fd=opened.fd)
        except OSError:
            return  # replaced, or not readable: another inotify event follows
        try:
            known, is_told = self._watcher.find_watched(inner)
        finally:
            os.close(inner)
        if not is_told:
            return
        if known is not None and known is not old and known.inode == known.watch:
            # Known by its inode only, which the kernel may have reused: a reused inode has another mtime, too.
            known = known if known.mtime_ns == found.st_mtime_ns else None
        if known is not None and known is old:
            if old.tree.upper and old.upper_watch is None:
                self._todo.append((old, None))  # it was just copied up to the upper layer
            return
        if old is not None and old.watch is None:
            old.inode = None  # its watch was lost: compare the whole directory
            self._todo.append((old, None))
            return
        if known is not None and known.is_known() and not folder.is_below(known):
            # then it is deleted with the old directory, and added as new
            is_inside = old is not None and known.is_below(old)
            if old is not None:
                self._remove(folder, name)
            if not is_inside:
                self._move(known, folder, name)
                return
        elif old is not None:
            self._remove(folder, name)
        fresh = Folder(folder.tree, folder, name, found)
        fresh.inode = None
        fresh.entries = {}
        folder.entries[name] = fresh
        self.reports.append(fresh.report("added"))
        self._todo.append((fresh, None))

    def _move(self, moved: Folder, folder: Folder, name: str) -> None:
        before = moved.shown()
        assert moved.parent is not None
        assert moved.parent.entries is not None
        assert folder.entries is not None
        del moved.parent.entries[moved.name]
        moved.parent, moved.name = folder, name
        folder.entries[name] = moved
        self.reports.append(moved.report("renamed", before))

    def _remove(self, folder: Folder, name: str) -> None:
        """Report the deletion of an entry and of everything in it, children first."""
        assert folder.entries is not None
        old = folder.entries.pop(name)
        if isinstance(old, File):
            self.reports.append(old.report("deleted", folder.shown(name)))
            return
        gone: list[Folder] = []
        stack = [old]
        while stack:
            each = stack.pop()
            gone.append(each)
            each.entries = known_below(each, self._roots) if each.entries is None else each.entries
            stack += [entry for entry in each.entries.values() if isinstance(entry, Folder)]
        for each in reversed(gone):
            assert each.entries is not None
            self.reports += [
                entry.report("deleted", each.shown(inner))
                for inner, entry in each.entries.items()
                if isinstance(entry, File)
            ]
            self.reports.append(each.report("deleted"))
            self._watcher.give_up(each)

    def finish(self) -> None:
        """Match missing files with new ones as renames, and report the rest as deleted or added."""
        gone = {
            old.identity(): (folder, name, old)
            for (folder, name), old in self.missing.items()
            if isinstance(old, File) and folder.is_known()
        }
        for (folder, name), new in self._fresh.items():
            if not folder.is_known() or folder.entries is None:
                continue
            source = gone.pop(new.identity(), None)
            known = folder.entries.get(name)
            if isinstance(known, Folder):
                continue
            if source is not None:
                above, old_name, old = source
                if above.entries is not None and above.entries.get(old_name) is old:
                    before = above.shown(old_name)
                    del above.entries[old_name]
                    folder.entries[name] = new
                    self.reports.append(new.report("renamed", folder.shown(name), before))
                    continue
            folder.entries[name] = new
            self.reports.append(new.report("added" if known is None else "changed", folder.shown(name)))
        for (folder, name), missing in self.missing.items():
            if folder.entries is not None and folder.entries.get(name) is missing and folder.is_known():
                self._remove(folder, name)


def _stat(name: str, fd: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
