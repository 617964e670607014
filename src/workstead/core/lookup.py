"""Look at workspaces. Looking leaves no event."""

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
    """The full id of what a caller wrote: a bare task means its main agent."""
    return format_id(*parse_id(text))


def find(home: Home, workspace_id: str) -> Workspace | None:
    """The live workspace of this id, or None. Forbidden for an agent of another one, whether it is there or not."""
    wanted = normal_id(workspace_id)
    check_reach(home, wanted)
    record = home.log.find_live("workspace", wanted)
    return Workspace(**record) if record else None


def check_reach(home: Home, workspace_id: str) -> None:
    """Refuse an agent that was given another workspace; it does not learn which ones there are."""
    own = home.caller.agent_of
    if own and workspace_id != own:
        raise Forbidden(f"this agent has {own} and no other workspace", hint="ask the owner")


def policy_of(workspace: Workspace) -> Policy:
    """What agents may do in the workspace."""
    return from_log(workspace.policy) if workspace.policy else CAREFUL


def find_last(home: Home, workspace_id: str) -> Workspace | None:
    """The live workspace of this id, or else the one that was destroyed last."""
    found = find(home, workspace_id)
    if found:
        return found
    past = home.log.find_all("workspace", task=parse_id(workspace_id)[0], label=normal_id(workspace_id))
    # One that was never whole has never been there.
    whole = [record for record in past if record["state"] != "aborted"]
    return Workspace(**whole[-1]) if whole else None


def was_destroyed(home: Home, workspace_id: str) -> bool:
    """Whether a workspace was ever destroyed under this id, also one that came back under another."""
    task, _ = parse_id(workspace_id)
    cleanups = home.log.read(stream=task, types=("workspace_cleanup",))
    return any(event.event_data["workspace_id"] == normal_id(workspace_id) for event in cleanups)


def get(home: Home, workspace_id: str) -> Workspace:
    """The live workspace of this id, or WorkspaceNotFound."""
    found = find(home, workspace_id)
    if found is None:
        raise WorkspaceNotFound.of(normal_id(workspace_id))
    return found


def by_uid(home: Home, uid: str) -> Workspace:
    """The workspace of this incarnation, whatever became of it."""
    record = home.log.get("workspace", uid)
    if record is None:
        raise WorkspaceNotFound.of(uid)
    return Workspace(**record)


def public_mount(home: Home, workspace: Workspace) -> str:
    """Where the workspace appears to its agent; `random` is a name of its own for each workspace."""
    mount = home.settings.sandbox.public_mount
    if mount != "random":
        return mount
    from workstead.model.digest import blake2b

    return f"/mnt/{blake2b(workspace.uid.encode(), digest_size=6).hexdigest()}"


def active_runs(home: Home, workspace: Workspace) -> list[dict[str, Any]]:
    """The records of the runs that are at work in the workspace."""
    found = home.log.find_all("run", task=workspace.task_id, live_only=True)
    return [record for record in found if record["uid"] == workspace.uid]


def check_here(home: Home, workspace: Workspace) -> Workspace:
    """Refuse to work on a workspace of another home that shares our store: its files are not here."""
    if workspace.home != home.id:
        raise Conflict(
            f"workspace {workspace.id} belongs to another home: {workspace.host or 'another machine'} has its files, "
            f"at {workspace.path}",
            hint="use the machine and home that it was made on",
        )
    return workspace


def list_all(home: Home, *, task: str | None = None, gone: bool = False) -> list[Workspace]:
    """The workspaces, oldest first; `gone` adds those that were destroyed."""
    records = home.log.find_all("workspace", task=task, live_only=not gone)
    return [Workspace(**record) for record in records if record["state"] != "aborted"]


def within_reach(home: Home, workspaces: list[Workspace]) -> list[Workspace]:
    """Those that the caller may know of."""
    own = home.caller.agent_of
    return [workspace for workspace in workspaces if workspace.id == own] if own else workspaces
