"""Look up workspaces. Reading records no event."""

from __future__ import annotations

from workstead.errors import Conflict, Forbidden, WorkspaceNotFound
from workstead.model.names import format_id, parse_id
from workstead.model.policy import CAREFUL, from_log
from workstead.model.workspace import Workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.names import WorkspaceId
    from workstead.model.policy import Policy


def normal_id(text: str) -> WorkspaceId:
    """Return the full id for a caller's text: a bare task means its main agent."""
    return format_id(*parse_id(text))


def find(home: Home, workspace_id: str) -> Workspace | None:
    """Return the live workspace of this id, or None.

    Raise Forbidden for an agent of another workspace, whether it exists or not.
    """
    wanted = normal_id(workspace_id)
    check_reach(home, wanted)
    record = home.log.find_live("workspace", wanted)
    return Workspace(**record) if record else None


def check_reach(home: Home, workspace_id: str) -> None:
    """Refuse an agent of another workspace, without revealing which workspaces exist."""
    own = home.caller.agent_of
    if own and workspace_id != own:
        raise Forbidden(f"this agent has {own} and no other workspace", hint="ask the owner")


def policy_of(workspace: Workspace) -> Policy:
    """Return the policy for agents in the workspace."""
    return from_log(workspace.policy) if workspace.policy else CAREFUL


def find_last(home: Home, workspace_id: str) -> Workspace | None:
    """Return the live workspace of this id, else the one that was destroyed last."""
    found = find(home, workspace_id)
    if found:
        return found
    past = home.log.find_all("workspace", task=parse_id(workspace_id)[0], label=normal_id(workspace_id))
    # A workspace whose creation failed never existed for callers.
    whole = [record for record in past if record["state"] != "aborted"]
    return Workspace(**whole[-1]) if whole else None


def was_destroyed(home: Home, workspace_id: str) -> bool:
    """Return whether a workspace was ever destroyed under this id, even if it was restored under another."""
    task, _ = parse_id(workspace_id)
    cleanups = home.log.read(stream=task, types=("workspace_cleanup",))
    return any(event.event_data["workspace_id"] == normal_id(workspace_id) for event in cleanups)


def get(home: Home, workspace_id: str) -> Workspace:
    """Return the live workspace of this id, or raise WorkspaceNotFound."""
    found = find(home, workspace_id)
    if found is None:
        raise WorkspaceNotFound.of(normal_id(workspace_id))
    return found


def by_uid(home: Home, uid: str) -> Workspace:
    """Return the workspace of this uid, in any state."""
    record = home.log.get("workspace", uid)
    if record is None:
        raise WorkspaceNotFound.of(uid)
    return Workspace(**record)


def public_mount(home: Home, workspace: Workspace) -> str:
    """Return the path at which the agent sees the workspace; `random` is a different name for each workspace."""
    mount = home.settings.sandbox.public_mount
    if mount != "random":
        return mount
    from workstead.model.digest import blake2b

    return f"/mnt/{blake2b(workspace.uid.encode(), digest_size=6).hexdigest()}"


def active_runs(home: Home, workspace: Workspace) -> list[dict[str, Any]]:
    """Return the records of the active runs in the workspace."""
    found = home.log.find_all("run", task=workspace.task_id, live_only=True)
    return [record for record in found if record["uid"] == workspace.uid]


def check_here(home: Home, workspace: Workspace) -> Workspace:
    """Refuse a workspace of another home that shares our store: its files are not here."""
    if workspace.home != home.id:
        raise Conflict(
            f"workspace {workspace.id} belongs to another home: {workspace.host or 'another machine'} has its files, "
            f"at {workspace.path}",
            hint="use the machine and home that it was made on",
        )
    return workspace


def list_all(home: Home, *, task: str | None = None, gone: bool = False) -> list[Workspace]:
    """Return the workspaces, oldest first; `gone` adds destroyed ones."""
    records = home.log.find_all("workspace", task=task, live_only=not gone)
    return [Workspace(**record) for record in records if record["state"] != "aborted"]


def within_reach(home: Home, workspaces: list[Workspace]) -> list[Workspace]:
    """Filter the workspaces that the caller may see."""
    own = home.caller.agent_of
    return [workspace for workspace in workspaces if workspace.id == own] if own else workspaces
