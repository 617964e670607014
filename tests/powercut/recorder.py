"""A FUSE file system whose files are disks: it writes down every write and flush that the kernel sends to them.

    python recorder.py MOUNTPOINT RECORD IMAGE...

Loop devices on these files give the file system under test a block device. Without the kernel's `dm-log-writes` this
is how to learn what a power cut may leave: everything up to the last flush, and any part of what came after it. All
disks share one record, so that a moment is the same moment on each of them.

    record:  offset (8) · length (4) · disk (2) · kind (2: 1 write, 2 flush) · bytes
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

HEADER = struct.Struct("=QIHH")
WRITE, FLUSH = 1, 2

_IN, _OUT, _ATTR = struct.Struct("=IIQQIIIHH"), struct.Struct("=IiQ"), struct.Struct("=6Q10I")
_LOOKUP, _FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _STATFS = 1, 2, 3, 4, 14, 15, 16, 17
_RELEASE, _FSYNC, _FLUSH, _INIT, _OPENDIR, _RELEASEDIR, _INTERRUPT = 18, 20, 25, 26, 27, 29, 36
_DESTROY, _BATCH_FORGET = 38, 42
_MAX_WRITE = 1 << 20
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22


class Recorder:
    """Serves the images under the names 0, 1, … and appends to the record before it answers."""

    def __init__(self, mountpoint: str, record: str, images: list[str]) -> None:
        self._images = [os.open(image, os.O_RDWR | os.O_CLOEXEC) for image in images]
        self._record = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"recorder", os.fsencode(mountpoint), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "mount")

    def serve(self) -> None:
        """Answer until the file system is unmounted."""
        while True:
            try:
                request = os.read(self._fuse, _MAX_WRITE + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.ENOENT, errno.EINTR):  # the request was interrupted meanwhile
                    continue
                raise
            _, opcode, unique, node = _IN.unpack_from(request)[:4]
            if opcode in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            try:
                answer, failure = self._answer(opcode, node, memoryview(request)[_IN.size :]), 0
            except OSError as error:
                answer, failure = b"", -(error.errno or errno.EIO)
            os.writev(self._fuse, [_OUT.pack(_OUT.size + len(answer), failure, unique), answer])

    def _answer(self, opcode: int, node: int, body: memoryview) -> bytes:
        if opcode == _WRITE:
            offset, size = struct.unpack_from("=QI", body, 8)
            data = body[40 : 40 + size]
            os.writev(self._record, [HEADER.pack(offset, size, node - 2, WRITE), data])
            os.pwrite(self._images[node - 2], data, offset)
            return struct.pack("=II", size, 0)
        if opcode == _READ:
            offset, size = struct.unpack_from("=QI", body, 8)
            return os.pread(self._images[node - 2], size, offset)
        if opcode == _FSYNC:
            os.write(self._record, HEADER.pack(0, 0, node - 2, FLUSH))
            return b""
        if opcode == _INIT:
            return struct.pack(
                "=4I2H2I2HI7I", 7, 31, 0, _BIG_WRITES | _MAX_PAGES, 16, 12, _MAX_WRITE, 1, 256, 0, 0, *[0] * 7
            )
        if opcode == _LOOKUP:
            name = bytes(body).rstrip(b"\0")
            if not name.isdigit() or int(name) >= len(self._images):
                raise OSError(errno.ENOENT, "")
            return struct.pack("=QQQQII", int(name) + 2, 0, 3600, 3600, 0, 0) + self._attributes(int(name) + 2)
        if opcode in (_GETATTR, _SETATTR):
            return struct.pack("=QII", 3600, 0, 0) + self._attributes(node)
        if opcode in (_OPEN, _OPENDIR):
            return struct.pack("=QII", 0, 0, 0)
        if opcode == _STATFS:
            return struct.pack("=5Q4I24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
        if opcode in (_FLUSH, _RELEASE, _RELEASEDIR, _DESTROY):
            return b""
        raise OSError(errno.ENOSYS, "")

    def _attributes(self, node: int) -> bytes:
        size, mode = (0, 0o40755) if node == 1 else (os.fstat(self._images[node - 2]).st_size, 0o100600)
        return _ATTR.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


if __name__ == "__main__":
    recorder = Recorder(sys.argv[1], sys.argv[2], sys.argv[3:])
    print("ready", flush=True)
    recorder.serve()
