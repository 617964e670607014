"""A run's output as frames: stream, time, length, bytes.

One file contains both streams in order of arrival, byte for byte, and is append-only, so that any number of processes
can read it concurrently. The last frame is the end of the run. The same frames are sent over the control socket in both
directions. A reader that finds an incomplete frame waits for the rest.
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
DROPPED = 3  # from here on output is counted and not stored
END = 4  # the run is over; the payload is its result as JSON
RESIZE = 5  # rows and columns, two 16-bit numbers
STOP = 6
HELLO = 7  # a client's request: any of b"oi", output and permission to write stdin
EOF = 8  # end of stdin

_HEADER = struct.Struct("<BxxxIQ")
HEADER_SIZE = _HEADER.size
MAX_PAYLOAD = 1 << 20
_SHORT = 0.3  # seconds


class Frame(Value):
    """One frame."""

    stream: int
    time_ns: int
    data: bytes


def pack(stream: int, data: bytes = b"") -> bytes:
    """Return a frame with the current time."""
    return _HEADER.pack(stream, len(data), time.time_ns()) + data


def header(stream: int, size: int) -> bytes:
    """Return the header of a frame of `size` bytes, to write both in one call."""
    return _HEADER.pack(stream, size, time.time_ns())


def take(buffer: bytearray) -> Frame | None:
    """Remove and return the first complete frame of a buffer; raise ValueError if the data are not frames."""
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
    """Writer of a run's output: append frames up to the cap, then one mark, then only count."""

    def __init__(self, path: str, cap: int | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._size = os.fstat(self._file).st_size  # this is the only writer
        self._room = cap
        self.kept = 0
        self.dropped = 0

    def add(self, stream: int, data: memoryview) -> None:
        """Store as much as the cap permits. A full disk ends the storing, not the run."""
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
                os.ftruncate(self._file, self._size)  # remove an incomplete frame
            return False
        self._size += size
        return True

    def end(self, result: bytes) -> None:
        """Write the last frame."""
        self._write(END, memoryview(result))

    def close(self) -> None:
        os.close(self._file)


def read(path: str, offset: int = 0) -> Iterator[Frame]:
    """Yield the complete frames present now, from an offset at a frame boundary."""
    with open(path, "rb", buffering=1 << 18) as file:
        if offset > os.fstat(file.fileno()).st_size:
            return  # invalid offset: the kernel cannot seek beyond the maximum file size
        file.seek(offset)
        while len(head := file.read(HEADER_SIZE)) == HEADER_SIZE:
            stream, size, time_ns = _HEADER.unpack(head)
            data = file.read(size)
            if len(data) < size:
                return
            yield Frame(stream=stream, time_ns=time_ns, data=data)


def find_tail(path: str, offset: int, size: int) -> int:
    """Return the first frame boundary from `offset` on with at most `size` bytes after it; reads only headers."""
    with open(path, "rb", buffering=HEADER_SIZE) as file:
        enough = os.fstat(file.fileno()).st_size - size
        file.seek(max(0, min(offset, enough)))
        while offset < enough and len(head := file.read(HEADER_SIZE)) == HEADER_SIZE:
            offset += HEADER_SIZE + int(_HEADER.unpack(head)[1])
            file.seek(offset)
        return offset


def follow(path: str, is_over: Callable[[], bool], *, offset: int = 0) -> Iterator[Frame]:
    """Yield frames as they arrive, until the last one, or until `is_over` returns True because it will never come."""
    watch = _Patience(path)
    try:
        while True:
            over = is_over()  # checked before reading, so that everything written before the end is read
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
    """Wait until a file grows beyond a size: first by polling, then by inotify.

    Closing an inotify descriptor takes the kernel some 20 ms, which would delay a short run."""

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
                self._watch = _Watch(self._path)  # later writes wake us; earlier ones are read now
                return
            time.sleep(0.0003 if spent < 0.05 else 0.002)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()


class _Watch:
    """Wait until a file grows, by inotify: polling costs either latency or processor time."""

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
