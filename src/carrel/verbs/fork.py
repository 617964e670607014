"""Make workspaces from a workspace: everything it holds, uncommitted and ignored files too, without stopping it."""

from __future__ import annotations

import os

from carrel.errors import WorkspaceExists
from carrel.model.config import parse_config
from carrel.model.event import WorkspaceCreated, WorkspaceCreating, WorkspaceRelayered
from carrel.model.names import format_id, parse_id
from carrel.model.source import FillOptions
from carrel.sources import attach
from carrel.verbs import show
from carrel.verbs.create import fail, materialise, place_of, rename_into_place, write_metadata
from carrel.verbs.destroy import attach as attach_workspace
from carrel.verbs.destroy import filled_in
from carrel.verbs.keep import make_way
from carrel.verbs.state import base_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from carrel.home import Home
    from carrel.model.workspace import Workspace


def fork(
    home: Home,
    parent_id: str,
    task: str,
    agent: str,
    *,
    snapshot: str | None = None,
    config: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Workspace:
    """A copy-on-write copy of a workspace as it is now, or was at a snapshot; neither sees the other's later writes.

    Its time does not depend on the size of the workspace. A parent with an active run is copied as it is found.
    """
    parent = materialise(home, show.get(home, parent_id))
    if snapshot is not None:
        from carrel.verbs.snapshot import find_root

        find_root(home, parent, snapshot)  # said before anything is made
    workspace_id = format_id(task, agent)
    if home.log.find_live("workspace", workspace_id):
        raise WorkspaceExists.of(workspace_id)
    home.check_space()
    checked = parse_config({**parent.config, **(config or {})})
    stated: dict[str, Any] = {
        "workspace_id": workspace_id,
        "agent_id": agent,
        "uid": home.new_id(),
        "workspace_path": home.workspace_path(task, agent),
        "source": f"fork:{parent.id}" + (f"@{snapshot}" if snapshot else ""),
        "config": checked.stated(),
        "home": home.id,
    }
    make_way(home, parent)
    with home.hold(workspace_id), home.hold(parent.id):
        home.record(task, WorkspaceCreating(**stated), durable=False)
        place = place_of(home, stated["uid"], home.staging_path(stated["uid"]))
        final = place.replace(root=stated["workspace_path"])
        try:
            filled = _fill(home, parent, place, progress)
            digest = write_metadata(place.root, stated, checked)
            rename_into_place(place.root, final.root)
            attach(filled, final)
            base = parent.base or base_of(home, filled, final)
        except BaseException as error:
            fail(home, task, stated, place, final, error)
            raise
        fact = WorkspaceCreated(
            **{key: stated[key] for key in ("workspace_id", "agent_id", "uid", "workspace_path", "source", "config")},
            filled=filled.as_dict(),
            metadata_digest=digest,
            base=base,
        )
        home.record(task, fact)
    child = show.by_uid(home, stated["uid"])
    if snapshot is not None:
        _go_back(home, parent, child, snapshot)
    return child


def fork_names(home: Home, parent_id: str, new_id: str | None, count: int) -> list[tuple[str, str]]:
    """The ids of new forks: the one asked for, with numbers if there are several, or the parent's with a number."""
    task, agent = parse_id(new_id or parent_id)
    if new_id is not None and count == 1:
        return [(task, agent)]
    names: list[tuple[str, str]] = []
    number = 1
    while len(names) < count:
        candidate = f"{agent}-{number}"
        if not home.log.find_live("workspace", format_id(task, candidate)):
            names.append((task, candidate))
        number += 1
    return names


def _fill(home: Home, parent: Workspace, place: Any, progress: Callable[[str], None]) -> Any:
    from carrel.sources.fork import fork as fork_files

    os.mkdir(place.root, 0o755)
    attach_workspace(home, parent)
    filled, parent_place = filled_in(home, parent)
    made, parent_filled = fork_files(filled, parent_place, place, FillOptions(), progress)
    if parent_filled != filled:
        fact = WorkspaceRelayered(
            workspace_id=parent.id, agent_id=parent.agent_id, uid=parent.uid, filled=parent_filled.as_dict()
        )
        home.record(parent.task_id, fact)
        attach_workspace(home, show.by_uid(home, parent.uid))
    _copy_output(f"{parent.path}/output", f"{place.root}/output")
    os.mkdir(f"{place.root}/tmp", 0o755)
    if place.owner:
        for path in (place.root, f"{place.root}/tmp"):
            os.chown(path, *place.owner)
    return made


def _copy_output(source: str, target: str) -> None:
    """`output/` is no layer: it is small, and copied."""
    from carrel.system import copying

    try:
        copying.copy_tree(source, target, how=copying.REFLINK)
    except copying.ReflinkError:
        copying.remove_tree(target)
        copying.copy_tree(source, target, how=copying.COPY)


def _go_back(home: Home, parent: Workspace, child: Workspace, snapshot: str) -> None:
    """Bring the fork to the state that its parent had."""
    from carrel.snapshots.restore import restore
    from carrel.verbs.snapshot import find_root
    from carrel.verbs.state import open_store, place_of_state, stack_finder

    with home.hold(child.id), open_store(home) as store:
        restore(store, find_root(home, parent, snapshot), place_of_state(home, child), stack_finder(home))
