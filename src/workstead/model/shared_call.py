"""Group commit: many threads that need the same sync share one call of it."""

from __future__ import annotations

from _thread import allocate_lock
from itertools import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class SharedCall:
    """A call whose effect covers everything that was done before it began, such as a sync of a file.

    A thread that comes while the call is running waits for its end, because it is too late for that one; all that have
    come meanwhile then share the next one. Of one process: after a fork, a child needs its own.
    """

    def __init__(self) -> None:
        self._turn = allocate_lock()
        self._tickets = count()  # `next` is atomic
        self._covered = 0  # tickets below are covered by a call that succeeded
        self._failed = 0  # tickets below may have seen a call that failed: each has to make its own

    def run(self, call: Callable[[], object]) -> None:
        """Return when the effect covers what this thread did before; raise what this thread's own call raises."""
        ticket = next(self._tickets)
        with self._turn:
            if self._failed <= ticket < self._covered:
                return
            first_not_covered = next(self._tickets)
            try:
                call()
            except BaseException:
                # A kernel reports a failed write once for each open file: who waited must ask with its own.
                self._failed = next(self._tickets)
                raise
            self._covered = first_not_covered
