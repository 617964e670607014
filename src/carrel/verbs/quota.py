"""How much a workspace may take, and how much it does: what it added itself, never what it shares.

Exclusive is the upper layer of a view, or all of `work/` where nothing is shared, and `output/` and `tmp/`.
"""

from __future__ import annotations

import os

from carrel.system.measure import Measured, measure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from carrel.home import Home
    from carrel.model.workspace import Workspace

_VIEWS = ("overlay", "rootless-overlay", "none")  # mechanisms whose `work/` is not the workspace's own


def exclusive_paths(home: Home, workspace: Workspace) -> list[str]:
    """The directories that nothing but this workspace takes space in."""
    root = workspace.trash_path if workspace.state == "destroyed" else workspace.path
    paths = [f"{root}/output", f"{root}/tmp"]
    if workspace.filled.get("mechanism") not in _VIEWS:
        return [*paths, f"{root}/work"]
    layers = f"{home.private}/layers/{workspace.uid}"
    try:
        uppers = [f"{layers}/{name}" for name in os.listdir(layers) if name.startswith("upper.")]
    except FileNotFoundError:
        uppers = []
    return [*paths, *uppers]


def exclusive(home: Home, workspace: Workspace) -> Measured:
    """What the workspace takes, measured now; costs as much as it has added, whatever it shares."""
    return measure(*exclusive_paths(home, workspace))
