"""The quota of a workspace and its usage: only what the workspace added itself, never what it shares.

Counted are the upper layer of an overlay, or all of `work/` where nothing is shared, and every file beside `work/`.

A write through us that exceeds the quota is refused before anything changes. To avoid a walk through the workspace for
each write, a small file holds a counter:

    HOME/quota/UID    the count, an upper bound of the real usage

Growth is counted before it happens, and rounded up where the exact number would cost a walk; shrinking is not counted.
So an admitted write is always within the quota, and before a refusal the workspace is measured, unless nothing has
changed since the last one. A counter from another boot, or older than the last run, restore or fork, is invalid.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack, contextmanager, nullcontext
from stat import S_ISDIR, S_ISREG

from workstead.core import lookup
from workstead.errors import DiskFull, QuotaExceeded
from workstead.model.event import QuotaExceeded as QuotaWasExceeded
from workstead.model.event import QuotaWarned
from workstead.model.text import word
from workstead.model.value import Value
from workstead.system.files.measure import Measured, measure
from workstead.system.overlay.stack import has_space, own_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import NoReturn, Self

    from workstead.core.home import Home
    from workstead.model.workspace import Workspace
    from workstead.system.files.root import Root

MIB = 1 << 20
GIB = 1 << 30
BLOCK = 4096
RECORD_BYTES = 512  # fixed size of a count, so that one write replaces it
WARN_SHARE = 0.8
_OURS = ("work", "output", "tmp")  # exist from the beginning, and are not counted themselves
_VIEWS = ("overlay", "rootless-overlay", "none")  # mechanisms whose `work/` is not the workspace's own


class Allowance(Value):
    """The limits of a workspace; None is no limit."""

    bytes: int | None = None
    files: int | None = None  # includes directories
    file_bytes: int | None = None
    task_bytes: int | None = None
    total_bytes: int | None = None

    @property
    def is_shared(self) -> bool:
        """Return whether the usage of other workspaces counts too."""
        return self.task_bytes is not None or self.total_bytes is not None


class Count(Value):
    """An upper bound of a workspace's usage."""

    bytes: int
    files: int
    is_measured: bool = True  # measured, and no write through us since
    measured_at: float = 0.0
    measured_seconds: float = 0.0  # duration of the measurement
    warned: list[str] = []  # limits with a recorded warning: one for each time that a limit is crossed
    exceeded: list[str] = []
    of: str = ""  # the boot and the last lifecycle event that the count is valid for

    def is_sure(self) -> bool:
        """Return whether the count was measured so recently that measuring again is useless; it becomes outdated."""
        return self.is_measured and 0 <= time.time() - self.measured_at < 10 * self.measured_seconds


def allowance(home: Home, workspace: Workspace) -> Allowance:
    """Return the limits of the workspace from its configuration and the settings."""
    config, filled, wanted = workspace.config, workspace.filled, home.settings.workspaces

    def limit(key: str, unit: int, began: str = "") -> int | None:
        value = config.get(key)
        start = filled.get(began, 0)
        return value * unit + (start if isinstance(start, int) else 0) if isinstance(value, int) else None

    size = limit("max_size_mb", MIB, "began_bytes")
    layers = layers_of(home, workspace)
    if size is not None and has_space(layers):
        from workstead.system.overlay import quota_image

        if quota_image.is_attached(layers, workspace.path):
            size = min(size, quota_image.capacity(layers))
    return Allowance(
        bytes=size,
        files=limit("max_files", 1, "began_files"),
        file_bytes=limit("max_file_mb", MIB),
        task_bytes=int(wanted.max_task_size_gb * GIB) if wanted.max_task_size_gb is not None else None,
        total_bytes=int(wanted.max_total_size_gb * GIB) if wanted.max_total_size_gb is not None else None,
    )


def layers_of(home: Home, workspace: Workspace) -> str:
    """Return the directory of the workspace's layers, and of its quota image if it has one."""
    return f"{home.private}/layers/{workspace.uid}"


def _uppers(home: Home, workspace: Workspace) -> list[str]:
    own = own_of(layers_of(home, workspace))
    try:
        return [f"{own}/{name}" for name in os.listdir(own) if name.startswith("upper.")]
    except FileNotFoundError:
        return []


