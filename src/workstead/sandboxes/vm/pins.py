"""inotify in the guest: pin watched inodes, and trigger events for changes made by the host.

On the share every lookup creates another inode, unless the entry is held open: a watch below the top would get no
events. So when a command calls `inotify_add_watch`, a seccomp filter asks us first. We open the path that is about to
be watched and hold it open while the command lives; later lookups of that name then reach that inode, and the watch
gets the events of changes in the guest.

Changes by the host still cause no events. The host is told which folders are watched, and reports its changes there;
for each we set the owner to the present owner. This changes only the ctime, and causes an IN_ATTRIB event. Changes made
in the guest are reported back too, and are ignored.

Loaded in the guest, where `wire` is our only other module.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import stat
import struct
import time

from workstead.sandboxes.vm import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)

_SECCOMP, _ADD_WATCH = 317, 254  # on x86-64
_RECEIVE, _ANSWER = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_…
_GO_ON = 1
_WITH_LISTENER, _ONLY_KILLS_INTERRUPT = 8, 32
_NO_NAME = "/proc/self/fd/{}"
_MOST = wire.MOST_WATCHED
_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_ECHO_SECONDS = 1.0  # maximum delay after which a change in the guest is reported back by the host

# load the architecture; if x86-64, load the number; if inotify_add_watch, ask, else allow
_FILTER = b"".join(
    struct.pack("<HBBI", *step)
    for step in (
        (0x20, 0, 0, 4),
        (0x15, 0, 3, 0xC000003E),
        (0x20, 0, 0, 0),
        (0x15, 0, 1, _ADD_WATCH),
        (0x06, 0, 0, 0x7FC00000),
        (0x06, 0, 0, 0x7FFF0000),
    )
)


def ask_first() -> int:
    """Install the filter for this process and its children; return the descriptor of their requests."""
    kept = ctypes.create_string_buffer(_FILTER, len(_FILTER))
    program = struct.pack("HxxxxxxQ", len(_FILTER) // 8, ctypes.addressof(kept))
    found: int = libc.syscall(
        _SECCOMP, 1, _WITH_LISTENER | _ONLY_KILLS_INTERRUPT, ctypes.create_string_buffer(program, len(program))
    )
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")
    return found


class Pins:
    """The pinned entries of all commands; `top` is our path of their workspace."""

    def __init__(self, top: str, send: Callable[[int, bytes], None]) -> None:
        self.top = top
        self.send = send
        self.held: dict[str, int] = {}  # path in the workspace -> descriptor
        self.wanted: dict[str, set[int]] = {}  # path -> the runs that watch it
        self.told: dict[str, str] = {}  # path -> the folder that the host watches for it
        self.own: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)  # watches changes in the guest
        self.folders: dict[int, str] = {}  # number of our own watch -> path
        self.echoes: dict[str, float] = {}  # path -> time of its change in the guest

    def answer(self, run: int, asking: int) -> None:
        """Pin the path that a process is about to watch, and let it continue."""
        question = bytearray(80)
        fcntl.ioctl(asking, _RECEIVE, question)
        number, pid = struct.unpack_from("<QI", question)
        path = struct.unpack_from("<6Q", question, 32)[1]
        with contextlib.suppress(OSError, ValueError):
            self._pin(run, pid, _read_text(pid, path))
        with contextlib.suppress(OSError):  # the process was killed meanwhile
            fcntl.ioctl(asking, _ANSWER, bytearray(struct.pack("<QqiI", number, 0, 0, _GO_ON)))

    def _pin(self, run: int, pid: int, path: str) -> None:
        found = os.open(f"/proc/{pid}/{'root' if path.startswith('/') else 'cwd'}/{path}", os.O_PATH | os.O_CLOEXEC)
        real = os.readlink(_NO_NAME.format(found))
        if not f"{real}/".startswith(f"{self.top}/") or len(self.held) >= _MOST:
            os.close(found)
            return
        name = real[len(self.top) + 1 :]
        if name in self.held:
            os.close(self.held.pop(name))  # the name may refer to another inode by now
        self.held[name] = found
        self.wanted.setdefault(name, set()).add(run)
        if stat.S_ISDIR(os.fstat(found).st_mode):
            mask = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
            self.folders[libc.inotify_add_watch(self.own, _NO_NAME.format(found).encode(), mask)] = name
            self.told[name] = name
        else:
            self.told[name] = os.path.dirname(name)
        self.send(wire.WATCH, os.fsencode(self.told[name]))

    def release(self, run: int) -> None:
        """Release the entries that only this run watched."""
        for name in [name for name, runs in self.wanted.items() if run in runs]:
            self.wanted[name].discard(run)
            if not self.wanted[name]:
                del self.wanted[name]
                self._let_go(name)

    def _let_go(self, name: str) -> None:
        os.close(self.held.pop(name))
        for number in [number for number, folder in self.folders.items() if folder == name]:
            libc.inotify_rm_watch(self.own, number)
            del self.folders[number]
        folder = self.told.pop(name)
        if folder not in self.told.values():
            self.send(wire.FORGET, os.fsencode(folder))

    def hear_own(self) -> None:
        """Record changes made in the guest, because the host will report them too."""
        now = time.monotonic()
        self.echoes = {path: when for path, when in self.echoes.items() if now - when < _ECHO_SECONDS}
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.own, 1 << 16)
            while data:
                number, _, _, size = struct.unpack_from("iIII", data)
                name = os.fsdecode(data[16 : 16 + size].rstrip(b"\0"))
                self.echoes[os.path.join(self.folders.get(number, ""), name)] = now
                data = data[16 + size :]

    def poke(self, path: str) -> None:
        """Trigger an event on this path, or on its folder."""
        self.hear_own()
        if path in self.echoes:
            return
        folder, name = os.path.split(path)
        with contextlib.suppress(OSError):
            if path in self.held:
                _set_owner(_NO_NAME.format(self.held[path]))
            elif folder in self.held:
                try:
                    _set_owner(name, self.held[folder])
                except OSError:  # deleted, or not the agent's: then trigger the folder
                    _set_owner(_NO_NAME.format(self.held[folder]))


def _set_owner(path: str, folder: int | None = None) -> None:
    """Set the owner to the present one. Skip set-uid files, which would lose that bit."""
    follow = folder is None
    found = os.stat(path, dir_fd=folder, follow_symlinks=follow)
    if stat.S_ISDIR(found.st_mode) or not found.st_mode & (stat.S_ISUID | stat.S_ISGID):
        os.chown(path, found.st_uid, -1, dir_fd=folder, follow_symlinks=follow)


def _read_text(pid: int, place: int) -> str:
    """Read a path from the memory of a process."""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text, end, _ = os.pread(memory, 4096, place).partition(b"\0")
    finally:
        os.close(memory)
    if not end:
        raise ValueError("no end")
    return os.fsdecode(text)
