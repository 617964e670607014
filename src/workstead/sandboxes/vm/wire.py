"""The frame protocol between host and guest, and between a VM daemon and its clients.

Frames on one byte stream: kind, run, channel, size, and that many bytes. Channel 0 of a run is its command; the others
are connections to the proxy. Flow control: a sender needs a window on the other side. A window is granted at the start
and again for consumed bytes, so that no side has to buffer more than a window per stream, and a slow reader delays only
itself.

This file is loaded in the guest too, by the Python there: it imports none of our modules.
"""

from __future__ import annotations

import struct

HEADER = struct.Struct("<BxHII")
MAX_DATA = 32 << 10  # of one stream frame
MAX_ORDER = 1 << 20  # of one frame from the host
WINDOW = 256 << 10
MOST_WATCHED = 512  # folders and files per machine
AGENT_FAILED = "workstead: the agent failed"  # its last message on the console

# from the host
MOUNT = 1  # JSON: mounts, the time, fresh randomness
RUN = 2  # JSON: a command
INPUT = 3  # for its stdin
INPUT_ENDS = 4
SIGNAL = 5  # one byte: the number, for every process of the command
RESIZE = 6  # rows and columns, two 16-bit numbers
KILL = 7
PING = 8  # the host's time, as a double
OFF = 9
POKE = 10  # a path in the workspace that the host changed
# from the guest
READY = 20
MOUNTED = 21
FAILED = 22  # text: why it could not be mounted
REPORT = 23  # result of the command's start, in the protocol of `shim.py`; empty at its end
STDOUT = 24
STDERR = 25
EXIT = 26  # JSON: exit code and resource usage; no process of the run is left
PONG = 27
OPEN = 28  # a connection to the proxy
WATCH = 29  # a folder of the workspace that a process in the guest watches
FORGET = 30  # no process watches it any more
# both ways
GRANT = 40  # window of this many more bytes: a 32-bit number, for the stream that the channel or the next byte names
DATA = 41
SHUT = 42  # no more data on this channel
CLOSE = 43
# between a VM daemon and its clients
TAKEN = 60
GONE = 61  # JSON: the machine has ended, and why


def pack(kind: int, run: int = 0, channel: int = 0, data: bytes = b"") -> bytes:
    """Encode one frame."""
    return HEADER.pack(kind, run, channel, len(data)) + data


def grant(run: int, channel: int, stream: int, size: int) -> bytes:
    """Encode a grant of `size` more bytes of a stream: STDOUT, STDERR, INPUT, or DATA of a channel."""
    return pack(GRANT, run, channel, struct.pack("<BI", stream, size))


def read_grant(data: bytes) -> tuple[int, int]:
    """Return the stream and the size of a grant."""
    stream, size = struct.unpack("<BI", data)
    return stream, size


def take(buffer: bytearray, limit: int = MAX_DATA) -> tuple[int, int, int, bytes] | None:
    """Remove the first complete frame from a buffer: kind, run, channel, data. Raise ValueError if it is too large."""
    if len(buffer) < HEADER.size:
        return None
    kind, run, channel, size = HEADER.unpack_from(buffer)
    if size > limit:
        raise ValueError(f"a frame of {size} bytes")
    if len(buffer) < HEADER.size + size:
        return None
    data = bytes(buffer[HEADER.size : HEADER.size + size])
    del buffer[: HEADER.size + size]
    return kind, run, channel, data
