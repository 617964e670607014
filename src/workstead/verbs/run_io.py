"""Attach to a run: send input, show output, connect a terminal. The run continues after detaching."""

from __future__ import annotations

import os

from workstead.core.runs import get, output, run_directory
from workstead.model.run import Glance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from workstead.core.home import Home
    from workstead.system.kernel.sockets import Stream

_CHUNK = 65536
_GLANCE = 4096  # maximum distance from the end at which the last line is searched


def feed_input(home: Home, run_id: str, source: int) -> None:
    """Copy from a descriptor to the command's stdin, in the background, until either is closed."""
    import threading

    connection = _connect(home, run_id)
    if connection is not None:
        threading.Thread(target=_pump, args=(connection, source), name=f"stdin-{run_id}", daemon=True).start()


def _pump(connection: Stream, source: int) -> None:
    from workstead.system.process import frames

    with connection:
        try:
            connection.sendall(frames.pack(frames.HELLO, b"i"))
            while data := os.read(source, _CHUNK):
                connection.sendall(frames.pack(frames.STDIN, data))
            connection.sendall(frames.pack(frames.EOF))
            connection.recv(1)  # closing would drop unread data: wait until the supervisor closes
        except OSError:
            return


def _connect(home: Home, run_id: str) -> Stream | None:
    from workstead.system.process import supervisor_client

    try:
        return supervisor_client.connect(run_directory(home, run_id))
    except OSError:
        return None  # it has already ended


def attach(home: Home, run_id: str, terminal: int = 0, out: int = 1, *, from_start: bool = False) -> bool:
    """Connect our terminal to the run, until it ends or Ctrl-] is pressed; return True if the run has ended.

    Shows new output, or with `from_start` all of it. Raises RunNotFound. A run that was not started with a terminal
    shows its output and reads input by lines.
    """
    found = get(home, run_id)
    screen = _Screen(f"{run_directory(home, run_id)}/output", out, from_start=from_start)
    connection = _connect(home, run_id) if found.is_active else None
    if connection is None:
        screen.show()
        return True
    with connection, _Raw(terminal):
        return _talk(connection, terminal, screen)


DETACH = 0x1D  # Ctrl-]


class _Screen:
    """The output of a run, read from its file: so output from before the connection is not missed.

    Beyond the size limit of the file, the pieces that the supervisor sends are shown directly.
    """

    def __init__(self, path: str, out: int, *, from_start: bool) -> None:
        self.path = path
        self.out = out
        self.offset = 0 if from_start or not os.path.exists(path) else os.stat(path).st_size
        self.is_full = False

    def show(self) -> bool:
        """Print new output; return True at the end of the run."""
        from workstead.system.process import frames

        for frame in frames.read(self.path, self.offset):
            self.offset += frames.HEADER_SIZE + len(frame.data)
            if frame.stream in (1, 2):
                self.write(frame.data)
            self.is_full = self.is_full or frame.stream == frames.DROPPED
            if frame.stream == frames.END:
                return True
        return False

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.out, view) :]


def _talk(connection: Stream, terminal: int, screen: _Screen) -> bool:
    import select
    import signal

    from workstead.system.process import frames

    previous = signal.signal(signal.SIGWINCH, lambda *_: _send_size(connection, terminal))
    connection.sendall(frames.pack(frames.HELLO, b"oi"))
    _send_size(connection, terminal)
    buffer = bytearray()
    inputs: list[Any] = [connection, terminal]
    try:
        while not screen.show():
            for ready in select.select(inputs, [], [])[0]:
                if ready is connection:
                    was_full = screen.is_full
                    data = connection.recv(_CHUNK)
                    if not data:
                        screen.show()
                        return True
                    buffer += data
                    while (frame := frames.take(buffer)) is not None:
                        if was_full and frame.stream in (1, 2):
                            screen.write(frame.data)
                else:
                    typed = os.read(terminal, _CHUNK)
                    if DETACH in typed:
                        return False
                    if typed:
                        connection.sendall(frames.pack(frames.STDIN, typed))
                    else:
                        connection.sendall(frames.pack(frames.EOF))
                        inputs.remove(terminal)
        return True
    finally:
        signal.signal(signal.SIGWINCH, previous)


