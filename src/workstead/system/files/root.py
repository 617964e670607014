"""`Root`: an open directory that paths cannot escape.

The agent may create any link and rename anything at any moment, so checking a path's text, or its target a moment ago,
proves nothing. The rules of this file:

1. A `Root` holds one descriptor. Paths are resolved from it by a resolver that cannot lead out (see `openat2`), never
   from a path on the host: a root that is renamed or replaced stays the directory that was opened.
2. `check` rejects text that is not a relative path: empty, NUL, absolute, a whole component `..`, too long. Nothing is
   normalised: `link/../x` is not `x`, and `..x` is a name. Everything else is left to the kernel.
3. `resolve` is the lenient alternative: it rewrites text to a clean relative path. Its result is only text again, and
   is opened under rules 1 and 2.
4. A file's type is checked before it is opened: through an O_PATH descriptor, and only a regular file is then opened
   for reading, through that same descriptor. Opening a pipe would block, opening a device may have side effects.
   On a mount with `nodev` the kernel itself refuses devices, and O_NONBLOCK makes pipes harmless, so there one open is
   enough; a root that is read often gets such a mount of its own, if we may make one.
5. Errors name the public path, as the agent sees it, with control characters escaped; never the host's.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from errno import (
    EAGAIN,
    EEXIST,
    EINVAL,
    EISDIR,
    ELOOP,
    ENAMETOOLONG,
    ENOENT,
    ENOTDIR,
    ENOTEMPTY,
    ENXIO,
    ESPIPE,
    EXDEV,
)
from stat import S_ISREG

from workstead.errors import (
    AbsolutePath,
    FileExists,
    FileNotFound,
    FilesystemError,
    InvalidPath,
    NotADirectory,
    NotAFile,
    NullByteInPath,
    PathOutsideWorkspace,
    PathTooLong,
    PathTraversal,
    PermissionDenied,
    QuotaExceeded,
    SymlinkOutsideWorkspace,
    WorksteadError,
    from_os,
)
from workstead.model.text import printable
from workstead.system.kernel.libc import libc
from workstead.system.kernel.openat2 import (
    BENEATH,
    NO_MAGICLINKS,
    NO_XDEV,
    OPENAT2,
    RESOLVERS,
    SIZE,
    clone_without_devices,
    openat2_unexplained,
    prepare,
    probe,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

PUBLIC_MOUNT = "/mnt/workspace"
MAX_PATH_BYTES = 4095  # the kernel's 4096 include the NUL

HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC  # to stat an entry without following a link
READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY
_OFTEN = 64
_ENCODING = sys.getfilesystemencoding()


class Root:
    """An open directory that paths cannot escape; closed by `with`, or by `close`."""

    __slots__ = (
        "_direct",
        "_direct_fd",
        "_kept_out",
        "_open",
        "_slow",
        "fd",
        "fills_reads",
        "public_mount",
        "resolver",
    )

    def __init__(self, fd: int, *, public: str = PUBLIC_MOUNT, resolver: str | None = None, keep_out: str = "") -> None:
        """Take ownership of an O_PATH descriptor of a directory; usually called by `Root.open`."""
        self.fd = fd
        self._kept_out = _identity(keep_out, fd) if keep_out else None
        self.public_mount = public.rstrip("/") or "/"
        self.resolver = resolver or probe(fd)
        self._open = RESOLVERS[self.resolver]
        self._direct: object | None = None
        self._direct_fd = fd
        self._slow = 0  # files opened in two steps so far
        self.fills_reads = False  # whether a short read after `open_direct` proves the end of the file
        if self.resolver == "openat2" and os.fstatvfs(fd).f_flag & os.ST_NODEV:
            self._allow_direct(fd)

    @classmethod
    def open(
        cls,
        path: str | bytes,
        *,
        public: str = PUBLIC_MOUNT,
        resolver: str | None = None,
        dir_fd: int | None = None,
        keep_out: str = "",
    ) -> Root:
        """Open the directory at `path` of the host (beneath `dir_fd` if given); it must not be a link itself.

        `keep_out` names a subdirectory in which nothing may be changed, by any path that leads there.
        """
        try:
            fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
        except OSError as error:
            raise failure(error, printable(public)) from None
        try:
            return cls(fd, public=public, resolver=resolver, keep_out=keep_out)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Close the descriptor; idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
            if self._direct_fd != fd:
                os.close(self._direct_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- text ----------------------------------------------------------------------------------------------------------

    def check(self, unsafe_path: str | bytes) -> bytes:
        """Return the bytes of a strict path; raise an error that says what is wrong with it."""
        try:  # checked as text, which is five times faster than as bytes; nearly every path returns here
            if ".." not in unsafe_path and "\0" not in unsafe_path and unsafe_path[0] != "/":
                raw = unsafe_path.encode(_ENCODING)  # type: ignore[union-attr]
                if len(raw) <= MAX_PATH_BYTES:
                    return raw
        except (AttributeError, LookupError, TypeError, UnicodeEncodeError):
            pass  # bytes, empty, surrogate escapes, or no text at all
        raw = _encode(unsafe_path)
        self._refuse_text(raw)
        return raw

    def _refuse_text(self, raw: bytes) -> None:
        if not raw:
            raise InvalidPath("the path is empty", hint=f'"." is {printable(self.public_mount)} itself')
        if b"\0" in raw:
            raise NullByteInPath("the path holds a NUL byte")
        if len(raw) > MAX_PATH_BYTES:
            raise PathTooLong(f"the path has {len(raw)} bytes, more than {MAX_PATH_BYTES}")
        if raw.startswith(b"/"):  # not repeated in the message: it may be a path of the host
            raise AbsolutePath("the path is absolute", hint=f"paths are relative to {printable(self.public_mount)}")
        if b".." in raw.split(b"/"):
            raise PathTraversal(
                f"{printable(os.fsdecode(raw))} has a component '..'", hint="name the file by its own path"
            )

    def resolve(self, unsafe_path: str) -> str:
        """Rewrite a path written by a person or agent to a relative path for the strict functions.

        Backslashes are separators; an absolute path is relative to the public mount, or to the root; `.` and doubled
        separators are dropped; `..` removes one component, and is rejected if there is none to remove.
        """
        if not isinstance(unsafe_path, str) or not unsafe_path:
            raise InvalidPath("the path is empty")
        text = unsafe_path.replace("\\", "/")
        steps = [step for step in text.split("/") if step not in ("", ".")]
        if text.startswith("/"):
            mount = self.public_mount.strip("/").split("/")
            if steps[: len(mount)] == mount:
                del steps[: len(mount)]
        kept: list[str] = []
        for step in steps:
            if step != "..":
                kept.append(step)
            elif kept:
                kept.pop()
            else:
                raise PathOutsideWorkspace(f"{printable(unsafe_path)} leads out of {printable(self.public_mount)}")
        clean = "/".join(kept) or "."
        self.check(clean)
        return clean

    def public(self, rel: str | bytes) -> str:
        """Return the path by which the agent knows `rel`."""
        text = os.fsdecode(rel)
        if text in ("", ".", "./"):
            return self.public_mount
        return f"{self.public_mount.rstrip('/')}/{text}"

    def shown(self, rel: str | bytes) -> str:
        """Return the public path, escaped for printing."""
        return printable(self.public(rel))

    def failure(self, error: OSError, rel: str | bytes) -> WorksteadError:
        """Convert an OSError about `rel` to our error."""
        return failure(error, self.shown(rel))

    def over(self, rel: str | bytes, limit: str, most: int, what: str) -> QuotaExceeded:
        """Return the error for a limit that `rel` exceeds."""
        return QuotaExceeded(
            f"{self.shown(rel)} has more than {most} {what}",
            hint=f"the limit is {limit}; ask for a part, or raise it",
            details={"limit": limit, "max": most},
        )

    # -- descriptors ---------------------------------------------------------------------------------------------------
    # These take checked paths and raise OSError: their callers know which path the error has to name.

    def open_path(self, raw: bytes, flags: int = 0) -> int:
        """Return an O_PATH descriptor of an entry of any kind; add O_NOFOLLOW for a link itself, or O_DIRECTORY."""
        return self._open(self.fd, raw, os.O_PATH | flags)

    def open_folder(self, raw: bytes) -> int:
        """Return a readable descriptor of a directory."""
        return self._open(self.fd, raw, _FOLDER_FLAGS)

    def open_below(self, folder: int, raw: bytes) -> int:
        """Return a readable descriptor of a directory below `folder`, without following any link."""
        return self._open(folder, raw, _FOLDER_FLAGS | os.O_NOFOLLOW, links=False)

    def open_parent(self, raw: bytes) -> tuple[int, bytes]:
        """Return an O_PATH descriptor of the parent directory, and the name of the last component."""
        head, _, name = raw.rpartition(b"/")
        if name in (b"", b".", b".."):
            raise OSError(EINVAL, "names no entry of a directory")
        folder = self.open_path(head or b".", os.O_DIRECTORY)
        try:
            self.refuse_kept_out(folder, name)
        except BaseException:
            os.close(folder)
            raise
        return folder, name

    def refuse_kept_out(self, folder: int, name: bytes = b"") -> None:
        """Raise PermissionDenied if this is the `keep_out` directory, or its name."""
        if self._kept_out is None:
            return
        found = os.fstat(folder)
        if (found.st_dev, found.st_ino) == self._kept_out or (name and _identity(name, folder) == self._kept_out):
            raise PermissionDenied(
                f"the metadata in {printable(self.public_mount)} is only for reading",
                hint="files of the agent are in work/ and output/",
            )

    def open_file(self, raw: bytes) -> tuple[int, os.stat_result]:
        """Return a readable descriptor of a regular file, and its stat; raise OSError ENXIO for any other kind."""
        fd = self.open_direct(raw)
        if fd < 0:
            return self.open_known(raw)
        found = os.fstat(fd)
        if S_ISREG(found.st_mode):
            return fd, found
        os.close(fd)
        raise OSError(ENXIO, "not a regular file")

    def open_known(self, raw: bytes) -> tuple[int, os.stat_result]:
        """Like `open_file`, on every kind of mount: check the type by O_PATH, then open the same inode."""
        self._slow += 1
        if self._slow == _OFTEN and self.resolver == "openat2":
            self._get_own_mount()
        handle = self._open(self.fd, raw, os.O_PATH)
        try:
            return reopen(handle)
        finally:
            os.close(handle)

    def open_direct(self, raw: bytes) -> int:
        """Return a descriptor for reading by one system call, or -1 when only `open_known` can decide.

        Only on a mount with `nodev`, and without leaving that mount: opening has no side effects there. The type is not
        known yet: use `pread`, which fails on a pipe.
        """
        how = self._direct
        if how is None:
            return -1
        fd: int = openat2_unexplained(OPENAT2, self._direct_fd, raw, how, SIZE)
        return fd

    def _allow_direct(self, fd: int) -> None:
        self._direct = prepare(READ_FLAGS, BENEATH | NO_MAGICLINKS | NO_XDEV)
        self._direct_fd = fd
        self.fills_reads = _file_system(fd) in _PAGE_CACHED

    def _get_own_mount(self) -> None:
        """Make a private nodev mount for a root that is used often: making and dropping it costs as much as fifty
        reads."""
        if os.geteuid() == 0:
            with suppress(OSError):  # an old kernel, or root without the mount privilege
                self._allow_direct(clone_without_devices(self.fd))


# File systems that read through the page cache: a read returns all requested bytes, or all that exist.
_PAGE_CACHED = {0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630}  # ext4 xfs btrfs tmpfs overlay


def _identity(name: str | bytes, folder: int) -> tuple[int, int] | None:
    """Return device and inode of an entry without following a link; None if it does not exist."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _file_system(fd: int) -> int:
    """Return the magic number of the file system of a descriptor, 0 if unknown."""
    answer = (ctypes.c_long * 32)()  # struct statfs begins with it
    return int(answer[0]) if libc.fstatfs(fd, answer) == 0 else 0


