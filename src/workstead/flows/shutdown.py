"""Shut down an opener of a home: leave everything, or clean up its own runs and workspaces if the settings say so."""

from __future__ import annotations

import time

from workstead.core import lookup
from workstead.errors import WorksteadError
from workstead.verbs.destroy import destroy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workstead.core.home import Home

SECONDS = 5.0
GRACE_SECONDS = 3.0


def shutdown(home: Home, made: Iterable[str], started: Sequence[str] = (), *, seconds: float = SECONDS) -> list[str]:
    """Stop the runs and trash the workspaces of this opener, as the settings say; return the ids of trashed workspaces.

    Runs continue unless `sandbox.stop_on_shutdown` is set; then those that this opener started are stopped. With
    `workspaces.cleanup_on_shutdown` the workspaces that it created are moved to the trash. Both within the timeout.

    A workspace that is busy or cannot be moved stays: a shutdown never forces anything.
    """
    end = time.monotonic() + seconds
    if home.settings.sandbox.stop_on_shutdown and started:
        from workstead.core.stopping import stop_all

        stop_all(home, started, grace_seconds=min(GRACE_SECONDS, seconds * 0.6), seconds=seconds)
    if not home.settings.workspaces.cleanup_on_shutdown:
        return []
    gone = []
    for workspace_id in made:
        if time.monotonic() >= end:
            break
        if lookup.find(home, workspace_id):
            try:
                destroy(home, [workspace_id], reason="shutdown")
            except WorksteadError:
                continue
            gone.append(workspace_id)
    return gone
