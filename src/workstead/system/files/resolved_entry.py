"""A resolved directory entry: its real path and content, independent of the path that led to it.

A path may go through links that an agent has created; a policy rule about paths has to judge the real path. The
directory is already open, so it cannot be replaced between the check and the operation.
"""

from __future__ import annotations

import os
from stat import S_ISDIR, S_ISREG

from workstead.system.files.reading import MAX_DIGEST_BYTES, digest_of
from workstead.system.files.root import HANDLE, reopen
from workstead.system.files.walk import Limits, Walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.system.files.root import Root

FACT_BYTES = 8000  # bytes examined to decide whether content is binary


class Held:
    """An entry of an open directory, or of one that will be created below it."""

    def __init__(self, root: Root, folder: int, name: bytes, *, has_temporary: bool = False) -> None:
        self.root = root
        self.has_temporary = has_temporary  # its new content is beside it, under a temporary name
        self._folder = folder
        self._name = name

    @property
    def path(self) -> str:
        """Return the path from the root, with every link on the way resolved."""
        return os.fsdecode(b"/".join(part for part in (path_of(self.root, self._folder), self._name) if part))

    def stat(self) -> os.stat_result | None:
        """Return the stat of the entry, without following a link; None if it does not exist."""
        try:
            return os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self) -> bool:
        """Return whether the entry exists, also as a dangling link."""
        return self.stat() is not None

    def target(self) -> str:
        """Return the target of the link."""
        return os.fsdecode(os.readlink(self._name, dir_fd=self._folder))

    def open(self) -> int:
        """Return a readable descriptor of the regular file; raise OSError for any other kind."""
        handle = os.open(self._name, HANDLE, dir_fd=self._folder)
        try:
            return reopen(handle)[0]
        finally:
            os.close(handle)

    def start(self) -> bytes | None:
        """Return the first bytes of the file; None if it is not a readable file."""
        return self.content(FACT_BYTES)

    def content(self, most: int) -> bytes | None:
        """Return up to `most` bytes of the file; None if it is not a readable file."""
        try:
            fd = self.open()
        except OSError:
            return None
        try:
            return os.pread(fd, most, 0)
        finally:
            os.close(fd)

    def fingerprint(self, limits: Limits | None = None) -> str:
        """Return a text that changes whenever the entry changes: "" for a missing one, the digest of a file.

        For a directory, and for a file that is too large for a digest, it is made of times that only the kernel sets.
        """
        found = self.stat()
        if found is None:
            return ""
        if S_ISREG(found.st_mode) and found.st_size <= MAX_DIGEST_BYTES:
            try:
                fd = self.open()
            except OSError:
                return _by_times(found)
            try:
                return digest_of(fd, MAX_DIGEST_BYTES)
            finally:
                os.close(fd)
        if S_ISDIR(found.st_mode):
            return self._listing(limits)[0]
        return _by_times(found)

    def listing(self, limits: Limits | None = None) -> list[tuple[str, int]]:
        """Return every path below the directory with its size; empty if it is not a directory."""
        found = self.stat()
        return self._listing(limits)[1] if found is not None and S_ISDIR(found.st_mode) else []

    def _listing(self, limits: Limits | None) -> tuple[str, list[tuple[str, int]]]:
        from hashlib import sha256

        lines: list[str] = []
        paths: list[tuple[str, int]] = []
        with Walk(self.root, self.path, limits) as walk:
            for visit in walk:
                for entry in visit.entries or ():
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    path = visit.prefix() + entry.name
                    lines.append(f"{path}\0{_by_times(found)}\0")
                    paths.append((path, found.st_size if S_ISREG(found.st_mode) else 0))
        lines.sort()
        return f"tree:{sha256(os.fsencode(''.join(lines))).hexdigest()}", sorted(paths)


class OpenFile(Held):
    """A file that is already open, under any name."""

    def __init__(self, root: Root, fd: int) -> None:
        super().__init__(root, fd, b"")

    def stat(self) -> os.stat_result:
        return os.fstat(self._folder)

    def open(self) -> int:
        return os.dup(self._folder)


def path_of(root: Root, fd: int) -> bytes:
    """Return the path of an open directory or file relative to the root; b"" is the root itself.

    Both paths are read in the same way from /proc, so the result is correct in another mount namespace, too: one is a
    prefix of the other."""
    top = os.readlink(b"/proc/self/fd/%d" % root.fd).rstrip(b"/")
    there = os.readlink(b"/proc/self/fd/%d" % fd)
    if there == top:
        return b""
    if there.endswith(b" (deleted)") and not os.fstat(fd).st_nlink:
        raise FileNotFoundError(2, "was removed this instant")
    if not there.startswith(top + b"/"):
        raise OSError(18, "is no longer beneath the workspace")  # EXDEV: just moved away
    return there[len(top) + 1 :]


def _by_times(found: os.stat_result) -> str:
    return f"stat:{found.st_mode:o}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
