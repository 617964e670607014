"""Routes for workspaces: create, list, show, destroy."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from workstead.errors import InvalidId, RunNotFound, WorkspaceBusy
from workstead.model.names import DEFAULT_AGENT, format_id, parse_id
from workstead.model.public import Summary, Usage, Workspace, WorkspaceUsage
from workstead.model.value import Value
from workstead.server.bodies import Destroy, NewWorkspace, Pin, Prompt
from workstead.server.context import OWNER, Asker, Here, Verbs, WorkspaceId, check_reach
from workstead.server.encoding import answer
from workstead.server.idempotency import ACCEPTED, AskedOnce, field, reply
from workstead.server.redaction import shown_workspace
from workstead.server.routing import WORKSPACE, failing, make_router

router = make_router(tags=["workspaces"])


class Place(Value):
    """The paths of a workspace."""

    path: str
    public: str


class Text(Value):
    """A text."""

    text: str


Reason = Annotated[str, Query(max_length=1000)]


@router.post(
    "/api/workspaces",
    status_code=201,
    response_model=Workspace,
    responses={**ACCEPTED, **failing(404, 409, 502, 504, 507)},
    dependencies=OWNER,
)
def create_workspace(verbs: Verbs, front: Here, once: AskedOnce, body: NewWorkspace) -> Response:
    """Create a workspace. Without an id, a new task name is generated."""
    asked = body.model_dump(exclude_unset=True)
    id = body.id
    if id is None:
        task = front.workspaces.fresh_name() if body.task is None else body.task
        id = format_id(task, DEFAULT_AGENT if body.agent is None else body.agent)
    elif body.task is not None or body.agent is not None:
        raise InvalidId("an id and a task or agent were given", hint="give one or the other")
    id = format_id(*parse_id(id))
    arguments = {"source": body.source, "id": id, "config": body.config, "lazy": body.lazy}
    made = once.do(verbs, "create", id, arguments, asked=asked, detachable=True)
    if isinstance(made, Response):
        return made
    return reply(made, 201, {"location": address(field(made, "task_id"), field(made, "agent_id"))})


@router.get("/api/workspaces", response_model=list[Workspace], responses=failing())
def list_workspaces(verbs: Verbs, asker: Asker, task_id: str | None = None, all: bool = False) -> Response:
    """List the workspaces, oldest first; `all` adds destroyed ones."""
    found = verbs.list(task_id, all=all)
    if asker.workspace_id is not None:
        found = [each for each in found if each.id == asker.workspace_id]
        return answer([shown_workspace(asker, each, verbs.public_mount(each.id)) for each in found])
    return answer(found)


@router.get("/api/status", response_model=list[Summary], responses=failing(), dependencies=OWNER)
def status(verbs: Verbs, task_id: str | None = None) -> Response:
    """Return what each workspace does, how its last run ended and what to do next, without reading its files."""
    return answer(verbs.overview(task_id))


@router.delete("/api/workspaces", response_model=list[Workspace], responses=failing(404, 409, 507), dependencies=OWNER)
def destroy_task(
    verbs: Verbs,
    task_id: Annotated[str, Query(min_length=1, max_length=200)],
    force: bool = False,
    reason: Reason = "requested",
) -> Response:
    """Move every workspace of a task to the trash, as one operation."""
    return answer(verbs.destroy_task(task_id, force=force, reason=reason))


@router.post("/api/destroy", response_model=list[Workspace], responses=failing(404, 409, 507), dependencies=OWNER)
def destroy_several(verbs: Verbs, body: Destroy) -> Response:
    """Move workspaces to the trash, as one operation."""
    return answer(verbs.destroy(*body.ids, force=body.force, reason=body.reason))


@router.get("/api/workspaces/{task}", response_model=Workspace, responses=failing(404))
def get_main_workspace(verbs: Verbs, asker: Asker, task: str) -> Response:
    """Return the workspace `TASK/main`."""
    return get_workspace(verbs, asker, check_reach(asker, format_id(*parse_id(task))))


@router.delete(
    "/api/workspaces/{run_id}", response_model=list[Workspace], responses=failing(404, 409, 507), dependencies=OWNER
)
def destroy_by_run(verbs: Verbs, run_id: str, force: bool = False, reason: Reason = "requested") -> Response:
    """Move the workspace of a run, or of a bare task, to the trash; 409 while the run is active."""
    try:
        run = verbs.get_run(run_id)
    except RunNotFound:
        return destroy_workspace(verbs, format_id(*parse_id(run_id)), force, reason)
    if run.is_active:  # also with force: a run must be stopped explicitly
        raise WorkspaceBusy(f"run {run_id} is active", hint=f"POST /api/runs/{run_id}/stop")
    return destroy_workspace(verbs, run.workspace_id, force, reason)


@router.get(WORKSPACE, response_model=Workspace, responses=failing(404))
def get_workspace(verbs: Verbs, asker: Asker, id: WorkspaceId) -> Response:
    """Return one workspace."""
    found = verbs.get(id)
    return answer(found if asker.workspace_id is None else shown_workspace(asker, found, verbs.public_mount(id)))


@router.delete(WORKSPACE, response_model=list[Workspace], responses=failing(404, 409, 507), dependencies=OWNER)
def destroy_workspace(verbs: Verbs, id: WorkspaceId, force: bool = False, reason: Reason = "requested") -> Response:
    """Move a workspace to the trash; refused while it is busy, or has unapplied changes."""
    return answer(verbs.destroy(id, force=force, reason=reason))


@router.get(f"{WORKSPACE}/usage", response_model=Usage | WorkspaceUsage, responses=failing(404))
def workspace_usage(verbs: Verbs, id: WorkspaceId, alone: bool = False) -> Response:
    """Return the disk usage of a workspace, and of the disk; with `alone`, of the workspace only."""
    return answer(verbs.usage_of(id) if alone else verbs.usage(id))


@router.get(f"{WORKSPACE}/path", response_model=Place, responses=failing(404, 409), dependencies=OWNER)
def workspace_path(verbs: Verbs, id: WorkspaceId) -> Response:
    """Return the path of the workspace on the server's machine, ready for use, and the path that its agent sees."""
    return answer(Place(path=verbs.path(id), public=verbs.public_mount(id)))


