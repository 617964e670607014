"""Fork a workspace: copy everything, uncommitted and ignored files too, without stopping it."""

from __future__ import annotations

import os
from contextlib import suppress
from stat import S_ISLNK, S_ISREG

from workstead.core import lookup
from workstead.core.building import (
    as_ours,
    check_maker,
    fail,
    fill_options,
    materialise,
    policy_of,
    record_created,
    rename_into_place,
    wants_space,
)
from workstead.core.metadata import write_metadata
from workstead.core.mounting import attach as attach_workspace
from workstead.core.mounting import filled_in, place_of, record_layers
from workstead.core.states import base_of
from workstead.core.stopping import make_way
from workstead.errors import Conflict, Invalid, WorkspaceExists, WorksteadError
from workstead.model.config import parse_config
from workstead.model.event import WorkspaceCreating, WorkspaceRelayered
from workstead.model.names import format_id, parse_id
from workstead.model.source import Source
from workstead.model.text import word
from workstead.sources import attach
from workstead.system.files import foreign
from workstead.system.files.parts import open_part
from workstead.system.files.root import Root
from workstead.system.overlay.stack import has_space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.config import Config
    from workstead.model.policy import Policy
    from workstead.model.source import Filled, Place
    from workstead.model.workspace import Workspace

_NOTED = 20  # maximum number of uncopied paths in the notes


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
    """Create a copy-on-write copy of a workspace, as it is now or at a snapshot; later writes stay separate.

    The time does not depend on the size of the workspace. A parent with an active run is copied as it is found, and the
    notes say so. The fork has the parent's base, so that its changes are counted from their common origin.
    """
    check_maker(home, Source(kind="fork", location=parent_id), config or {})
    parent = materialise(home, lookup.get(home, parent_id))
    _check_parent(home, parent, snapshot)  # before anything is created
    workspace_id = format_id(task, agent)
    if home.log.find_live("workspace", workspace_id):
        raise WorkspaceExists.of(workspace_id)
    home.check_space()
    checked = parse_config({**parent.config, **(config or {})})
    if config and config.get("shares"):
        from workstead.core.shares import check

        check(home, checked)
    stated: dict[str, Any] = {
        "workspace_id": workspace_id,
        "agent_id": agent,
        "uid": home.new_id(),
        "workspace_path": home.workspace_path(task, agent),
        "source": f"fork:{parent.id}" + (f"@{snapshot}" if snapshot else ""),
        "config": checked.stated(),
        "home": home.id,
        "host": home.host,
        "policy": _policy(home, parent, config or {}).stated(),
    }
    make_way(home, parent)
    with home.hold(workspace_id), home.hold(parent.id):
        parent = lookup.get(home, parent.id)  # others may have forked, changed or destroyed it since the first read
        _check_parent(home, parent, snapshot)
        home.record(task, WorkspaceCreating(**stated))
        return _build(home, task, stated, parent, snapshot, checked, config or {}, progress)


def _policy(home: Home, parent: Workspace, config: dict[str, Any]) -> Policy:
    """Return the parent's policy, changed by the fork's own configuration: the parent's is already included."""
    own = parse_config({key: config[key] for key in ("policy", "allowed_operations") if key in config})
    return policy_of(home, own, lookup.policy_of(parent))


def fork_several(
    home: Home, parent_id: str, new_id: str | None, count: int, *, snapshot: str | None = None
) -> list[Workspace]:
    """Create forks under the requested id, numbered if there are several, or under the parent's id with numbers."""
    if count < 1:
        raise Invalid(f"{count} forks cannot be made", hint="one or more")
    task, agent = parse_id(new_id or parent_id)
    if new_id is not None and count == 1:
        return [fork(home, parent_id, task, agent, snapshot=snapshot)]
    made: list[Workspace] = []
    number = 0
    while len(made) < count:
        number += 1
        if home.log.find_live("workspace", format_id(task, f"{agent}-{number}")):
            continue
        try:
            made.append(fork(home, parent_id, task, f"{agent}-{number}", snapshot=snapshot))
        except WorkspaceExists:
            continue  # another process took the name
    return made


def _check_parent(home: Home, parent: Workspace, snapshot: str | None) -> None:
    if parent.state != "ready":
        raise Conflict(f"workspace {parent.id} is {parent.state}", hint=f"aw show {word(parent.id)}")
    if snapshot is not None:
        from workstead.core.snapshots import find_root

        find_root(home, parent, snapshot)


def _build(
    home: Home,
    task: str,
    stated: dict[str, Any],
    parent: Workspace,
    snapshot: str | None,
    config: Config,
    own: Mapping[str, Any],
    progress: Callable[[str], None],
) -> Workspace:
    place = place_of(home, stated["uid"], home.staging_path(stated["uid"]))
    final = place.replace(root=stated["workspace_path"])
    try:
        os.mkdir(place.root, 0o755)
        inside, notes = _enter_space(home, parent, place, config)
        filled = _fill(home, parent, inside, config, progress)
        filled = filled.replace(notes=[*filled.notes, *notes])
        digest = write_metadata(inside.root, stated, config)
        filled = filled.replace(notes=[*filled.notes, *_copy_notes(parent.path, inside.root, own)])
        rename_into_place(place.root, final.root)
        attach(filled, final)
        base = parent.base or base_of(home, filled, final, stated["uid"])
        if snapshot is not None:
            child = lookup.by_uid(home, stated["uid"]).replace(filled=filled.as_dict())
            _go_back(home, parent, child, snapshot)
    except BaseException as error:
        fail(home, task, stated, place, final, error)
        raise as_ours(error, stated["workspace_id"]) from error
    return record_created(home, task, stated, filled, digest, base)


