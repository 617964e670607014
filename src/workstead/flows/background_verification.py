"""Verify a whole home slowly in the background of a long-lived process, and resume after a restart.

    HOME/verification     one sealed line: the progress of the verification, and the damage found

One part is read at a time (`inspection.parts`), with a limit on megabytes per second, by a thread of the lowest
priority. Damage stays recorded until a later pass finds the part intact: `aw doctor`, the metrics and the server's log
show it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress

from workstead.core import inspection
from workstead.core.verification import read_state, state_path
from workstead.errors import DiskFull, WorkspaceBusy, WorksteadError
from workstead.model.health import Damage
from workstead.system.files.durable import replace_file
from workstead.system.files.sealed import seal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.core.home import Home
    from workstead.core.verification import VerificationState

DAY = 86400.0
AGAIN_SECONDS = 600.0  # retry interval while another process verifies
_NICE = 19
_SMALL = "the small records"


class _StoppedError(Exception):
    """The process is shutting down."""


def verify_if_due(home: Home, is_stopping: Callable[[], bool]) -> float | None:
    """Continue the verification if it is due; return the seconds until the next one, None for never."""
    days = home.settings.storage.verify_every_days
    if days is None:
        return None
    if home.is_copy:
        return AGAIN_SECONDS
    try:
        with home.hold("the verification by the clock", wait_seconds=0):
            state = read_state(home)
            left = state.ended_at + days * DAY - time.time()
            if not state.last and 0 < left <= days * DAY:
                return left
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            with suppress(_StoppedError):
                _pass(home, state, is_stopping)
    except (WorkspaceBusy, DiskFull):
        return AGAIN_SECONDS
    return AGAIN_SECONDS if is_stopping() else days * DAY


def _pass(home: Home, state: VerificationState, is_stopping: Callable[[], bool]) -> None:
    """Check every part after the last one that was read."""
    if not state.last:
        state = _note(home, state, _SMALL, _small(home))
    parts = inspection.parts(home)
    pace = _pace(home.settings.storage.verify_mb_per_second, is_stopping)
    for part in parts:
        if part.name > state.last:
            state = _note(home, state, part.name, inspection.check_part(home, part, pace))
    inspection.forget_gone(home, parts)
    known = {_SMALL, *(part.name for part in parts)}
    damage = {name: found for name, found in state.damage.items() if name in known}
    _write(home, state.replace(last="", ended_at=time.time(), damage=damage))


def _small(home: Home) -> list[Damage]:
    try:
        home.log.verify().check()
        home.check_log()
    except WorksteadError as error:
        return [Damage(what=error.message, affects=[], remedy=error.hint)]
    return inspection.find_damage(home)


def _note(home: Home, state: VerificationState, name: str, found: list[Damage]) -> VerificationState:
    damage = {**state.damage, name: [each.as_dict() for each in found]}
    if not found:
        del damage[name]
    state = state.replace(last="" if name == _SMALL else name, damage=damage)
    _write(home, state)
    return state


def _pace(megabytes: float, is_stopping: Callable[[], bool]) -> Callable[[int], None]:
    """Return a rate limiter that sleeps to stay below this speed, and raises when the process is shutting down."""
    ahead = time.monotonic()

    def pace(size: int) -> None:
        nonlocal ahead
        ahead = max(ahead, time.monotonic() - 1) + size / (megabytes * 1e6)
        while (left := ahead - time.monotonic()) > 0:
            if is_stopping():
                raise _StoppedError
            time.sleep(min(left, 0.2))

    return pace


def _write(home: Home, state: VerificationState) -> None:
    replace_file(state_path(home), seal(json.dumps(state.as_dict()).encode("ascii")))
