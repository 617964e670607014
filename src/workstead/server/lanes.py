"""Concurrency limits per caller, so that one caller never starves the others.

The owner may use every lane. The tokens of one workspace, which its agent may hold, share a quarter of them, and those
of all workspaces together three quarters: the rest is reserved for the owner.
"""

from __future__ import annotations

from workstead.errors import TooMany


class Lanes:
    """A limit on concurrent requests of one kind. Used by the event loop's thread only."""

    def __init__(self, what: str, hint: str = "try again in a moment") -> None:
        self._what = what
        self._hint = hint
        self._taken: dict[str | None, int] = {}  # workspace id, None for the owner: lanes in use

    def __len__(self) -> int:
        return sum(self._taken.values())

    def take(self, workspace_id: str | None, most: int) -> None:
        """Occupy one lane of `most`, or raise TooMany. The caller must release it with `leave`."""
        own, every = self._taken.get(workspace_id, 0), len(self)
        if every >= most:
            raise TooMany(f"too many {self._what} at once", hint=self._hint)
        if workspace_id is not None:
            if own >= max(1, most // 4):
                raise TooMany(f"too many {self._what} of workspace {workspace_id} at once", hint=self._hint)
            if every - self._taken.get(None, 0) >= max(1, most * 3 // 4):
                raise TooMany(f"too many {self._what} of agents at once", hint=self._hint)
        self._taken[workspace_id] = own + 1

    def leave(self, workspace_id: str | None) -> None:
        """Release the lane."""
        self._taken[workspace_id] -= 1
        if not self._taken[workspace_id]:
            del self._taken[workspace_id]
