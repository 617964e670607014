"""Diffs between two states, and the plan and result of an apply."""

from __future__ import annotations

from workstead.model.text import printable
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_NAMES = 5


class Hunk(Value):
    """A range of lines that differ, with three lines of context. Its id is derived from its text and position."""

    id: str
    old_start: int  # first line, counted from 1; for an empty range, the line before
    old_lines: int
    new_start: int
    new_lines: int


class Change(Value):
    """One changed path, relative to the compared part of the workspace (default `work/`)."""

    path: str
    status: str  # A added, M modified, D deleted, R renamed, T type changed
    kind: str  # file, link, dir, other
    old_path: str = ""  # of a rename
    old_mode: int = 0
    new_mode: int = 0
    old_size: int = 0
    new_size: int = 0
    added: int = 0  # lines
    removed: int = 0
    binary: bool = False
    similarity: int = 0  # of a rename, in percent
    hunks: tuple[Hunk, ...] = ()  # of a modified text file, if text was requested


class Diff(Value):
    """All changes between two states.

    A byte of `patch` that is not UTF-8 is a lone surrogate (`"\\udcff"` in JSON), as in names:
    `patch.encode("utf-8", "surrogateescape")` returns the exact bytes.
    """

    changes: tuple[Change, ...]
    patch: str = ""
    hidden: int = 0  # changes inside `.git` directories, neither shown nor applied
    ignored: int = 0  # files that the repository's own rules ignore, neither shown nor applied unless requested
    self_ignoring: tuple[str, ...] = ()  # new directories among them whose own `.gitignore` is `*`
    truncated: bool = False  # the patch is over 64 MiB and stops before a file that does not fit; `patch` returns all

    @property
    def added(self) -> int:
        return sum(change.added for change in self.changes)

    @property
    def removed(self) -> int:
        return sum(change.removed for change in self.changes)


def and_ignored(files: int, self_ignoring: Sequence[str] = ()) -> str:
    """Return the line that says how many changed files are ignored, and which new directories ignore themselves."""
    told = f"plus {files} ignored file{'s' if files != 1 else ''}"
    if not self_ignoring:
        return told
    names = ", ".join(map(printable, self_ignoring[:_MOST_NAMES]))
    more = " …" if len(self_ignoring) > _MOST_NAMES else ""
    return f"{told} ({names}{more} {'ignores itself' if len(self_ignoring) == 1 else 'ignore themselves'})"


class FileChange(Value):
    """A change in a workspace that a watcher saw."""

    workspace_id: str
    kind: str  # added, changed, deleted, renamed
    path: str  # as the agent sees it
    entry: str  # file, directory, link, other
    from_path: str = ""  # of a rename; everything below a directory moved with it
    size: int = 0
    by: str = "outside"  # run, owner (any caller through a verb) or outside
    who: str = ""  # the id of the run, or the actor of the verb
    certain: bool = False  # whether the author is known, or only that the run was active at the time


class Overlap(Value):
    """Two workspaces of one origin that changed the same paths in different ways."""

    workspace_id: str
    other_id: str
    origin: str
    paths: tuple[str, ...]  # relative to `work/`
    uid: str
    other_uid: str


class Step(Value):
    """One action in the target folder: write an entry, or delete one."""

    path: str
    action: str  # write, link, mkdir, chmod (of a directory), delete, rmdir
    digest: str = ""  # content of a write, in the object store
    size: int = 0
    mode: int = 0o644
    mtime_ns: int = 0
    target: str = ""  # of a link
    before: str = ""  # fingerprint of the entry found while planning; "" for none
    old_size: int = 0
    old_mtime_ns: int = 0
    old_mode: int = 0  # of a directory
    merged: bool = False  # both sides had changed it


class Clash(Value):
    """A path that both sides changed incompatibly."""

    path: str
    reason: str
    marked: bool = False  # a step writes both versions with conflict markers


class Plan(Value):
    """The actions of an apply on the folder: computed first, shown, then executed all or nothing."""

    steps: tuple[Step, ...]
    clashes: tuple[Clash, ...] = ()
    refused: tuple[str, ...] = ()  # never applied: paths inside `.git`, devices and other special files
    same: int = 0  # changes that the folder already has
    ignored: int = 0  # changed files that the repository's own rules ignore: not planned


class Undo(Value):
    """The reverse plan of an applied plan."""

    folder: str
    plan: Plan


class Commit(Value):
    """A commit made in the origin repository."""

    branch: str
    commit: str
    parent: str
    paths: int
    refused: tuple[str, ...] = ()


class Applied(Value):
    """The result of an apply."""

    operation_id: str  # empty if there was nothing to apply
    target: str
    written: list[str]
    deleted: list[str]
    conflicts: list[str]  # written with conflict markers
    refused: list[str]  # never applied: paths inside .git, devices
    same: int  # changes that the origin already had
    commit: str = ""
    kept: list[str] = []  # copies, in the folder, of replaced files that the user saved during the apply
    ignored: int = 0  # changed files that the repository's own rules ignore, and that were therefore not applied
