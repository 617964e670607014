"""Watch a workspace for file changes, with their authors where they are known. Watching records no event."""

from __future__ import annotations

import os
import time

from workstead.core import lookup
from workstead.core.building import materialise
from workstead.core.mounting import attach, filled_in
from workstead.errors import FilesystemError, from_os
from workstead.model.change import FileChange
from workstead.model.event import EVENT_TYPES, FileChanged, FileFact, FileRead
from workstead.model.moment import seconds
from workstead.model.text import word
from workstead.system.overlay import mounter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, Self

    from workstead.core.home import Home
    from workstead.model.event import Event
    from workstead.model.workspace import Workspace
    from workstead.system.watch.watch_tree import Seen, Tree

METADATA = ".aw"
_STANDING = ("ready", "reverting", "applying")
_ASK_SECONDS = 0.2  # interval of calls of `until`
_TRIES = 20
_VERBS = tuple(
    name for cls, name in EVENT_TYPES.items() if issubclass(cls, FileFact) and cls not in (FileRead, FileChanged)
)
_RUN_ENDS = ("run_completed", "run_failed", "run_cancelled", "run_timed_out")
_RESTORES = ("snapshot_restoring", "snapshot_restored")
_REMEMBERED_SECONDS = 5.0  # how much later than its event a change by a verb may be seen
_SLACK_SECONDS = 0.05


def watch(
    home: Home,
    workspace_id: str,
    *,
    until: Callable[[], bool] | None = None,
    timeout_seconds: float | None = None,
    debounce_seconds: float | None = None,
    note: Callable[[str], None] | None = None,
) -> Watch:
    """Iterate over the changes of a workspace from now on; ends when it is destroyed.

    Ends too when `until` returns true, or nothing changed for `timeout_seconds`. `note` is called with a message when
    the kernel refuses to watch and the workspace is scanned every few seconds instead.
    """
    workspace = lookup.check_here(home, materialise(home, lookup.get(home, workspace_id)))
    return Watch(home, workspace, until, timeout_seconds, debounce_seconds, note or (lambda _: None))


