"""Routes for the home and the machine: health, disk usage, folders, templates, VMs, messages, tokens, and the session
of a token."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from workstead.errors import Forbidden
from workstead.model.public import (
    Finding,
    Folder,
    Message,
    Mounted,
    Probe,
    RecentFolder,
    Snapshot,
    Template,
    Token,
    Usage,
    Workspace,
)
from workstead.model.value import Value
from workstead.server.bodies import ChosenFolder, NewMessage, NewSnapshot, NewTemplate, NewToken, Repair, Restore
from workstead.server.context import OWNER, Asker, Here, Verbs, WorkspaceId
from workstead.server.encoding import answer
from workstead.server.idempotency import AskedOnce, reply
from workstead.server.routes_states import RestoreDone, list_snapshots, restore_snapshot, take_snapshot
from workstead.server.routes_workspaces import get_workspace
from workstead.server.routing import WORKSPACE, failing, make_router

router = make_router(tags=["machine"])


class Health(Value):
    """The server answers; without a token it discloses nothing else."""

    status: str


class Proof(Value):
    """How much of the log was verified; a defect is an error response."""

    events: int
    streams: int
    records: int


class TokenMade(Value):
    """A new token. The secret is returned only here."""

    token: Token
    text: str


@router.get("/healthz", response_model=Health, responses={status: failing()[status] for status in (400, 421, 431)})
async def healthz() -> Response:
    """Return whether the server answers."""
    return answer(Health(status="ok"))


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"description": "As Prometheus reads it.", "content": {"text/plain": {}}}, **failing()},
    dependencies=OWNER,
)
def metrics(front: Here) -> Response:
    """Return Prometheus metrics: workspaces, runs, events, requests and their durations, disk."""
    return Response(front.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/api/doctor", response_model=list[Probe], responses=failing(), dependencies=OWNER)
def doctor(verbs: Verbs) -> Response:
    """Return the capabilities of this machine."""
    return answer(verbs.doctor())


@router.get("/api/usage", response_model=Usage, responses=failing(), dependencies=OWNER)
def usage(verbs: Verbs) -> Response:
    """Return the disk usage."""
    return answer(verbs.usage())


@router.get("/api/recent", response_model=list[RecentFolder], responses=failing(), dependencies=OWNER)
def recent(verbs: Verbs) -> Response:
    """Return recently selected folders, the last one first."""
    return answer(verbs.recent())


@router.post("/api/recent", response_model=RecentFolder, responses=failing(404), dependencies=OWNER)
def open_folder(verbs: Verbs, body: ChosenFolder) -> Response:
    """Select a folder of the server's machine."""
    return answer(verbs.open_folder(body.folder))


@router.get("/api/templates", response_model=list[Template], responses=failing(), dependencies=OWNER)
def templates(verbs: Verbs) -> Response:
    """List the templates."""
    return answer(verbs.templates())


@router.post(
    "/api/templates", status_code=201, response_model=Template, responses=failing(404, 409, 507), dependencies=OWNER
)
def add_template(verbs: Verbs, body: NewTemplate) -> Response:
    """Add a folder, or a workspace's files, as a template."""
    return answer(verbs.add_template(body.name, folder=body.folder, workspace=body.workspace), 201)


@router.delete("/api/templates/{name}", status_code=204, responses=failing(404), dependencies=OWNER)
def remove_template(verbs: Verbs, name: str) -> Response:
    """Remove a template."""
    verbs.remove_template(name)
    return Response(status_code=204)


@router.get("/api/folders", response_model=Folder, responses=failing(404), dependencies=OWNER)
def browse(verbs: Verbs, path: Annotated[str, Query(min_length=1, max_length=4096)]) -> Response:
    """Return the content of a folder of the server's machine, for a folder chooser."""
    return answer(verbs.browse(path))


@router.get("/api/verify", response_model=Proof, responses=failing(), dependencies=OWNER)
def verify(verbs: Verbs) -> Response:
    """Verify the log: its hash chains and its views."""
    found = verbs.verify()
    return answer(Proof(events=found.events, streams=found.streams, records=found.records))


@router.post("/api/repair", response_model=list[Finding], responses=failing(507), dependencies=OWNER)
def repair(verbs: Verbs, body: Repair) -> Response:
    """Repair everything that can be repaired without loss."""
    return answer(verbs.repair(rebuild_views=body.rebuild_views, accept_log=body.accept_log))


