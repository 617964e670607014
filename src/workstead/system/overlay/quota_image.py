"""Quota image: a file system of limited size in one file, in which a workspace is stored.

    {layers}/image         the file, sparse; it uses as much disk space as its content
    {layers}/space         its mount point, not accessible to other users
    {layers}/space/root    the workspace's own directory, bind-mounted at the path of the workspace
    {layers}/space/upper.0 and space/work, if the workspace is a copy-on-write overlay

Everything that the agent can write is in the image, so the kernel enforces the limit in every case: a full image
returns ENOSPC for a write, for `fallocate` and for a new name, and raises SIGBUS for a store into a hole of a mapped
file. Deleting works and returns the blocks to the disk.

**The image must be mounted as one file system only.** Two loop devices over one file would overwrite each other, so an
existing loop device of the file is reused, also one that is kept alive invisibly by a process. The device is found by
the file's inode and kept open during that decision: an open device does not release its file.

**A full disk** below the image is an I/O error for its file system: it stops writing, and the contents of its journal
are safe. The next `attach` mounts it again, and it works if there is free space again.

**Crash recovery.** The loop device is freed with its last mount, so a crash leaves none behind. The contents of the
file system survive a power failure as its journal guarantees; the file itself is synced before anything is put into it.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress

from workstead.system.files.durable import sync_file
from workstead.system.overlay.stack import has_space, space_of
from workstead.system.process.quota_meter import FULL_SHARE, LIFT_SHARE, WARN_SHARE

MIB = 1 << 20
PROGRAMS = ("/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4")
_OVER = 1.05  # of the limit: the file system's own metadata does not count for the workspace
_SMALL = 128 * MIB  # below this size, blocks are small, and so is the smallest journal
_BYTES_PER_FILE = 8192
_OUR_FILES = 20  # the workspace's directories and documents, and the kernel's
_NOT_USED = 1 << 20  # may be left when a write is refused: the kernel allocates in large extents
_TRIES = 16
_LOOP_GET_FREE, _LOOP_CONFIGURE, _LOOP_STATUS = 0x4C82, 0x4C0A, 0x4C05
_AUTOCLEAR = 4
_INFO = struct.Struct("=5Q4I64s64s32s2Q")  # struct loop_info64
_CONFIG = struct.Struct(f"=2I{_INFO.size}s64x")  # struct loop_config


def make(layers: str, size: int, files: int | None = None) -> str:
    """Make and mount a quota image for `size` bytes and `files` files; return the directory for the workspace in it.

    Raise OSError with the reason if it is not supported here; the caller removes partial results with the layers.
    """
    os.makedirs(layers, 0o700, exist_ok=True)
    os.mkdir(space_of(layers), 0o700)
    descriptor = os.open(_image(layers), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, int(size * _OVER) // MIB * MIB or MIB)
        _format(_image(layers), size, files)
        sync_file(descriptor)
    finally:
        os.close(descriptor)
    _mount(layers)
    if files is not None:
        _use_up(space_of(layers), files)
    root = f"{space_of(layers)}/root"
    os.mkdir(root, 0o755)
    return root


def _format(image: str, size: int, files: int | None) -> None:
    import subprocess

    program = next((path for path in PROGRAMS if os.path.exists(path)), None)
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "mkfs.ext4 is not installed")
    is_small = size < _SMALL
    most = size // _BYTES_PER_FILE + _OUR_FILES  # more inodes would take room from content
    number = ["-N", str(min(files + _OUR_FILES, most))] if files is not None else ["-i", str(_BYTES_PER_FILE)]
    options = ["-q", "-F", "-m", "0", "-b", "1024" if is_small else "4096", "-I", "256", *number]
    options += ["-J", "size=1" if is_small else "size=4", "-O", "^resize_inode", "-E", "nodiscard,lazy_itable_init=1"]
    try:
        done = subprocess.run(
            [program, *options, image],
            env={"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, "mkfs.ext4 did not end within a minute") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
        raise OSError(errno.EIO, f"mkfs.ext4: {words[-1]}")


def _use_up(space: str, files: int) -> None:
    """Use up the inodes that mkfs adds by rounding, so that the limit on files is exact."""
    os.mkdir(f"{space}/taken", 0o700)
    for number in range(max(0, os.statvfs(space).f_ffree - files - _OUR_FILES)):
        os.close(os.open(f"{space}/taken/{number}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def is_attached(layers: str, root: str) -> bool:
    """Return whether `root` is the workspace's directory in its quota image; costs two stat calls."""
    try:
        here, inside = os.stat(root), os.stat(f"{space_of(layers)}/root")
    except FileNotFoundError:
        return False
    return (here.st_dev, here.st_ino) == (inside.st_dev, inside.st_ino)


def is_stuck(layers: str) -> bool:
    """Return whether the kernel made the image read-only, as it does when the disk below is full or fails."""
    return bool(os.statvfs(space_of(layers)).f_flag & os.ST_RDONLY)