@router.get(f"{WORKSPACE}/origin", response_model=list[str], responses=failing(404), dependencies=OWNER)
def origin_changes(verbs: Verbs, id: WorkspaceId, limit: Annotated[int, Query(ge=1, le=100_000)] = 100) -> Response:
    """List the paths in the folder of an overlay that changed since the workspace was created."""
    return answer(verbs.origin_changes(id, limit=limit))


@router.post(f"{WORKSPACE}/prompt", response_model=Text, responses=failing(404))
def adapt_prompt(verbs: Verbs, id: WorkspaceId, body: Prompt) -> Response:
    """Replace old mount names in a text by the path at which the agent sees this workspace."""
    return answer(Text(text=verbs.adapt_prompt(body.text, id)))


@router.post(f"{WORKSPACE}/pin", response_model=Workspace, responses=failing(404, 409), dependencies=OWNER)
def pin(verbs: Verbs, id: WorkspaceId, body: Pin) -> Response:
    """Exempt a workspace from sweeps."""
    return answer(verbs.pin(id, reason=body.reason))


@router.delete(f"{WORKSPACE}/pin", response_model=Workspace, responses=failing(404, 409), dependencies=OWNER)
def unpin(verbs: Verbs, id: WorkspaceId) -> Response:
    """Make a workspace subject to sweeps again."""
    return answer(verbs.unpin(id))


def address(task: str, agent: str) -> str:
    """Return the URL path of a workspace."""
    from urllib.parse import quote

    parts = [quote(part, safe="") for part in (task, agent)]
    # Software that normalizes URLs would remove a segment of dots alone.
    return "/api/workspaces/" + "/".join(part.replace(".", "%2E") if set(part) == {"."} else part for part in parts)
