"""Group commit: many threads that need the same sync share one call of it."""

from __future__ import annotations

from _thread import allocate_lock
from itertools import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class SharedCall:
    """A call whose effect covers all work done before it began, such as a file sync.

    A thread that arrives while a call is running cannot rely on it and waits for its end; all threads that arrived
    meanwhile share the next call. Per process: after a fork, a child needs its own instance.
    """

    def __init__(self) -> None:
        self._turn = allocate_lock()
        self._tickets = count()  # `next` is atomic
        self._covered = 0  # tickets below are covered by a successful call
        self._failed = 0  # tickets below may have been covered by a failed call: each thread has to make its own

    def run(self, call: Callable[[], object]) -> None:
        """Return when the effect covers this thread's earlier work; raise the error of this thread's own call."""
        ticket = next(self._tickets)
        with self._turn:
            if self._failed <= ticket < self._covered:
                return
            first_not_covered = next(self._tickets)
            try:
                call()
            except BaseException:
                # The kernel reports a failed write once per open file: each waiting thread must sync its own.
                self._failed = next(self._tickets)
                raise
            self._covered = first_not_covered
