"""Files without a name that processes keep on the disk: deleted while open, or created by O_TMPFILE.

No walk of a tree finds them, so /proc is searched for the files of each process: descriptors, mappings, program and
working directory. Threads are searched one by one, because a thread may have its own descriptor table, and a process
whose first thread has ended shows none.

Two references to a file cannot be measured: a descriptor in the queue of a unix socket, and, for an ordinary user, a
mapping whose descriptor was closed. Both can be detected, and then the sum is not `complete`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from ctypes import c_int, c_long
from stat import S_ISDIR, S_ISREG, S_ISSOCK

from workstead.model.value import Value
from workstead.system.kernel.libc import syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_KCMP = {"x86_64": 312, "aarch64": 272}
_KCMP_FILES = 2
_IN_MEMORY = (b"tmpfs", b"ramfs", b"hugetlbfs", b"devtmpfs", b"mqueue")  # file systems that take memory, not disk
_DELETED = b" (deleted)"


class Nameless(Value):
    """The sum of the nameless files of some processes."""

    bytes: int = 0
    files: int = 0
    complete: bool = True  # False: they hold files that cannot be measured


def nameless(pids: Iterable[int]) -> Nameless:
    """Sum up the nameless files of these processes, each file once. A process that ends meanwhile counts as nothing."""
    found = _Found()
    for pid in pids:
        found.add_process(pid)
    return Nameless(bytes=found.bytes, files=len(found.seen), complete=found.complete)


class _Found:
    def __init__(self) -> None:
        self.bytes = 0
        self.seen: set[tuple[int, int]] = set()
        self._inodes: set[int] = set()  # without device: a mapping may show another device for a file of an overlay
        self.complete = True

    def add_process(self, pid: int) -> None:
        holder = _Holder(pid)
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return
        self._add(holder, f"/proc/{pid}/exe")
        maps, last = b"", 0
        for task in tasks:
            self._add(holder, f"/proc/{pid}/task/{task}/cwd")
            if not (last and _share_descriptors(last, int(task))):
                self._add_descriptors(holder, f"/proc/{pid}/task/{task}")
            last = int(task)
            maps = maps or self._read(f"/proc/{pid}/task/{task}/maps")
        for line in maps.splitlines():
            if line.endswith(_DELETED):
                self._add_mapping(holder, line)

    def _add_descriptors(self, holder: _Holder, task: str) -> None:
        try:
            names = os.listdir(f"{task}/fd")
        except PermissionError:
            self.complete = False
            return
        except OSError:
            return
        for name in names:
            stat = self._add(holder, f"{task}/fd/{name}")
            if stat and S_ISSOCK(stat.st_mode):
                queued = self._read(f"{task}/fdinfo/{name}").partition(b"scm_fds:")[2].split()[:1]
                self.complete &= queued in ([], [b"0"])

    def _add(self, holder: _Holder, path: str) -> os.stat_result | None:
        """Count the target of a link in /proc if it has no name, takes disk space and belongs to the run."""
        try:
            stat = os.stat(path)
        except OSError:
            return None
        if not stat.st_nlink and (S_ISREG(stat.st_mode) or S_ISDIR(stat.st_mode)):
            key = (stat.st_dev, stat.st_ino)
            if key not in self.seen and stat.st_uid == holder.uid and stat.st_dev not in holder.in_memory:
                self.seen.add(key)
                self._inodes.add(stat.st_ino)
                self.bytes += stat.st_blocks * 512
        return stat

    def _add_mapping(self, holder: _Holder, line: bytes) -> None:
        addresses, _, _, device, inode = line.split(None, 5)[:5]
        major, minor = (int(part, 16) for part in device.split(b":"))
        if os.makedev(major, minor) in holder.in_memory or int(inode) in self._inodes:
            return
        start, end = (int(part, 16) for part in addresses.split(b"-"))
        if self._add(holder, f"/proc/{holder.pid}/map_files/{start:x}-{end:x}") is None:
            self.complete = False

    def _read(self, path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read()
        except PermissionError:
            self.complete = False
        except OSError:
            pass
        return b""


class _Holder:
    """A process; expensive attributes are computed on demand."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._uid = -1
        self._in_memory: set[int] = set()

    @property
    def uid(self) -> int:
        """Return the user whose files count for the run: it may also hold deleted files of the system."""
        if self._uid < 0:
            with suppress(OSError, IndexError), open(f"/proc/{self.pid}/status", "rb") as file:
                self._uid = int(file.read().partition(b"\nUid:")[2].split()[0])
        return self._uid

    @property
    def in_memory(self) -> set[int]:
        """Return the device numbers of the in-memory file systems mounted for this process."""
        if not self._in_memory:
            self._in_memory.add(_device_of_memory_files())
            with suppress(OSError), open(f"/proc/{self.pid}/mountinfo", "rb") as file:
                for line in file:
                    fields, _, rest = line.partition(b" - ")
                    if rest.startswith(_IN_MEMORY):
                        major, minor = map(int, fields.split()[2].split(b":"))
                        self._in_memory.add(os.makedev(major, minor))
        return self._in_memory


def _device_of_memory_files() -> int:
    """Return the device of memfd, shared memory and shared anonymous mappings; it is mounted nowhere."""
    descriptor = os.memfd_create("device")
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


def _share_descriptors(task: int, other: int) -> bool:
    """Return whether two threads share one descriptor table; False if unknown."""
    pair, nothing = (c_int(task), c_int(other)), c_long(0)
    try:
        return syscall(_KCMP[os.uname().machine], *pair, c_int(_KCMP_FILES), nothing, nothing) == 0
    except (OSError, KeyError):
        return False
