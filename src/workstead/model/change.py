"""What differs between two states, and what giving it back would do."""

from __future__ import annotations

from workstead.model.value import Value


class Hunk(Value):
    """A place in a file where lines differ, with three lines around it. Its id is that of its text and position."""

    id: str
    old_start: int  # the first line of it, counted from 1; of an empty part, the line before
    old_lines: int
    new_start: int
    new_lines: int


class Change(Value):
    """One changed path, relative to the part of the workspace that was compared (`work/` unless asked otherwise)."""

    path: str
    status: str  # A added, M modified, D deleted, R renamed, T changed its kind
    kind: str  # file, link, dir, other
    old_path: str = ""  # of a rename
    old_mode: int = 0
    new_mode: int = 0
    old_size: int = 0
    new_size: int = 0
    added: int = 0  # lines
    removed: int = 0
    binary: bool = False
    similarity: int = 0  # of a rename, in per cent
    hunks: tuple[Hunk, ...] = ()  # of a text file that was modified, if text was asked for


class Diff(Value):
    """All changes between two states.

    A byte of `patch` that is not UTF-8 is a lone surrogate (`"\\udcff"` in JSON), as in names:
    `patch.encode("utf-8", "surrogateescape")` returns the exact bytes.
    """

    changes: tuple[Change, ...]
    patch: str = ""
    hidden: int = 0  # changes inside `.git` directories, which are neither shown nor given back
    truncated: bool = False  # the patch is over 64 MiB and ends before a file that does not fit; `patch` returns all

    @property
    def added(self) -> int:
        return sum(change.added for change in self.changes)

    @property
    def removed(self) -> int:
        return sum(change.removed for change in self.changes)


class FileChange(Value):
    """Something that a watcher saw happen in a workspace."""

    workspace_id: str
    kind: str  # added, changed, deleted, renamed
    path: str  # as the agent sees it
    entry: str  # file, directory, link, other
    from_path: str = ""  # of what was renamed; all below a directory moved along
    size: int = 0
    by: str = "outside"  # run, owner (anybody through our verbs) or outside
    who: str = ""  # the id of the run, or the actor of the verb
    certain: bool = False  # whether it is known, or only that the run was active at the time


class Overlap(Value):
    """Two workspaces of one origin that changed the same paths, each in its own way."""

    workspace_id: str
    other_id: str
    origin: str
    paths: tuple[str, ...]  # relative to `work/`
    uid: str
    other_uid: str


class Step(Value):
    """One thing to do in the target folder: put this there, or take away what is there."""

    path: str
    action: str  # write, link, mkdir, chmod (of a directory), delete, rmdir
    digest: str = ""  # content of a write, in the store
    size: int = 0
    mode: int = 0o644
    mtime_ns: int = 0
    target: str = ""  # of a link
    before: str = ""  # fingerprint of what the plan found there; "" for nothing
    old_size: int = 0
    old_mtime_ns: int = 0
    old_mode: int = 0  # of a directory
    merged: bool = False  # both sides had changed it


class Clash(Value):
    """A path that both sides changed in ways that do not go together."""

    path: str
    reason: str
    marked: bool = False  # a step writes both versions with conflict markers


class Plan(Value):
    """What applying would do to the folder: computed first, shown, then done as a whole or not at all."""

    steps: tuple[Step, ...]
    clashes: tuple[Clash, ...] = ()
    refused: tuple[str, ...] = ()  # never given back: inside `.git`, devices and the like
    same: int = 0  # changes that the folder has already


class Undo(Value):
    """How to take an applied plan back: the plan in the other direction."""

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
    """What was given back."""

    operation_id: str  # empty if there was nothing to give
    target: str
    written: list[str]
    deleted: list[str]
    conflicts: list[str]  # written with conflict markers
    refused: list[str]  # never given back: inside .git, devices
    same: int  # changes that the origin had already
    commit: str = ""
    kept: list[str] = []  # copies, in the folder, of what the user saved in replaced files meanwhile
