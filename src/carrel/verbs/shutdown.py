"""End an opener's work: keep everything, or clean up what it made if the settings say so."""

from __future__ import annotations

import time

from carrel.errors import CarrelError
from carrel.verbs import show
from carrel.verbs.destroy import destroy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrel.home import Home

SECONDS = 5.0


def shutdown(home: Home, made: Iterable[str], *, seconds: float = SECONDS) -> list[str]:
    """With `workspaces.cleanup_on_shutdown`, move to the trash what this opener made, for as long as the time lasts.

    What is busy or cannot be moved stays: a shutdown never forces anything. Gives the ids that went.
    """
    if not home.settings.workspaces.cleanup_on_shutdown:
        return []
    end = time.monotonic() + seconds
    gone = []
    for workspace_id in made:
        if time.monotonic() >= end:
            break
        if show.find(home, workspace_id):
            try:
                destroy(home, [workspace_id], reason="shutdown")
            except CarrelError:
                continue
            gone.append(workspace_id)
    return gone
