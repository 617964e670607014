"""Crash logs: where a process in the background writes its traceback, because nobody sees its stderr.

`install` replaces `sys.stderr`. The file is opened at the first write, so a process that says nothing leaves no file,
and a start costs nothing. It is readable by its owner alone. Its size is bounded twice: a process writes at most
`PROCESS_BYTES` of its own, and a file of more than `FILE_BYTES` is renamed to NAME.1, over the one before.
"""

from __future__ import annotations

import os
import sys

from workstead.model.text import TRACEBACK_IN

FILE_BYTES = 256 * 1024
PROCESS_BYTES = 64 * 1024
_LINE = 300  # characters of the last line that an error shows
_TAIL = PROCESS_BYTES + 4096
_CUT = b"\n(cut: this process has written enough)\n"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


class CrashLog:
    """A text stream for `sys.stderr`; a file that cannot be written is ignored, as /dev/null would be."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, path: str, title: str) -> None:
        self.path = path
        self._title = title
        self._descriptor = -1
        self._left = PROCESS_BYTES
        self._has_heading = False

    def write(self, text: str) -> int:
        body = text.encode(self.encoding, self.errors)
        if self._left > 0 and body:
            cut = body[: self._left] + (_CUT if len(body) >= self._left else b"")
            self._left -= len(body)
            try:
                os.write(self.open(), self._heading() + cut)
            except OSError:
                self._left = 0  # a full disk, or a home that is gone
        return len(text)

    def open(self) -> int:
        if self._descriptor < 0:
            self._descriptor = _open(self.path)
        return self._descriptor

    def _heading(self) -> bytes:
        if self._has_heading:
            return b""
        import time

        self._has_heading = True
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return f"--- {now} {self._title} process {os.getpid()}\n".encode(self.encoding, self.errors)

    def flush(self) -> None:
        """Nothing is buffered."""

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self.open()


def install(path: str, title: str) -> None:
    """Send what this process prints on stderr to the file from now on."""
    sys.stderr = _as_text(CrashLog(path, title))


def keep_open() -> None:
    """Open the log now, in a process that is about to give up the right to; an empty file is for `discard_empty`."""
    if isinstance(sys.stderr, CrashLog):
        try:
            sys.stderr.open()
        except OSError:
            return  # then nothing is written


def discard_empty(path: str) -> None:
    """Remove a log in which nothing was written."""
    try:
        if os.lstat(path).st_size == 0:
            os.unlink(path)
    except OSError:
        return  # there is none


def _as_text(log: CrashLog) -> TextIO:
    stream: object = log
    return stream  # type: ignore[return-value]


def log_path(home: str, name: str) -> str:
    """The log of a kind of background process of this home: watcher, sweep, call."""
    return f"{home}/logs/{name}.log"


def _open(path: str) -> int:
    folder = os.path.dirname(path)
    if os.path.isdir(os.path.dirname(folder)):  # a home that was removed is not made again for a log
        os.makedirs(folder, mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    if os.fstat(descriptor).st_size <= FILE_BYTES:
        return descriptor
    os.close(descriptor)
    os.rename(path, f"{path}.1")
    return os.open(path, flags, 0o600)


def last_line(path: str, *, title: str = "", since: float = 0.0) -> str:
    """The last line that a process of this title wrote, which of a traceback is the exception, without secrets.

    "" if there is none, or nothing was written since that time."""
    try:
        if os.lstat(path).st_mtime < since:
            return ""
    except OSError:
        return ""
    entries = [entry.partition("\n") for entry in f"\n{read_tail(path)}".split("\n--- ")]
    said = [body.strip() for heading, _, body in entries if f" {title}" in heading and body.strip()]
    if not said:
        return ""
    from workstead.model.redact import redact  # regular expressions, for those who need them

    return redact(said[-1].splitlines()[-1].strip())[:_LINE]


def read_tail(path: str, most: int = _TAIL) -> str:
    """The end of the log as text; "" if there is none, or it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        file.seek(max(0, size - most))
        return file.read(most).decode(errors="replace")


def explain(message: str, path: str, *, title: str = "", since: float = 0.0) -> str:
    """The message with the last line of the log and its path; unchanged if nothing was written since that time."""
    line = last_line(path, title=title, since=since)
    return f"{message}: {line}{TRACEBACK_IN}{path})" if line else message
