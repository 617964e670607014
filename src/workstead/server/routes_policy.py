"""Routes for policies and approvals."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from workstead.model.public import Approval, Decision, Policy
from workstead.server.bodies import Decide, DecideAll, NewPolicy
from workstead.server.context import OWNER, Verbs, WorkspaceId
from workstead.server.encoding import answer
from workstead.server.routing import WORKSPACE, failing, make_router

router = make_router(tags=["approvals"])


@router.get("/api/approvals", response_model=list[Approval], responses=failing(404))
def list_approvals(
    verbs: Verbs, workspace_id: Annotated[str | None, Query(min_length=1, max_length=401)] = None, all: bool = False
) -> Response:
    """List the open requests of agents, oldest first; `all` adds decided ones."""
    return answer(verbs.approvals(workspace_id, all=all))


@router.get("/api/approvals/{id}", response_model=Approval, responses=failing(404))
def get_approval(verbs: Verbs, id: str) -> Response:
    """Return one request."""
    return answer(verbs.get_approval(id))


@router.get(
    "/api/approvals/{id}/preview",
    response_class=Response,
    responses={200: {"description": "A diff, names, or a command.", "content": {"text/plain": {}}}, **failing(404)},
)
def preview(verbs: Verbs, id: str) -> Response:
    """Return the effect of a request as text."""
    return Response(verbs.preview(id).encode("utf-8", "backslashreplace"), media_type="text/plain; charset=utf-8")


@router.post("/api/approvals/{id}", response_model=Approval, responses=failing(404, 409, 412), dependencies=OWNER)
def decide(verbs: Verbs, id: str, body: Decide) -> Response:
    """Approve or deny exactly this request, for one use; approving an incomplete preview needs `unseen`."""
    if body.decision == "deny":
        return answer(verbs.deny(id, comment=body.comment)[0])
    return answer(verbs.approve(id, comment=body.comment, unseen=body.unseen)[0])


@router.post("/api/approvals", response_model=list[Approval], responses=failing(404, 409, 412), dependencies=OWNER)
def decide_all(verbs: Verbs, body: DecideAll) -> Response:
    """Approve or deny every open request of a kind; `also_later` also approves later ones there."""
    choice: dict[str, Any] = {"run": body.run, "operations": body.operations, "paths": body.paths}
    if body.decision == "deny":
        return answer(verbs.deny_all(body.workspace_id, **choice, comment=body.comment))
    also: dict[str, Any] = {"also_later": body.also_later, "unseen": body.unseen}
    return answer(verbs.approve_all(body.workspace_id, **choice, **also, comment=body.comment))


@router.get(f"{WORKSPACE}/policy", response_model=Policy, responses=failing(404))
def policy(verbs: Verbs, id: WorkspaceId) -> Response:
    """Return the policy of a workspace."""
    return answer(verbs.policy(id))


@router.put(f"{WORKSPACE}/policy", response_model=Policy, responses=failing(404, 409), dependencies=OWNER)
def change_policy(verbs: Verbs, id: WorkspaceId, body: NewPolicy) -> Response:
    """Change the policy from now on: to a preset, or by differences from the present one."""
    return answer(verbs.change_policy(id, body.policy, reason=body.reason))


@router.get(f"{WORKSPACE}/judge", response_model=Decision, responses=failing(404))
def judge(
    verbs: Verbs,
    id: WorkspaceId,
    operation: Annotated[str, Query(min_length=1, max_length=100)],
    path: Annotated[str, Query(min_length=1, max_length=4096)] = ".",
    size: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
) -> Response:
    """Return the policy's decision for an agent's operation, and the rule that decides."""
    return answer(verbs.judge(id, operation, path, size=size))
