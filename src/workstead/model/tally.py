"""Rate limit for repeated events: count all, record few, because an agent decides how often it is refused."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Key = tuple[str, ...]

MOST_KEYS = 100


class Tally:
    """Decide per key when a count is due to be recorded: at the first, second, fourth, eighth… occurrence."""

    def __init__(self) -> None:
        self._seen: dict[Key, int] = {}
        self._said: dict[Key, int] = {}

    def holds(self, key: Key) -> bool:
        """Return whether the key is known or there is capacity for one more; count other keys under a common one."""
        return key in self._seen or len(self._seen) < MOST_KEYS

    def add(self, key: Key) -> int:
        """Count one occurrence; return the number to record now, or 0."""
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        return self._take(key) if seen & (seen - 1) == 0 else 0

    def rest(self) -> Iterator[tuple[Key, int]]:
        """Return the counts not yet recorded, at the end."""
        for key in self._seen:
            if count := self._take(key):
                yield key, count

    def _take(self, key: Key) -> int:
        count = self._seen[key] - self._said.get(key, 0)
        self._said[key] = self._seen[key]
        return count