def _send_size(connection: Stream, terminal: int) -> None:
    from workstead.system.process import frames

    if os.isatty(terminal):
        size = os.get_terminal_size(terminal)
        connection.sendall(
            frames.pack(frames.RESIZE, size.lines.to_bytes(2, "little") + size.columns.to_bytes(2, "little"))
        )


class _Raw:
    """The terminal in raw mode, without echo and line editing, while it is connected to the run."""

    def __init__(self, terminal: int) -> None:
        self.terminal = terminal
        self.saved: list[object] | None = None

    def __enter__(self) -> None:
        if os.isatty(self.terminal):
            import termios
            import tty

            self.saved = termios.tcgetattr(self.terminal)
            tty.setraw(self.terminal)

    def __exit__(self, *_: object) -> None:
        if self.saved is not None:
            import termios

            termios.tcsetattr(self.terminal, termios.TCSAFLUSH, self.saved)  # type: ignore[arg-type]


def lines(home: Home, run_id: str, *, follow: bool = False) -> Iterator[tuple[int, int, bytes]]:
    """Yield the output of a run as (stream, time in nanoseconds, bytes), up to now or until its end."""
    for frame in output(home, run_id, follow=follow):
        if frame.stream in (1, 2):
            yield frame.stream, frame.time_ns, frame.data


def read_output(
    home: Home, run_id: str, offset: int = 0, *, max_bytes: int = 1 << 20
) -> tuple[list[tuple[int, int, bytes]], int]:
    """Return part of a run's output so far, from an offset between two pieces, and the next offset."""
    from workstead.system.process import frames

    found, size = [], 0
    for frame in output(home, run_id, offset=offset):
        offset += frames.HEADER_SIZE + len(frame.data)
        if frame.stream in (1, 2):
            found.append((frame.stream, frame.time_ns, frame.data))
            size += len(frame.data)
        if size >= max_bytes:
            break
    return found, offset


def find_tail(home: Home, run_id: str, offset: int = 0, *, max_bytes: int = 1 << 20) -> int:
    """Return the offset, from `offset` on, of roughly the last `max_bytes` of output."""
    from workstead.system.process import frames

    get(home, run_id)
    try:
        return frames.find_tail(f"{run_directory(home, run_id)}/output", offset, max_bytes)
    except FileNotFoundError:
        return offset


def glance(home: Home, run_id: str, offset: int = 0, line: str = "") -> Glance:
    """Return the last line that a run printed; `offset` and `line` of the previous glance avoid reading all again."""
    from workstead.system.process import frames

    tail = b""
    try:
        for frame in frames.read(f"{run_directory(home, run_id)}/output", offset):
            offset += frames.HEADER_SIZE + len(frame.data)
            if frame.stream in (1, 2):
                tail = (tail + frame.data)[-_GLANCE:]
    except FileNotFoundError:
        return Glance(offset=offset, line=line)
    lines = [text for text in tail.decode("utf-8", "replace").replace("\r", "\n").split("\n") if text.strip()]
    return Glance(offset=offset, line=lines[-1].strip() if lines else line)


class Conversation:
    """A connection to a run's terminal: type, resize. The output is read as that of any run."""

    def __init__(self, connection: Stream) -> None:
        self._connection = connection

    def type(self, data: bytes) -> None:
        """Send typed bytes."""
        from workstead.system.process import frames

        self._connection.sendall(frames.pack(frames.STDIN, data))

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""
        from workstead.system.process import frames

        size = max(1, min(rows, 500)).to_bytes(2, "little") + max(1, min(columns, 1000)).to_bytes(2, "little")
        self._connection.sendall(frames.pack(frames.RESIZE, size))

    def close(self) -> None:
        """Disconnect; the run continues."""
        self._connection.close()


def converse(home: Home, run_id: str) -> Conversation:
    """Connect to a run's terminal. Raises RunNotFound, and WrongStatus when it has ended."""
    from workstead.errors import WrongStatus
    from workstead.system.process import frames

    connection = _connect(home, run_id) if get(home, run_id).is_active else None
    if connection is None:
        raise WrongStatus(f"run {run_id} has ended", hint=f"aw logs {run_id} shows what it printed")
    connection.sendall(frames.pack(frames.HELLO, b"i"))
    return Conversation(connection)