def exclusive(home: Home, workspace: Workspace) -> Measured:
    """Measure the workspace's own usage now; the cost grows with its own files, not with shared ones."""
    root = workspace.trash_path if workspace.state == "destroyed" else workspace.path
    layers = layers_of(home, workspace)
    if has_space(layers):
        from workstead.system.overlay import quota_image

        if not quota_image.is_attached(layers, root):  # not mounted, so its number of files is unknown
            return Measured(bytes=quota_image.taken(layers), files=0)
    try:
        names = os.listdir(root)
    except OSError:
        names = []
    is_view = workspace.filled.get("mechanism") in _VIEWS
    own = [f"{root}/{name}" for name in _OURS if name != "work" or not is_view]
    more = [f"{root}/{name}" for name in names if name not in (*_OURS, ".aw")]  # other entries that the agent created
    return measure(*own, *(_uppers(home, workspace) if is_view else ()), also=more)


def present(home: Home, workspace: Workspace) -> Measured:
    """Measure the workspace's present usage, including unlinked files that its runs hold open."""
    found = exclusive(home, workspace)
    runs = lookup.active_runs(home, workspace)
    if not runs:
        return found
    from workstead.core.runs import run_directory
    from workstead.system.files.nameless import nameless
    from workstead.system.process import spawn, supervisor_client

    supervisors = (supervisor_client.find_supervisor(run_directory(home, run["run_id"])) for run in runs)
    held = nameless({pid for found in supervisors if found for pid in spawn.descendants(found.pid)})
    return found.replace(bytes=found.bytes + held.bytes, files=found.files + held.files)


def run_allowance(home: Home, workspace: Workspace) -> tuple[Allowance, str]:
    """Return the limits for the workspace during a run, and the name of its tightest size limit.

    The usage of other workspaces is read when the run starts.
    """
    allowed = allowance(home, workspace)
    bounds = [(allowed.bytes, "size")]
    if allowed.task_bytes is not None:
        bounds.append((max(0, allowed.task_bytes - _others(home, workspace, workspace.task_id)), "task"))
    if allowed.total_bytes is not None:
        bounds.append((max(0, allowed.total_bytes - _others(home, workspace, None)), "total"))
    tightest, name = min(((most, name) for most, name in bounds if most is not None), default=(None, "size"))
    return allowed.replace(bytes=tightest), name


# -- the counter -------------------------------------------------------------------------------------------------------


def _path(home: Home, uid: str) -> str:
    return f"{home.path}/quota/{uid}"


def _belongs_to(workspace: Workspace) -> str:
    from workstead.system.kernel.boot import this_boot

    return f"{this_boot()} {workspace.updated_at}"


def find_count(home: Home, workspace: Workspace) -> Count | None:
    """Return the count, if it is still valid."""
    try:
        descriptor = os.open(_path(home, workspace.uid), os.O_RDONLY | os.O_CLOEXEC)
        try:
            count = Count(**json.loads(os.read(descriptor, 8 * RECORD_BYTES)))
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ValueError, TypeError):  # a torn write is no count
        return None
    return count if count.of == _belongs_to(workspace) else None


def write_count(home: Home, workspace: Workspace, count: Count) -> None:
    """Write the count; a process killed meanwhile leaves an invalid one."""
    path = _path(home, workspace.uid)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC  # never truncated: ext4 would wait for the disk
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        descriptor = os.open(path, flags, 0o600)
    try:
        os.pwrite(descriptor, json.dumps(count.as_dict()).encode().ljust(RECORD_BYTES), 0)
    finally:
        os.close(descriptor)


def forget_count(home: Home, uid: str) -> None:
    """Invalidate the count, because a change is not counted: the next reader measures."""
    try:
        os.unlink(_path(home, uid))
    except FileNotFoundError:
        return


