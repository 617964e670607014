"""Build a workspace: stage its files, rename them into place, record the result."""

from __future__ import annotations

import os

from workstead.core import lookup
from workstead.core.gate import is_agent, refuse_agents, refuse_confined
from workstead.core.metadata import write_metadata
from workstead.core.mounting import place_of
from workstead.errors import CloneFailed, FilesystemError, Unavailable, WorksteadError, from_os
from workstead.model.config import Config, parse_config
from workstead.model.event import WorkspaceCreated, WorkspaceCreateFailed, WorkspaceCreating
from workstead.model.policy import narrowed, of_settings, parse_policy
from workstead.model.quota import IMAGE, IMAGE_BELOW_MB, IMAGE_FROM_MB, METERING
from workstead.model.snapshot import EMPTY
from workstead.model.source import FillOptions, Place
from workstead.model.source import parse as parse_source
from workstead.sources import attach, driver_of
from workstead.system.files import durable
from workstead.system.overlay.stack import has_space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.policy import Policy
    from workstead.model.source import Filled, Source
    from workstead.model.value import Value
    from workstead.model.workspace import Workspace

COPIED = ("copy", "reflink", "btrfs", "plain")  # mechanisms that give a workspace its own copy of the files


def check_maker(home: Home, source: Source, config: Mapping[str, Any]) -> None:
    """Refuse what an agent may not create: any workspace if it is confined to one, files of the host, its own rules."""
    if not is_agent(home):
        return
    refuse_confined(home, "to make a workspace")
    if source.kind not in ("empty", "clone", "template", "fork") or source.location.startswith(("file:", "/", ".")):
        refuse_agents(home, f"a workspace from {source.kind}: and a path of the host")
    for key in ("policy", "allowed_operations", "shares", "mailbox"):
        if config.get(key) is not None:
            refuse_agents(home, f"{key} in the configuration")
    for key, most in default_limits(home).items():
        wanted = config.get(key)
        if isinstance(most, int) and isinstance(wanted, int) and wanted > most:
            refuse_agents(home, f"{key} in the configuration above {most}")


def policy_of(home: Home, config: Config, inherited: Policy | None = None) -> Policy:
    """Return the policy of a new workspace: inherited or from the settings, as changed by its configuration.

    `allowed_operations` of the configuration can only narrow it.
    """
    base = inherited or of_settings(home.settings.policy.as_dict())
    stated = parse_policy(config.policy, base) if config.policy is not None else base
    return narrowed(stated, config.allowed_operations)


def default_limits(home: Home) -> dict[str, Any]:
    """Return the default limits, for a workspace whose configuration has none."""
    wanted = home.settings.workspaces
    return {
        "max_size_mb": wanted.default_max_size_mb,
        "max_files": wanted.default_max_files,
        "max_file_mb": wanted.default_max_file_mb,
        "run_limits": home.settings.run_limits,
    }


def materialise(home: Home, workspace: Workspace, progress: Callable[[str], None] = lambda _: None) -> Workspace:
    """Create the files of a planned workspace; return any other workspace unchanged."""
    lookup.check_here(home, workspace)
    if workspace.state != "planned":
        return workspace
    with home.hold(workspace.id):
        workspace = lookup.get(home, workspace.id)
        if workspace.state != "planned":  # another process was first
            return workspace
        home.check_space()
        stated: dict[str, Any] = {
            "workspace_id": workspace.id,
            "agent_id": workspace.agent_id,
            "uid": workspace.uid,
            "workspace_path": workspace.path,
            "source": workspace.source,
            "config": workspace.config,
            "home": workspace.home,
            "policy": workspace.policy,
        }
        home.record(workspace.task_id, WorkspaceCreating(**stated))
        checked = parse_config(workspace.config)
        return build(home, workspace.task_id, stated, parse_source(workspace.source), checked, progress)


def build(
    home: Home, task: str, stated: dict[str, Any], source: Source, config: Config, progress: Callable[[str], None]
) -> Workspace:
    place = place_of(home, stated["uid"], home.staging_path(stated["uid"]))
    final = place.replace(root=stated["workspace_path"])
    try:
        filled, digest = _stage(home, place, stated, source, config, progress)
        rename_into_place(place.root, final.root)
        attach(filled, final)
        base = _base(home, filled, final, stated["uid"])
    except BaseException as error:
        fail(home, task, stated, place, final, error)
        raise as_ours(error, stated["workspace_id"]) from error
    return record_created(home, task, stated, filled, digest, base)


def record_created(
    home: Home, task: str, stated: dict[str, Any], filled: Filled, digest: str, base: str, *more: Value
) -> Workspace:
    """Record that the workspace exists, together with the events in `more`, and return it."""
    if filled.mechanism in COPIED and filled.origin.get("kind") != "empty":
        from workstead.system.files.measure import measure

        began = measure(f"{stated['workspace_path']}/work")
        filled = filled.replace(began_bytes=began.bytes, began_files=began.inodes)
    fact = WorkspaceCreated(
        **{key: stated[key] for key in ("workspace_id", "agent_id", "uid", "workspace_path", "source", "config")},
        filled=filled.as_dict(),
        metadata_digest=digest,
        base=base,
    )
    durable.sync_trees(*_written(home, stated, filled))
    home.record(task, fact, *more)
    return lookup.by_uid(home, stated["uid"])


