"""The files of a workspace that a command names, found where the kernel finds them inside the sandbox.

An approval of a command is bound to these files. A word may name one as `s.sh`, `sub/../s.sh` or
`//mnt/workspace/work/s.sh`, through links, after `=` or inside the script of `sh -c`; a variable may name one, too.
Each is followed step by step, links included. What cannot be followed from outside (`/proc/self/cwd`) is refused
rather than left unbound.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from stat import S_ISDIR, S_ISLNK

from carrel.errors import CarrelError, FileChanged, Invalid, LimitExceeded
from carrel.model.text import quoted
from carrel.system.entry import Held
from carrel.system.walk import Limits
from carrel.verbs import show
from carrel.verbs.files import locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from carrel.home import Home
    from carrel.model.workspace import Workspace
    from carrel.verbs.files import Spot
    from carrel.verbs.run import RunSpec

MAX_NAMES = 10_000  # possible names in one command: each costs a look at the disk
MAX_ENTRIES = 10_000  # of a directory that is named: reading more takes too long
UNBOUND = "not bound"  # in place of a fingerprint
_MAX_LINKS = 40  # what the kernel follows
_BETWEEN = re.compile(r"[\s;&|<>()'\"`=,:{}]+")  # what stands between names in a script


def named_files(home: Home, workspace: Workspace, spec: RunSpec) -> dict[str, str]:
    """The fingerprint of every file and directory that the command or a variable names, by the path inside.

    `work/` itself is left out: every command starts in it. Raises LimitExceeded for too many names, and Invalid for a
    name that only a process inside could follow."""
    names = {**dict.fromkeys(_in_scripts(spec), False), **dict.fromkeys(_spelled_out(spec), True)}
    if len(names) > MAX_NAMES:
        raise LimitExceeded(
            f"the command has more than {MAX_NAMES} words that could name a file, too many to bind an approval to",
            hint="put them into a script in the workspace and run that",
        )
    found = {}
    with locate(home, workspace.id) as top, locate(home, workspace.id, "work") as work:
        view = _View(show.public_mount(home, workspace), top, work)
        for name, may_be_folder in names.items():
            place = view.follow(name)
            if place and place != ["work"]:
                fingerprint = view.fingerprint(place, may_be_folder=may_be_folder)
                if fingerprint:
                    found[view.shown(place)] = fingerprint
    return dict(sorted(found.items()))


def check_unchanged(home: Home, workspace: Workspace, spec: RunSpec) -> None:
    """FileChanged unless everything that an approved command names is what it was when it was approved."""
    if spec.bound is None:  # nobody had to approve it
        return
    now = named_files(home, workspace, spec)
    for path in sorted(now.keys() | spec.bound.keys()):
        if now.get(path) != spec.bound.get(path):
            raise FileChanged(
                f"{quoted([path])} is not what it was when the command was approved: nothing was run",
                hint="ask for the command again",
            )


def _spelled_out(spec: RunSpec) -> Iterable[str]:
    """Words, options' values, and the parts of variables such as PATH."""
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


class _View:
    """The workspace as a process inside sees it."""

    def __init__(self, public: str, top: Spot, work: Spot) -> None:
        self._public = [step for step in public.split("/") if step]
        self._top = top
        self._work = work

    def shown(self, place: list[str]) -> str:
        """The path inside of something at a place."""
        return "/".join(["", *self._public, *place])

    def follow(self, name: str) -> list[str] | None:
        """Where in the workspace a path leads, for a process that starts in `work/`; None if to nothing there."""
        here = [] if name.startswith("/") else [*self._public, "work"]
        steps = name.split("/")[::-1]
        links = 0
        while steps:
            step = steps.pop()
            if step in ("", "."):
                continue
            known = here[: len(self._public)] == self._public[: len(here)]
            if step == ".." and known:
                here = here[:-1]
                continue
            here = [*here, step]
            # Links of the system are not followed here, so `..` after one could lead anywhere, like those of /proc.
            if step == ".." or (here[0] == "proc" and len(here) > 2 and step in ("cwd", "root")):
                raise Invalid(
                    f"an approval cannot be bound to the file that {quoted([name[:200]])} leads to",
                    hint="name it by its path in the workspace, without /proc and without '..' outside of it",
                )
            if not known or len(here) <= len(self._public):
                continue
            mode, target = self._look(here[len(self._public) :])
            if S_ISLNK(mode):
                links += 1
                here = [] if target.startswith("/") else here[:-1]
                steps += target.split("/")[::-1]
            if not mode or links > _MAX_LINKS or (steps and not S_ISDIR(mode) and not S_ISLNK(mode)):
                return None
        return here[len(self._public) :] if here[: len(self._public)] == self._public else None

    def fingerprint(self, place: list[str], *, may_be_folder: bool) -> str:
        """What tells whether the file, or the directory, at a place is the same; "" if that does not matter."""
        with self._held(place) as held:
            found = held.stat() if held is not None else None
            if held is None or found is None or (S_ISDIR(found.st_mode) and not may_be_folder):
                return ""
            try:
                return held.fingerprint(Limits(max_entries=MAX_ENTRIES))
            except LimitExceeded:
                return UNBOUND

    def _look(self, place: list[str]) -> tuple[int, str]:
        """The mode of what is at a place, 0 if nothing is, and where it leads if it is a link."""
        with self._held(place) as held:
            found = held.stat() if held is not None else None
            if held is None or found is None:
                return 0, ""
            return found.st_mode, held.target() if S_ISLNK(found.st_mode) else ""

    @contextmanager
    def _held(self, place: list[str]) -> Iterator[Held | None]:
        """The entry at a place whose links are resolved; None if it cannot be looked at, from inside as little."""
        spot, path = self._top, place
        if place[0] == "work" and len(place) > 1 and self._work.path == ".":  # it is not a directory of the workspace
            spot, path = self._work, place[1:]
        try:
            folder, name = spot.root.open_parent(spot.root.check("/".join(path)))
        except (CarrelError, OSError):
            yield None
            return
        try:
            yield Held(spot.root, folder, name)
        finally:
            os.close(folder)