def measured_count(home: Home, workspace: Workspace, before: Count | None = None) -> Count:
    """Return an exact count; limits that are no longer exceeded can be warned of again."""
    began = time.time()
    found = present(home, workspace)
    now = time.time()
    count = Count(
        bytes=found.bytes,
        files=found.inodes,
        measured_at=now,
        measured_seconds=max(0.0, now - began),
        of=_belongs_to(workspace),
    )
    if before is None:
        return count
    uses = {
        name: (used, allowed) for name, used, allowed in _uses(home, workspace, allowance(home, workspace), count, 0, 0)
    }
    return count.replace(
        warned=[name for name in before.warned if name in uses and uses[name][0] >= uses[name][1] * WARN_SHARE],
        exceeded=[name for name in before.exceeded if name in uses and uses[name][0] >= uses[name][1] * WARN_SHARE],
    )


def _uses(
    home: Home, workspace: Workspace, allowed: Allowance, count: Count, more_bytes: int, more_files: int
) -> Iterator[tuple[str, int, int]]:
    """Yield (limit, used, allowed) for each limit, including the planned growth."""
    if allowed.bytes is not None:
        yield "size", count.bytes + more_bytes, allowed.bytes
    if allowed.files is not None:
        yield "files", count.files + more_files, allowed.files
    if allowed.task_bytes is not None:
        yield "task", count.bytes + more_bytes + _others(home, workspace, workspace.task_id), allowed.task_bytes
    if allowed.total_bytes is not None:
        yield "total", count.bytes + more_bytes + _others(home, workspace, None), allowed.total_bytes


def _others(home: Home, workspace: Workspace, task: str | None) -> int:
    """Return the usage of the other workspaces, by their counts."""
    total = 0
    for other in lookup.list_all(home, task=task):
        if other.uid != workspace.uid and other.home == home.id:
            count = find_count(home, other)
            if count is None:
                count = measured_count(home, other)
                write_count(home, other, count)
            total += count.bytes
    return total


# -- admission of one change -------------------------------------------------------------------------------------------


