"""Location of an archive: a file, or an object in a bucket.

A file appears under its name only when it is complete and durable: until then it has no name at all, so a killed writer
leaves nothing. Without `replace`, an existing file is not overwritten.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from errno import EISDIR, EOPNOTSUPP
from hashlib import sha256

from workstead.errors import ArchiveNotFound, FileExists, NotAFile, PathTooLong, from_os
from workstead.system.files.durable import make_folders, sync_file, sync_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    class Target(Protocol):
        """A sink for the bytes of an archive that counts them."""

        size: int

        def write(self, data: bytes) -> None: ...
        def digest(self) -> str: ...


SUFFIX = ".aw.tar.zst"
_BLOCK = 1 << 20


def is_remote(location: str) -> bool:
    """Return whether this names an object in a bucket."""
    return location.startswith("s3://")


def place_of(location: str, name: str) -> str:
    """Return the target path of an archive: `name` in a directory, or the location itself."""
    if is_remote(location):
        return location + name if location.endswith("/") else location
    return os.path.join(location, name) if location.endswith("/") or os.path.isdir(location) else location


@contextmanager
def writing(location: str, *, replace: bool) -> Iterator[Target]:
    """Yield a target to write an archive to; it appears when the context ends well, and leaves nothing otherwise."""
    if is_remote(location):
        from workstead.archives.buckets import writing as writing_to_bucket

        with writing_to_bucket(location, replace=replace) as target:
            yield target
        return
    folder, name = os.path.split(os.path.abspath(location))
    if len(os.fsencode(folder)) >= 4096:  # makedirs would create level after level before the kernel refuses
        raise PathTooLong("the place of the archive has a path of over 4096 bytes", hint="choose a shorter one")
    if not replace and os.path.lexists(location):
        raise _exists(location)
    try:
        make_folders(folder)
        file = _File(folder, location)
    except OSError as error:
        raise from_os(error, location) from error
    with file:
        yield file
        try:
            file.stand_as(name, replace=replace)
        except FileExistsError:  # created by another process meanwhile
            raise _exists(location) from None
        except OSError as error:
            raise from_os(error, location) from error


def _exists(location: str) -> FileExists:
    return FileExists(f"{location} exists already", hint="choose another name, or --force")


class _File:
    """A file without a name (O_TMPFILE), or with a hidden one if the file system cannot do that."""

    def __init__(self, folder: str, location: str) -> None:
        self._folder = folder
        self._location = location
        self._hidden = ""
        try:
            self._fd = os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in (EISDIR, EOPNOTSUPP):
                raise
            self._hidden = f"{folder}/.{os.urandom(8).hex()}.part"
            self._fd = os.open(self._hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._digest = sha256()
        self.size = 0

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        if self._hidden:
            with suppress(FileNotFoundError):
                os.unlink(self._hidden)

    def write(self, data: bytes) -> None:
        """Append."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise from_os(error, self._location) from error
        self._digest.update(data)
        self.size += len(data)

    def digest(self) -> str:
        """Return the digest of all bytes written."""
        return self._digest.hexdigest()

    def stand_as(self, name: str, *, replace: bool) -> None:
        """Link the file under its name, durably."""
        sync_file(self._fd)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not replace:
                self._link(folder, name)
            else:
                aside = f".{os.urandom(8).hex()}.part"
                self._link(folder, aside)
                os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
            sync_names(folder)
        finally:
            os.close(folder)

    def _link(self, folder: int, name: str) -> None:
        source = self._hidden or f"/proc/self/fd/{self._fd}"
        # With a descriptor Python calls `linkat`, which can follow /proc's link to the unnamed file.
        os.link(source, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)


@contextmanager
def reading(location: str) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Yield the size of an archive and its bytes, streamed."""
    if is_remote(location):
        from workstead.archives.buckets import reading as reading_from_bucket

        with reading_from_bucket(location) as found:
            yield found
        return
    try:
        # O_NONBLOCK: a pipe or device is opened only to be refused. A link to a file is the caller's choice.
        fd = os.open(location, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ArchiveNotFound(f"there is no archive {location}", hint="check the spelling") from None
    except OSError as error:
        raise from_os(error, location) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise NotAFile(f"{location} is not a file", hint="an archive is one .aw.tar.zst file")
        yield status.st_size, _chunks(fd, location)
    finally:
        os.close(fd)


def _chunks(fd: int, location: str) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(fd, _BLOCK)
        except OSError as error:
            raise from_os(error, location) from error
        if not data:
            return
        yield data
