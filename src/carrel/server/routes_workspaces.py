"""Workspaces: make, list, look, destroy."""

from __future__ import annotations

from starlette.responses import Response

from carrel.answers import Usage, Workspace
from carrel.errors import Forbidden, RunNotFound, WorkspaceBusy
from carrel.model.names import format_id, parse_id
from carrel.server.bodies import NewWorkspace
from carrel.server.front import OWNER, Asker, Verbs, WorkspaceId, check_reach
from carrel.server.reach import shown_workspace
from carrel.server.routing import WORKSPACE, failing, make_router
from carrel.server.wire import answer

router = make_router(tags=["workspaces"])


@router.post(
    "/api/workspaces",
    status_code=201,
    response_model=Workspace,
    responses=failing(404, 409, 502, 504, 507),
    dependencies=OWNER,
)
def create_workspace(verbs: Verbs, body: NewWorkspace) -> Response:
    """Make a workspace. Without an id a fresh task name is made."""
    made = verbs.create(body.source, task=body.task, agent=body.agent, id=body.id, config=body.config, lazy=body.lazy)
    return answer(made, 201, {"location": address(made.task_id, made.agent_id)})


@router.get("/api/workspaces", response_model=list[Workspace], responses=failing())
def list_workspaces(verbs: Verbs, asker: Asker, task_id: str | None = None, all: bool = False) -> Response:
    """The workspaces, oldest first; `all` adds those that were destroyed."""
    found = verbs.list(task_id, all=all)
    if asker.workspace_id is not None:
        found = [each for each in found if each.id == asker.workspace_id]
        return answer([shown_workspace(asker, each, verbs.public_mount(each.id)) for each in found])
    return answer(found)


@router.get("/api/workspaces/{task}", response_model=Workspace, responses=failing(404))
def get_main_workspace(verbs: Verbs, asker: Asker, task: str) -> Response:
    """The workspace `TASK/main`."""
    return get_workspace(verbs, asker, check_reach(asker, format_id(*parse_id(task))))


@router.delete("/api/workspaces/{run_id}", response_model=list[Workspace], responses=failing(404, 409, 507))
def destroy_by_run(verbs: Verbs, asker: Asker, run_id: str, force: bool = False, reason: str = "requested") -> Response:
    """Move the workspace of a run to the trash, or that of a bare task; 409 while the run is active."""
    try:
        run = verbs.get_run(run_id)
    except RunNotFound:
        return destroy_workspace(verbs, asker, check_reach(asker, format_id(*parse_id(run_id))), force, reason)
    if run.is_active:  # also with force: a run is stopped by name, and not by the way
        check_reach(asker, run.workspace_id)
        raise WorkspaceBusy(f"run {run_id} is active", hint=f"POST /api/runs/{run_id}/stop")
    return destroy_workspace(verbs, asker, check_reach(asker, run.workspace_id), force, reason)


@router.get(WORKSPACE, response_model=Workspace, responses=failing(404))
def get_workspace(verbs: Verbs, asker: Asker, id: WorkspaceId) -> Response:
    """One workspace."""
    found = verbs.get(id)
    return answer(found if asker.workspace_id is None else shown_workspace(asker, found, verbs.public_mount(id)))


@router.delete(WORKSPACE, response_model=list[Workspace], responses=failing(404, 409, 507))
def destroy_workspace(
    verbs: Verbs, asker: Asker, id: WorkspaceId, force: bool = False, reason: str = "requested"
) -> Response:
    """Move a workspace to the trash; refused while it is busy, or holds changes that nobody has taken over."""
    if asker.workspace_id is not None:
        raise Forbidden("this is for the owner", hint="the token is good for one workspace only")
    return answer(verbs.destroy(id, force=force, reason=reason))


@router.get(f"{WORKSPACE}/usage", response_model=Usage, responses=failing(404))
def workspace_usage(verbs: Verbs, id: WorkspaceId) -> Response:
    """What a workspace takes on the disk, and how full the disk is."""
    return answer(verbs.usage(id))


def address(task: str, agent: str) -> str:
    """Where a workspace is found."""
    from urllib.parse import quote

    parts = [quote(part, safe="") for part in (task, agent)]
    # A segment of dots alone would be taken for a step up by whoever tidies addresses.
    return "/api/workspaces/" + "/".join(part.replace(".", "%2E") if set(part) == {"."} else part for part in parts)
