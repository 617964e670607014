"""The server's log: one JSON document per line on stderr, control characters escaped, no secrets."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any


def note(what: str, *, error: BaseException | None = None, **fields: Any) -> None:
    """Write one line to the log."""
    line: dict[str, Any] = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "what": what}
    line.update((key, value) for key, value in fields.items() if value is not None)
    if error is not None:
        line["error"] = "".join(traceback.format_exception(error))
    # ASCII only: control characters and bidirectional marks are escaped and cannot affect a terminal.
    print(json.dumps(line, default=str), file=sys.stderr, flush=True)


class _Refusals:
    """Rate limit for log lines of refused requests, per error code and minute: the client decides how often it is
    refused."""

    MOST = 30

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}  # code: minute, refusals in it

    def add(self, code: str) -> int:
        """Count one refusal; return 0 to skip the line, else the number of refusals it stands for, including skipped
        ones."""
        now = int(time.monotonic()) // 60
        minute, count = self._counts.get(code, (now, 0))
        left_out = max(0, count - self.MOST) if minute != now else 0
        count = count + 1 if minute == now else 1
        self._counts[code] = (now, count)
        return 1 + left_out if count <= self.MOST else 0


_refusals = _Refusals()


def note_refusal(code: str, **fields: Any) -> None:
    """Write one line for a refused request, at most 30 a minute for each code."""
    if count := _refusals.add(code):
        note("refused", code=code, count=count if count > 1 else None, **fields)


class Journal(logging.Handler):
    """Logging handler that turns log records of libraries into lines of our log."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        note("log", level=record.levelname.lower(), logger=record.name, message=record.getMessage(), error=error)