def attach(layers: str, root: str) -> None:
    """Mount the image, and bind the workspace's directory in it to `root`; the caller has the lock of the layers."""
    from workstead.system.kernel import mounts

    if not os.path.ismount(space_of(layers)):
        _mount(layers)
    if not is_attached(layers, root):
        tree = mounts.clone(f"{space_of(layers)}/root")
        try:
            mounts.attach(tree, root)
        finally:
            os.close(tree)


def detach(layers: str, root: str) -> bool:
    """Unmount both, lazily if they are in use; return False if a process uses them."""
    from workstead.system.kernel import mounts

    quiet = True
    for path in (root, space_of(layers)):
        while os.path.ismount(path):
            try:
                mounts.unmount(path)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                quiet = False
                mounts.unmount(path, lazily=True)
    return quiet


def capacity(layers: str) -> int:
    """Return the number of bytes that files can take in a mounted image."""
    found = os.statvfs(space_of(layers))
    return (found.f_blocks - found.f_bfree + found.f_bavail) * found.f_frsize


class Gauge:
    """Report how full a mounted image is: the kernel enforces the limit, this only observes it."""

    def __init__(self, space: str, files: int | None = None) -> None:
        self._space = space
        self._files = files
        self._warned = self._exceeded = False

    def look(self) -> list[tuple[str, int, int]]:
        """Return the events since the last call (warned, exceeded, freed), each with the present bytes and files."""
        found = os.statvfs(self._space)
        used, room = found.f_blocks - found.f_bfree, found.f_bavail
        most_files = min(self._files, found.f_files) if self._files is not None else 0
        files = max(0, most_files - found.f_ffree)
        share = max(used / max(1, used + room), files / max(1, most_files))
        left = room * found.f_frsize
        is_full = share >= FULL_SHARE or left < _NOT_USED or not found.f_ffree
        has_room = share < LIFT_SHARE and left >= 2 * _NOT_USED
        told = []
        if (share >= WARN_SHARE or is_full) and not self._warned:
            told.append("warned")
        if is_full and not self._exceeded:
            told.append("exceeded")
        if has_room and self._exceeded:
            told.append("freed")
        self._warned = share >= WARN_SHARE or is_full
        self._exceeded = is_full or (self._exceeded and not has_room)
        return [(event, used * found.f_frsize, files) for event in told]


def taken(layers: str) -> int:
    """Return the bytes that the image takes on the disk, mounted or not."""
    return os.stat(_image(layers)).st_blocks * 512


def probe(directory: str) -> str | None:
    """Return the reason why quota images do not work in a directory, or None if they do, by making one."""
    from workstead.system.overlay.copying import remove_tree

    trial = f"{directory}/.trial-{os.urandom(6).hex()}"
    try:
        if os.geteuid() != 0:
            return "only root can mount a file system of a file"
        make(trial, 8 * MIB)
        return None
    except OSError as error:
        return (error.strerror or str(error)).lower()
    finally:
        if has_space(trial):
            detach(trial, f"{trial}/none")
        remove_tree(trial)


# -- loop devices ------------------------------------------------------------------------------------------------------


def _image(layers: str) -> str:
    return f"{layers}/image"


def _mount(layers: str) -> None:
    from workstead.system.kernel import mounts

    image = os.open(_image(layers), os.O_RDWR | os.O_CLOEXEC)
    try:
        device, path = _find_device(image) or _new_device(image)
        try:
            mounts.mount_device(path, space_of(layers), "ext4", "discard,errors=remount-ro")
        finally:
            os.close(device)  # the mount keeps it alive from now on
    finally:
        os.close(image)


def _find_device(image: int) -> tuple[int, str] | None:
    """Return the opened loop device that already has this file, or None."""
    import fcntl

    wanted = os.fstat(image)
    for name in os.listdir("/sys/block"):
        if not name.startswith("loop") or not os.path.exists(f"/sys/block/{name}/loop"):
            continue
        with suppress(OSError):  # gone meanwhile, or no device node here
            device = os.open(f"/dev/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = fcntl.ioctl(device, _LOOP_STATUS, bytes(_INFO.size))
            except OSError:
                os.close(device)
                continue
            if _INFO.unpack(status)[:2] == (wanted.st_dev, wanted.st_ino):
                return device, f"/dev/{name}"
            os.close(device)
    return None


def _new_device(image: int) -> tuple[int, str]:
    """Attach this file to a free loop device and return it opened; the kernel frees it with its last user."""
    import fcntl

    info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR, b"workstead", b"", b"", 0, 0)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            path = f"/dev/loop{fcntl.ioctl(control, _LOOP_GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, _CONFIG.pack(image, 0, info))
                return device, path
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # otherwise another process took it first
                    raise
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no free loop device")
