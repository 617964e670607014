"""Sweep and verify by the clock, for a process that stays: whoever is first does it for all that serve this home."""

from __future__ import annotations

import os
import time

from workstead.errors import WorkspaceBusy
from workstead.flows.sweep import HOUR, sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home


def sweep_if_due(home: Home) -> float | None:
    """Sweep if the last time is `workspaces.sweep_every_hours` ago; gives the seconds until the next, None for never.

    The time is the same that `destroy` looks at, who has the trash swept once an hour."""
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
            with open(stamp, "w"):  # first: one that fails is not tried again at once
                os.utime(stamp)
            sweep(home)
    except WorkspaceBusy:
        pass
    return every


def _age(stamp: str) -> float | None:
    """Seconds since the last sweep; a clock that was set back makes it due."""
    try:
        age = time.time() - os.stat(stamp).st_mtime
    except FileNotFoundError:
        return None
    return age if age >= 0 else None
