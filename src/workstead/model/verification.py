"""The result of verifying the log."""

from __future__ import annotations

from workstead.errors import LogBroken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Verification:
    """The result of `verify`: the number of checked items, and the first error, if any."""

    def __init__(self, events: int, streams: int, records: int, broken: dict[str, Any] | None) -> None:
        self.events = events
        self.streams = streams
        self.records = records
        self.broken = broken

    def check(self) -> None:
        """Raise LogBroken if there is an error."""
        if self.broken:
            raise LogBroken(
                f"the event log is broken{self._place()}: {self.broken['problem']}",
                hint="keep a copy of the home first; views alone are mended by aw repair --rebuild-views",
                details=self.broken,
            )

    def _place(self) -> str:
        assert self.broken
        position, stream = self.broken["position"], self.broken["stream"]
        return f" at position {position}" if position else f" in stream {stream}" if stream else ""
