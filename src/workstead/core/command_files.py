"""Find the files of a workspace that a command names, with the path resolution of the kernel inside the sandbox.

An approval of a command is bound to these files. A word may name one as `s.sh`, `sub/../s.sh` or
`//mnt/workspace/work/s.sh`, through links, after `=` or inside the script of `sh -c`; a variable may name one, too.
Each path is resolved step by step, links included. A path that cannot be resolved from outside (`/proc/self/cwd`) is
refused rather than left unbound.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from stat import S_ISDIR, S_ISLNK

from workstead.core import lookup
from workstead.core.file_access import locate
from workstead.core.run_mounts import reach_of
from workstead.core.shares import SHARES
from workstead.errors import FileChanged, Invalid, LimitExceeded, WorksteadError
from workstead.model.text import quoted
from workstead.system.files.resolved_entry import Held
from workstead.system.files.walk import Limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workstead.core.home import Home
    from workstead.core.resolved_path import Spot
    from workstead.core.runs import RunSpec
    from workstead.model.workspace import Workspace

MAX_NAMES = 10_000  # possible names in one command: each costs a lookup on the disk
MAX_ENTRIES = 10_000  # of a named directory: reading more takes too long
UNBOUND = "not bound"  # instead of a fingerprint, for a large directory and for files that others can change
_MAX_LINKS = 40  # the kernel's own limit
_BETWEEN = re.compile(r"[\s;&|<>()'\"`=,:{}]+")  # separators between names in a script


def named_files(home: Home, workspace: Workspace, spec: RunSpec) -> dict[str, str]:
    """Return the fingerprint of every file and directory that the command or a variable names, by the path inside.

    `work/` itself is left out: every command starts in it. Raises LimitExceeded for too many names, and Invalid for a
    name that only a process inside could resolve.
    """
    names = {**dict.fromkeys(_in_scripts(spec), False), **dict.fromkeys(_spelled_out(spec), True)}
    if len(names) > MAX_NAMES:
        raise LimitExceeded(
            f"the command has more than {MAX_NAMES} words that could name a file, too many to bind an approval to",
            hint="put them into a script in the workspace and run that",
        )
    found = {}
    with locate(home, workspace.id) as top, locate(home, workspace.id, "work") as work:
        view = _View(lookup.public_mount(home, workspace), top, work, _written_by_others(home, workspace, spec))
        for name, may_be_folder in names.items():
            path = view.follow(name)
            fingerprint = view.fingerprint(path, may_be_folder=may_be_folder) if path else ""
            if path and fingerprint:
                found["/".join(["", *path])] = fingerprint
    return dict(sorted(found.items()))


def check_unchanged(home: Home, workspace: Workspace, spec: RunSpec) -> None:
    """Raise FileChanged if any file that an approved command names has changed since the approval."""
    if spec.bound is None:  # the command needed no approval
        return
    now = named_files(home, workspace, spec)
    for path in sorted(now.keys() | spec.bound.keys()):
        if now.get(path) != spec.bound.get(path):
            raise FileChanged(
                f"{quoted([path])} is not what it was when the command was approved: nothing was run",
                hint="ask for the command again",
            )


def _spelled_out(spec: RunSpec) -> Iterable[str]:
    """Yield words, values of options, and the parts of variables such as PATH."""
    for word in spec.command:
        yield word
        yield word.partition("=")[2]
        if word.startswith(("-", "@")):
            yield word[1:] if word[0] == "@" else word[2:]
    for value in spec.environment.values():
        yield value
        yield from value.split(":")


def _in_scripts(spec: RunSpec) -> Iterable[str]:
    for text in (*spec.command, *spec.environment.values()):
        yield from _BETWEEN.split(text)


def _written_by_others(home: Home, workspace: Workspace, spec: RunSpec) -> Iterable[str]:
    """Yield the mounts beside the workspace whose files others can change: shares and directories of the host."""
    for _, target, is_writable in reach_of(home, workspace, confined=True).mounts:
        if is_writable or target.startswith(f"{SHARES}/"):  # others write to a share that is read-only here
            yield target
    for text in spec.read_write:
        yield text.partition(":")[2] or text


class _View:
    """The workspace as a process in the sandbox sees it."""

    def __init__(self, public: str, top: Spot, work: Spot, others: Iterable[str]) -> None:
        self._others = [_steps(path) for path in others]
        self._mounts = [(_steps(public), top)]  # the first mount that contains a path is used
        self._start = [*_steps(public), "work"]
        if work.path == ".":  # not a directory of the workspace
            mode, target = self._look(self._start)
            if S_ISLNK(mode):  # a folder of the host, mounted at its own path
                self._start = _steps(target)
            self._mounts.insert(0, (self._start, work))

    def follow(self, name: str) -> list[str] | None:
        """Resolve a path for a process that starts in `work/`; None unless the result is in the workspace."""
        here = [] if name.startswith("/") else self._start
        steps = name.split("/")[::-1]
        links = 0
        while steps:
            step = steps.pop()
            if step in ("", "."):
                continue
            if step == ".." and self._is_known(here):
                here = here[:-1]
                continue
            here = [*here, step]
            # Links of the system are not resolved here, so `..` after one could lead anywhere, like the links of /proc.
            if step == ".." or (here[0] == "proc" and len(here) > 2 and step in ("cwd", "root")):
                raise Invalid(
                    f"an approval cannot be bound to the file that {quoted([name[:200]])} leads to",
                    hint="name it by its path in the workspace, without /proc and without '..' outside of it",
                )
            if self._find(here) is None:
                continue
            mode, target = self._look(here)
            if S_ISLNK(mode):
                links += 1
                here = [] if target.startswith("/") else here[:-1]
                steps += target.split("/")[::-1]
            if not mode or links > _MAX_LINKS or (steps and not S_ISDIR(mode) and not S_ISLNK(mode)):
                return None
        is_ours = self._find(here) is not None and here != self._start
        return here if is_ours or self._is_others(here) else None

    def fingerprint(self, path: list[str], *, may_be_folder: bool) -> str:
        """Return a fingerprint of the file or directory at a path; "" if its content does not matter."""
        if self._find(path) is None:
            return UNBOUND
        with self._held(path) as held:
            found = held.stat() if held is not None else None
            if held is None or found is None or (S_ISDIR(found.st_mode) and not may_be_folder):
                return ""
            try:
                return held.fingerprint(Limits(max_entries=MAX_ENTRIES))
            except LimitExceeded:
                return UNBOUND

    def _is_known(self, path: list[str]) -> bool:
        """Return whether a directory is in the workspace or one of its parents, and so no link of the system."""
        return any(path[: len(mount)] == mount[: len(path)] for mount, _ in self._mounts)

    def _is_others(self, path: list[str]) -> bool:
        is_ours = any(path[: len(mount)] == mount for mount, _ in self._mounts)
        return not is_ours and any(path[: len(each)] == each for each in self._others)

    def _find(self, path: list[str]) -> tuple[Spot, list[str]] | None:
        """Return the open directory that contains a path, and the rest of the path; None outside the workspace."""
        for mount, spot in self._mounts:
            if path[: len(mount)] == mount:
                return (spot, path[len(mount) :]) if len(path) > len(mount) else None
        return None

    def _look(self, path: list[str]) -> tuple[int, str]:
        """Return the mode of the entry at a path, 0 if there is none, and the target if it is a link."""
        with self._held(path) as held:
            found = held.stat() if held is not None else None
            if held is None or found is None:
                return 0, ""
            return found.st_mode, held.target() if S_ISLNK(found.st_mode) else ""

    @contextmanager
    def _held(self, path: list[str]) -> Iterator[Held | None]:
        """Open the entry at a path without links; None if it cannot be opened, by a process inside either."""
        found = self._find(path)
        try:
            if found is None:
                raise FileNotFoundError
            spot, rest = found
            folder, name = spot.root.open_parent(spot.root.check("/".join(rest)))
        except (WorksteadError, OSError):
            yield None
            return
        try:
            yield Held(spot.root, folder, name)
        finally:
            os.close(folder)


def _steps(path: str) -> list[str]:
    return [step for step in path.split("/") if step]
