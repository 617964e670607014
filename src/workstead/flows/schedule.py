"""Scheduled sweep and verification in a long-lived process; of several processes of a home, the first does it."""

from __future__ import annotations

import os
import time

from workstead.errors import WorkspaceBusy
from workstead.flows.sweep import HOUR, sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home


def sweep_if_due(home: Home) -> float | None:
    """Sweep if the last sweep is `workspaces.sweep_every_hours` ago; return the seconds until the next, None for never.

    `destroy` uses the same time stamp for its hourly sweep of the trash.
    """
    hours = home.settings.workspaces.sweep_every_hours
    if hours is None:
        return None
    every = hours * HOUR
    stamp = f"{home.path}/swept"
    try:
        with home.hold("the sweep by the clock", wait_seconds=0):
            age = _age(stamp)
            if age is not None and age < every:
                return every - age
            with open(stamp, "w"):  # before the sweep: a failing one is not retried at once
                os.utime(stamp)
            sweep(home)
    except WorkspaceBusy:
        pass
    return every


def _age(stamp: str) -> float | None:
    """Return the seconds since the last sweep; a clock that was set back makes it due."""
    try:
        age = time.time() - os.stat(stamp).st_mtime
    except FileNotFoundError:
        return None
    return age if age >= 0 else None
