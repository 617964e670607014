"""The directory that holds everything: its log, its locks, its paths.

HOME/                      0700
  id                       which home this is, for stores that several share, see system/files/identity.py
  format                   the format version of this directory; a home without it has version 1
  place                    the path of this directory, which differs in a copy
  adopting                 old paths that are being rewritten to this one, see verbs/adopt.py
  log.db                   the event log (unless store.url names a server)
  log.db.head              its newest durable event, which shows when the log lost its end
  records/UID              a workspace's events, to rebuild a lost log from, see system/files/records.py
  locks                    one byte range for each locked key
  reserve*                 space and inodes for the log, so that a full disk can be freed, see system/files/reserve.py
  clock                    empty; its mtime is the time of the newest id
  logs/NAME.log            tracebacks of background processes, see system/process/crash_log.py; a run's is in runs/RUN
  templates/NAME/
  cache/                   prepared checkouts
  workspaces/              or storage.workspaces_path
    TASK/AGENT/            a workspace: .aw/ work/ output/ tmp/
    .carrel/               0700, on the same file system so that a rename is enough
      staging/UID/         being built
      layers/UID/          the layers of an overlay
      frozen/              layers that several workspaces share
      mounts               mounts of this machine that were checked, see system/kernel/mount_table.py
      trash/UID/           destroyed, until undo or the end of its retention
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress

from workstead.errors import (
    DiskFull,
    EventsLost,
    FormatUnknown,
    HomeCopied,
    InvalidPath,
    NotADirectory,
    WorkspaceBusy,
    WorkspaceExists,
    from_os,
)
from workstead.model.chain import GENESIS
from workstead.model.event import ON_A_FULL_DISK, Caller
from workstead.model.names import directory_name, fresh_name
from workstead.store import Log, head, open_log
from workstead.store.log import LabelTaken
from workstead.system.files import format_version, identity, readonly_database, records, reserve
from workstead.system.files.durable import make_folders
from workstead.system.files.pool import Pool
from workstead.system.kernel import locks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from workstead.model.event import Event
    from workstead.model.value import Value
    from workstead.settings import Settings

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's alphabet: no letters that look alike
LOCK_SECONDS = 10.0
FORMAT = 1  # format version of the directory as a whole; log, snapshot store, archives and backups have their own


class Home:
    """An open home. Handles like this one stay in the process; values travel."""

    def __init__(
        self,
        path: str,
        settings: Settings,
        caller: Caller,
        log: Log,
        home_id: str,
        original: str = "",
        indexes: Pool | None = None,
    ) -> None:
        self.path = path
        self.settings = settings
        self.log = log
        self.id = home_id
        # One default cause for all events of this opener, when the caller names none.
        self.caller = caller if caller.correlation_id else caller.replace(correlation_id=self.new_id())
        self.workspaces_path = settings.storage.workspaces_path or os.path.join(path, "workspaces")
        self.private = os.path.join(self.workspaces_path, ".carrel")
        self._moves: list[tuple[str, str]] | None = None
        self._original = original  # the path that the records name, if it is not this one
        self.indexes = indexes or Pool()  # connections to the index of the snapshot store

    @classmethod
    def open(cls, path: str, settings: Settings, caller: Caller) -> Home:
        """Open the home; create it at first use."""
        path = os.path.abspath(path)
        _check_utf8(path)
        _check_utf8(settings.storage.workspaces_path or "")
        try:
            has_log = os.path.lexists(f"{path}/log.db")
            made = _make(path, has_log=settings.store.url is None) if (found := identity.read(path)) is None else ""
            home_id, is_sealed = found or (made, not has_log)
        except NotADirectoryError as error:
            raise NotADirectory(f"home {path} is not a directory", hint="choose another --home") from error
        except OSError as error:
            raise from_os(error, f"home {path}") from error
        check_format(path)
        log = open_log(os.path.join(path, "log.db"), settings.store.url, look=readonly_database.connect)
        reserve.make(path)
        home = cls(path, settings, caller, log, home_id)
        if not is_sealed:
            home.id = _find_id(home)
        home._original = _find_original(home)
        return home

    def acting_as(self, caller: Caller) -> Home:
        """Return the same home, used on behalf of another caller."""
        return Home(self.path, self.settings, caller, self.log, self.id, self._original, self.indexes)

    def with_settings(self, settings: Settings) -> Home:
        """Return the same home with other settings."""
        return Home(self.path, settings, self.caller, self.log, self.id, self._original, self.indexes)

    def close(self) -> None:
        """Close the log and the index of the snapshot store."""
        self.indexes.close()
        self.log.close()

    # -- paths ---------------------------------------------------------------------------------------------------------

    def workspace_path(self, task: str, agent: str) -> str:
        """Return the path of the workspace of this id."""
        return f"{self.workspaces_path}/{directory_name(task)}/{directory_name(agent)}"

    def staging_path(self, uid: str) -> str:
        """Return the staging directory, where a workspace is built before it is renamed into place."""
        return f"{self.private}/staging/{uid}"

    def template_path(self, name: str) -> str:
        """Return the directory of a template's files."""
        return f"{self.path}/templates/{name}"

    @property
    def host(self) -> str:
        """Return the name of this machine, for homes that share a log."""
        return os.uname().nodename

    @property
    def is_copy(self) -> bool:
        """Return whether the paths in the records lead out of this home: it was copied or moved."""
        return bool(self._original)

    @property
    def original(self) -> str:
        """Return the path that the records name, if it is not this home's; else ""."""
        return self._original

    def taken_over(self) -> Home:
        """Return the same home after its records were rewritten to its present path."""
        return Home(self.path, self.settings, self.caller, self.log, self.id)

    def moves(self) -> list[tuple[str, str]]:
        """Return the first and the present path of this home, to translate stored paths; [] if it never moved."""
        if self._moves is None:
            first = self.log.get("home", self.id)
            self._moves = (
                [(first["first_workspaces"], self.workspaces_path), (first["first_path"], self.path)] if first else []
            )
        return self._moves

    def check_place(self) -> None:
        """Raise HomeCopied if the paths in the records lead out of this home: files there belong to another home."""
        if self._original:
            raise HomeCopied(
                f"home {self.path} is a copy of {self._original}, or was moved from there: its workspaces are at "
                f"{self._original}, so it can only be looked at",
                hint=f"use --home {self._original}; to use this one from now on: aw repair --adopt --home {self.path}",
            )

    def make_private(self) -> None:
        """Create the directories that hold workspaces, accessible to the owner only."""
        try:
            for path in (self.workspaces_path, self.private, *(f"{self.private}/{name}" for name in _PRIVATE)):
                os.makedirs(path, mode=0o700, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectory(f"{error.filename} is not a directory", hint="move it away") from error

    def check_space(self, wanted_bytes: int = 0) -> None:
        """Refuse to begin an operation for which the disk has no space."""
        path = self.workspaces_path if os.path.isdir(self.workspaces_path) else self.path
        try:
            stats = os.statvfs(path)
        except OSError as error:
            raise from_os(error, path) from error
        free = stats.f_bavail * stats.f_frsize
        needed = wanted_bytes + self.settings.storage.min_free_mb * 1024 * 1024
        has_inodes = bool(stats.f_favail or not stats.f_files)
        if free < needed or not has_inodes:
            raise DiskFull(
                f"{free // 1024} KiB are free at {path}, and {needed // 1024} KiB are wanted"
                if has_inodes
                else f"no inodes are free at {path}: the disk holds too many files",
                hint="aw usage shows what takes space, aw sweep frees it; storage.min_free_mb sets the limit",
                details={"free_bytes": free, "needed_bytes": needed},
            )

    # -- the log -------------------------------------------------------------------------------------------------------

    def record(self, task: str, *facts: Value, durable: bool = True) -> list[Event]:
        """Append events to a task's stream, atomically; raise WrongStatus before if the lifecycle forbids one.

        On a full disk the reserve is used only for events that free space or end a step, so that it lasts until there
        is space again.
        """
        self.check_place()
        events = self._append(task, facts, durable=durable)
        if not self.settings.store.url:
            for uid in records.keep(self.path, events):
                own = self.log.read(stream=task, types=sorted(records.KEPT))
                with suppress(OSError):
                    records.replace(self.path, uid, [event for event in own if event.event_data["uid"] == uid])
        return events

    def _append(self, task: str, facts: tuple[Value, ...], *, durable: bool) -> list[Event]:
        try:
            return self.log.append(task, facts, self.caller, durable=durable)
        except LabelTaken as taken:
            raise WorkspaceExists.of(taken.args[1]) from None
        except DiskFull:
            if not all(isinstance(fact, ON_A_FULL_DISK) for fact in facts) or not reserve.use(self.path):
                raise
        return self.log.append(task, facts, self.caller, durable=durable)

    def check_log(self) -> None:
        """Raise EventsLost if the log lost events: files that it does not know must not be taken for garbage.

        A log without a head (of an older version) must not be empty while there are workspace files.
        """
        if self.log.check_head() or self.settings.store.url or self.log.last_position():
            return
        for place in (f"{self.path}/snapshots/packs", *(f"{self.private}/{name}" for name in _PRIVATE)):
            with suppress(FileNotFoundError, NotADirectoryError):
                if os.listdir(place):
                    raise EventsLost.of(f"the event log {self.path}/log.db is empty, and {place} is not")

    @contextmanager
    def hold(self, key: str, *, wait_seconds: float = LOCK_SECONDS, shared: bool = False) -> Iterator[None]:
        """Lock this workspace, exclusively or shared; raise WorkspaceBusy if it stays locked until the timeout."""
        self.check_place()
        try:
            with locks.hold(f"{self.path}/locks", key, wait_seconds=wait_seconds, shared=shared):
                yield
        except locks.Held as held:
            who = f": {held.holder}" if held.holder else ""
            raise WorkspaceBusy(
                f"another process is at work on {held}{who}",
                hint="let it go on (kill -CONT PID) or end it, then try again"
                if "which is stopped" in who
                else "try again when it is done; aw list shows its state",
            ) from None

    def new_id(self) -> str:
        """Return a fresh id of 16 letters and digits: 52 bits of microseconds, so that ids sort by age, 28 random."""
        number = self._tick() << 28 | int.from_bytes(os.urandom(4), "big") >> 4
        return "".join(_ALPHABET[number >> shift & 31] for shift in range(75, -1, -5))

    def _tick(self) -> int:
        """Return the time in microseconds, later than every earlier tick: ids stay in order if the clock goes back."""
        path = f"{self.path}/clock"
        now = time.time_ns() // 1000
        with suppress(OSError):  # a read-only home creates no ids to keep in order
            try:
                now = max(now, os.stat(path).st_mtime_ns // 1000 + 1)
            except FileNotFoundError:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.utime(path, ns=(now * 1000, now * 1000))
        return now

    def new_name(self) -> str:
        """Return an unused task name."""
        while True:
            name = fresh_name(int.from_bytes(os.urandom(4), "big"))
            if not self.log.version(name):
                return name


_PRIVATE = ("staging", "layers", "trash")


def default_path(environ: Mapping[str, str]) -> str:
    """Return the default path of the home."""
    if environ.get("AW_HOME"):
        return environ["AW_HOME"]
    data = environ.get("XDG_DATA_HOME") or os.path.join(environ.get("HOME") or "/", ".local", "share")
    return os.path.join(data, "aw")


def _check_utf8(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        # Paths of workspaces are written to files that agents read, which are UTF-8.
        raise InvalidPath(f"the path {path!r} is not valid UTF-8", hint="choose another --home") from None


def _find_id(home: Home) -> str:
    """Return the id of a home whose id file is damaged or has no checksum yet, from its workspaces in the log.

    A home without workspaces can get any id: no record refers to it.
    """
    below = f"{home.workspaces_path}/"
    records = home.log.find_all("workspace")
    known = [record["home"] for record in records if record["path"].startswith(below)]
    if not known and not home.settings.store.url:  # in a copied home the paths are those of the original
        known = [record["home"] for record in records]
    if home.id in known:
        found = home.id
    elif known:
        found = str(max(known, key=known.count))
    else:
        found = home.id or os.urandom(8).hex()
    with suppress(OSError):  # a read-only home
        identity.replace(home.path, found)
    return found


def _find_original(home: Home) -> str:
    """Return the path that the records of this home name, if it is not the home's own; "" if it is.

    A home records its own path. One that is opened elsewhere is fine when both paths lead to the same directory, or
    when no record has a path outside of it. Without a recorded path (of an older version, or unreadable) the records
    decide.
    """
    path = home.path
    recorded = read_place(path)
    if os.path.lexists(f"{path}/adopting"):  # an adoption was killed: the records have paths of both places
        others = [place for place, _ in read_adopting(path) if place != path]
        return next(iter(others), "") or recorded or path
    if recorded == path or (recorded and _is_same(recorded, path)):
        return ""
    if recorded and has_id(recorded, home.id):
        return recorded
    below = f"{home.workspaces_path}/"
    for record in home.log.find_all("workspace"):
        if record["home"] == home.id and record["state"] not in _GONE and not record["path"].startswith(below):
            if recorded:
                return recorded
            other = record["path"].removesuffix(f"/{'/'.join(record['path'].rsplit('/', 3)[1:])}")
            if not _is_same(other, path) and has_id(other, home.id):
                return str(other)
    with suppress(OSError):  # a read-only home
        _write_place(path)
    return ""


_GONE = ("purged", "aborted")


def _write_place(path: str) -> None:
    descriptor = os.open(f"{path}/place", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(path)


def check_format(path: str) -> None:
    """Raise FormatUnknown if a newer Workstead changed the layout of this home."""
    version = format_version.read(path)
    if version > FORMAT:
        raise FormatUnknown.of(f"home {path}", version, FORMAT)


def read_adopting(path: str) -> list[tuple[str, str]]:
    """Return the pairs (home, workspaces) whose paths an interrupted adoption was rewriting."""
    import json

    try:
        with open(f"{path}/adopting", encoding="utf-8", errors="surrogateescape") as file:
            return [(str(place), str(workspaces)) for place, workspaces in json.load(file)]
    except (OSError, ValueError):
        return []


def read_place(path: str) -> str:
    """Return the path that a home recorded as its own; "" if there is none."""
    try:
        with open(f"{path}/place", encoding="utf-8") as file:
            text = file.read()
            return text if "\0" not in text else ""
    except (OSError, ValueError):
        return ""


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def has_id(path: str, home_id: str) -> bool:
    """Return whether the home of this id is at a path."""
    try:
        found = identity.read(path)
        return found is not None and found[0] == home_id
    except (OSError, ValueError):
        return False


def _make(path: str, *, has_log: bool) -> str:
    make_folders(path)
    if has_log and not os.path.lexists(f"{path}/log.db"):
        # An empty log of a new home is no loss: a power cut may leave files of its first workspace and no event.
        head.write(f"{path}/log.db.head", 0, GENESIS, durable=True)
    format_version.write(path, FORMAT)
    return identity.make(path)
