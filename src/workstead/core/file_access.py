"""Resolve a path in a workspace to an open directory, and check read permission."""

from __future__ import annotations

import os
from contextlib import contextmanager

from workstead.core import lookup
from workstead.core.building import materialise
from workstead.core.mounting import attach, filled_in
from workstead.core.resolved_path import Spot
from workstead.system.files.resolved_entry import Held, OpenFile
from workstead.system.files.root import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workstead.core.gate import Gate
    from workstead.core.home import Home
    from workstead.model.workspace import Workspace
METADATA = ".aw"  # only we write it


@contextmanager
def locate(home: Home, workspace_id: str, path: str = ".") -> Iterator[Spot]:
    """Open the directory that a path is relative to, with the workspace's overlay mounted."""
    workspace = materialise(home, lookup.get(home, workspace_id))
    attach(home, workspace)
    public = lookup.public_mount(home, workspace)
    elsewhere = _work_elsewhere(home, workspace, path)
    if elsewhere is None:
        with Root.open(workspace.path, public=public, keep_out=METADATA) as root:
            yield Spot(workspace, root, path)
    else:
        rest = path[len("work") :].lstrip("/") if isinstance(path, str) else path
        with Root.open(elsewhere, public=f"{public}/work") as root:
            yield Spot(workspace, root, rest or ".", "work")


def _work_elsewhere(home: Home, workspace: Workspace, path: str) -> str | None:
    """Return the path of `work/` if it is outside the workspace: a folder in place, or in another namespace."""
    if workspace.filled.get("mechanism") not in ("none", "rootless-overlay") or path.split("/")[0] != "work":
        return None
    from workstead.system.overlay import layers

    return layers.path_of(*filled_in(home, workspace))


def judging_read(home: Home, gate: Gate, spot: Spot) -> Callable[[int, int], None] | None:
    """Return the policy check for an agent's read, called when the file is open; None for the owner."""
    if not gate.judges:
        return None

    def ready(fd: int, size: int) -> None:
        spent = gate.file(spot, "read", OpenFile(spot.root, fd), size=size).facts
        if spent:
            home.record(spot.workspace.task_id, *spent)

    return ready


def readable_below(gate: Gate, spot: Spot) -> Callable[[str], bool] | None:
    """Return a filter of the paths below the located one that may be read without approval; None means all."""
    may = gate.readable(spot.workspace)
    if may is None:
        return None
    try:
        top = spot.place_of(spot.path)
    except OSError as error:
        raise spot.root.failure(error, spot.path) from None
    return lambda path: may(f"{top}/{path}" if top != "." else path)


def fingerprint(home: Home, workspace_id: str, place: str) -> str:
    """Return a fingerprint of the entry at a path, to detect changes; "" if there is none."""
    with locate(home, workspace_id, place) as spot:
        try:
            folder, name = spot.root.open_parent(spot.root.check(spot.path))
        except (FileNotFoundError, NotADirectoryError):
            return ""
        try:
            return Held(spot.root, folder, name).fingerprint()
        finally:
            os.close(folder)
