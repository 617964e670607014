"""Mount and unmount the overlays and quota image of a workspace."""

from __future__ import annotations

import os

from workstead import sources
from workstead.errors import FilesystemError
from workstead.model.event import WorkspaceRelayered
from workstead.model.source import Filled, Place
from workstead.model.text import word
from workstead.system.overlay import layers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.workspace import Workspace


def place_of(home: Home, uid: str, root: str) -> Place:
    """Return the paths that a source needs to build or mount a workspace."""
    owner = home.settings.sandbox.uid
    return Place(
        uid=uid,
        root=root,
        layers=f"{home.private}/layers/{uid}",
        cache=f"{home.path}/cache",
        owner=(owner, owner) if os.geteuid() == 0 else None,
    )


def detach(home: Home, workspace: Workspace) -> None:
    """Unmount everything of the workspace before its directory moves."""
    if workspace.filled:
        sources.detach(*filled_in(home, workspace))


def attach(home: Home, workspace: Workspace) -> None:
    """Mount everything of the workspace again, if it has mounts and they are gone."""
    check_there(workspace)
    if workspace.filled:
        sources.attach(*filled_in(home, workspace))


def check_there(workspace: Workspace) -> None:
    """Refuse a workspace whose directory is gone, deleted by hand or lost on a damaged disk."""
    if workspace.state == "ready" and not os.path.isdir(workspace.path):
        raise FilesystemError(
            f"the directory of workspace {workspace.id} is gone: {workspace.path}",
            hint=f"aw repair brings back its last snapshot; aw destroy {word(workspace.id)} forgets it",
        )


def refresh(home: Home, workspace: Workspace) -> None:
    """Remount the overlay if its folder changed so that files are hidden; no process may be using it."""
    if workspace.filled:
        sources.refresh(*filled_in(home, workspace))


def filled_in(home: Home, workspace: Workspace) -> tuple[Filled, Place]:
    """Return the source's result and the paths of the workspace, for mounting, which a copied home must not do."""
    home.check_place()
    fields: dict[str, Any] = workspace.filled
    return Filled(**fields), place_of(home, workspace.uid, workspace.path)


def record_layers(home: Home, workspace: Workspace) -> None:
    """Record that an interrupted fork has turned plain files into a layer.

    Verbs read from the record where `work/` is: for an ordinary user a mounted one is in another mount namespace, and
    its directory on the host is empty.
    """
    filled, place = filled_in(home, workspace)
    now = layers.settled(filled, place)
    if now != filled:
        layers.make_work(place)  # the files are in the layer; this is its mount point
        home.record(workspace.task_id, WorkspaceRelayered(**workspace.names(), filled=now.as_dict()))
