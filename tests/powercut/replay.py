"""Rebuild what a cut at any moment leaves of the recorded disks.

A disk keeps everything up to its last flush, and any part of what came after it. The flushed part of one moment is a
part of that of the next, so it is written once, into one image for each disk, and each cut gets a sparse copy of it.
"""

from __future__ import annotations

import os
import random
import subprocess
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from powercut.recorder import FLUSH, HEADER, WRITE

BLOCK = 4096  # what a disk writes at once


class Entry(NamedTuple):
    """One write or flush: a moment is the length of the record after it."""

    at: int
    disk: int
    kind: int
    offset: int  # on the disk
    start: int  # of the bytes in the record
    length: int


class Record:
    """What the recorder wrote down, and the images that it began with."""

    def __init__(self, record: Path, empty: list[Path]) -> None:
        self._file = record
        self.entries = _read(record)
        self._disks = [
            _Disk(record, image, [each for each in self.entries if each.disk == number])
            for number, image in enumerate(empty)
        ]

    def rebuild(self, moment: int, images: list[Path], chance: random.Random, keep: float) -> None:
        """Write the image of each disk after a cut; chance keeps this part of what was not flushed, block by block."""
        for disk, image in zip(self._disks, images, strict=True):
            disk.rebuild(moment, image, chance, keep)

    def before_flushes(self) -> list[int]:
        """The moments in which most is at stake: a flush was asked for and not yet done."""
        return [before.at for before, entry in zip(self.entries, self.entries[1:], strict=False) if entry.kind == FLUSH]

    def remove(self) -> None:
        """Delete the record and the images made from it."""
        self._file.unlink()
        for disk in self._disks:
            disk.remove()


class _Disk:
    """One disk: its writes in order, and an image that holds those up to a flush."""

    def __init__(self, record: Path, empty: Path, entries: list[Entry]) -> None:
        self._record, self._empty, self._entries = record, empty, entries
        self._moments = [each.at for each in entries]
        self._flushes = [number for number, each in enumerate(entries) if each.kind == FLUSH]
        self._image = Path(f"{record}.{empty.name}")
        self._done = len(entries) + 1  # entries that are in the image; none fits before it was made

    def rebuild(self, moment: int, target: Path, chance: random.Random, keep: float) -> None:
        end = bisect_right(self._moments, moment)
        last = bisect_right(self._flushes, end - 1)
        flushed = self._flushes[last - 1] if last else 0
        if flushed < self._done:
            _copy(self._empty, self._image)
            self._done = 0
        self._write(self._image, self._entries[self._done : flushed], random.Random(), 1.0)
        self._done = flushed
        _copy(self._image, target)
        self._write(target, self._entries[flushed:end], chance, keep)

    def _write(self, image: Path, entries: list[Entry], chance: random.Random, keep: float) -> None:
        source, target = os.open(self._record, os.O_RDONLY), os.open(image, os.O_WRONLY)
        try:
            for each in entries:
                if each.kind != WRITE:
                    continue
                data = os.pread(source, each.length, each.start)
                if keep == 1.0:
                    os.pwrite(target, data, each.offset)
                    continue
                for block in range(0, each.length, BLOCK):
                    if chance.random() < keep:
                        os.pwrite(target, data[block : block + BLOCK], each.offset + block)
        finally:
            os.close(source)
            os.close(target)

    def remove(self) -> None:
        self._image.unlink(missing_ok=True)


def _read(record: Path) -> list[Entry]:
    entries = []
    with open(record, "rb") as file:
        while header := file.read(HEADER.size):
            offset, length, disk, kind = HEADER.unpack(header)
            start = file.tell()
            file.seek(length, os.SEEK_CUR)
            entries.append(Entry(file.tell(), disk, kind, offset, start, length))
    return entries


def _copy(source: Path, target: Path) -> None:
    # A new file each time: the mounts of the last cut may still be on their way out, and write to theirs.
    target.unlink(missing_ok=True)
    subprocess.run(["cp", "--sparse=auto", source, target], check=True)
