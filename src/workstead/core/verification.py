"""The state of the background verification: its progress, and the damage that it found."""

from __future__ import annotations

import json
from contextlib import suppress

from workstead.model.health import Damage
from workstead.model.value import Value
from workstead.system.files.sealed import unseal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.core.home import Home


class VerificationState(Value):
    """Progress of the background verification."""

    last: str = ""  # the part that was checked last; "" between two passes
    ended_at: float = 0.0  # of the last complete pass
    damage: dict[str, list[dict[str, Any]]] = {}  # by part

    def found(self) -> list[Damage]:
        """Return all known damage."""
        return [Damage(**each) for name in sorted(self.damage) for each in self.damage[name]]


def read_state(home: Home) -> VerificationState:
    """Read the state of the background verification; empty if its file is missing or damaged."""
    with suppress(OSError, ValueError, TypeError), open(state_path(home), "rb") as file:
        text = unseal(file.read())
        return VerificationState(**json.loads(text)) if text else VerificationState()
    return VerificationState()


def state_path(home: Home) -> str:
    return f"{home.path}/verification"