# -- machines of workspaces --------------------------------------------------------------------------------------------


@router.get("/api/machines", response_model=list[Mounted], responses=failing(404), dependencies=OWNER)
def machines(verbs: Verbs, workspace_id: Annotated[str | None, Query(min_length=1, max_length=401)] = None) -> Response:
    """List the running virtual machines of the sandbox `vm`, of one workspace or of all."""
    return answer(verbs.machines(workspace_id))


@router.post(f"{WORKSPACE}/machine", response_model=list[Mounted], responses=failing(404, 409, 507), dependencies=OWNER)
def mount(verbs: Verbs, id: WorkspaceId) -> Response:
    """Start the workspace's virtual machine and keep it for later commands."""
    return answer(verbs.mount(id))


@router.delete(f"{WORKSPACE}/machine", response_model=list[Mounted], responses=failing(404, 409), dependencies=OWNER)
def unmount(verbs: Verbs, id: WorkspaceId) -> Response:
    """Stop the virtual machines of a workspace; 409 while a command is running in one."""
    return answer(verbs.unmount(id))


# -- mail --------------------------------------------------------------------------------------------------------------


@router.get(f"{WORKSPACE}/messages", response_model=list[Message], responses=failing(404))
def messages(verbs: Verbs, id: WorkspaceId) -> Response:
    """List the messages to a workspace, oldest first."""
    return answer(verbs.messages(id))


@router.post(f"{WORKSPACE}/messages", status_code=201, response_model=Message, responses=failing(404, 409, 507))
def send_message(verbs: Verbs, once: AskedOnce, asker: Asker, id: WorkspaceId, body: NewMessage) -> Response:
    """Send a message to a workspace."""
    if asker.workspace_id is not None and body.sender is not None:
        raise Forbidden("only the owner writes in another's name")
    sender = body.sender if asker.workspace_id is None else asker.workspace_id
    return reply(once.do(verbs, "send", id, {"id": id, "text": body.text, "sender": sender}), 201)


# -- tokens ------------------------------------------------------------------------------------------------------------


@router.get("/api/tokens", response_model=list[Token], responses=failing(404), dependencies=OWNER)
def tokens(verbs: Verbs, workspace_id: Annotated[str | None, Query(min_length=1, max_length=401)] = None) -> Response:
    """List the tokens, also revoked and expired ones."""
    return answer(verbs.tokens(workspace_id))


@router.post("/api/tokens", status_code=201, response_model=TokenMade, responses=failing(404), dependencies=OWNER)
def create_token(verbs: Verbs, body: NewToken) -> Response:
    """Create a token for one workspace."""
    token, text = verbs.create_token(body.workspace_id, label=body.label, expires_seconds=body.expires_seconds)
    return answer(TokenMade(token=token, text=text), 201)


@router.delete("/api/tokens/{token_id}", response_model=Token, responses=failing(404), dependencies=OWNER)
def revoke_token(verbs: Verbs, token_id: str) -> Response:
    """Revoke a token."""
    return answer(verbs.revoke_token(token_id))


# -- the session of a token --------------------------------------------------------------------------------------------


def _own(asker: Asker) -> str:
    if asker.workspace_id is None:
        raise Forbidden("the owner's token has no workspace of its own", hint="use one of aw token create ID")
    return asker.workspace_id


@router.get("/api/session/workspace", response_model=Workspace, responses=failing())
def session_workspace(verbs: Verbs, asker: Asker) -> Response:
    """Return the workspace of the token."""
    return get_workspace(verbs, asker, _own(asker))


@router.get("/api/session/workspace/snapshots", response_model=list[Snapshot], responses=failing())
def session_snapshots(verbs: Verbs, asker: Asker) -> Response:
    """List its snapshots."""
    return list_snapshots(verbs, _own(asker))


@router.post("/api/session/workspace/snapshots", status_code=201, response_model=Snapshot, responses=failing())
def session_snapshot(verbs: Verbs, once: AskedOnce, asker: Asker, body: NewSnapshot) -> Response:
    """Take a snapshot of it."""
    return take_snapshot(verbs, once, _own(asker), body)


@router.post("/api/session/workspace/restore", response_model=RestoreDone, responses=failing())
def session_restore(verbs: Verbs, once: AskedOnce, asker: Asker, body: Restore) -> Response:
    """Restore one of its snapshots."""
    return restore_snapshot(verbs, once, _own(asker), body)
