"""What the server says about itself: one JSON document per line on stderr, control characters escaped, no secrets."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any


def note(what: str, *, error: BaseException | None = None, **fields: Any) -> None:
    """Write one line."""
    line: dict[str, Any] = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "what": what}
    line.update((key, value) for key, value in fields.items() if value is not None)
    if error is not None:
        line["error"] = "".join(traceback.format_exception(error))
    # ASCII: a control character or a mark that turns the line around is shown, and does nothing.
    print(json.dumps(line, default=str), file=sys.stderr, flush=True)


class Journal(logging.Handler):
    """Lets what libraries log become lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        note("log", level=record.levelname.lower(), logger=record.name, message=record.getMessage(), error=error)