def _written(home: Home, stated: dict[str, Any], filled: Filled) -> list[str]:
    """Return a directory on each disk that a new workspace was written to, inner file systems before outer ones."""
    paths = [stated["workspace_path"], home.private, home.path]
    if filled.origin.get("kind") == "worktree":
        paths.append(filled.origin["path"])  # git keeps its list of worktrees there
    return paths


def _base(home: Home, filled: Filled, final: Place, uid: str) -> str:
    if filled.mechanism == "plain" and filled.origin.get("kind") == "empty":
        return EMPTY  # decided here, so that the modules for the other kinds need not be loaded
    from workstead.core.states import base_of

    return base_of(home, filled, final, uid)


def _stage(
    home: Home, place: Place, stated: dict[str, Any], source: Source, config: Config, progress: Callable[[str], None]
) -> tuple[Filled, str]:
    try:
        os.mkdir(place.root, 0o755)
    except FileNotFoundError:
        home.make_private()
        os.mkdir(place.root, 0o755)
    if not wants_space(home, config) or source.kind == "folder":
        return _fill(home, place, stated, source, config, progress)
    from workstead.core.quota_image import enter, leave

    inside, notes = enter(home, place, config)
    try:
        filled, digest = _fill(home, inside, stated, source, config, progress)
    except Unavailable as error:  # no overlay available: a copy would fill the quota image before anything is added
        if inside == place or home.settings.storage.quota == IMAGE:
            raise
        leave(place)
        notes = [f"its size is held by metering: {error.message}"]
        filled, digest = _fill(home, place, stated, source, config, progress)
    except CloneFailed:
        if inside != place:
            leave(place)
            _make_own(place)
            write_metadata(place.root, stated, config)
        raise
    return filled.replace(notes=[*filled.notes, *notes]), digest


def wants_space(home: Home, config: Config) -> bool:
    """Return whether a workspace with this quota gets a quota image: metering is accurate enough for large quotas."""
    size, how = config.max_size_mb, home.settings.storage.quota
    if size is None or how == METERING:
        return False
    return how == IMAGE or (IMAGE_FROM_MB <= size < IMAGE_BELOW_MB and os.geteuid() == 0)


def _make_own(place: Place) -> None:
    for name in ("output", "tmp"):
        os.mkdir(f"{place.root}/{name}", 0o755)
        if place.owner:
            os.chown(f"{place.root}/{name}", *place.owner)


def _fill(
    home: Home, place: Place, stated: dict[str, Any], source: Source, config: Config, progress: Callable[[str], None]
) -> tuple[Filled, str]:
    _make_own(place)
    options = fill_options(home, config)
    if has_space(place.layers):
        options = options.replace(mechanism="overlay")
    try:
        filled = driver_of(source).fill(source, place, options, progress)
    except CloneFailed:
        write_metadata(place.root, stated, config)  # the empty workspace is kept, with its intended configuration
        raise
    digest = write_metadata(place.root, stated, config)
    if place.owner:
        os.chown(place.root, *place.owner)
    return filled, digest


def fill_options(home: Home, config: Config) -> FillOptions:
    """Return the fill options from the settings and the workspace's configuration."""
    git, identity = home.settings.git, config.git_config
    mechanism = home.settings.storage.mechanism
    return FillOptions(
        mechanism=None if mechanism == "auto" else mechanism,
        shallow=git.shallow,
        default_branch=git.default_branch,
        submodules=git.submodules,
        lfs=git.lfs,
        lfs_hosts=tuple(git.lfs_hosts),
        lfs_max_bytes=git.lfs_max_mb << 20 if git.lfs_max_mb else None,
        max_files=git.max_files,
        max_bytes=git.max_mb << 20 if git.max_mb is not None else None,
        allow_ssh=git.allow_ssh,
        private_hosts=tuple(git.private_hosts),
        allow_local=True,  # a local caller can read this disk anyway
        identity=(identity.user_name, identity.user_email) if identity and identity.enabled else None,
        templates=f"{home.path}/templates",
    )


def rename_into_place(staging: str, final: str) -> None:
    if os.path.lexists(final):
        raise FilesystemError(
            f"something that is not a known workspace stands at {final}", hint="move it away, then try again"
        )
    while True:
        try:
            os.rename(staging, final)
            return
        except FileNotFoundError:  # the task's directory is missing, or was removed at the same time
            os.makedirs(os.path.dirname(final), mode=0o700, exist_ok=True)


def fail(home: Home, task: str, stated: dict[str, Any], place: Place, final: Place, error: BaseException) -> None:
    """Record the failure and remove everything except files that are kept on purpose."""
    from workstead.core.leftovers import clear_away

    kept = isinstance(error, CloneFailed)
    if kept:
        rename_into_place(place.root, final.root)
    else:
        clear_away(home, stated["uid"], place.root, final.root)
    ours = as_ours(error, stated["workspace_id"])
    fact = WorkspaceCreateFailed(
        **{key: stated[key] for key in ("workspace_id", "agent_id", "uid", "workspace_path")},
        code=getattr(ours, "code", "interrupted"),
        reason=str(ours) or type(ours).__name__,
        kept=kept,
    )
    home.record(task, fact)


def as_ours(error: BaseException, workspace_id: str) -> BaseException:
    """Convert an operating system error to a WorksteadError; return any other error unchanged."""
    if isinstance(error, OSError) and not isinstance(error, WorksteadError):
        return from_os(error, f"workspace {workspace_id} could not be made")
    return error
