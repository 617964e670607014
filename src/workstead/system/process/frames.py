"""A run's output as frames: which stream, when, how many bytes, the bytes.

One file holds both streams in the order in which they arrived, byte for byte, and grows at its end only, so that any
number of processes can read along. The last frame is the end of the run. The same frames travel over the control
socket in both directions. A reader that finds half a frame waits for the rest.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STDIN, STDOUT, STDERR = 0, 1, 2
DROPPED = 3  # from here on output is counted and not kept
END = 4  # the run is over; the payload is its result as JSON
RESIZE = 5  # rows and columns, two 16-bit numbers
STOP = 6
HELLO = 7  # a client says what it wants: any of b"oi", output and the right to write stdin
EOF = 8  # nothing more for stdin

_HEADER = struct.Struct("<BxxxIQ")
HEADER_SIZE = _HEADER.size
MAX_PAYLOAD = 1 << 20
_SHORT = 0.3  # seconds


class Frame(Value):
    """One piece."""

    stream: int
    time_ns: int
    data: bytes


def pack(stream: int, data: bytes = b"") -> bytes:
    """A frame with the time of now."""
    return _HEADER.pack(stream, len(data), time.time_ns()) + data


def header(stream: int, size: int) -> bytes:
    """What stands before `size` bytes, for writing both in one call."""
    return _HEADER.pack(stream, size, time.time_ns())


def take(buffer: bytearray) -> Frame | None:
    """Take the first whole frame off a buffer; ValueError if the sender is not one of ours."""
    if len(buffer) < HEADER_SIZE:
        return None
    stream, size, time_ns = _HEADER.unpack_from(buffer)
    if size > MAX_PAYLOAD:
        raise ValueError("the frame is too large")
    if len(buffer) < HEADER_SIZE + size:
        return None
    data = bytes(buffer[HEADER_SIZE : HEADER_SIZE + size])
    del buffer[: HEADER_SIZE + size]
    return Frame(stream=stream, time_ns=time_ns, data=data)


class Output:
    """The writing end: appends frames until the cap, then one mark, then only counts."""

    def __init__(self, path: str, cap: int | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._size = os.fstat(self._file).st_size  # we are the only writer
        self._room = cap
        self.kept = 0
        self.dropped = 0

    def add(self, stream: int, data: memoryview) -> None:
        """Keep what there is room for. A full disk ends the keeping, not the run."""
        size = len(data)
        room = size if self._room is None else min(size, self._room)
        if room and not self._write(stream, data[:room]):
            room, self._room = 0, 0
        self.kept += room
        if room < size:
            if not self.dropped:
                self._write(DROPPED, memoryview(b""))
            self.dropped += size - room
        if self._room is not None:
            self._room -= room

    def _write(self, stream: int, data: memoryview) -> bool:
        head = header(stream, len(data))
        size = len(head) + len(data)
        try:
            done = os.pwritev(self._file, [head, data], self._size)
            while done < size:  # a full disk, most likely
                left = (head + data.tobytes())[done:]
                done += os.pwrite(self._file, left, self._size + done)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)  # no half frames
            return False
        self._size += size
        return True

    def end(self, result: bytes) -> None:
        """Write the last frame."""
        self._write(END, memoryview(result))

    def close(self) -> None:
        os.close(self._file)


def read(path: str, offset: int = 0) -> Iterator[Frame]:
    """The whole frames that are there now, from an offset that lies between two frames."""
    with open(path, "rb", buffering=1 << 18) as file:
        if offset > os.fstat(file.fileno()).st_size:
            return  # nobody's output: further than a file can be, the kernel does not even seek
        file.seek(offset)
        while len(head := file.read(HEADER_SIZE)) == HEADER_SIZE:
            stream, size, time_ns = _HEADER.unpack(head)
            data = file.read(size)
            if len(data) < size:
                return
            yield Frame(stream=stream, time_ns=time_ns, data=data)


def find_tail(path: str, offset: int, size: int) -> int:
    """The first offset between two frames, from one on, from which no more than `size` bytes follow; reads headers."""
    with open(path, "rb", buffering=HEADER_SIZE) as file:
        enough = os.fstat(file.fileno()).st_size - size
        file.seek(max(0, min(offset, enough)))
        while offset < enough and len(head := file.read(HEADER_SIZE)) == HEADER_SIZE:
            offset += HEADER_SIZE + int(_HEADER.unpack(head)[1])
            file.seek(offset)
        return offset


def follow(path: str, is_over: Callable[[], bool], *, offset: int = 0) -> Iterator[Frame]:
    """Frames as they come, until the last one; `is_over` says that no more can come although that one is missing."""
    watch = _Patience(path)
    try:
        while True:
            over = is_over()  # asked before reading: what was written before the end is then read for certain
            for frame in read(path, offset):
                offset += HEADER_SIZE + len(frame.data)
                yield frame
                if frame.stream == END:
                    return
            if over:
                return
            watch.wait(offset)
    finally:
        watch.close()


class _Patience:
    """Wait until a file grows beyond a size: at first by looking often, then by inotify.

    Giving an inotify descriptor back takes the kernel some 20 ms, which a short run would feel."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._began = time.monotonic()
        self._watch: _Watch | None = None

    def wait(self, size: int) -> None:
        if self._watch is not None:
            self._watch.wait(1.0)
            return
        looks = 0
        while looks < 40 and os.stat(self._path).st_size <= size:
            looks += 1
            spent = time.monotonic() - self._began
            if spent > _SHORT:
                self._watch = _Watch(self._path)  # what is written from here on wakes us; before, it is read now
                return
            time.sleep(0.0003 if spent < 0.05 else 0.002)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()


class _Watch:
    """Wait until a file grows: by inotify, because polling costs either time or processor."""

    def __init__(self, path: str) -> None:
        from workstead.system.kernel.libc import libc

        in_modify, in_nonblock_cloexec = 0x2, 0o2004000
        self._inotify = libc.inotify_init1(in_nonblock_cloexec)
        if self._inotify >= 0 and libc.inotify_add_watch(self._inotify, os.fsencode(path), in_modify) < 0:
            self.close()

    def wait(self, seconds: float) -> None:
        import select

        if self._inotify < 0:
            time.sleep(min(seconds, 0.02))
        elif select.select([self._inotify], [], [], seconds)[0]:
            os.read(self._inotify, 4096)

    def close(self) -> None:
        if self._inotify >= 0:
            os.close(self._inotify)
        self._inotify = -1
