"""Format numbers and times for people."""

from __future__ import annotations

import time
from collections.abc import Sequence

from workstead.model.moment import seconds
from workstead.model.text import printable, quoted

LABEL = {"color": "#7a858f"}  # of a chart's axis: readable on light and dark backgrounds, as are the lines
LINES = {"lineStyle": {"color": "#7a858f44"}}


def size(count: float) -> str:
    """Format bytes in the appropriate unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def clock(moment: str | float) -> str:
    """Format a time in this machine's time zone, with the date if it was not today."""
    at = seconds(moment) if isinstance(moment, str) else moment
    same_day = time.localtime(at)[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M", time.localtime(at))


def span(length: float) -> str:
    """Format a duration."""
    if length < 60:
        return f"{length:.1f} s"
    return f"{length / 60:.0f} min" if length < 3600 else f"{length / 3600:.1f} h"


def typed(words: Sequence[str]) -> str:
    """Format a command as the user would type it."""
    is_shell = len(words) == 3 and tuple(words[:2]) == ("sh", "-c")
    return printable(words[2]) if is_shell else quoted(words)


def count(number: int, thing: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {thing}" + ("" if number == 1 else "s")