class Room:
    """The quota that is left for one change to one path, through us."""

    def __init__(self, home: Home, workspace: Workspace, path: str) -> None:
        self._home = home
        self._workspace = workspace
        self._path = path
        self._allowed = allowance(home, workspace)
        self._is_elsewhere = workspace.filled.get("mechanism") == "none" and path.split("/")[0] == "work"
        limits = (self._allowed.bytes, self._allowed.files, self._allowed.task_bytes, self._allowed.total_bytes)
        # A folder used in place belongs to its owner and is not limited.
        self._is_open = self._is_elsewhere or all(limit is None for limit in limits)
        self._staged = (0, 0)  # bytes and files already on the disk under a temporary name
        self._held = ExitStack()  # the lock of the counter, from the admission of a change until it is made
        self._root: Root | None = None  # for lookups of the path among the workspace's own files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._held.close()
        if self._root is not None:
            self._root.close()
        if isinstance(error, DiskFull) and has_space(layers_of(self._home, self._workspace)):
            # The workspace's quota image is full, because its file system needs some space for itself.
            self._held = ExitStack()
            with self._alone():
                count = self._measure(self._count())
                self._refuse(count, "size", count.bytes, self._allowed.bytes or count.bytes, more=0)

    @contextmanager
    def limiting(self, limit: int, *, size: int | None, append: bool = False) -> Iterator[int]:
        """Yield the maximum size of the file.

        Content of a known size is refused before any of it is written; a stream is refused where the quota ends.
        """
        if size is not None:
            self._check_size(size + self._size_now() if append else size)
            yield limit
            return
        most = self._most(limit)
        try:
            yield most
        except QuotaExceeded as error:
            if error.details.get("limit") == "max_bytes" and most < limit:
                self._check_size(most + 1)  # the stream is now known to be too long
            raise

    def _check_size(self, size: int) -> None:
        self._check_file(size)
        if self._is_open:
            return
        growth = max(0, _blocks(size) - self._own_bytes())
        if not self._allowed.is_shared:
            # Without the lock: both the refusal and the final rename are decided with the lock held.
            count = find_count(self._home, self._workspace)
            if count is not None and self._over(count, growth, 0) is None:
                return
        self._admit(growth, 0, reserve=False)

    def _most(self, limit: int) -> int:
        if self._allowed.file_bytes is not None and not self._is_elsewhere:
            limit = min(limit, self._allowed.file_bytes)
        if self._is_open or self._allowed.bytes is None:
            return limit
        with self._alone():
            count = self._count()
            room = self._allowed.bytes - count.bytes + self._own_bytes()
            if room < limit and not count.is_sure():
                room = self._allowed.bytes - self._measure(count).bytes + self._own_bytes()
        return max(0, min(limit, room))

    def _size_now(self) -> int:
        found = self._own(self._path)
        return found.st_size if found else 0

    def admit_file(self, size: int, *, is_new: bool, is_staged: bool) -> None:
        """Count a file before it is renamed into place, or raise QuotaExceeded.

        A staged file has a temporary name already, so that a measurement includes it.
        """
        self._check_file(size)
        if not self._is_open:
            self._staged = (_blocks(size), 1) if is_staged else (0, 0)
            missing = self._missing_directories()
            growth = _blocks(size) - self._own_bytes() + missing * BLOCK
            self._admit(growth, missing + is_new)

    def admit_directory(self) -> None:
        """Count a directory with its missing parents before it is created."""
        if not self._is_open:
            missing = self._missing_directories() + 1
            self._admit(missing * BLOCK, missing)

    def admit_move(self, root: Root, path: str) -> None:
        """Count what an overlay copies up when a shared entry is renamed; the workspace's own files only move."""
        if self._is_open or self._is_own():
            return
        raw = root.check(path)
        descriptor = root.open_path(raw, os.O_NOFOLLOW)
        try:
            here = os.fstat(descriptor)
            found = measure(f"/proc/self/fd/{descriptor}/.") if S_ISDIR(here.st_mode) else Measured(bytes=0, files=0)
        finally:
            os.close(descriptor)
        self._admit(found.bytes + _blocks(here.st_size) + BLOCK, found.inodes + 2)

    def admit_deletion(self) -> None:
        """Count a deletion, which is never refused: in an overlay, the whiteout of a shared file takes an inode."""
        if not self._is_open:
            with self._alone():
                count = self._count()
                write_count(self._home, self._workspace, count.replace(files=count.files + 1, is_measured=False))

    # -- locks and counting --

    def _alone(self) -> AbstractContextManager[None]:
        """Lock the counter exclusively; the first reader also writes it."""
        key = "" if self._allowed.is_shared else f" {self._workspace.uid}"
        return self._home.hold(f"quota{key}")

    def _changing(self, *, shared: bool) -> AbstractContextManager[None]:
        """Lock between the admission and the rename: shared by changes, excluded by a measurement."""
        return self._home.hold(f"quota {self._workspace.uid} changing", shared=shared)

    def _measured(self, before: Count | None) -> Count:
        # With a common limit of several workspaces, a change keeps the counter's lock, so it is held already.
        with nullcontext() if self._allowed.is_shared else self._changing(shared=False):
            return measured_count(self._home, self._workspace, before)

    def _count(self) -> Count:
        found = find_count(self._home, self._workspace)
        if found is None:
            found = self._measured(None)
            write_count(self._home, self._workspace, found)
        return found

    def _measure(self, count: Count) -> Count:
        found = self._measured(count)
        size, files = self._staged  # included both in the measurement and in the planned growth
        found = found.replace(bytes=max(0, found.bytes - size), files=max(0, found.files - files))
        write_count(self._home, self._workspace, found)
        return found

    def _admit(self, more_bytes: int, more_files: int, *, reserve: bool = True) -> None:
        with ExitStack() as hold:
            hold.enter_context(self._alone())
            count = self._count()
            over = self._over(count, more_bytes, more_files)
            if over and not count.is_sure():
                count = self._measure(count)
                over = self._over(count, more_bytes, more_files)
            if over:
                self._refuse(count, *over, more=more_files if over[0] == "files" else more_bytes)
            if reserve:
                count = self._warn(count, more_bytes, more_files)
                count = count.replace(
                    bytes=max(0, count.bytes + more_bytes), files=count.files + more_files, is_measured=False
                )
                write_count(self._home, self._workspace, count)
                # A rename during a measurement can hide a file from it, so no measurement may run until the rename is
                # done.
                if self._allowed.is_shared:
                    self._held = hold.pop_all()
                else:
                    self._held.enter_context(self._changing(shared=True))

    def _uses(self, count: Count, more_bytes: int, more_files: int) -> Iterator[tuple[str, int, int]]:
        return _uses(self._home, self._workspace, self._allowed, count, more_bytes, more_files)

    def _over(self, count: Count, more_bytes: int, more_files: int) -> tuple[str, int, int] | None:
        """Return the first limit that this would exceed; a change that does not grow is always admitted."""
        for name, used, allowed in self._uses(count, more_bytes, more_files):
            if used > allowed and (more_files if name == "files" else more_bytes) > 0:
                return name, used, allowed
        return None

    def _warn(self, count: Count, more_bytes: int, more_files: int) -> Count:
        for name, used, allowed in self._uses(count, more_bytes, more_files):
            if used < allowed * WARN_SHARE or name in count.warned:
                continue
            if not count.is_measured:
                return self._warn(self._measure(count), more_bytes, more_files)
            fact = QuotaWarned(**self._workspace.names(), limit=name, used=used, allowed=allowed)
            self._home.record(self._workspace.task_id, fact, durable=False)
            count = count.replace(warned=[*count.warned, name])
        return count

    def _refuse(self, count: Count, name: str, used: int, allowed: int, *, more: int) -> NoReturn:
        if name not in count.exceeded:
            fact = QuotaWasExceeded(
                **self._workspace.names(), limit=name, used=used - more, allowed=allowed, path=self._path
            )
            self._home.record(self._workspace.task_id, fact)
            write_count(self._home, self._workspace, count.replace(exceeded=[*count.exceeded, name]))
        raise refusal(self._workspace, name, used - more, allowed, more=more, path=self._path)

    def _check_file(self, size: int) -> None:
        most = self._allowed.file_bytes
        if most is not None and size > most and not self._is_elsewhere:
            raise QuotaExceeded(
                f"{self._path} would be {size} bytes long, and no file of {self._workspace.id} may be over {most}",
                hint="write less; max_file_mb of the workspace is the limit",
                details={"limit": "file", "used": size, "allowed": most},
            )

    # -- the workspace's own files --

    def _own(self, path: str) -> os.stat_result | None:
        """Return the stat of the workspace's own entry at a path, not following links; None if that is uncertain."""
        from workstead.errors import WorksteadError

        top, rest = self._workspace.path, path
        if self._workspace.filled.get("mechanism") in _VIEWS and path.split("/")[0] == "work":
            uppers = _uppers(self._home, self._workspace)
            if len(uppers) != 1:
                return None
            top, rest = uppers[0], path[len("work") :].lstrip("/") or "."
        try:
            if self._root is None:
                from workstead.system.files.root import Root

                self._root = Root.open(top)
            descriptor = self._root.open_path(self._root.check(rest), os.O_NOFOLLOW)
        except (OSError, WorksteadError):
            return None
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def _is_own(self) -> bool:
        if self._workspace.filled.get("mechanism") not in _VIEWS or self._path.split("/")[0] != "work":
            return True
        found = self._own(self._path)
        return found is not None and not S_ISDIR(found.st_mode)  # a directory may have shared entries

    def _own_bytes(self) -> int:
        """Return the bytes that are freed when the file is replaced."""
        found = self._own(self._path)
        return found.st_blocks * 512 if found and S_ISREG(found.st_mode) and found.st_nlink == 1 else 0

    def _missing_directories(self) -> int:
        """Return how many parent directories of the path are not the workspace's own yet."""
        parts = self._path.rstrip("/").split("/")[:-1]
        for depth in range(len(parts), 0, -1):
            if self._own("/".join(parts[:depth])) is not None:
                return len(parts) - depth
        return len(parts)


def refusal(
    workspace: Workspace, name: str, used: int, allowed: int, *, more: int = 0, path: str = ""
) -> QuotaExceeded:
    """Build the error for an exceeded limit."""
    whose = {"task": f"task {workspace.task_id}", "total": "all workspaces together"}.get(
        name, f"workspace {workspace.id}"
    )
    unit = "files" if name == "files" else "bytes"
    return QuotaExceeded(
        f"{path or workspace.id}: {more} {unit} more are wanted, and {whose} has {used} of {allowed}",
        hint=f"delete something; aw usage {word(workspace.id)} shows what there is, aw sweep frees what nobody needs",
        details={"limit": name, "used": used, "allowed": allowed, "wanted": more},
    )


def _blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
