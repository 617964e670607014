"""Watch trees for changes without missing any.

An inotify event is only a hint where to look: the watcher reports the difference between the disk and the known state.
So events may arrive late, twice or out of order, and when the queue overflows, everything is compared again. The rules
of this file:

1. The known state is a tree of `Folder`. Every report is a change made to it, in that order, so that replaying the
   reports on a copy yields the known state; and the known state is the state found on the disk.
2. A directory is watched before it is read: later changes raise an event, earlier ones are seen by reading.
3. A directory is identified by its watch, not by its name. One that appears in another place was moved, with all below.
4. An overlay is watched through its upper layer, which contains only directories with changes: the cost of starting
   depends on the number of changes, not on the size of the tree. The earlier contents of a directory copied up to the
   upper layer are read from the lower layers, which are never written.
5. Only directories are opened, one name at a time beneath a `Root`, and no link is followed: a named pipe cannot block
   the watcher, and a directory replaced by a link cannot lead it out of the tree. Between two comparisons no descriptor
   of the tree is open, so that watching never prevents an unmount.
6. Fallback: when the kernel has no more watches, everything is compared every few seconds, and `note` reports this.
"""

from __future__ import annotations

import os
import stat
import time
from errno import EMFILE, ENOSPC

from workstead.system.kernel import inotify
from workstead.system.kernel.inotify import Inotify
from workstead.system.watch.comparing import Look
from workstead.system.watch.watch_tree import (
    File,
    Folder,
    Opened,
    Roots,
    Seen,
    Tree,
    all_below,
    born_ns,
    everything_below,
    list_folder,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEBOUNCE_SECONDS = 0.1
FIRST_SECONDS = 0.2  # time limit of the start; the rest of a large tree is read between reports
_SLICE_SECONDS = 0.02
_PATIENCE_SECONDS = 1.0  # additional wait after the timeout while hints are pending
_SCAN_SECONDS = 2.0
_SCAN_SHARE = 10  # a full scan takes at most a tenth of the time
_CLOCK_NS = 10_000_000  # a file's timestamp may be behind the clock by this much


class Gone(Exception):
    """The watched tree no longer exists."""


class Watcher:
    """Watch the trees that `find` returns, from now on. `find` returns None when they no longer exist."""

    def __init__(
        self,
        find: Callable[[], Sequence[Tree] | None],
        *,
        note: Callable[[str], None],
        debounce_seconds: float = DEBOUNCE_SECONDS,
    ) -> None:
        self._find = find
        self._note = note
        self._debounce = debounce_seconds
        self._began_ns = time.time_ns() - _CLOCK_NS
        self._queue: Inotify | None = None
        self._tops: list[Folder] = []
        # and whether it is the watch of the upper layer
        self._by_watch: dict[int | tuple[int, int], tuple[Folder, bool]] = {}
        self._dirty: dict[Folder, set[str] | None] = {}  # hinted directories, with names; None: all names
        self._written: set[tuple[Folder, str]] = set()
        self._since = 0.0  # time of the first pending hint
        self._is_lost = False  # the paths of the trees have to be resolved again
        self._next_scan = 0.0
        # an agent that makes directories must not use up all watches of its user
        self._most = inotify.most_watches() // 2
        self._quiet_at = time.time()  # all changes before this time have been noticed
        self.began_at = self._quiet_at  # wall clock time after which the last reported changes happened
        try:
            self._queue = Inotify()
        except OSError as error:
            self._scan_instead(error)
        self._tops = [Folder(tree, None, "", None) for tree in self._trees()]
        self._unread: list[Folder] = []
        for top in reversed(self._tops):
            self._read_later(top)
        self._found: list[Seen] = []
        self._read_on(FIRST_SECONDS)

    def close(self) -> None:
        """Stop watching."""
        if self._queue is not None:
            self._queue.close()

    @property
    def mechanism(self) -> str:
        """Return the mechanism by which changes are noticed."""
        return "inotify" if self._queue else "scanning"

    @property
    def is_reading(self) -> bool:
        """Return whether a large tree is still being read for the first time."""
        return bool(self._unread)

    def wait(self, seconds: float) -> list[Seen]:
        """Return the next changes, batched by the debounce time; [] after the timeout.

        Raise Gone when the watched trees no longer exist."""
        end = time.monotonic() + seconds
        while True:
            self._take_notices()
            now = time.monotonic()
            if self._found:
                found, self._found = self._found, []
                return found
            if self._is_due(now):
                self._found = self._look()
                continue
            if self._unread:  # also for a caller that polls with timeout 0
                self._read_on(_SLICE_SECONDS)
                if now < end or self._found:
                    continue
            if now >= end and (not self._since or now >= end + _PATIENCE_SECONDS):
                return []
            pauses = [end - now]
            if self._since:
                pauses.append(self._since + self._debounce - now)
            if self._queue is None:
                pauses.append(self._next_scan - now)
            self._pause(max(0.0, min(pauses)))

    def _pause(self, seconds: float) -> None:
        if self._queue is None or self._since:  # events within the debounce time need not wake us
            time.sleep(seconds)
        else:
            self._queue.wait(seconds)
            self._quiet_at = time.time()

    # -- hints ---------------------------------------------------------------------------------------------------------

    def _trees(self) -> Sequence[Tree]:
        found = self._find()
        if found is None:
            raise Gone
        return found

    def hint(self, folder: Folder, name: str | None) -> None:
        """Compare a name in a directory soon, or the whole directory if the name is None."""
        if not self._since:
            self._since = time.monotonic()
            self.began_at = self._quiet_at
        if name is None:
            self._dirty[folder] = None
            return
        if folder.parent is None and name in folder.tree.skip:
            return
        names = self._dirty.setdefault(folder, set())
        if names is not None:
            names.add(name)

    def _take_notices(self) -> None:
        if self._queue is None:
            return
        now = time.time()
        for number, mask, name in self._queue.notices():
            if mask & inotify.OVERFLOW:
                self._hint_all()
                continue
            folder, is_upper = self._by_watch.get(number, (None, False))
            if folder is None:
                continue  # of a directory that is no longer watched
            if mask & inotify.IGNORED:
                self._unlist(folder, number)
            elif name:
                self.hint(folder, name)
                if mask & inotify.MODIFY:
                    self._written.add((folder, name))
            if mask & inotify.UNMOUNT or (
                mask & (inotify.MOVE_SELF | inotify.DELETE_SELF) and folder.parent is None and not is_upper
            ):
                self.lose(folder)
            elif not name and folder.parent is not None and not is_upper:
                self.hint(folder.parent, folder.name)
        self._quiet_at = now

    def _unlist(self, folder: Folder, number: int) -> None:
        del self._by_watch[number]
        if folder.watch == number:
            folder.watch = None
        if folder.upper_watch == number:
            folder.upper_watch = None

    def _hint_all(self) -> None:
        for top in self._tops:
            for folder in all_below(top):
                self.hint(folder, None)

    def _is_due(self, now: float) -> bool:
        if self._queue is None and now >= self._next_scan and not self._unread:
            self._hint_all()
            return True
        return bool(self._since) and now >= self._since + self._debounce

    def _scan_instead(self, error: OSError) -> None:
        """Fall back to periodic scans without inotify, and report it."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        self._by_watch.clear()
        for top in self._tops:
            for folder in all_below(top):
                folder.watch, folder.upper_watch = folder.inode, None
                if folder.inode:
                    self._by_watch[folder.inode] = (folder, False)
        limit = "fs.inotify.max_user_instances" if error.errno == EMFILE else "fs.inotify.max_user_watches"
        self._note(
            f"no more watches are to be had ({limit}): looking at everything every {_SCAN_SECONDS:g} seconds instead"
        )

    # -- looking -------------------------------------------------------------------------------------------------------

    def _look(self) -> list[Seen]:
        """Compare the hinted paths with the known state, update it, and return the changes."""
        was_lost, looked_at = self._is_lost, time.time()
        if was_lost:
            self._find_again()
        began = time.monotonic()
        with Roots() as roots:
            look = Look(self, roots, is_sure=was_lost)
            look.go(*self._take_hints())
            if look.missing:
                self._take_notices()  # a move raises two events, and perhaps only the first had arrived
                look.go(*self._take_hints())
            look.finish()
        if self._queue is None:
            self._quiet_at = looked_at
            now = time.monotonic()
            self._next_scan = now + max(_SCAN_SECONDS, _SCAN_SHARE * (now - began))
        return look.reports

    def _take_hints(self) -> tuple[dict[Folder, set[str] | None], set[tuple[Folder, str]]]:
        taken = self._dirty, self._written
        self._dirty, self._written, self._since = {}, set(), 0.0
        return taken

    def _find_again(self) -> None:
        """Resolve the trees again after a mount was replaced (as a fork does) or moved, and keep the known state."""
        self._is_lost = False
        trees = {tree.prefix: tree for tree in self._trees()}
        for prefix in trees.keys() - {top.tree.prefix for top in self._tops}:
            self._split_off(trees[prefix])
        for top in self._tops:
            tree = trees.get(top.tree.prefix)
            if tree is None:
                raise Gone
            for folder in all_below(top):
                self._stop_watching(folder)
                folder.inode = None
            for folder in everything_below(top):
                folder.tree = tree
        self._hint_all()

    def _split_off(self, tree: Tree) -> None:
        """Turn a directory of another tree into a tree, as when plain files become the layer of an overlay."""
        known = (self._tops[0].entries or {}).pop(tree.prefix.rstrip("/"), None)
        if not isinstance(known, Folder):
            raise Gone
        known.parent, known.name, known.tree = None, "", tree
        self._tops.append(known)

    def _read_later(self, folder: Folder) -> None:
        folder.is_unread = True
        self._unread.append(folder)

    def _read_on(self, seconds: float) -> None:
        """Read directories that have not been read yet, for a limited time."""
        end = time.monotonic() + seconds
        with Roots() as roots:
            while self._unread:
                folder = self._unread.pop()
                if folder.is_unread and folder.is_known():
                    self.read_first(folder, roots, self._found)
                if time.monotonic() >= end:
                    return

    def _is_late(self) -> bool:
        return time.time_ns() > self._began_ns + _CLOCK_NS + int(FIRST_SECONDS * 1e9)

    def read_first(self, folder: Folder, roots: Roots, reports: list[Seen]) -> None:
        """Read a directory's entries as its initial state; entries younger than the watcher are reported as changes.

        Entries deleted before the read cannot be named: then the directory itself is reported as changed."""
        folder.is_unread = False
        late = self._is_late()
        is_explained = not late
        try:
            with Opened(roots, folder) as opened:
                self.start_watching(folder, opened)
                listing = list_folder(opened.fd)
                folder.entries = {}
                for name, found in listing.items():
                    if folder.parent is None and name in folder.tree.skip:
                        continue
                    is_young = late and found.st_ctime_ns > self._began_ns
                    is_new = is_young and born_ns(opened.fd, name) > self._began_ns
                    is_explained = is_explained or is_new
                    if not stat.S_ISDIR(found.st_mode):
                        entry = folder.entries[name] = File(found)
                        if is_young:
                            reports.append(entry.report("added" if is_new else "changed", folder.shown(name)))
                        continue
                    inner = folder.entries[name] = Folder(folder.tree, folder, name, found)
                    if is_new:
                        reports.append(inner.report("added"))
                    if opened.is_changed(name) and found.st_dev == opened.device:
                        self._read_later(inner)
                if not is_explained and folder.parent is not None and folder.mtime_ns > self._began_ns:
                    reports.append(folder.report("changed"))
        except OSError:
            folder.entries = folder.entries or {}  # not readable, or gone: then an event of its parent follows

    # -- watches -------------------------------------------------------------------------------------------------------

    def start_watching(self, folder: Folder, opened: Opened) -> bool:
        """Watch an open directory; return False if it is another known directory that was moved here."""
        if self._queue is None:
            found = os.fstat(opened.fd)
            return self._list(folder, (found.st_dev, found.st_ino))
        try:
            if len(self._by_watch) >= self._most:
                raise OSError(ENOSPC, "as many as we take")
            number = self._queue.watch(opened.fd)
            upper = opened.upper_fd()
            upper_number = self._queue.watch(upper) if upper is not None else None
        except OSError as error:
            if error.errno not in (ENOSPC, EMFILE):
                raise
            self._scan_instead(error)
            return self.start_watching(folder, opened)
        if upper_number is not None and upper_number != folder.upper_watch:
            folder.upper_watch = upper_number
            self._by_watch[upper_number] = (folder, True)
        return self._list(folder, number)

    def _list(self, folder: Folder, watch: int | tuple[int, int]) -> bool:
        other, _ = self._by_watch.get(watch, (folder, False))
        if other is not folder and other.is_known() and self._queue is not None:
            return False
        if folder.watch is not None and folder.watch != watch:
            self._by_watch.pop(folder.watch, None)
        folder.watch = watch
        self._by_watch[watch] = (folder, False)
        return True

    def find_watched(self, fd: int) -> tuple[Folder | None, bool]:
        """Return the known directory that is open here, or None, and whether that could be determined."""
        if self._queue is None:
            found = os.fstat(fd)
            return self._by_watch.get((found.st_dev, found.st_ino), (None, False))[0], True
        try:
            number = self._queue.watch(fd)
        except OSError as error:
            if error.errno not in (ENOSPC, EMFILE):
                return None, False
            self._scan_instead(error)
            return self.find_watched(fd)
        known = self._by_watch.get(number, (None, False))[0]
        return known, True

    def _stop_watching(self, folder: Folder) -> None:
        for number in (folder.watch, folder.upper_watch):
            if number is not None:
                self._by_watch.pop(number, None)
                if self._queue is not None and isinstance(number, int):
                    self._queue.forget(number)
        folder.watch = folder.upper_watch = None

    def give_up(self, folder: Folder) -> None:
        """Stop watching a directory that is no longer part of the tree."""
        self._stop_watching(folder)
        self._dirty.pop(folder, None)

    def lose(self, top: Folder) -> None:
        """Mark a tree as lost: its path is resolved again before the next comparison."""
        self._is_lost = True
        self.hint(top, None)
