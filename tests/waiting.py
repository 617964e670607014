"""Wait for what happens elsewhere, without a guess how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(is_so: Callable[[], T], seconds: float = 60, pause: float = 0.01) -> T:
    """What it gives as soon as that is true. Nothing that works takes so long, unless the machine is busy."""
    end = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < end, f"it did not happen within {seconds} seconds"
        time.sleep(pause)
    return found
