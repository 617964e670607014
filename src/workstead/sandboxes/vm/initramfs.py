"""Write the initramfs archive that the kernel unpacks: cpio in the newc format."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO


class Archive:
    """A stream of entries; parent directories are added automatically."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._number = 0
        self._made: set[str] = set()

    def _add(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0), mtime: int = 0) -> None:
        self._number += 1
        raw = os.fsencode(name) + b"\0"
        fields = (self._number, mode, 0, 0, 1, mtime, len(data), 0, 0, *device, len(raw), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + raw
        self._file.write(head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4))

    def folder(self, path: str, mode: int = 0o755) -> None:
        """Add a directory, and its parents."""
        path = path.strip("/")
        if path in self._made or not path:
            return
        self.folder(os.path.dirname(path))
        self._made.add(path)
        self._add(path, stat.S_IFDIR | mode)

    def file(self, path: str, data: bytes, mode: int = 0o644, mtime: int = 0) -> None:
        """Add a file with these bytes."""
        path = path.strip("/")
        if path in self._made:
            return
        self.folder(os.path.dirname(path))
        self._made.add(path)
        self._add(path, stat.S_IFREG | mode, data, mtime=mtime)

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        path = path.strip("/")
        self.folder(os.path.dirname(path))
        self._made.add(path)
        self._add(path, stat.S_IFLNK | 0o777, os.fsencode(target))

    def device(self, path: str, major: int, minor: int, mode: int) -> None:
        """Add a character device."""
        path = path.strip("/")
        self.folder(os.path.dirname(path))
        self._add(path, stat.S_IFCHR | mode, device=(major, minor))

    def end(self) -> None:
        """Write the end marker."""
        self._add("TRAILER!!!", 0)