def _encode(unsafe_path: str | bytes) -> bytes:
    try:
        return os.fsencode(unsafe_path)
    except (TypeError, UnicodeEncodeError):
        raise InvalidPath("a path is text") from None


def reopen(handle: int) -> tuple[int, os.stat_result]:
    """Open the regular file of an O_PATH descriptor for reading: the same inode, even if it was renamed."""
    found = os.fstat(handle)
    if not S_ISREG(found.st_mode):
        raise OSError(ENXIO, "not a regular file")
    return os.open(f"/proc/self/fd/{handle}", READ_FLAGS), found


def rename_no_replace(source: int, name: str | bytes, folder: int, new_name: str | bytes) -> None:
    """Rename an entry of one open directory into another; raise EEXIST if the new name is taken."""
    _rename(source, name, folder, new_name, 1)  # RENAME_NOREPLACE


def rename_exchange(source: int, name: str | bytes, folder: int, new_name: str | bytes) -> None:
    """Swap two entries of open directories atomically; raise ENOENT if either is missing."""
    _rename(source, name, folder, new_name, 2)  # RENAME_EXCHANGE


def _rename(source: int, name: str | bytes, folder: int, new_name: str | bytes, flags: int) -> None:
    sys.audit("os.rename", name, new_name, source, folder)  # as os.rename does: the crash tests hook it
    result: int = libc.renameat2(source, os.fsencode(name), folder, os.fsencode(new_name), flags)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def failure(error: OSError, name: str) -> WorksteadError:
    """Convert an OSError about the thing shown as `name` to our error."""
    known = _FAILURES.get(error.errno or 0)
    if known is None:
        return from_os(error, name)
    kind, says = known
    return kind(f"{name} {says}")


_FAILURES: dict[int, tuple[type[WorksteadError], str]] = {
    ENOENT: (FileNotFound, "does not exist"),
    EXDEV: (SymlinkOutsideWorkspace, "leads out of the workspace through a symbolic link"),
    ELOOP: (InvalidPath, "leads through too many symbolic links"),
    ENOTDIR: (NotADirectory, "is not a directory, or leads through something that is none"),
    EISDIR: (NotAFile, "is a directory"),
    ENXIO: (NotAFile, "is not a regular file"),
    ESPIPE: (NotAFile, "is not a regular file"),
    EEXIST: (FileExists, "exists already"),
    ENOTEMPTY: (FileExists, "is a directory that is not empty"),
    EINVAL: (InvalidPath, "cannot be used in this way"),
    ENAMETOOLONG: (InvalidPath, "has a name of more than 255 bytes, or is too long"),
    EAGAIN: (FilesystemError, "is being changed by somebody else; try again"),
}