def _enter_space(home: Home, parent: Workspace, place: Place, config: Config) -> tuple[Place, list[str]]:
    """Return where to build the fork; a copy of a user's folder gets no quota image, as it begins with all files."""
    origin = filled_in(home, parent)[0].origin
    if not wants_space(home, config) or (origin.get("kind") == "folder" and not origin.get("forked")):
        return place, []
    from workstead.core.quota_image import enter

    return enter(home, place, config)


def _fill(home: Home, parent: Workspace, place: Place, config: Config, progress: Callable[[str], None]) -> Filled:
    from workstead.sources.fork import fork as fork_files

    attach_workspace(home, parent)
    filled, parent_place = filled_in(home, parent)
    active = [record["run_id"] for record in lookup.active_runs(home, parent)]
    options = fill_options(home, config)
    if has_space(place.layers):
        options = options.replace(mechanism="overlay")  # a copy would fill the quota image before anything is added
    try:
        made, parent_filled = fork_files(filled, parent_place, place, options, progress)
    except BaseException:
        with suppress(WorksteadError):  # on a full disk `repair` does it later
            record_layers(home, parent)
        raise
    if parent_filled != filled:
        # A crash before this loses nothing: the parent's stack file has its layers.
        fact = WorkspaceRelayered(**parent.names(), filled=parent_filled.as_dict())
        home.record(parent.task_id, fact)
    missing = _copy_output(parent, place, config)
    os.mkdir(f"{place.root}/tmp", 0o755)
    if place.owner:
        for path in (place.root, f"{place.root}/tmp"):
            os.chown(path, *place.owner)
    notes = [*(f"taken while {run_id} was at work" for run_id in active), *made.notes]
    notes += [f"output/{path} is not in the fork: it could not be read, or is no file" for path in missing[:_NOTED]]
    if len(missing) > _NOTED:
        notes.append(f"{len(missing) - _NOTED} more paths of output/ are not in the fork")
    return made.replace(origin={**made.origin, "parent": parent.uid}, notes=notes)


def _copy_output(parent: Workspace, place: Place, config: Config) -> list[str]:
    """Copy the parent's `output`, which is no layer because it is small, up to the fork's own limit.

    Return the paths that could not be copied.
    """
    from workstead.system.overlay.copying import copy_cheaply

    limit = config.max_size_mb << 20 if config.max_size_mb is not None else None
    output = open_part(parent.path, "output")
    try:
        return sorted(copy_cheaply(output, f"{place.root}/output", place.owner, max_bytes=limit).skipped)
    finally:
        os.close(output)


def _copy_notes(parent: str, root: str, own: Mapping[str, Any]) -> list[str]:
    """Copy the parent's present CLAUDE.md and AGENTS.md to the fork, unless its configuration has others."""
    missing = []
    with Root.open(parent) as top:
        for name, key in (("CLAUDE.md", "claude_md"), ("AGENTS.md", "agents_md")):
            if own.get(key) is not None:
                continue
            if os.path.lexists(f"{root}/{name}"):
                os.unlink(f"{root}/{name}")
            try:
                _copy_note(top.fd, name, f"{root}/{name}")
            except FileNotFoundError:
                continue
            except PermissionError:
                missing.append(f"{name} is not in the fork: it could not be read")
    return missing


def _copy_note(top: int, name: str, target: str) -> None:
    """Copy one of them as a sparse file: an agent can make a file of any size that uses no space."""
    from workstead.system.overlay.copying import copy_bytes

    there = os.stat(name, dir_fd=top, follow_symlinks=False)
    if S_ISLNK(there.st_mode):
        os.symlink(os.readlink(name, dir_fd=top), target)
    elif S_ISREG(there.st_mode):
        reader, there = foreign.open_regular(top, name)
        try:
            with open(target, "xb") as copy:
                copy_bytes(reader, copy.fileno(), there)
        finally:
            os.close(reader)
        os.chmod(target, there.st_mode & 0o777)
    else:
        return  # not a regular file; snapshots skip it too
    if os.geteuid() == 0:
        os.lchown(target, there.st_uid, there.st_gid)
    os.utime(target, ns=(there.st_atime_ns, there.st_mtime_ns), follow_symlinks=False)


def _go_back(home: Home, parent: Workspace, child: Workspace, snapshot: str) -> None:
    """Restore the fork to a snapshot of its parent."""
    from workstead.core.snapshots import find_root
    from workstead.core.states import open_store, place_of_state, stack_finder
    from workstead.snapshots.restore import restore

    with open_store(home) as store:
        restore(store, find_root(home, parent, snapshot), place_of_state(home, child), stack_finder(home, parent))
