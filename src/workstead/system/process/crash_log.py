"""Crash logs: files for the tracebacks of background processes, whose stderr is not visible.

`install` replaces `sys.stderr`. The file is opened at the first write, so a process without output leaves no file, and
a start costs nothing. Only its owner can read it. Its size is bounded twice: a process writes at most `PROCESS_BYTES`,
and a file of more than `FILE_BYTES` is renamed to NAME.1, replacing the previous one.
"""

from __future__ import annotations

import os
import sys

from workstead.model.text import TRACEBACK_IN

FILE_BYTES = 256 * 1024
PROCESS_BYTES = 64 * 1024
_LINE = 300  # characters of the last line in an error message
_TAIL = PROCESS_BYTES + 4096
_CUT = b"\n(cut: this process has written enough)\n"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


class CrashLog:
    """A text stream for `sys.stderr`; write errors are ignored, as with /dev/null."""

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
                self._left = 0  # a full disk, or the home is gone
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
        """Do nothing: there is no buffer."""

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self.open()


def install(path: str, title: str) -> None:
    """Redirect stderr of this process to the file."""
    sys.stderr = _as_text(CrashLog(path, title))


def keep_open() -> None:
    """Open the log now, in a process that is about to drop the permission to; `discard_empty` removes an empty file."""
    if isinstance(sys.stderr, CrashLog):
        try:
            sys.stderr.open()
        except OSError:
            return  # then nothing is logged


def discard_empty(path: str) -> None:
    """Remove an empty log."""
    try:
        if os.lstat(path).st_size == 0:
            os.unlink(path)
    except OSError:
        return  # it does not exist


def _as_text(log: CrashLog) -> TextIO:
    stream: object = log
    return stream  # type: ignore[return-value]


def log_path(home: str, name: str) -> str:
    """Return the log path of a kind of background process of this home: watcher, sweep, call."""
    return f"{home}/logs/{name}.log"


def _open(path: str) -> int:
    folder = os.path.dirname(path)
    if os.path.isdir(os.path.dirname(folder)):  # a removed home is not created again for a log
        os.makedirs(folder, mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    if os.fstat(descriptor).st_size <= FILE_BYTES:
        return descriptor
    os.close(descriptor)
    os.rename(path, f"{path}.1")
    return os.open(path, flags, 0o600)


def last_line(path: str, *, title: str = "", since: float = 0.0) -> str:
    """Return the last line written by a process of this title (of a traceback, the exception), without secrets.

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
    from workstead.model.redact import redact  # slow import (regular expressions), only when needed

    return redact(said[-1].splitlines()[-1].strip())[:_LINE]


def read_tail(path: str, most: int = _TAIL) -> str:
    """Return the end of the log as text; "" if it is missing or not readable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        file.seek(max(0, size - most))
        return file.read(most).decode(errors="replace")


def explain(message: str, path: str, *, title: str = "", since: float = 0.0) -> str:
    """Return the message with the last line of the log and its path; unchanged if nothing was logged since then."""
    line = last_line(path, title=title, since=since)
    return f"{message}: {line}{TRACEBACK_IN}{path})" if line else message