class Watch:
    """An iterator of changes; closed by `with`, by `close`, or at its end."""

    def __init__(
        self,
        home: Home,
        workspace: Workspace,
        until: Callable[[], bool] | None,
        timeout_seconds: float | None,
        debounce_seconds: float | None,
        note: Callable[[str], None],
    ) -> None:
        from workstead.system.watch.watcher import DEBOUNCE_SECONDS, Gone, Watcher

        self._home = home
        self._workspace = workspace
        self._until = until
        self._timeout = timeout_seconds
        self._who = _Who(home, workspace)
        self._gone = Gone
        self._left: Iterator[FileChange] = iter(())
        self.is_over = False
        debounce = DEBOUNCE_SECONDS if debounce_seconds is None else debounce_seconds
        try:
            self._watcher = Watcher(lambda: trees_of(home, workspace.uid), note=note, debounce_seconds=debounce)
        except Gone:
            raise FilesystemError(
                f"workspace {workspace.id} has no files to watch", hint=f"aw show {word(workspace.id)}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching."""
        self.is_over = True
        self._watcher.close()

    @property
    def mechanism(self) -> str:
        """Return how changes are noticed: inotify, or scanning."""
        return self._watcher.mechanism

    @property
    def is_reading(self) -> bool:
        """Return whether the first walk through a large workspace is still in progress."""
        return self._watcher.is_reading

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FileChange:
        for change in self._left:
            return change
        quiet_since = time.monotonic()
        while not self.is_over:
            if self._until is not None and self._until():
                break
            pause = _ASK_SECONDS
            if self._timeout is not None:
                pause = min(pause, quiet_since + self._timeout - time.monotonic())
                if pause <= 0:
                    break
            self._left = iter(self.batch(pause))
            for change in self._left:
                return change
        self.close()
        raise StopIteration

    def batch(self, seconds: float) -> list[FileChange]:
        """Return the changes that happened together, or [] on timeout; `is_over` is set when the workspace is gone."""
        if self.is_over:
            return []
        try:
            seen = self._watcher.wait(seconds)
        except self._gone:
            self.close()
            return []
        return self._who.name(seen, self._watcher.began_at) if seen else []


def trees_of(home: Home, uid: str) -> list[Tree] | None:
    """Return the mounted directories of a workspace's files; None if it no longer exists."""
    from workstead.system.overlay import layers
    from workstead.system.overlay.stack import stack_of
    from workstead.system.watch.watch_tree import Tree

    for attempt in range(_TRIES):
        workspace = lookup.by_uid(home, uid)
        if workspace.state not in _STANDING or not os.path.isdir(workspace.path):
            return None
        attach(home, workspace)
        filled, place = filled_in(home, workspace)
        filled = layers.settled(filled, place)
        try:
            work = layers.path_of(filled, place)
            around = os.stat(os.path.dirname(work) if filled.mechanism in mounter.MOUNTED else workspace.path).st_dev
            inside = os.lstat(work).st_dev
            device = os.lstat(workspace.path).st_dev
        except FileNotFoundError:
            time.sleep(0.01 * attempt)
            continue
        except OSError as error:
            raise from_os(error, f"workspace {workspace.id}") from error
        if filled.mechanism in mounter.MOUNTED:
            if inside == around:  # unmounted again by another process that is using the workspace
                time.sleep(0.01 * attempt)
                continue
            stack = stack_of(filled, place)
            inner = Tree(
                path=work,
                prefix="work/",
                device=inside,
                upper=stack.upper(place.layers),
                lowers=tuple(stack.lowers),
                marks="trusted" if filled.mechanism == mounter.OVERLAY else "user",
            )
        elif filled.mechanism == mounter.NONE or inside != device:
            inner = Tree(path=work, prefix="work/", device=inside)
        else:
            return [Tree(path=workspace.path, skip=(METADATA,), device=device)]
        return [Tree(path=workspace.path, skip=(METADATA, "work"), device=device), inner]
    return None


class _Who:
    """Attribute a change to its author: by the events of verbs, by the active runs, or to none."""

    def __init__(self, home: Home, workspace: Workspace) -> None:
        self._home = home
        self._workspace = workspace
        self._public = lookup.public_mount(home, workspace)
        self._position = home.log.last_position()
        self._verbs: list[tuple[float, str, str]] = []  # (time, path, actor)
        self._ended: list[tuple[float, str]] = []  # (time, run)

    def name(self, seen: Sequence[Seen], began_at: float) -> list[FileChange]:
        """Return the changes with public paths and authors."""
        self._read_log(since=began_at - _REMEMBERED_SECONDS)
        runs = [record["run_id"] for record in lookup.active_runs(self._home, self._workspace)]
        runs += [run for ended_at, run in self._ended if ended_at >= began_at - _SLACK_SECONDS]
        named = {path: actor for _, path, actor in self._verbs}
        made = {above: actor for path, actor in named.items() for above in _above(path)}  # with missing parents
        return [self._name(each, runs, named, made) for each in seen]

    def _name(self, seen: Seen, runs: list[str], named: dict[str, str], made: dict[str, str]) -> FileChange:
        by, who, certain = self._find(seen, runs, named, made)
        return FileChange(
            workspace_id=self._workspace.id,
            kind=seen.kind,
            path=f"{self._public}/{seen.path}",
            entry=seen.entry,
            from_path=f"{self._public}/{seen.old_path}" if seen.old_path else "",
            size=seen.size,
            by=by,
            who=who,
            certain=certain,
        )

    def _find(self, seen: Seen, runs: list[str], named: dict[str, str], made: dict[str, str]) -> tuple[str, str, bool]:
        for path in filter(None, (seen.path, seen.old_path)) if named else ():
            full = f"{self._public}/{path}"
            if full in made and seen.kind == "added":
                return "owner", made[full], True
            for each in (full, *_above(full)):
                if each in named:
                    return "owner", named[each], True
        if not runs:
            return "outside", "", True
        # As root, runs have a user id that no other process uses.
        is_theirs = os.geteuid() == 0 and seen.uid == self._home.settings.sandbox.uid
        return "run", runs[0], seen.kind == "added" and is_theirs and len(runs) == 1

    def _read_log(self, *, since: float) -> None:
        newest = self._home.log.last_position()
        types = (*_VERBS, *_RUN_ENDS, *_RESTORES)
        for event in self._home.log.read(after=self._position, stream=self._workspace.task_id, types=types):
            if event.event_data["uid"] == self._workspace.uid:
                self._take(event)
        self._position = max(self._position, newest)
        self._verbs = [each for each in self._verbs if each[0] > since]
        self._ended = [each for each in self._ended if each[0] > since]

    def _take(self, event: Event) -> None:
        data: dict[str, Any] = event.event_data
        at = seconds(event.recorded_at)
        if event.event_type in _RUN_ENDS:
            self._ended.append((at, data["run_id"]))
        elif event.event_type in _RESTORES:
            paths = data["paths"] or ("work", "output")
            self._verbs += [(at, f"{self._public}/{path}", event.actor_id) for path in paths]
        else:
            self._verbs += [(at, data[key], event.actor_id) for key in ("path", "to") if data.get(key)]


def _above(path: str) -> Iterator[str]:
    """Yield the parent directories of a path."""
    place = path.rfind("/")
    while place > 0:
        yield path[:place]
        place = path.rfind("/", 0, place)
